//! The API over TLS: HTTP/1.1 and HTTP/2, who comes in must be known.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::auth::{Credentials, certificate};
use crate::http::{Caller, Gate, Limits, Remote, Service, Unsent};
use crate::metrics::{Metrics, Reason};
use crate::server::{Server, Shared};
use crate::tls::{MakeCertificates, Tls};

mod connections;

use connections::Connections;
pub(crate) use connections::Visitor;

/// How long requests in flight may take after the stop was asked for.
const DRAIN: Duration = Duration::from_secs(10);
/// The pause after the system refused a connection for want of descriptors: asking again at once would spin.
const REFUSED: Duration = Duration::from_millis(100);
/// A kept HTTP/1 connection without a request is closed after this time (upstream's).
const IDLE: Duration = Duration::from_secs(90);
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(30);
/// Most bytes of one request's head (HTTP/1); tokens and selectors are far smaller.
const MAX_HEAD: usize = 64 << 10;
/// One connection may have this part of all unsent bytes at each level: a quarter of the level's.
const UNSENT_PART: usize = 16;

/// How often a quiet server looks for events whose time is over.
const EXPIRY: Duration = Duration::from_secs(60);

/// What is between the listener and the API: certificates, tokens, limits.
#[derive(Debug)]
pub struct Front {
    tls: Arc<ServerConfig>,
    credentials: Arc<Credentials>,
    limits: Limits,
}

impl Front {
    /// Lets in who has a certificate of `tls` or a token of `credentials`.
    pub fn new(tls: &Tls, credentials: Credentials, limits: Limits) -> Result<Self, MakeCertificates> {
        Ok(Self { tls: tls.config()?, credentials: Arc::new(credentials), limits })
    }
}

/// What every connection begins with.
#[derive(Clone)]
struct Door {
    acceptor: TlsAcceptor,
    credentials: Arc<Credentials>,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
    closing: watch::Receiver<bool>,
}

impl Server {
    /// Serves `listener` until `shutdown`, then ends watches and lets requests in flight finish.
    pub async fn serve(&self, listener: TcpListener, front: Front, shutdown: impl Future<Output = ()>) {
        self.shared.core.access.use_credentials(front.credentials.clone());
        let metrics = &self.shared.core.metrics;
        let (close, closing) = watch::channel(false);
        let door = Door {
            acceptor: TlsAcceptor::from(front.tls),
            credentials: front.credentials,
            gate: Arc::new(Gate::new(front.limits)),
            shared: self.shared.clone(),
            closing,
        };
        let visitors = Connections::new(&front.limits);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut expiry = tokio::time::interval(EXPIRY);
        let mut paused_until = None;
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                _ = expiry.tick() => self.shared.expire_events(),
                Some(_ended) = connections.join_next() => {}
                () = until(paused_until), if paused_until.is_some() => paused_until = None,
                accepted = listener.accept(), if paused_until.is_none() => match accepted {
                    Ok((stream, peer)) => match visitors.admit(peer.ip().to_canonical()) {
                        Some(visitor) => {
                            let door = door.clone();
                            connections.spawn(async move {
                                if let Err(error) = connection(stream, visitor, door).await {
                                    tracing::debug!(%peer, %error, "a connection ended early");
                                }
                            });
                        }
                        None => metrics.turned_away(Reason::TooMany),
                    },
                    Err(error) => {
                        let sent_away = visitors.make_room();
                        tracing::warn!(%error, sent_away, "cannot accept a connection");
                        paused_until = Some(Instant::now() + REFUSED);
                    }
                },
            }
        }
        drop(listener);
        close.send_replace(true);
        let drained = tokio::time::timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!(left = connections.len(), "some connections did not end in time and are cut");
            connections.shutdown().await;
        }
    }
}

async fn until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

/// Why a connection is cut.
enum Cut {
    Late,
    SentAway,
    Unread,
}

impl Cut {
    fn counted(self, metrics: &Metrics) -> io::Error {
        let (reason, why) = match self {
            Self::Late => (Reason::Late, "it did not say in time who it is"),
            Self::SentAway => (Reason::TooMany, "others needed its place before it said who it is"),
            Self::Unread => (Reason::Unread, "its client did not read"),
        };
        metrics.turned_away(reason);
        io::Error::new(io::ErrorKind::TimedOut, why)
    }
}

async fn connection(stream: TcpStream, visitor: Visitor, door: Door) -> io::Result<()> {
    // Answers and watch events are small and must not wait for more.
    stream.set_nodelay(true)?;
    let known_by = Instant::now() + door.gate.limits.header_timeout;
    let stream = tokio::select! {
        biased;
        () = visitor.sent_away() => return Err(Cut::SentAway.counted(&door.shared.core.metrics)),
        () = tokio::time::sleep_until(known_by) => return Err(Cut::Late.counted(&door.shared.core.metrics)),
        stream = door.acceptor.accept(stream) => stream?,
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| certificate::user(chain.first()?));
    let limits = door.gate.limits;
    let unsent = Unsent::new(door.gate.unsent.clone(), limits.unsent_bytes / UNSENT_PART, limits.request_timeout);
    let remote = Arc::new(Remote {
        credentials: door.credentials,
        certificate: shown,
        visitor,
        unsent: Arc::new(unsent),
        gate: door.gate,
    });
    let guarded = remote.clone();
    let cut = async move {
        tokio::select! {
            biased;
            () = guarded.visitor.sent_away() => Cut::SentAway,
            () = unknown(&guarded.visitor, known_by) => Cut::Late,
            () = guarded.unsent.stalled() => Cut::Unread,
        }
    };
    let metrics = door.shared.clone();
    let service = Service::new(door.shared, Caller::Remote(remote), door.closing.clone());
    tokio::select! {
        biased;
        why = cut => Err(why.counted(&metrics.core.metrics)),
        ended = speak(stream, service, &limits, door.closing) => ended,
    }
}

/// Resolves at `by` if nobody knows then who it is.
async fn unknown(visitor: &Visitor, by: Instant) {
    tokio::time::sleep_until(by).await;
    if visitor.is_known() {
        std::future::pending().await
    }
}

/// HTTP until one side ends it.
async fn speak(
    stream: TlsStream<TcpStream>,
    service: Service,
    limits: &Limits,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let stop = async {
        // The sender lives as long as the accept loop; its end means stop as well.
        let _stop = closing.wait_for(|closing| *closing).await;
    };
    tokio::select! {
        biased;
        () = stop => {}
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
    }
    connection.as_mut().graceful_shutdown();
    connection.await.map_err(io::Error::other)
}

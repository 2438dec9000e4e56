//! The API over TLS: HTTP/1.1 and HTTP/2, who comes in must be known.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::auth::{Credentials, certificate};
use crate::http::{Caller, Limits, Places, Service};
use crate::server::{Server, Shared};
use crate::tls::{MakeCertificates, Tls};

/// A peer that has not finished its TLS handshake by then is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests in flight may take after the stop was asked for.
const DRAIN: Duration = Duration::from_secs(10);
/// The pause after the system refused a connection for want of descriptors: asking again at once would spin.
const REFUSED: Duration = Duration::from_millis(100);

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

impl Server {
    /// Serves `listener` until `shutdown`, then ends watches and lets requests in flight finish.
    pub async fn serve(&self, listener: TcpListener, front: Front, shutdown: impl Future<Output = ()>) {
        let acceptor = TlsAcceptor::from(front.tls);
        self.shared.core.access.use_credentials(front.credentials.clone());
        let caller =
            Caller::Remote { credentials: front.credentials, certificate: None, places: Places::new(front.limits) };
        let (close, closing) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut expiry = tokio::time::interval(EXPIRY);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                _ = expiry.tick() => self.shared.expire_events(),
                Some(_ended) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let (shared, caller) = (self.shared.clone(), caller.clone());
                        let (acceptor, closing) = (acceptor.clone(), closing.clone());
                        connections.spawn(async move {
                            if let Err(error) = connection(stream, acceptor, shared, caller, closing).await {
                                tracing::debug!(%peer, %error, "a connection ended early");
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(REFUSED).await;
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

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    caller: Caller,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    // Answers and watch events are small and must not wait for more.
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long"))??;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| certificate::user(chain.first()?));
    let caller = match caller {
        Caller::Remote { credentials, places, .. } => {
            Caller::Remote { credentials, certificate: shown.map(Arc::new), places }
        }
        other => other,
    };
    let service = Service::new(shared, caller, closing.clone());
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // One connection carries all watches of a client.
    builder.http2().max_concurrent_streams(1000);
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

//! The API over TLS: HTTP/1.1 and HTTP/2, tokens required.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::auth::Credentials;
use crate::http::{Caller, Service};
use crate::server::Server;
use crate::tls::Tls;

/// A peer that has not finished its TLS handshake by then is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests in flight may take after the stop was asked for.
const DRAIN: Duration = Duration::from_secs(10);
/// The pause after the system refused a connection for want of descriptors: asking again at once would spin.
const REFUSED: Duration = Duration::from_millis(100);

impl Server {
    /// Serves `listener` until `shutdown`, then ends watches and lets requests in flight finish.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: &Tls,
        credentials: Credentials,
        shutdown: impl Future<Output = ()>,
    ) {
        let acceptor = TlsAcceptor::from(tls.config.clone());
        let caller = Caller::Bearer(Arc::new(credentials));
        let (close, closing) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_ended) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let service = Service::new(self.shared.clone(), caller.clone(), closing.clone());
                        let (acceptor, closing) = (acceptor.clone(), closing.clone());
                        connections.spawn(async move {
                            if let Err(error) = connection(stream, acceptor, service, closing).await {
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
    service: Service,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    // Answers and watch events are small and must not wait for more.
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long"))??;
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

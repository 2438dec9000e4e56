//! The port through which the registration service is offered, so that a test can offer it without a socket.

use async_trait::async_trait;
use futures::future::BoxFuture;
use tonic::service::Routes;

use stowage_csi::server::{Socket, SocketMode};

/// Only the kubelet, which is root, has business here; the original sets the umask to the same effect.
const MODE: SocketMode = SocketMode::new(0o700);

/// Offers services at an endpoint.
#[async_trait]
pub trait Serve: Send + Sync {
    /// Answers at the endpoint, a path, until `shutdown`; afterwards nothing is left there.
    async fn serve(&self, endpoint: &str, routes: Routes, shutdown: BoxFuture<'static, ()>) -> Result<(), Error>;
}

/// The service cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("make the directory of {endpoint}: {source}")]
    MakeDirectory { endpoint: String, source: std::io::Error },
    #[error("serve at {endpoint}: {source}")]
    Serve { endpoint: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// Unix sockets: the real thing.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnixServe;

#[async_trait]
impl Serve for UnixServe {
    async fn serve(&self, endpoint: &str, routes: Routes, shutdown: BoxFuture<'static, ()>) -> Result<(), Error> {
        if let Some(directory) = std::path::Path::new(endpoint).parent() {
            let made = std::fs::create_dir_all(directory);
            made.map_err(|source| Error::MakeDirectory { endpoint: endpoint.to_owned(), source })?;
        }
        let failed = |source| Error::Serve { endpoint: endpoint.to_owned(), source: Box::new(source) };
        Socket::bind(endpoint, MODE).map_err(failed)?.serve(routes, shutdown).await.map_err(failed)
    }
}

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::TcpListener;

use stowage_apiserver::{Identity, LoadIdentity, OpenStore, Server};

/// What one server is told.
#[derive(Debug, Clone)]
pub struct Options {
    pub listen: SocketAddr,
    pub data_dir: Option<PathBuf>,
    pub kubeconfig_out: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    OpenStore(#[from] OpenStore),
    #[error(transparent)]
    LoadIdentity(#[from] LoadIdentity),
    #[error("cannot listen on {address}: {source}; give --listen another address, or port 0 for a free port")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot write the kubeconfig {path}: {source}")]
    WriteKubeconfig { path: PathBuf, source: io::Error },
}

/// A server that has its data and its port, and only has to be run.
pub struct Bound {
    /// The server itself; its `service()` is for programs in this process.
    pub server: Server,
    /// Where it listens.
    pub address: SocketAddr,
    /// An administrator's kubeconfig for it.
    pub kubeconfig: String,
    listener: TcpListener,
    identity: Identity,
    kubeconfig_out: Option<PathBuf>,
}

/// Opens the data and the port.
pub async fn bind(options: Options) -> Result<Bound, Error> {
    let settings = stowage_apiserver::Options::system();
    let server = match &options.data_dir {
        Some(directory) => Server::open(directory, settings)?,
        None => Server::in_memory(settings),
    };
    let addresses = [options.listen.ip()];
    let identity = match &options.data_dir {
        Some(directory) => Identity::load_or_create(directory, &addresses)?,
        None => Identity::generate(&addresses)?,
    };
    let listen = |source| Error::Listen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let kubeconfig = identity.kubeconfig(address);
    Ok(Bound { server, address, kubeconfig, listener, identity, kubeconfig_out: options.kubeconfig_out })
}

impl Bound {
    /// Writes the kubeconfig and serves until `shutdown`.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        // The port is open: whoever reads the file now will be answered.
        if let Some(path) = &self.kubeconfig_out {
            self.identity
                .write_kubeconfig(path, self.address)
                .map_err(|source| Error::WriteKubeconfig { path: path.clone(), source })?;
        }
        tracing::info!(address = %self.address, revision = self.server.revision(), "serving");
        self.server.serve(self.listener, self.identity.tls(), self.identity.credentials(), shutdown).await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// A whole server: data, port, kubeconfig, until `shutdown`.
pub async fn run(options: Options, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    bind(options).await?.run(shutdown).await
}

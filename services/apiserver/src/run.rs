use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;

use stowage_apiserver::{Front, Identity, Limits, LoadIdentity, OpenStore, ReadTokens, Server, Status};

use crate::descriptors;

/// What one server is told.
#[derive(Debug, Clone)]
pub struct Options {
    pub listen: SocketAddr,
    pub data_dir: Option<PathBuf>,
    pub kubeconfig_out: Option<PathBuf>,
}

/// Who may come in, and who may do what.
#[derive(Debug, Clone, Default)]
pub struct Access {
    pub token_auth_file: Option<PathBuf>,
    pub client_ca_file: Option<PathBuf>,
    pub authorization: Authorization,
    /// Whether pods are admitted by their service accounts and get tokens.
    pub mount_tokens: bool,
    pub limits: Limits,
    /// How long an event stays after it was last written; an hour where nothing is said.
    pub event_ttl: Option<Duration>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Authorization {
    /// Everyone who is known may do everything.
    #[default]
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// Roles and bindings decide.
    #[value(name = "RBAC")]
    Rbac,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    OpenStore(#[from] OpenStore),
    #[error(transparent)]
    LoadIdentity(#[from] LoadIdentity),
    #[error("cannot listen on {address}: {source}; give --listen another address, or port 0 for a free port")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot read {flag} {path}: {source}")]
    ReadFile { flag: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot use --token-auth-file {path}: {source}")]
    ReadTokens { path: PathBuf, source: ReadTokens },
    #[error("cannot make the roles that are there from the beginning: {0}")]
    MakeRoles(#[source] Status),
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
    front: Front,
    kubeconfig_out: Option<PathBuf>,
}

/// Opens the data and the port; everyone who is known may do everything.
pub async fn bind(options: Options) -> Result<Bound, Error> {
    bind_with(options, Access::default()).await
}

/// Opens the data and the port.
pub async fn bind_with(options: Options, access: Access) -> Result<Bound, Error> {
    let settings = stowage_apiserver::Options::system();
    let server = match &options.data_dir {
        Some(directory) => Server::open(directory, settings)?,
        None => Server::in_memory(settings),
    };
    if let Some(duration) = access.event_ttl {
        server.keep_events_for(duration);
    }
    let addresses = [options.listen.ip()];
    let mut identity = match &options.data_dir {
        Some(directory) => Identity::load_or_create(directory, &addresses)?,
        None => Identity::generate(&addresses)?,
    };
    server.use_token_key(identity.token_key());
    if access.mount_tokens {
        server.mount_tokens(identity.authority());
    }
    if let Some(path) = &access.client_ca_file {
        identity = identity.with_client_authorities(&read("--client-ca-file", path)?)?;
    }
    let mut credentials = identity.credentials();
    if let Some(path) = &access.token_auth_file {
        let tokens = read("--token-auth-file", path)?;
        credentials =
            credentials.with_tokens(&tokens).map_err(|source| Error::ReadTokens { path: path.clone(), source })?;
    }
    if access.authorization == Authorization::Rbac {
        server.enable_rbac().await.map_err(Error::MakeRoles)?;
    }
    let limits = Limits { connections: descriptors::connections(access.limits.connections), ..access.limits };
    let front = Front::new(identity.tls(), credentials, limits).map_err(LoadIdentity::from)?;
    let listen = |source| Error::Listen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let kubeconfig = identity.kubeconfig(address);
    Ok(Bound { server, address, kubeconfig, listener, identity, front, kubeconfig_out: options.kubeconfig_out })
}

impl Bound {
    /// Writes the kubeconfig where one was asked for. The port is open: whoever reads the file now will be answered.
    pub fn announce(&mut self) -> Result<(), Error> {
        let Some(path) = self.kubeconfig_out.take() else { return Ok(()) };
        let written = self.identity.write_kubeconfig(&path, self.address);
        written.map_err(|source| Error::WriteKubeconfig { path, source })
    }

    /// Writes the kubeconfig, unless that was done, and serves until `shutdown`.
    pub fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, Result<(), Error>> {
        self.serve(Box::pin(shutdown))
    }

    /// Boxed, and of one kind of shutdown, so that it is compiled with this crate and not once more with each that awaits it.
    fn serve(mut self, shutdown: BoxFuture<'static, ()>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            self.announce()?;
            tracing::info!(address = %self.address, revision = self.server.revision(), "serving");
            self.server.serve(self.listener, self.front, shutdown).await;
            tracing::info!("stopped");
            Ok(())
        })
    }
}

fn read(flag: &'static str, path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::ReadFile { flag, path: path.to_owned(), source })
}

/// A whole server: data, port, kubeconfig, until `shutdown`.
pub async fn run(options: Options, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    bind(options).await?.run(shutdown).await
}

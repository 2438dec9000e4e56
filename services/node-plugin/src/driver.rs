use std::sync::Arc;

use stowage_csi::v1::controller_server::ControllerServer;
use stowage_csi::v1::identity_server::IdentityServer;
use stowage_csi::v1::node_server::NodeServer;
use stowage_mount::Host;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::{Response, Status};

use crate::args::{Mode, Options};
use crate::locks::Locks;
use crate::pool::{self, Pool};
use crate::{controller, identity, node};

/// The driver without a socket: its services as routes, for a server or for a client in the same process.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
    mode: Mode,
}

impl Driver {
    pub fn new(options: &Options, host: Arc<dyn Host>) -> Self {
        let pools = options.pools.iter().map(|pool| Pool::new(pool, options.overcommit, host.clone())).collect();
        let shared = Shared {
            name: options.driver_name.clone(),
            node: options.node_id.clone(),
            pools,
            host,
            locks: Locks::default(),
            calls: TaskTracker::new(),
        };
        Driver { shared: Arc::new(shared), mode: options.mode }
    }

    pub fn routes(&self) -> Routes {
        let routes = Routes::new(IdentityServer::new(identity::Service(self.shared.clone())));
        let controller = || ControllerServer::new(controller::Service(self.shared.clone()));
        let node = || NodeServer::new(node::Service(self.shared.clone()));
        match self.mode {
            Mode::Controller => routes.add_service(controller()),
            Mode::Node => routes.add_service(node()),
            Mode::All => routes.add_service(controller()).add_service(node()),
        }
    }

    /// Looks at each pool once and says what is wrong; a pool may still come later.
    pub async fn report_pools(&self) {
        for pool in &self.shared.pools {
            if let Err(error) = pool.open_for_writing().await {
                tracing::warn!(pool = pool.name(), %error, "not ready");
            }
        }
    }

    /// Waits for the calls in progress, also those whose callers have gone.
    pub async fn drain(&self) {
        self.shared.calls.close();
        self.shared.calls.wait().await;
    }
}

/// What all services of one driver share.
pub struct Shared {
    pub name: String,
    pub node: String,
    pub pools: Vec<Pool>,
    pub host: Arc<dyn Host>,
    pub locks: Locks,
    calls: TaskTracker,
}

impl Shared {
    pub fn pool(&self, name: &str) -> Result<&Pool, pool::Error> {
        let known = || self.pools.iter().map(Pool::name).collect::<Vec<_>>().join(", ");
        let missing = || pool::Error::FindPool { pool: name.into(), known: known() };
        self.pools.iter().find(|pool| pool.name() == name).ok_or_else(missing)
    }

    /// Runs a call to its end even if the caller gives up: half a change is worse than a late one, and the volume
    /// stays locked meanwhile.
    pub async fn finish<T, E, F>(&self, rpc: &'static str, call: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        E: Into<Status> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let answer = match self.calls.spawn(call).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(error) => Err(Status::unavailable(format!("the call did not finish: {error}; repeat it"))),
        };
        match &answer {
            Ok(_) => tracing::debug!(rpc, "done"),
            Err(status) => tracing::warn!(rpc, code = ?status.code(), message = status.message(), "refused"),
        }
        answer.map(Response::new)
    }
}

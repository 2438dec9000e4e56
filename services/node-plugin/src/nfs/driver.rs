use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use stowage_csi::server::{self, Listener};
use stowage_csi::v1::NodeGetVolumeStatsResponse;
use stowage_csi::v1::controller_server::ControllerServer;
use stowage_csi::v1::identity_server::IdentityServer;
use stowage_csi::v1::node_server::NodeServer;
use stowage_mount::Shares;
use tokio::time::Instant;
use tonic::service::Routes;

use super::mounts::Mounts;
use super::options::Options;
use super::{controller, identity, node};
use crate::args::Mode;
use crate::calls::Calls;
use crate::locks::Locks;

/// The driver without a socket: its services as routes, for a server or for a client in the same process.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
}

/// What all services of the driver share.
pub struct Shared {
    pub options: Options,
    pub host: Arc<dyn Shares>,
    pub mounts: Mounts,
    pub locks: Locks,
    pub calls: Calls,
    /// What volumes were found to hold, and when; by volume and path.
    pub stats: Mutex<BTreeMap<(String, String), (Instant, NodeGetVolumeStatsResponse)>>,
}

impl Driver {
    pub fn new(options: &Options, host: Arc<dyn Shares>) -> Self {
        let shared = Shared {
            options: options.clone(),
            mounts: Mounts::new(options, host.clone()),
            host,
            locks: Locks::default(),
            calls: Calls::default(),
            stats: Mutex::default(),
        };
        Driver { shared: Arc::new(shared) }
    }

    pub fn routes(&self) -> Routes {
        let routes = Routes::new(IdentityServer::new(identity::Service(self.shared.clone())));
        let controller =
            |routes: Routes| routes.add_service(ControllerServer::new(controller::Service(self.shared.clone())));
        let node = |routes: Routes| routes.add_service(NodeServer::new(node::Service(self.shared.clone())));
        match self.shared.options.mode {
            Mode::Controller => controller(routes),
            Mode::Node => node(routes),
            Mode::All => node(controller(routes)),
        }
    }

    /// To be called before the first request: what an earlier run left mounted for a call is taken away.
    pub async fn recover(&self) {
        if let Err(error) = self.shared.mounts.recover().await {
            tracing::warn!(%error, "what an earlier run had mounted for its calls may still be there");
        }
    }

    /// Serves until `shutdown`, and lets the calls in progress finish.
    pub async fn serve(&self, listener: Listener, shutdown: BoxFuture<'static, ()>) -> Result<(), server::Error> {
        self.shared.calls.serve(listener, self.routes(), shutdown).await
    }

    /// Waits for the calls in progress, also those whose callers have gone.
    pub async fn drain(&self) {
        self.shared.calls.drain().await;
    }
}

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use stowage_csi::server::{self, Listener};
use stowage_csi::v1::controller_server::ControllerServer;
use stowage_csi::v1::group_controller_server::GroupControllerServer;
use stowage_csi::v1::identity_server::IdentityServer;
use stowage_csi::v1::node_server::NodeServer;
use stowage_csi::v1::snapshot_metadata_server::SnapshotMetadataServer;
use stowage_mount::Host;
use tonic::service::Routes;
use tonic::{Code, Response, Status};

use crate::args::{Kind, Mode, Options, PoolOption, TOPOLOGY_KEY};
use crate::calls::{Calls, Side};
use crate::controller::arrivals::Arrivals;
use crate::handle::Handle;
use crate::locks::Locks;
use crate::pool::{self, Pool};
use crate::{controller, freezing, group, identity, metadata, node};

/// Longest message of a refusal, in bytes: it travels in a header, which clients take up to some KiB, and callers' own
/// words may be in it.
const MAX_MESSAGE: usize = 2048;

/// The answer to a call that is not carried out.
pub fn refusal(code: Code, reason: impl Display) -> Status {
    let mut message = reason.to_string();
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
        message.truncate(end);
        message.push_str(" ...");
    }
    Status::new(code, message)
}

/// The driver without a socket: its services as routes, for a server or for a client in the same process.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
    mode: Mode,
}

impl Driver {
    pub fn new(options: &Options, host: Arc<dyn Host>) -> Self {
        let open = |pool: &PoolOption| Pool::new(pool, options, host.clone());
        let pools = options.pools.iter().map(open).collect();
        let local = options.kind == Kind::Local;
        let shared = Shared {
            name: options.driver_name.clone(),
            node: options.node_id.clone(),
            stages: options.mode != Mode::Controller,
            controls: options.mode != Mode::Node,
            attach: !local,
            topology: local.then(|| (TOPOLOGY_KEY.to_owned(), options.node_id.clone())),
            place: local.then(|| Handle::place_of(&options.node_id)),
            max_volumes: options.max_volumes,
            target_roots: options.target_roots.clone(),
            pools,
            host,
            introduced: AtomicBool::new(false),
            locks: Locks::default(),
            arrivals: Arrivals::default(),
            calls: Calls::default(),
        };
        Driver { shared: Arc::new(shared), mode: options.mode }
    }

    pub fn routes(&self) -> Routes {
        let routes = Routes::new(IdentityServer::new(identity::Service(self.shared.clone())));
        let controller = |routes: Routes| {
            routes
                .add_service(ControllerServer::new(controller::Service(self.shared.clone())))
                .add_service(GroupControllerServer::new(group::Service(self.shared.clone())))
                .add_service(SnapshotMetadataServer::new(metadata::Service(self.shared.clone())))
        };
        let node = |routes: Routes| routes.add_service(NodeServer::new(node::Service(self.shared.clone())));
        match self.mode {
            Mode::Controller => controller(routes),
            Mode::Node => node(routes),
            Mode::All => node(controller(routes)),
        }
    }

    /// To be called before the first request: what an earlier run left frozen is thawed, and what is wrong with a
    /// pool is said once; it may still come later.
    pub async fn recover(&self) {
        for pool in &self.shared.pools {
            if let Err(error) = pool.open_for_writing().await {
                tracing::warn!(pool = pool.name(), %error, "not ready");
            }
        }
        self.shared.recover_all().await;
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

/// What all services of one driver share.
pub struct Shared {
    pub name: String,
    pub node: String,
    /// Whether volumes are staged by this process.
    pub stages: bool,
    /// Whether volumes and snapshots are made by this process.
    controls: bool,
    /// Whether a node needs a token to use a volume: pools are seen by several nodes.
    pub attach: bool,
    /// Key and value by which the cluster knows that volumes are here; none if every node sees the pools.
    pub topology: Option<(String, String)>,
    /// How handles of this driver's volumes end.
    pub place: Option<String>,
    /// How many volumes this node may have at once; 0 leaves it to the cluster.
    pub max_volumes: i64,
    /// The directories below which callers may have volumes mounted.
    pub target_roots: Vec<PathBuf>,
    pub pools: Vec<Pool>,
    pub host: Arc<dyn Host>,
    /// Whether the cluster has asked for this node's name.
    pub introduced: AtomicBool,
    pub locks: Locks,
    pub arrivals: Arrivals,
    calls: Calls,
}

impl Shared {
    pub fn pool(&self, name: &str) -> Result<&Pool, pool::Error> {
        let known = || self.pools.iter().map(Pool::name).collect::<Vec<_>>().join(", ");
        let missing = || pool::Error::FindPool { pool: name.into(), known: known() };
        self.pools.iter().find(|pool| pool.name() == name).ok_or_else(missing)
    }

    /// A directory with all links followed, also its last name.
    pub async fn follow(&self, directory: &Path) -> Result<PathBuf, stowage_mount::Error> {
        let inner = self.host.locate(&directory.join("x")).await?;
        Ok(inner.parent().unwrap_or(directory).to_owned())
    }

    /// The pool in which this volume or snapshot is, if it is one of this node's.
    pub fn pool_of(&self, handle: &Handle) -> Result<&Pool, pool::Error> {
        match handle.place() == self.place.as_deref() {
            true => self.pool(handle.pool()),
            false => Err(pool::Error::OtherNode { handle: handle.to_string(), node: self.node.clone() }),
        }
    }

    /// The handle of what has this key in one of our pools.
    pub fn id_in(&self, pool: &Pool, key: &str) -> Handle {
        Handle::new(pool.name(), key, self.place.as_deref()).expect("a pool's name and digests make a handle")
    }

    /// Thaws what an earlier run left frozen in a pool and removes what it had only begun, once: at the start, or before the
    /// first change after the pool has come.
    pub async fn recover(&self, pool: &Pool) -> Result<(), pool::Error> {
        let recover = async || {
            pool.open().await?;
            freezing::thaw_leftovers(self, pool).await?;
            // In a shared pool another controller may be at it: one that is being replaced.
            if self.controls && !self.attach {
                self.forget_unfinished(pool).await;
            }
            Ok(())
        };
        pool.recovered.get_or_try_init(recover).await.copied()
    }

    /// It only takes space, so it keeps nobody from anything.
    async fn forget_unfinished(&self, pool: &Pool) {
        let told =
            |error| tracing::warn!(pool = pool.name(), %error, "what an earlier run had begun may still take space");
        for key in pool.group_keys().await.unwrap_or_default() {
            let forgotten = group::forget_unfinished(self, pool, &self.id_in(pool, &key)).await;
            forgotten.unwrap_or_else(told);
        }
        for key in pool.snapshot_keys().await.unwrap_or_default() {
            let forgotten = controller::snapshots::forget_unfinished(self, pool, &self.id_in(pool, &key)).await;
            forgotten.unwrap_or_else(told);
        }
    }

    /// Whether there is something left that was to be done for a pool before its first change.
    fn is_unfinished(&self, pool: &Pool) -> bool {
        let unknown = self.introduced.load(Ordering::Relaxed) && !pool.signed.initialized();
        unknown || !pool.recovered.initialized() || !pool.all_still_frozen().is_empty()
    }

    /// Does for each pool what could not be done before it had come.
    pub async fn recover_all(&self) {
        for pool in &self.pools {
            if let Err(error) = self.recover(pool).await {
                tracing::debug!(pool = pool.name(), %error, "not looked through for frozen volumes yet");
            }
            freezing::thaw_again(self, pool).await;
            if self.introduced.load(Ordering::Relaxed)
                && !pool.signed.initialized()
                && let Err(error) = node::sign(self, pool).await
            {
                tracing::debug!(pool = pool.name(), %error, "it does not know this node yet");
            }
        }
    }

    /// Runs what goes on after a call was answered; the driver does not stop before its end.
    pub fn keep(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.calls.keep(work);
    }

    /// Runs a call to its end even if the caller gives up: half a change is worse than a late one, and the volume
    /// stays locked meanwhile.
    pub async fn finish<T, E, F>(
        self: &Arc<Self>,
        side: Side,
        rpc: &'static str,
        call: F,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        E: Into<Status> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        // A call that waits here has changed nothing, so its caller may give up: then only the recovery goes on.
        if self.pools.iter().any(|pool| self.is_unfinished(pool)) {
            let shared = Arc::clone(self);
            self.calls.keep_and_wait(async move { shared.recover_all().await }).await;
        }
        self.calls.finish(side, rpc, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_two_characters() {
        let short = refusal(Code::NotFound, "short");
        assert_eq!((short.code(), short.message()), (Code::NotFound, "short"));
        for shift in 0..3 {
            let long = refusal(Code::NotFound, format!("{}{}", "x".repeat(shift), "\u{20ac}".repeat(1 << 20)));
            assert!(long.message().len() <= MAX_MESSAGE + 4 && long.message().ends_with("\u{20ac} ..."));
        }
    }
}

//! The volume manager as a controller: its state, how it starts, and one line per room.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::oneshot;

use stowage_mount::Mounter;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;
use stowage_runtime::{Context, Stop};

use crate::decide::{self, Action, Decision, Operation, Why};
use crate::heartbeat;
use crate::layout::Layout;
use crate::options::Options;
use crate::plugins::{self, PluginSource};
use crate::reconstruct;
use crate::snapshot::Snapshot;
use crate::watches::{self, Caches, Key};
use crate::world::State;

/// Everything a decision reads and an action touches.
pub struct Controller {
    pub(crate) context: Context,
    pub(crate) host: Arc<dyn Mounter>,
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    pub(crate) state: Arc<State>,
    pub(crate) caches: Caches,
    pub(crate) queue: Queue<Key>,
    pub(crate) operations: Operations<Operation, ()>,
    pub(crate) recorder: Recorder,
}

/// Manages the volumes of one node until shutdown, which leaves every mount in place.
pub async fn run(
    context: Context,
    host: Arc<dyn Mounter>,
    plugins: Arc<dyn PluginSource>,
    options: Options,
) -> Result<(), Stop> {
    let (unwatched, cannot_watch) = oneshot::channel();
    let parallel = options.workers;
    let served = engine::serve(context, parallel, async move |setup| {
        let controller = Controller::new(setup, host, options).await?;
        controller.keep_lease(setup);
        controller.follow(setup, &*plugins, unwatched)?;
        Ok(controller)
    });
    tokio::select! {
        biased;
        result = served => result,
        // Without news of sockets no driver would ever be registered.
        Ok(stop) = cannot_watch => Err(stop),
    }
}

impl Controller {
    /// Looks at the node before anything is watched: whatever comes to be known later finds every mount accounted for.
    async fn new(setup: &Setup<Key>, host: Arc<dyn Mounter>, options: Options) -> Result<Self, Stop> {
        let layout = Layout::new(&options.root);
        let world = reconstruct::reconstruct(&*host, &layout)
            .await
            .map_err(|error| Stop::Unable { reason: format!("cannot tell what is mounted on this node: {error}") })?;
        let state = Arc::new(State::new(world, options.occupancy.clone()));
        // The end of one operation wakes several keys: what is in use depends on every mount.
        let ended = Arc::clone(&state);
        let operations = setup.operations(options.backoff, move |operation: &Operation| {
            ended.read(|world| watches::ended(world, operation))
        });
        Ok(Self {
            context: setup.context.clone(),
            host,
            layout,
            state,
            caches: Caches::default(),
            queue: setup.queue.clone(),
            operations,
            recorder: setup.recorder("kubelet"),
            options,
        })
    }

    fn keep_lease(&self, setup: &Setup<Key>) {
        let (context, options, nodes) = (self.context.clone(), self.options.clone(), self.caches.nodes.clone());
        setup.spawner.spawn(heartbeat::keep(context, options, nodes, Arc::clone(&self.state), self.queue.clone()));
    }

    /// Notes the sockets that come and go; `unwatched` hears of it when that is no longer possible.
    fn follow(
        &self,
        setup: &Setup<Key>,
        plugins: &dyn PluginSource,
        unwatched: oneshot::Sender<Stop>,
    ) -> Result<(), Stop> {
        let events = plugins.watch().map_err(|error| Stop::Unable {
            reason: format!("cannot watch the plugin registry: {error}; `stowage check` tells about inotify limits"),
        })?;
        let followed = plugins::follow(events, Arc::clone(&self.state), self.operations.clone(), self.queue.clone());
        setup.spawner.spawn(async move {
            // Nobody listens any more only where the service has ended already.
            let _ = unwatched.send(followed.await);
        });
        Ok(())
    }

    pub(crate) fn wake(&self, keys: impl IntoIterator<Item = Key>) {
        keys.into_iter().for_each(|key| self.queue.add(key));
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "volume-manager";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.declare(watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        self.snapshot(key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide::decide(snapshot, now)
    }

    async fn apply(self: Arc<Self>, _key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(action).await
    }

    fn keys(&self) -> Vec<Key> {
        self.all_keys()
    }

    /// Nothing is torn down, or mounted, on less than the whole picture: rule 8 of the design.
    fn begin(&self) {
        // Before the first decision, which would withdraw from the in-use list what nothing seems to need.
        if let Some(node) = self.caches.nodes.get(&self.node_key()) {
            self.state.with(|world| world.keep_in_use(&node.status.volumes_in_use, &self.layout));
        }
        // What was found on the node has no object whose event would wake it.
        self.wake(self.all_keys());
    }
}

#[cfg(test)]
mod tests;

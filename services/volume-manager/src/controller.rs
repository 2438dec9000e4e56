//! The volume manager as a controller: its state, how it starts, and one line per room.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};

use stowage_mount::Mounter;
use stowage_plugins::flex::{self, FlexDrivers, LocalPrograms};
use stowage_plugins::tokens::Tokens;
use stowage_plugins::{Layout, VolumeHost, VolumePluginManager};
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::queue::Queue;
use stowage_runtime::{Context, Stop};

use crate::api::{self, VolumeManager};
use crate::decide::{self, Action, Decision, Why};
use crate::executor::{Executor, Operation};
use crate::heartbeat;
use crate::host::KnownDrivers;
use crate::made_of::MadeOf;
use crate::metrics::Metrics;
use crate::node;
use crate::options::Options;
use crate::plugin_watcher::{self, PluginSource};
use crate::reconstruct;
use crate::size_limits;
use crate::snapshot::Snapshot;
use crate::state::{State, States};
use crate::stats::Asker;
use crate::turns::Turns;
use crate::watches::{self, Caches, Key};

/// Everything a decision reads and an action touches.
pub struct Controller {
    pub(crate) context: Context,
    /// What plugins have of this node.
    pub(crate) host: VolumeHost,
    pub(crate) plugins: Arc<VolumePluginManager>,
    pub(crate) options: Options,
    pub(crate) state: Arc<State>,
    pub(crate) caches: Caches,
    pub(crate) queue: Queue<Key>,
    pub(crate) executor: Executor,
    /// Whose turn it is to call a driver.
    pub(crate) turns: Turns,
    /// The objects that volumes are made of.
    pub(crate) made_of: MadeOf,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Metrics,
}

/// Manages the volumes of one node until shutdown, which leaves every mount in place.
pub async fn run(
    context: Context,
    mounter: Arc<dyn Mounter>,
    plugins: Arc<dyn PluginSource>,
    options: Options,
) -> Result<(), Stop> {
    let (unwatched, cannot_watch) = oneshot::channel();
    let parallel = options.workers;
    let served = engine::serve(context, parallel, async move |setup| {
        let (controller, drivers) = Controller::new(setup, mounter, options).await?;
        controller.keep_lease(setup);
        controller.ask_volumes(setup);
        controller.watch_size_limits(setup);
        controller.watch_flex_drivers(setup, drivers);
        controller.answer(setup);
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
    async fn new(
        setup: &Setup<Key>,
        mounter: Arc<dyn Mounter>,
        options: Options,
    ) -> Result<(Self, Option<FlexDrivers>), Stop> {
        let unable = |reason: String| Stop::Unable { reason };
        let plugins = VolumePluginManager::new(options.plugins.iter().cloned())
            .map_err(|error| unable(format!("the volume plugins do not go together: {error}")))?;
        let plugins = Arc::new(plugins);
        let mut flex = options.volume_plugin_dir.as_ref().map(|dir| FlexDrivers::new(dir, Arc::new(LocalPrograms)));
        if let Some(drivers) = &mut flex {
            // Whose volumes are found on the disk must be known by then.
            drivers.sync(&plugins).await;
        }
        let caches = Caches::default();
        let recorder = setup.recorder("kubelet");
        let occupancy = options.occupancy.clone();
        let empty = Arc::new(State::new(States::default(), Default::default()));
        let news = Arc::new(watch::Sender::new(()));
        caches.attachments.on_change({
            let news = Arc::clone(&news);
            move |_| {
                news.send_replace(());
            }
        });
        let drivers = |state| KnownDrivers {
            state,
            objects: caches.csi_drivers.clone(),
            attachments: caches.attachments.clone(),
            attachment_news: Arc::clone(&news),
        };
        let made_of = MadeOf::watch(setup, &options.node_name);
        let mut host = VolumeHost {
            context: setup.context.clone(),
            mounter,
            layout: Layout::new(&options.root),
            node_name: options.node_name.clone(),
            drivers: Arc::new(drivers(empty)),
            call_timeout: options.call_timeout,
            recorder: recorder.clone(),
            tokens: Arc::new(Tokens::default()),
            objects: Arc::new(made_of.objects.clone()),
            devices: options.devices.clone(),
        };
        let found = reconstruct::reconstruct(&host, &plugins)
            .await
            .map_err(|error| unable(format!("cannot tell what is mounted on this node: {error}")))?;
        let metrics = Metrics::register(&setup.context.metrics);
        metrics.reconstructed(found.found, found.failed);
        let mut states = found.states;
        states.report.machine = options.machine.look().await;
        made_of.objects.node_has(node::allocatable_of(&options, &states.report.machine));
        let state = Arc::new(State::new(states, occupancy));
        metrics.watch(&setup.context.metrics, &state);
        host.drivers = Arc::new(drivers(Arc::clone(&state)));
        // The end of one operation wakes several keys: what is in use depends on every mount.
        let known = Arc::clone(&state);
        let operations = setup.operations(options.backoff, move |operation: &Operation| {
            // Who waits for a pod hears what went wrong at once.
            known.touch();
            known.read(|states| watches::with_users(states, watches::ended(operation)))
        });
        let controller = Self {
            context: setup.context.clone(),
            host,
            plugins,
            state,
            caches,
            queue: setup.queue.clone(),
            executor: Executor::new(operations),
            turns: Turns::default(),
            made_of,
            recorder,
            metrics,
            options,
        };
        Ok((controller, flex))
    }

    fn keep_lease(&self, setup: &Setup<Key>) {
        let (context, options, nodes) = (self.context.clone(), self.options.clone(), self.caches.nodes.clone());
        setup.spawner.spawn(heartbeat::keep(context, options, nodes, Arc::clone(&self.state), self.queue.clone()));
        let (options, state) = (self.options.clone(), Arc::clone(&self.state));
        setup.spawner.spawn(heartbeat::look(options, state, self.queue.clone(), self.made_of.objects.clone()));
    }

    fn ask_volumes(&self, setup: &Setup<Key>) {
        let asker = Asker::new(
            self.host.clone(),
            Arc::clone(&self.plugins),
            self.caches.pods.clone(),
            Arc::clone(&self.state),
            self.metrics.usages.clone(),
            self.options.volume_stats_agg_period,
        );
        setup.spawner.spawn(asker.run());
    }

    fn watch_size_limits(&self, setup: &Setup<Key>) {
        let watcher = size_limits::Watcher {
            host: self.host.clone(),
            plugins: Arc::clone(&self.plugins),
            pods: self.caches.pods.clone(),
            state: Arc::clone(&self.state),
            queue: self.queue.clone(),
            metrics: self.metrics.clone(),
            period: self.options.eviction_monitoring_period,
        };
        setup.spawner.spawn(watcher.run());
    }

    /// Pods are looked at again when a FlexVolume driver has come or gone: one of them may have waited for it.
    fn watch_flex_drivers(&self, setup: &Setup<Key>, drivers: Option<FlexDrivers>) {
        let Some(drivers) = drivers else { return };
        let (plugins, pods, queue) = (Arc::clone(&self.plugins), self.caches.pods.clone(), self.queue.clone());
        let state = Arc::clone(&self.state);
        setup.spawner.spawn(async move {
            let wake = || {
                let keys =
                    pods.list().into_iter().flat_map(|pod| state.read(|states| watches::pod(states, &pod.meta.uid)));
                keys.for_each(|key| queue.add(key));
            };
            if let Err(error) = flex::watch(drivers, plugins, wake).await {
                // A container's root is often read-only, and has no drivers.
                tracing::info!(%error, "FlexVolume drivers that come or go from now on are not noticed");
            }
        });
    }

    /// Lets programs of this machine ask, and the process around this service.
    fn answer(&self, setup: &Setup<Key>) {
        self.options.handle.set(VolumeManager {
            node_name: self.options.node_name.clone(),
            state: Arc::clone(&self.state),
            pods: self.caches.pods.clone(),
            nodes: self.caches.nodes.clone(),
            executor: self.executor.clone(),
            host: self.host.clone(),
            plugins: Arc::clone(&self.plugins),
            queue: self.queue.clone(),
            counting: tokio::sync::Mutex::default(),
            controller_attach: self.options.controller_attach,
        });
        let Some(socket) = self.options.socket.clone() else { return };
        let handle = self.options.handle.clone();
        setup.spawner.spawn(async move {
            let manager = handle.get().await;
            if let Err(error) = api::serve(manager, &socket).await {
                tracing::error!(socket = %socket.display(), %error, "programs of this machine cannot ask any more");
            }
        });
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
        let followed =
            plugin_watcher::follow(events, Arc::clone(&self.state), self.executor.clone(), self.queue.clone());
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
            let reported = &node.status.volumes_in_use;
            self.state.with(|states| {
                let unexplained = &states.report.unexplained;
                let possible = reconstruct::possible_volumes(reported, unexplained, &self.host.layout);
                states.report.kept_in_use = possible.into_iter().collect();
            });
        }
        self.adopt_attachments();
        // What was found on the node has no object whose event would wake it.
        self.wake(self.all_keys());
    }
}

#[cfg(test)]
pub(crate) mod tests;

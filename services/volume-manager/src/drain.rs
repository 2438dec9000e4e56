//! Puts the parts together: look at the node, read pods and own Node, and only then decide anything.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use stowage_model::csi_driver::CsiDriver;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::pod::Pod;
use stowage_mount::Mounter;
use stowage_runtime::api::{self, Deletion, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop, engine};

use crate::controller::Manager;
use crate::decide::{Key, Operation};
use crate::heartbeat;
use crate::layout::Layout;
use crate::options::Options;
use crate::plugins::{PluginEvent, PluginSource};
use crate::reconstruct;
use crate::wake::Wake;
use crate::world::State;

/// Before a pod that could not be deleted is tried again.
const DRAIN_RETRY: Duration = Duration::from_secs(1);

/// Manages the volumes of one node until shutdown, which leaves every mount in place.
pub async fn run(
    context: Context,
    host: Arc<dyn Mounter>,
    plugins: Arc<dyn PluginSource>,
    options: Options,
) -> Result<(), Stop> {
    let synced = context.readiness.handle("volume-manager caches");
    let layout = Layout::new(&options.root);
    let world = reconstruct::reconstruct(&*host, &layout)
        .await
        .map_err(|error| Stop::Unable { reason: format!("cannot tell what is mounted on this node: {error}") })?;
    let state = Arc::new(State::new(world, options.occupancy.clone()));
    let tasks = Tasks::new();
    let spawner = tasks.spawner();
    let queue = Queue::new(stowage_runtime::backoff::Backoff::QUEUE);
    let wake = Wake { queue: queue.clone(), state: Arc::clone(&state) };

    let pods: Cache<Pod> = Cache::indexed(&[("uid", |pod: &Pod| vec![pod.meta.uid.clone()])]);
    let nodes: Cache<Node> = Cache::new();
    let csi_nodes: Cache<CsiNode> = Cache::new();
    let csi_drivers: Cache<CsiDriver> = Cache::new();
    pods.on_change({
        let wake = wake.clone();
        move |change| wake.pod_changed(change)
    });
    nodes.on_change({
        let wake = wake.clone();
        move |change| wake.node_changed(change)
    });
    csi_nodes.on_change({
        let wake = wake.clone();
        move |_| wake.csi_node_changed()
    });
    csi_drivers.on_change({
        let wake = wake.clone();
        move |change| wake.csi_driver_changed(change)
    });
    let own = || Scope::fields(format!("metadata.name={}", options.node_name));
    let on_this_node = Scope::fields(format!("spec.nodeName={}", options.node_name));
    let (api, random) = (&context.api, &context.random);
    spawner.spawn(watch::feed(api.clone(), nodes.clone(), own(), random.clone()));
    spawner.spawn(watch::feed(api.clone(), pods.clone(), on_this_node, random.clone()));
    spawner.spawn(watch::feed(api.clone(), csi_nodes.clone(), own(), random.clone()));
    spawner.spawn(watch::feed(api.clone(), csi_drivers.clone(), Scope::all(), random.clone()));
    spawner.spawn(heartbeat::keep(context.clone(), options.clone(), nodes.clone(), Arc::clone(&state), queue.clone()));

    let operations = Operations::new(spawner.clone(), Arc::clone(&context.clock), options.backoff, {
        let wake = wake.clone();
        move |operation| wake.ended(operation)
    });
    let workers = options.workers;
    let manager = Arc::new(Manager {
        recorder: context.recorder("kubelet", &spawner),
        context: context.clone(),
        host,
        options,
        layout,
        state: Arc::clone(&state),
        wake: wake.clone(),
        pods: pods.clone(),
        nodes: nodes.clone(),
        csi_nodes: csi_nodes.clone(),
        csi_drivers: csi_drivers.clone(),
        operations: operations.clone(),
    });

    let events = plugins.watch().map_err(|error| Stop::Unable {
        reason: format!("cannot watch the plugin registry: {error}; `stowage check` tells about inotify limits"),
    })?;
    let plugin_events = follow_plugins(events, operations, wake);
    context
        .supervise(tasks, async {
            let work = async {
                // Nothing is torn down, or mounted, on less than the whole picture: rule 8 of the design.
                let picture = async {
                    nodes.synced().await;
                    pods.synced().await;
                    csi_drivers.synced().await;
                    csi_nodes.synced().await;
                };
                if context.unless_shutdown(picture).await.is_none() {
                    return Ok(());
                }
                if let Some(node) = nodes.get(&manager.node_key()) {
                    state.with(|world| world.keep_in_use(&node.status.volumes_in_use, &manager.layout));
                }
                synced.ready();
                queue.add(Key::Node);
                queue.add(Key::CsiNode);
                let (held, pod_dirs) = state.with(|world| (world.volumes(), world.pod_dirs.clone()));
                held.into_iter().for_each(|volume| queue.add(Key::Volume(volume)));
                pod_dirs.into_iter().for_each(|uid| queue.add(Key::Pod(uid)));
                engine::run(&context, manager, queue, workers).await
            };
            tokio::select! {
                biased;
                result = work => result,
                stop = plugin_events => Err(stop),
            }
        })
        .await
}

/// Notes sockets that come and go; ends only if they cannot be watched any more.
async fn follow_plugins(
    mut events: futures::stream::BoxStream<'static, std::io::Result<PluginEvent>>,
    operations: Operations<Operation, ()>,
    wake: Wake,
) -> Stop {
    loop {
        match events.next().await {
            Some(Ok(PluginEvent::Appeared(socket))) => {
                operations.forget(&Operation::Greet(socket.clone()));
                operations.forget(&Operation::Notify(socket.clone()));
                wake.state.with(|world| world.socket_appeared(&socket));
                wake.plugin(&socket);
            }
            Some(Ok(PluginEvent::Vanished(socket))) => {
                let driver = wake.state.with(|world| world.socket_vanished(&socket));
                tracing::info!(socket, driver, "the registration socket is gone");
                wake.plugin(&socket);
                driver.into_iter().for_each(|driver| wake.driver(&driver));
            }
            Some(Err(error)) => return Stop::Unable { reason: format!("cannot watch the plugin registry: {error}") },
            None => return Stop::Unable { reason: "the plugin registry is no longer watched".into() },
        }
    }
}

/// Deletes the pods of a node and resolves when they are gone and the node reports nothing in use.
///
/// What drivers that do not attach have mounted is not visible there: wait for [`crate::Occupancy::empty`] besides,
/// where the volume manager runs in the same process.
pub async fn drain(context: &Context, node_name: &str) -> Result<(), Stop> {
    let mut tasks = Tasks::new();
    let (changes, mut changed) = tokio::sync::watch::channel(());
    let changes = Arc::new(changes);
    let pods: Cache<Pod> = Cache::new();
    let nodes: Cache<Node> = Cache::new();
    pods.on_change({
        let changes = Arc::clone(&changes);
        move |_| changes.send_modify(|()| ())
    });
    nodes.on_change(move |_| changes.send_modify(|()| ()));
    let scope = Scope::fields(format!("spec.nodeName={node_name}"));
    let own = Scope::fields(format!("metadata.name={node_name}"));
    let spawner = tasks.spawner();
    spawner.spawn(watch::feed(context.api.clone(), pods.clone(), scope, context.random.clone()));
    spawner.spawn(watch::feed(context.api.clone(), nodes.clone(), own, context.random.clone()));
    let work = async {
        pods.synced().await;
        nodes.synced().await;
        loop {
            let mut refused = false;
            for pod in pods.list().iter().filter(|pod| !pod.meta.is_deleting()) {
                refused |= !delete(context, &pods, pod).await;
            }
            let node = nodes.get(&ObjectKey::cluster(node_name));
            if pods.is_empty() && node.is_none_or(|node| node.status.volumes_in_use.is_empty()) {
                return Ok(());
            }
            // The sender lives in the caches, so the wait cannot fail.
            let changed = changed.changed();
            match refused {
                true => drop(tokio::time::timeout(DRAIN_RETRY, changed).await),
                false => drop(changed.await),
            }
        }
    };
    tokio::select! {
        biased;
        panicked = tasks.supervise() => Err(panicked.into()),
        result = work => result,
    }
}

/// Asks for the pod's deletion; says whether the server agreed.
async fn delete(context: &Context, pods: &Cache<Pod>, pod: &Pod) -> bool {
    let deleted: Result<(), api::Error> =
        context.api.delete(pods, &Target::any_version(pod.meta()), Deletion::default()).await;
    if let Err(error) = &deleted {
        tracing::warn!(pod = %pod.key(), %error, "the pod cannot be deleted yet");
    }
    deleted.is_ok()
}

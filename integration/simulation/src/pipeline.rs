//! Every service on one world, each a task of its own; one that is stopped is started again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::{AbortHandle, JoinHandle};

use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::object::Key;
use stowage_runtime::Stop;
use stowage_services::{Place, assembled};
use stowage_testing::invariants::KUBELET_ROOT;
use stowage_testing::world::DRIVER;
use stowage_testing::{Hang, Life, Listening, World};

use crate::plugins::{SimulatedRegistry, SimulatedServe};

/// The one node.
pub const NODE: &str = "node-a";

/// Where the driver listens; no such path exists on a real machine.
pub const DRIVER_SOCKET: &str = "/run/stowage-simulation/csi.sock";

/// Between the end of a service that gave up by itself and its next start.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The services of the table that have a place in the world, in the order in which they are started: the cluster's, the
/// driver's, then the node's.
pub fn services() -> Vec<&'static str> {
    assembled(&[Place::Cluster, Place::Sidecar, Place::NodeSidecar, Place::Node])
}

/// The services that snapshots are about, without those of nodes: a snapshot is made of a volume, mounted or not.
pub const SNAPSHOTS: [&str; 4] = ["pv-controller", "provisioner", "snapshot-controller", "snapshotter"];

/// The services that make volumes grow and change, without those of nodes.
pub const GROWTH: [&str; 3] = ["pv-controller", "provisioner", "resizer"];

/// The table's, but for those that would only wait: for the definitions of their kinds, or for claims to grow.
pub fn ordinary() -> Vec<&'static str> {
    services().into_iter().filter(|service| !service.starts_with("snapshot") && *service != "resizer").collect()
}

/// How the pipeline differs from the ordinary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether the provisioner records its intents.
    pub journal: bool,
    /// Whether the provisioner publishes how much room there is, for all classes.
    pub capacity: bool,
    /// Whether the driver is there.
    pub driver: bool,
    /// Between the moment a service is stopped and its next start; with any at all, everybody else is done before.
    pub downtime: Duration,
    /// Who runs; none means everybody whose kinds are served in an ordinary world.
    pub services: Option<&'static [&'static str]>,
}

impl Default for Options {
    fn default() -> Self {
        Self { journal: true, capacity: false, driver: true, downtime: Duration::ZERO, services: None }
    }
}

type Start = Arc<dyn Fn(&Life) -> BoxFuture<'static, Result<(), Stop>> + Send + Sync>;

/// The running services; dropping it kills them all.
pub struct Pipeline {
    world: World,
    supervisors: Vec<JoinHandle<()>>,
    ends: Arc<Mutex<Vec<String>>>,
    /// The driver's own process.
    driver: Option<Listening>,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.supervisors.iter().for_each(JoinHandle::abort);
    }
}

impl Pipeline {
    /// Starts the driver and the services.
    pub fn start(world: &World, options: Options) -> Self {
        let driver = options.driver.then(|| listen(world));
        let ends = Arc::default();
        let services = options.services.map_or_else(ordinary, <[_]>::to_vec);
        let supervisors = services.into_iter().map(|service| {
            let start = start_of(service, world, options).expect("a new service gets its start below");
            tokio::spawn(supervise(world.clone(), service, start, options.downtime, Arc::clone(&ends)))
        });
        let supervisors = supervisors.collect();
        Self { world: world.clone(), supervisors, ends, driver }
    }

    /// Starts a driver that was not there.
    pub fn start_driver(&mut self) {
        self.driver = Some(listen(&self.world));
    }

    /// Services that ended although nobody stopped them, and why.
    pub fn ends(&self) -> Vec<String> {
        self.ends.lock().expect("nobody panics while holding the list").clone()
    }

    /// Waits until the node is ready and the driver is registered there.
    pub async fn ready(&self, limit: Duration) -> Result<(), Hang> {
        let admin = self.world.admin();
        let look = || {
            let node: Option<Node> = admin.get(&Key::cluster(NODE));
            let csi_node: Option<CsiNode> = admin.get(&Key::cluster(NODE));
            node.is_some_and(|node| node.is_ready())
                && csi_node.is_some_and(|csi_node| csi_node.driver(DRIVER).is_some())
        };
        self.world.until("a ready node with the driver registered", limit, look).await
    }
}

fn listen(world: &World) -> Listening {
    world.sockets().listen(DRIVER_SOCKET, world.driver().routes(NODE, world.node(NODE)))
}

/// Kills a task when dropped.
struct Kill(AbortHandle);

impl Drop for Kill {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps a service alive: when its gate says stop it is killed where it stands and begins a new life.
async fn supervise(
    world: World,
    service: &'static str,
    start: Start,
    downtime: Duration,
    ends: Arc<Mutex<Vec<String>>>,
) {
    loop {
        let life = world.life(service);
        let mut running = tokio::spawn(start(&life));
        let _kill = Kill(running.abort_handle());
        let ended = tokio::select! {
            biased;
            () = life.gate.stopped() => None,
            ended = &mut running => Some(ended),
        };
        match ended {
            None => {
                running.abort();
                // Whatever it held is gone once the task is: nothing of the old life overlaps with the new one.
                let _ = running.await;
                if !downtime.is_zero() {
                    tokio::time::sleep(downtime).await;
                }
            }
            Some(ended) => {
                let why = match ended {
                    Ok(Ok(())) => "ended".to_owned(),
                    Ok(Err(stop)) => stop.to_string(),
                    Err(error) => error.to_string(),
                };
                ends.lock().expect("nobody panics while holding the list").push(format!("{service}: {why}"));
                tokio::time::sleep(RESTART_DELAY).await;
            }
        }
    }
}

/// The start of a service of the table; a service that is missing here fails every life.
fn start_of(service: &str, world: &World, options: Options) -> Option<Start> {
    let sockets = world.sockets().clone();
    let registry = format!("{KUBELET_ROOT}/plugins_registry");
    Some(match service {
        "pv-controller" => {
            Arc::new(|life| pv_controller::run(life.context.clone(), pv_controller::Options::default()).boxed())
        }
        "scheduler" => Arc::new(|life| scheduler::run(life.context.clone(), scheduler::Options::default()).boxed()),
        "provisioner" => Arc::new(move |life| {
            let room = || provisioner::Capacity { immediate_binding: true, ..provisioner::Capacity::default() };
            let (journal, capacity) = (options.journal, options.capacity.then(room));
            let mut options = provisioner::Options { journal, capacity, ..provisioner::Options::default() };
            options.driver.csi_address = DRIVER_SOCKET.into();
            provisioner::run(life.context.clone(), options).boxed()
        }),
        "attach-detach-controller" => Arc::new(|life| {
            let options = attach_detach_controller::Options::default();
            attach_detach_controller::run(life.context.clone(), options).boxed()
        }),
        "attacher" => Arc::new(|life| {
            let mut options = attacher::Options::default();
            options.driver.csi_address = DRIVER_SOCKET.into();
            attacher::run(life.context.clone(), options).boxed()
        }),
        "resizer" => Arc::new(|life| {
            let mut options = resizer::Options::default();
            options.driver.csi_address = DRIVER_SOCKET.into();
            resizer::run(life.context.clone(), options).boxed()
        }),
        "snapshot-controller" => Arc::new(|life| {
            snapshot_controller::run(life.context.clone(), snapshot_controller::Options::default()).boxed()
        }),
        "snapshotter" => Arc::new(|life| {
            let mut options = snapshotter::Options::default();
            options.driver.csi_address = DRIVER_SOCKET.into();
            snapshotter::run(life.context.clone(), options).boxed()
        }),
        "registrar" => Arc::new(move |life| {
            let options = registrar::Options {
                csi_address: DRIVER_SOCKET.into(),
                kubelet_registration_path: DRIVER_SOCKET.into(),
                plugin_registration_path: registry.clone().into(),
                ..registrar::Options::default()
            };
            let serve = Arc::new(SimulatedServe { sockets: sockets.clone(), gate: Arc::clone(&life.gate) });
            let (process, csi) = (life.context.process.clone(), Arc::clone(&life.context.csi));
            registrar::run(process, csi, serve, options).boxed()
        }),
        "volume-manager" => Arc::new(move |life| {
            let options = volume_manager::Options {
                node_name: NODE.into(),
                root: KUBELET_ROOT.into(),
                ..volume_manager::Options::default()
            };
            let plugins = Arc::new(SimulatedRegistry { sockets: sockets.clone(), dir: registry.clone() });
            volume_manager::run(life.context.clone(), life.mounter(NODE), plugins, options).boxed()
        }),
        _ => return None,
    })
}

//! Every service on one world, each a task of its own; one that is stopped is started again.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::{AbortHandle, JoinHandle};

use provisioner::NodeDeployment;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::object::Key;
use stowage_runtime::Stop;
use stowage_services::{Place, assembled, find};
use stowage_testing::invariants::KUBELET_ROOT;
use stowage_testing::world::DRIVER;
use stowage_testing::{Hang, Life, Listening, World};

use crate::plugins::{SimulatedRegistry, SimulatedServe};

/// The node that is always there, and the one to which pods move.
pub const NODE: &str = "node-a";
pub const OTHER_NODE: &str = "node-b";

/// Where the driver listens, its controller and its part on [`NODE`]; no such path exists on a real machine.
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

/// The same for a volume that a pod has.
pub const GROWTH_IN_USE: [&str; 8] = [
    "attach-detach-controller",
    "pv-controller",
    "scheduler",
    "attacher",
    "provisioner",
    "resizer",
    "registrar",
    "volume-manager",
];

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
    /// Where those run that run on nodes.
    pub nodes: &'static [&'static str],
    /// Whether the provisioner and the resizer run on each node, for its own volumes.
    pub node_deployment: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            journal: true,
            capacity: false,
            driver: true,
            downtime: Duration::ZERO,
            services: None,
            nodes: &[NODE],
            node_deployment: false,
        }
    }
}

/// The end of a service that nobody stopped.
#[derive(Debug, Clone)]
pub struct End {
    pub service: String,
    /// Whether it gave up with a reason; else it ended as if it was done, or panicked.
    pub gave_up: bool,
    why: String,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.service, self.why)
    }
}

type Start = Arc<dyn Fn(&Life) -> BoxFuture<'static, Result<(), Stop>> + Send + Sync>;

/// The running services; dropping it kills them all.
pub struct Pipeline {
    world: World,
    supervisors: Vec<JoinHandle<()>>,
    ends: Arc<Mutex<Vec<End>>>,
    nodes: &'static [&'static str],
    /// The driver's own processes, one per node.
    driver: Vec<Listening>,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.supervisors.iter().for_each(JoinHandle::abort);
    }
}

impl Pipeline {
    /// Starts the driver and the services.
    pub fn start(world: &World, options: Options) -> Self {
        let driver = if options.driver { listen(world, options.nodes) } else { Vec::new() };
        let ends = Arc::default();
        let services = options.services.map_or_else(ordinary, <[_]>::to_vec);
        let everywhere = services.into_iter().flat_map(|service| {
            let nodes = if options.runs_on_nodes(service) { options.nodes } else { &[NODE] };
            nodes.iter().map(move |node| (service, *node))
        });
        let supervisors = everywhere.map(|(service, node)| {
            let start = start_of(service, node, world, options).expect("a new service gets its start below");
            tokio::spawn(supervise(world.clone(), on(service, node), start, options.downtime, Arc::clone(&ends)))
        });
        let supervisors = supervisors.collect();
        Self { world: world.clone(), supervisors, ends, nodes: options.nodes, driver }
    }

    /// Starts a driver that was not there.
    pub fn start_driver(&mut self) {
        self.driver = listen(&self.world, self.nodes);
    }

    /// Services that ended although nobody stopped them, and why.
    pub fn ends(&self) -> Vec<End> {
        self.ends.lock().expect("nobody panics while holding the list").clone()
    }

    /// Waits until all nodes are ready and the driver is registered there.
    pub async fn ready(&self, limit: Duration) -> Result<(), Hang> {
        let admin = self.world.admin();
        let is_ready = |name: &str| {
            let node: Option<Node> = admin.get(&Key::cluster(name));
            let csi_node: Option<CsiNode> = admin.get(&Key::cluster(name));
            node.is_some_and(|node| node.is_ready())
                && csi_node.is_some_and(|csi_node| csi_node.driver(DRIVER).is_some())
        };
        let look = || self.nodes.iter().all(|name| is_ready(name));
        self.world.until("ready nodes with the driver registered", limit, look).await
    }
}

fn listen(world: &World, nodes: &[&str]) -> Vec<Listening> {
    let listen = |node: &&str| world.sockets().listen(socket(node), world.driver().routes(node, world.node(node)));
    nodes.iter().map(listen).collect()
}

/// Where the driver listens on a node: all nodes of a world share its sockets.
fn socket(node: &str) -> String {
    if node == NODE { DRIVER_SOCKET.to_owned() } else { format!("/run/stowage-simulation/{node}/csi.sock") }
}

/// What a service on a node is called in the trace.
pub fn on(service: &str, node: &str) -> String {
    if node == NODE { service.to_owned() } else { format!("{service}@{node}") }
}

impl Options {
    fn runs_on_nodes(&self, service: &str) -> bool {
        let is_deployed = self.node_deployment && matches!(service, "provisioner" | "resizer");
        is_deployed || find(service).is_some_and(|service| matches!(service.place, Place::NodeSidecar | Place::Node))
    }
}

/// Kills a task when dropped.
struct Kill(AbortHandle);

impl Drop for Kill {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps a service alive: when its gate says stop it is killed where it stands and begins a new life.
async fn supervise(world: World, service: String, start: Start, downtime: Duration, ends: Arc<Mutex<Vec<End>>>) {
    loop {
        let life = world.life(&service);
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
                let gave_up = matches!(ended, Ok(Err(_)));
                let why = match ended {
                    Ok(Ok(())) => "ended".to_owned(),
                    Ok(Err(stop)) => stop.to_string(),
                    Err(error) => error.to_string(),
                };
                let end = End { service: service.clone(), gave_up, why };
                ends.lock().expect("nobody panics while holding the list").push(end);
                tokio::time::sleep(RESTART_DELAY).await;
            }
        }
    }
}

/// The start of a service of the table; a service that is missing here fails every life.
fn start_of(service: &str, node: &'static str, world: &World, options: Options) -> Option<Start> {
    let sockets = world.sockets().clone();
    let registry = match node {
        NODE => format!("{KUBELET_ROOT}/plugins_registry"),
        other => format!("/{other}{KUBELET_ROOT}/plugins_registry"),
    };
    Some(match service {
        "pv-controller" => {
            Arc::new(|life| pv_controller::run(life.context.clone(), pv_controller::Options::default()).boxed())
        }
        "scheduler" => Arc::new(|life| scheduler::run(life.context.clone(), scheduler::Options::default()).boxed()),
        "provisioner" => Arc::new(move |life| {
            let room = || provisioner::Capacity { immediate_binding: true, ..provisioner::Capacity::default() };
            let here = || NodeDeployment { node: node.into(), ..NodeDeployment::default() };
            let mut started = provisioner::Options {
                journal: options.journal,
                capacity: options.capacity.then(room),
                node_deployment: options.node_deployment.then(here),
                ..provisioner::Options::default()
            };
            started.driver.csi_address = socket(node);
            provisioner::run(life.context.clone(), started).boxed()
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
        "resizer" => Arc::new(move |life| {
            let node_name = options.node_deployment.then(|| node.to_owned());
            let mut started = resizer::Options { node: node_name, ..resizer::Options::default() };
            started.driver.csi_address = socket(node);
            resizer::run(life.context.clone(), started).boxed()
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
                csi_address: socket(node),
                kubelet_registration_path: socket(node),
                plugin_registration_path: registry.clone().into(),
                ..registrar::Options::default()
            };
            let serve = Arc::new(SimulatedServe { sockets: sockets.clone(), gate: Arc::clone(&life.gate) });
            let (process, csi) = (life.context.process.clone(), Arc::clone(&life.context.csi));
            registrar::run(process, csi, serve, options).boxed()
        }),
        "volume-manager" => Arc::new(move |life| {
            let options = volume_manager::Options {
                node_name: node.into(),
                root: KUBELET_ROOT.into(),
                ..volume_manager::Options::default()
            };
            let plugins = Arc::new(SimulatedRegistry { sockets: sockets.clone(), dir: registry.clone() });
            volume_manager::run(life.context.clone(), life.mounter(node), plugins, options).boxed()
        }),
        _ => return None,
    })
}

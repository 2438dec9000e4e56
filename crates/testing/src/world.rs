//! A world: one API server, one driver, nodes, and services that live in it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stowage_apiserver::{Options, Server};
use stowage_model::object::kinds;
use stowage_mount::Mounter;
use stowage_runtime::api::Api;
use stowage_runtime::clock::Clock;
use stowage_runtime::context::{Context, Process};
use stowage_runtime::metrics::Metrics;
use stowage_runtime::random::Random;
use stowage_runtime::readiness::Readiness;
use stowage_runtime::shutdown::Shutdown;

use crate::admin::Admin;
use crate::changes::Changes;
use crate::client;
use crate::clock::VirtualClock;
use crate::driver::Driver;
use crate::fault::Fault;
use crate::gate::{Armed, AtFault, Gate};
use crate::invariants::Observed;
use crate::mounter::{GatedMounter, MemoryMounter};
use crate::numbers::Numbers;
use crate::sockets::Sockets;
use crate::trace::{Trace, digest};

/// The name of every world's driver.
pub const DRIVER: &str = "driver.test";

/// Cheap clones of one world; needs a current-thread runtime whose time is paused.
#[derive(Clone)]
pub struct World(Arc<Shared>);

struct Shared {
    seed: u64,
    server: Server,
    clock: VirtualClock,
    trace: Trace,
    armed: Armed,
    changes: Changes,
    sockets: Sockets,
    driver: Driver,
    admin: Admin,
    nodes: Mutex<BTreeMap<String, MemoryMounter>>,
    metrics: Mutex<BTreeMap<String, Vec<Metrics>>>,
}

/// One life of a service: what it may touch until it is stopped.
pub struct Life {
    /// What `run` gets.
    pub context: Context,
    /// Where it can be stopped.
    pub gate: Arc<Gate>,
    world: World,
}

impl Life {
    /// A node's files and mounts as this life sees them.
    pub fn mounter(&self, node: &str) -> Arc<dyn Mounter> {
        Arc::new(GatedMounter { node: self.world.node(node), gate: Arc::clone(&self.gate) })
    }

    /// Takes a right from this life: requests of the method to paths with this part are forbidden from here on.
    pub fn forbid(&mut self, method: &'static str, part: &'static str) {
        self.context.api = Api::new(client::refusing(self.context.api.client().clone(), method, part));
    }
}

/// Nothing more would have happened: what was waited for did not come, and this is how the world stands.
#[derive(Debug)]
pub struct Hang {
    /// What was waited for.
    pub what: String,
    /// How long, in virtual time.
    pub after: Duration,
    /// All objects, the driver and the nodes.
    pub state: String,
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hang: {} did not come within {:?} of virtual time\n{}", self.what, self.after, self.state)
    }
}

impl World {
    /// A new world; the same seed gives the same uids, names and jitter.
    pub fn new(seed: u64) -> Self {
        let clock = VirtualClock::start();
        let changes = Changes::default();
        let ids = Random::seeded(seed);
        let server = Server::in_memory(Options {
            clock: Arc::new(move || clock.now()),
            ids: Box::new(move || u128::from(ids.number()) << 64 | u128::from(ids.number())),
            window: 4096,
            bookmark_interval: Duration::from_secs(60),
        });
        let admin = Admin::new(server.clone(), changes.clone());
        Self(Arc::new(Shared {
            seed,
            server,
            clock,
            trace: Trace::default(),
            armed: Armed::default(),
            sockets: Sockets::new(changes.clone()),
            driver: Driver::new(DRIVER, changes.clone()),
            admin,
            nodes: Mutex::default(),
            metrics: Mutex::default(),
            changes,
        }))
    }

    /// A new life of a service, with ports, caches and randomness of its own.
    pub fn life(&self, service: &str) -> Life {
        let shared = &self.0;
        let gate = Arc::new(Gate::new(service, shared.trace.clone(), shared.armed.clone(), shared.changes.clone()));
        let metrics = Metrics::default();
        let number = {
            let mut lives = lock(&shared.metrics);
            let lives = lives.entry(service.to_owned()).or_default();
            lives.push(metrics.clone());
            lives.len()
        };
        let seed = shared.seed ^ u64::from(crc32fast::hash(format!("{service} {number}").as_bytes())) << 16;
        let process = Process {
            clock: Arc::new(shared.clock),
            random: Random::seeded(seed),
            shutdown: Shutdown::new(),
            metrics,
            readiness: Readiness::default(),
            identity: service.to_owned(),
        };
        let client = client::client(&shared.server, Arc::clone(&gate));
        let context = Context::new(process, client, shared.sockets.connector(Arc::clone(&gate)));
        Life { context, gate, world: self.clone() }
    }

    /// Lets a fault happen at its point, once; `at_fault` runs there while the service stands still.
    pub fn arm(&self, fault: Fault, at_fault: Option<AtFault>) {
        self.0.armed.arm(fault, at_fault);
    }

    /// Whether the fault has not happened yet.
    pub fn is_armed(&self) -> bool {
        self.0.armed.is_armed()
    }

    /// The test's own client.
    pub fn admin(&self) -> &Admin {
        &self.0.admin
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// The sockets.
    pub fn sockets(&self) -> &Sockets {
        &self.0.sockets
    }

    /// What all services did.
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// The signal of every change.
    pub fn changes(&self) -> &Changes {
        &self.0.changes
    }

    /// The API server's newest revision: one per stored write.
    pub fn revision(&self) -> u64 {
        self.0.server.revision()
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.0.clock.elapsed()
    }

    /// A node's files and mounts, made when first asked for.
    pub fn node(&self, name: &str) -> MemoryMounter {
        let changes = || MemoryMounter::new(self.0.changes.clone());
        lock(&self.0.nodes).entry(name.to_owned()).or_insert_with(changes).clone()
    }

    /// What each service counted, over all its lives.
    pub fn numbers(&self) -> BTreeMap<String, Numbers> {
        lock(&self.0.metrics).iter().map(|(service, lives)| (service.clone(), Numbers::of(lives))).collect()
    }

    /// Waits until a look at the world finds what is waited for, looking again after every change.
    pub async fn until(&self, what: &str, limit: Duration, mut look: impl FnMut() -> bool) -> Result<(), Hang> {
        let changes = &self.0.changes;
        let found = async {
            loop {
                let seen = changes.count();
                if look() {
                    return;
                }
                changes.beyond(seen).await;
            }
        };
        if tokio::time::timeout(limit, found).await.is_ok() {
            return Ok(());
        }
        Err(Hang { what: what.to_owned(), after: limit, state: self.describe() })
    }

    /// Lets everything happen that needs no time: paused time moves only when nobody has anything to do.
    pub async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// What the invariants are about, all at one moment.
    pub fn observe(&self) -> Observed {
        let nodes = lock(&self.0.nodes).iter().map(|(name, node)| (name.clone(), node.snapshot())).collect();
        let admin = &self.0.admin;
        Observed {
            claims: admin.list(),
            volumes: admin.list(),
            pods: admin.list(),
            nodes: admin.list(),
            attachments: admin.list(),
            snapshots: admin.list(),
            contents: admin.list(),
            group_snapshots: admin.list(),
            group_contents: admin.list(),
            intents: admin.list_raw(kinds::LEASE).iter().map(ToString::to_string).collect(),
            driver_name: DRIVER.to_owned(),
            driver: self.0.driver.snapshot(),
            trees: nodes,
        }
    }

    /// All objects, the driver and the nodes, for a person who looks for the reason.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for kind in [
            kinds::POD,
            kinds::CLAIM,
            kinds::VOLUME,
            kinds::VOLUME_ATTACHMENT,
            kinds::VOLUME_SNAPSHOT,
            kinds::VOLUME_SNAPSHOT_CONTENT,
            kinds::VOLUME_GROUP_SNAPSHOT,
            kinds::VOLUME_GROUP_SNAPSHOT_CONTENT,
            kinds::NODE,
            kinds::CSI_NODE,
            kinds::EVENT,
        ] {
            for mut object in self.0.admin.list_raw(kind) {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
                text.push_str(&format!("{object}\n"));
            }
        }
        text.push_str(&format!("{:#?}\n", self.0.driver.snapshot()));
        for (name, node) in lock(&self.0.nodes).iter() {
            text.push_str(&format!("{name}:\n  {}\n", node.snapshot().lines().join("\n  ")));
        }
        text
    }

    /// A few characters that stand for the whole trace.
    pub fn fingerprint(&self) -> String {
        digest(self.0.trace.text().as_bytes())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while holding it")
}

#[cfg(test)]
mod tests;

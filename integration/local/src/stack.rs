//! Which processes make a stack, and how each is started.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use stowage_model::object::kinds;
use stowage_services::names;
use tokio::time::{Instant, sleep};

use crate::api::{Api, PATIENCE};
use crate::binaries;
use crate::objects::{
    self, DRIVER, IMMEDIATE, LOCAL_DRIVER, LOCAL_IMMEDIATE, LOCAL_OF, LOCAL_SNAPSHOTS, LOCAL_WAITING, SNAPSHOTS,
    WAITING, XFS,
};
use crate::process::Process;

/// The nodes of a stack.
pub const NODES: [&str; 2] = ["node-1", "node-2"];

/// How long a service may take to end after SIGTERM.
const DRAIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
const PORTS: Range<u16> = 20_000..32_000;
const PORT_TRIES: u32 = 1000;

/// One process of a stack; in the order in which they are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    Apiserver,
    Driver,
    PvController,
    Provisioner,
    AttachDetachController,
    Attacher,
    Resizer,
    Scheduler,
    SnapshotController,
    Snapshotter,
    Livenessprobe,
    /// Tells the snapshotter of each node which snapshots are its own.
    DistributedSnapshotController,
    NodeDriver(&'static str),
    LocalDriver(&'static str),
    LocalProvisioner(&'static str),
    LocalSnapshotter(&'static str),
    LocalResizer(&'static str),
    Registrar(&'static str),
    VolumeManager(&'static str),
}

impl Service {
    /// Everything a claim's life needs.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Apiserver,
            Self::Driver,
            Self::PvController,
            Self::Provisioner,
            Self::AttachDetachController,
            Self::Attacher,
            Self::Resizer,
            Self::Scheduler,
            Self::SnapshotController,
            Self::Snapshotter,
            Self::Livenessprobe,
        ];
        for node in NODES {
            all.extend([Self::NodeDriver(node), Self::Registrar(node), Self::VolumeManager(node)]);
        }
        all
    }

    /// What makes, binds and deletes volumes, without any node.
    pub fn provisioning() -> Vec<Self> {
        vec![Self::Apiserver, Self::Driver, Self::PvController, Self::Provisioner]
    }

    /// Everything a claim's life needs on one node.
    pub fn on_one_node() -> Vec<Self> {
        let needless = [Self::SnapshotController, Self::Snapshotter, Self::Livenessprobe];
        let [_, other] = NODES;
        let of_other = [Self::NodeDriver(other), Self::Registrar(other), Self::VolumeManager(other)];
        Self::all().into_iter().filter(|one| !needless.contains(one) && !of_other.contains(one)).collect()
    }

    /// The local driver on every node, each with a provisioner of its own.
    pub fn local() -> Vec<Self> {
        let mut all = vec![Self::Apiserver, Self::PvController, Self::AttachDetachController, Self::Scheduler];
        for node in NODES {
            all.extend([Self::LocalDriver(node), Self::LocalProvisioner(node)]);
            all.extend([Self::Registrar(node), Self::VolumeManager(node)]);
        }
        all
    }

    /// The same, and who makes volumes grow there.
    pub fn local_growth() -> Vec<Self> {
        let mut all = Self::local();
        all.extend(NODES.map(Self::LocalResizer));
        all
    }

    /// The same as [`Service::local`], and who makes snapshots there.
    pub fn local_snapshots() -> Vec<Self> {
        let mut all = Self::local();
        all.push(Self::DistributedSnapshotController);
        all.extend(NODES.map(Self::LocalSnapshotter));
        all
    }

    fn binary(self) -> &'static str {
        match self {
            Self::Apiserver => "apiserver",
            Self::Driver | Self::NodeDriver(_) | Self::LocalDriver(_) => "node-plugin",
            Self::PvController => "pv-controller",
            Self::Provisioner | Self::LocalProvisioner(_) => "provisioner",
            Self::AttachDetachController => "attach-detach-controller",
            Self::Attacher => "attacher",
            Self::Resizer | Self::LocalResizer(_) => "resizer",
            Self::Scheduler => "scheduler",
            Self::SnapshotController | Self::DistributedSnapshotController => "snapshot-controller",
            Self::Snapshotter | Self::LocalSnapshotter(_) => "snapshotter",
            Self::Livenessprobe => "livenessprobe",
            Self::Registrar(_) => "registrar",
            Self::VolumeManager(_) => "volume-manager",
        }
    }

    fn args(self, place: &Place) -> Vec<String> {
        let kubeconfig = format!("--kubeconfig={}", place.kubeconfig().display());
        let socket = format!("--csi-address={}", place.socket().display());
        let pool = format!("--pool=default={}", place.pool().display());
        let state = |name: &str| format!("--state-dir={}", place.root.join("state").join(name).display());
        // A successor must not wait for the lease of one that was killed.
        let alone = "--leader-elect=false".to_owned();
        match self {
            Self::Apiserver => vec![
                format!("--listen=127.0.0.1:{}", place.port),
                format!("--data-dir={}", place.root.join("api").display()),
                format!("--kubeconfig-out={}", place.kubeconfig().display()),
            ],
            Self::Driver => vec![
                format!("--endpoint=unix://{}", place.socket().display()),
                "--nodeid=controller".to_owned(),
                state("controller"),
                pool,
                "--mode=controller".to_owned(),
            ],
            Self::PvController | Self::AttachDetachController | Self::Scheduler => vec![kubeconfig, alone],
            // It elects only where it is asked to.
            Self::SnapshotController => vec![kubeconfig],
            Self::DistributedSnapshotController => vec![kubeconfig, "--enable-distributed-snapshotting".to_owned()],
            Self::Provisioner | Self::Attacher | Self::Resizer | Self::Snapshotter => vec![kubeconfig, socket],
            Self::Livenessprobe => vec![socket, "--http-endpoint=127.0.0.1:0".to_owned()],
            Self::NodeDriver(node) => vec![
                format!("--endpoint=unix://{}", place.node_socket(node).display()),
                format!("--nodeid={node}"),
                state(node),
                pool,
                "--mode=node".to_owned(),
                format!("--target-root={}", place.node(node).display()),
            ],
            Self::LocalDriver(node) => vec![
                format!("--endpoint=unix://{}", place.node_socket(node).display()),
                format!("--nodeid={node}"),
                format!("--state-dir={}", place.node(node).join("state").display()),
                format!("--pool=default={}", place.node_pool(node).display()),
                "--driver=local".to_owned(),
                format!("--target-root={}", place.node(node).display()),
            ],
            Self::LocalProvisioner(node) => vec![
                kubeconfig,
                format!("--csi-address={}", place.node_socket(node).display()),
                "--node-deployment".to_owned(),
                format!("--node-name={node}"),
                // Nobody waits 20 seconds in a test for a claim that binds at once.
                "--node-deployment-base-delay=100ms".to_owned(),
            ],
            Self::LocalSnapshotter(node) | Self::LocalResizer(node) => vec![
                kubeconfig,
                format!("--csi-address={}", place.node_socket(node).display()),
                "--node-deployment".to_owned(),
                format!("--node-name={node}"),
            ],
            Self::Registrar(node) => vec![
                format!("--csi-address={}", place.node_socket(node).display()),
                format!("--kubelet-registration-path={}", place.called_socket(node).display()),
                format!("--plugin-registration-path={}", place.registry(node).display()),
            ],
            Self::VolumeManager(node) => {
                vec![kubeconfig, format!("--node-name={node}"), format!("--root-dir={}", place.node(node).display())]
            }
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver => f.write_str("node-plugin-controller"),
            Self::NodeDriver(node)
            | Self::LocalDriver(node)
            | Self::LocalProvisioner(node)
            | Self::LocalSnapshotter(node)
            | Self::LocalResizer(node)
            | Self::Registrar(node)
            | Self::VolumeManager(node) => write!(f, "{}-{node}", self.binary()),
            _ => f.write_str(self.binary()),
        }
    }
}

/// Where a stack keeps its things.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory above all.
    pub root: PathBuf,
    pub port: u16,
    relayed: bool,
}

impl Place {
    /// Makes the directories and takes a port.
    pub fn prepare(root: &Path) -> anyhow::Result<Self> {
        binaries::note_stale(&names(|service| service.is_process()))?;
        let place = Self { root: root.to_owned(), port: free_port()?, relayed: false };
        let mut folders = vec![place.logs(), place.pool()];
        folders.extend(NODES.map(|node| place.registry(node)));
        folders.extend(NODES.map(|node| place.node_pool(node)));
        for folder in folders {
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(place)
    }

    /// The same where the volume managers call their drivers through relays, which are the test's to run.
    pub fn relayed(self) -> Self {
        Self { relayed: true, ..self }
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    pub fn pool(&self) -> PathBuf {
        self.root.join("pool")
    }

    /// Socket of the driver's controller part.
    pub fn socket(&self) -> PathBuf {
        self.root.join("csi.sock")
    }

    /// What a kubelet would call its root directory.
    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node)
    }

    /// The pool that only this node sees.
    pub fn node_pool(&self, node: &str) -> PathBuf {
        self.node(node).join("pool")
    }

    /// Where the driver of a node listens.
    pub fn node_socket(&self, node: &str) -> PathBuf {
        self.node(node).join("csi.sock")
    }

    /// Where the volume manager of a node calls it.
    pub fn called_socket(&self, node: &str) -> PathBuf {
        if self.relayed { self.node(node).join("relay.sock") } else { self.node_socket(node) }
    }

    /// Where drivers of a node are registered.
    pub fn registry(&self, node: &str) -> PathBuf {
        self.node(node).join("plugins_registry")
    }
}

/// Running services; all are killed when this is dropped.
pub struct Stack {
    /// Where everything is.
    pub place: Place,
    /// How to talk to it.
    pub api: Api,
    processes: BTreeMap<Service, Process>,
}

impl Stack {
    /// Starts these services, the API server among them, and makes the driver's objects and classes.
    pub async fn start(place: Place, services: &[Service]) -> anyhow::Result<Self> {
        let server = Process::start("apiserver", "apiserver", &Service::Apiserver.args(&place), &place.logs())?;
        let mut processes = BTreeMap::from([(Service::Apiserver, server)]);
        let api = connect(&place, &mut processes).await?;
        api.create(kinds::CSI_DRIVER, objects::csi_driver(DRIVER, true)).await?;
        api.create(kinds::STORAGE_CLASS, objects::class(IMMEDIATE, DRIVER, "Immediate")).await?;
        api.create(kinds::STORAGE_CLASS, objects::class(WAITING, DRIVER, "WaitForFirstConsumer")).await?;
        let mut xfs = objects::class(XFS, DRIVER, "Immediate");
        xfs["parameters"] = json!({ "csi.storage.k8s.io/fstype": "xfs" });
        api.create(kinds::STORAGE_CLASS, xfs).await?;
        for definition in stowage_crds::definitions() {
            api.create(kinds::DEFINITION, definition.object()).await?;
        }
        api.create(kinds::VOLUME_SNAPSHOT_CLASS, objects::snapshot_class(SNAPSHOTS, DRIVER)).await?;
        for kind in [kinds::VOLUME_SNAPSHOT_CLASS, kinds::VOLUME_GROUP_SNAPSHOT_CLASS] {
            api.create(kind, objects::snapshot_class(LOCAL_SNAPSHOTS, LOCAL_DRIVER)).await?;
        }
        api.create(kinds::CSI_DRIVER, objects::csi_driver(LOCAL_DRIVER, false)).await?;
        api.create(kinds::STORAGE_CLASS, objects::class(LOCAL_IMMEDIATE, LOCAL_DRIVER, "Immediate")).await?;
        api.create(kinds::STORAGE_CLASS, objects::class(LOCAL_WAITING, LOCAL_DRIVER, "WaitForFirstConsumer")).await?;
        for (name, file_system) in LOCAL_OF {
            let mut class = objects::class(name, LOCAL_DRIVER, "WaitForFirstConsumer");
            class["parameters"] = json!({ "csi.storage.k8s.io/fstype": file_system });
            api.create(kinds::STORAGE_CLASS, class).await?;
        }
        let mut stack = Self { place, api, processes };
        for service in services.iter().filter(|service| **service != Service::Apiserver) {
            stack.launch(*service)?;
        }
        for service in services {
            if let Service::VolumeManager(node) = service {
                stack.api.until(kinds::NODE, node, |node| is_ready(node?), "to be ready").await?;
                stack.api.until(kinds::CSI_NODE, node, |node| has_driver(node?), "to know a driver").await?;
            }
        }
        Ok(stack)
    }

    /// Starts a service that does not run.
    pub fn launch(&mut self, service: Service) -> anyhow::Result<()> {
        let args = service.args(&self.place);
        let process = Process::start(&service.to_string(), service.binary(), &args, &self.place.logs())?;
        self.processes.insert(service, process);
        Ok(())
    }

    /// `kill -9`, and the body taken away.
    pub fn kill(&mut self, service: Service) -> anyhow::Result<()> {
        let mut process = self.processes.remove(&service).with_context(|| format!("{service} does not run"))?;
        may_have_ended(service, process.exited()?).map(|_| ())
    }

    /// Stops a service in the middle of whatever it does; nothing but `kill` follows.
    pub fn freeze(&mut self, service: Service) -> anyhow::Result<()> {
        let process = self.processes.get(&service).with_context(|| format!("{service} does not run"))?;
        process.signal(Signal::SIGSTOP)
    }

    /// Starts again what ended by itself, as a kubelet would, and says what that was.
    pub fn revive(&mut self) -> anyhow::Result<Vec<Service>> {
        let mut ended = Vec::new();
        for (service, process) in &mut self.processes {
            if may_have_ended(*service, process.exited()?)? {
                ended.push(*service);
            }
        }
        for service in &ended {
            self.launch(*service)?;
        }
        Ok(ended)
    }

    /// Fails if a service ended by itself.
    pub fn all_run(&mut self) -> anyhow::Result<()> {
        for (service, process) in &mut self.processes {
            if let Some(status) = process.exited()? {
                bail!("{service} ended by itself: {status}");
            }
        }
        Ok(())
    }

    /// What a service has printed.
    pub fn said(&self, service: Service) -> anyhow::Result<String> {
        self.processes.get(&service).with_context(|| format!("{service} does not run"))?.said()
    }

    /// SIGTERM to all, the API server last; each must end well.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.all_run()?;
        let server = self.processes.remove(&Service::Apiserver);
        self.processes.values().try_for_each(|process| process.signal(Signal::SIGTERM))?;
        for process in self.processes.values_mut() {
            let status = process.ended(DRAIN).await?;
            ensure!(status.success(), "{} ended with {status} after SIGTERM", process.name());
        }
        let Some(mut server) = server else { return Ok(()) };
        server.signal(Signal::SIGTERM)?;
        let status = server.ended(DRAIN).await?;
        ensure!(status.success(), "{} ended with {status} after SIGTERM", server.name());
        Ok(())
    }
}

/// Whether it ended because it could not go on, which it may say with exit code 1; any other end is a fault of its own.
fn may_have_ended(service: Service, status: Option<ExitStatus>) -> anyhow::Result<bool> {
    match status {
        None => Ok(false),
        Some(status) if status.code() == Some(1) => Ok(true),
        Some(status) => bail!("{service} ended by itself: {status}"),
    }
}

/// Waits for the kubeconfig, which is written once the server answers.
async fn connect(place: &Place, processes: &mut BTreeMap<Service, Process>) -> anyhow::Result<Api> {
    let deadline = Instant::now() + PATIENCE;
    let kubeconfig = place.kubeconfig();
    while !kubeconfig.try_exists().context("cannot look for the kubeconfig")? {
        for process in processes.values_mut() {
            if let Some(status) = process.exited()? {
                bail!("{} ended at its start: {status}", process.name());
            }
        }
        ensure!(Instant::now() < deadline, "no kubeconfig after {} s", PATIENCE.as_secs());
        sleep(LOOK).await;
    }
    Api::connect(&kubeconfig).await
}

/// A port to come back on: below the range from which outgoing connections take theirs while the server is away, and
/// drawn at random, because other tests look for one at the same time.
fn free_port() -> anyhow::Result<u16> {
    let mut rng = StdRng::from_os_rng();
    (0..PORT_TRIES)
        .map(|_| rng.random_range(PORTS))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .with_context(|| format!("no free port found in {PORTS:?}"))
}

fn is_ready(node: &Value) -> Option<()> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True").then_some(())
}

fn has_driver(node: &Value) -> Option<()> {
    (!node["spec"]["drivers"].as_array()?.is_empty()).then_some(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_service_of_the_table_is_a_process_of_the_stack() {
        let started: BTreeSet<&str> = Service::all().into_iter().map(Service::binary).collect();
        assert_eq!(started.into_iter().collect::<Vec<_>>(), names(|service| service.is_process()));
    }
}

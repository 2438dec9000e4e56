//! What the service can be told, and what it tells the process it runs in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use stowage_mount::Host;
use stowage_plugins::{VolumePlugin, in_tree};
use stowage_runtime::backoff::Backoff;

use crate::api::Handle;
use crate::machine::{LookAtMachine, Machine};
use crate::selinux::SeLinux;

/// The kubelet's settings that concern volumes.
#[derive(Clone)]
pub struct Options {
    /// Name of the Node this process speaks for.
    pub node_name: String,
    /// Directory that holds `pods`, `plugins` and `plugins_registry`.
    pub root: PathBuf,
    /// Labels the Node gets besides hostname, system and architecture.
    pub labels: BTreeMap<String, String>,
    /// What the Node says this machine is.
    pub machine: Arc<dyn LookAtMachine>,
    /// Whether a Node that is missing is made.
    pub register_node: bool,
    /// Whether volumes of pods that have ended stay mounted until the pods are deleted.
    pub keep_terminated_pod_volumes: bool,
    /// How many pods the node takes.
    pub max_pods: u32,
    /// How often the machine is looked at, and how often the Node is told that nothing has changed.
    pub node_status_update: Duration,
    pub node_status_report: Duration,
    /// How often volumes are asked how full they are; zero for never.
    pub volume_stats_agg_period: Duration,
    /// How often empty directories with a size limit are measured; zero for never.
    pub eviction_monitoring_period: Duration,
    /// How files are labelled on this machine; none where SELinux is off.
    pub se_linux: Option<SeLinux>,
    /// How many decisions are carried out at once.
    pub workers: usize,
    /// How long a call to a driver may take.
    pub call_timeout: Duration,
    /// Between two attempts at the same operation.
    pub backoff: Backoff,
    /// How long the node's lease lasts, and how often it is renewed.
    pub lease_duration: Duration,
    pub lease_renewal: Duration,
    /// Whether the attach-detach controller attaches, and not this node itself.
    pub controller_attach: bool,
    /// Block devices and their file systems, for plugins that format; none where there are none, as in a simulation.
    pub devices: Option<Arc<dyn Host>>,
    /// The kinds of volumes there are, besides FlexVolume drivers.
    pub plugins: Vec<Arc<dyn VolumePlugin>>,
    /// Where FlexVolume drivers come and go; nowhere if absent.
    pub volume_plugin_dir: Option<PathBuf>,
    /// Where programs of this machine may ask; nowhere if absent.
    pub socket: Option<PathBuf>,
    /// The way to the running service, for the process around it.
    pub handle: Handle,
    /// How many mounts are held, for the process around this service.
    pub occupancy: Occupancy,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plugins: Vec<&str> = self.plugins.iter().map(|plugin| plugin.name()).collect();
        f.debug_struct("Options")
            .field("node_name", &self.node_name)
            .field("root", &self.root)
            .field("plugins", &plugins)
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            root: PathBuf::from("/var/lib/kubelet"),
            labels: BTreeMap::new(),
            machine: Arc::new(Machine::default()),
            register_node: true,
            keep_terminated_pod_volumes: false,
            max_pods: 110,
            node_status_update: Duration::from_secs(10),
            node_status_report: Duration::from_secs(300),
            volume_stats_agg_period: Duration::from_secs(60),
            eviction_monitoring_period: Duration::from_secs(10),
            se_linux: None,
            workers: 32,
            call_timeout: Duration::from_secs(120),
            backoff: Backoff { base: Duration::from_millis(500), max: Duration::from_secs(122) },
            lease_duration: Duration::from_secs(40),
            lease_renewal: Duration::from_secs(10),
            controller_attach: true,
            plugins: in_tree(),
            volume_plugin_dir: None,
            devices: None,
            socket: None,
            handle: Handle::default(),
            occupancy: Occupancy::default(),
        }
    }
}

/// How many mounts the service holds or may hold; unknown until it has looked at the node.
#[derive(Debug, Clone)]
pub struct Occupancy(Arc<watch::Sender<Option<usize>>>);

impl Default for Occupancy {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Occupancy {
    /// The number of staged and published mounts, once known.
    pub fn mounts(&self) -> Option<usize> {
        *self.0.borrow()
    }

    /// Resolves when nothing is mounted any more.
    pub async fn empty(&self) {
        let mut changes = self.0.subscribe();
        // The sender lives in self, so the wait cannot fail.
        let _ = changes.wait_for(|mounts| *mounts == Some(0)).await;
    }

    pub(crate) fn set(&self, mounts: usize) {
        self.0.send_if_modified(|known| known.replace(mounts) != Some(mounts));
    }
}

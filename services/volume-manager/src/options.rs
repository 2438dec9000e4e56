//! What the service can be told, and what it tells the process it runs in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use stowage_runtime::backoff::Backoff;

/// The kubelet's settings that concern volumes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the Node this process speaks for.
    pub node_name: String,
    /// Directory that holds `pods`, `plugins` and `plugins_registry`.
    pub root: PathBuf,
    /// Labels the Node gets besides hostname, system and architecture.
    pub labels: BTreeMap<String, String>,
    /// How many decisions are carried out at once.
    pub workers: usize,
    /// How long a call to a driver may take.
    pub call_timeout: Duration,
    /// Between two attempts at the same operation.
    pub backoff: Backoff,
    /// How long the node's lease lasts, and how often it is renewed.
    pub lease_duration: Duration,
    pub lease_renewal: Duration,
    /// How many mounts are held, for the process around this service.
    pub occupancy: Occupancy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            root: PathBuf::from("/var/lib/kubelet"),
            labels: BTreeMap::new(),
            workers: 32,
            call_timeout: Duration::from_secs(120),
            backoff: Backoff { base: Duration::from_millis(500), max: Duration::from_secs(122) },
            lease_duration: Duration::from_secs(40),
            lease_renewal: Duration::from_secs(10),
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

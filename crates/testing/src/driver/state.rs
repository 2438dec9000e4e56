//! What the driver has and what it saw.

use std::collections::{BTreeMap, BTreeSet};

/// A volume of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The name CreateVolume gave.
    pub name: String,
    /// Its size.
    pub bytes: i64,
    /// Whether only one node may have it at a time, as far as its capabilities say.
    pub single_node: bool,
}

/// Everything the driver knows.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Volumes by id.
    pub volumes: BTreeMap<String, Made>,
    /// Ids of the nodes that have run the driver.
    pub nodes: BTreeSet<String>,
    /// Nodes a volume is published to by the controller.
    pub attached: BTreeMap<String, BTreeSet<String>>,
    /// Staging path by node and volume.
    pub staged: BTreeMap<(String, String), String>,
    /// Target paths by node and volume.
    pub published: BTreeMap<(String, String), BTreeSet<String>>,
    /// Calls that reached the driver: RPC, what about, and the code.
    pub calls: Vec<String>,
    /// What callers did wrong, beginning with the invariant's id.
    pub violations: Vec<String>,
    /// Ids are never given twice.
    pub(super) made: u64,
}

impl State {
    /// How often an RPC reached the driver.
    pub fn count(&self, rpc: &str) -> usize {
        self.calls.iter().filter(|call| call.split(' ').next() == Some(rpc)).count()
    }

    /// How many volumes were ever made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Whether nothing of the driver's is left anywhere.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.attached.is_empty() && self.staged.is_empty() && self.published.is_empty()
    }

    pub(super) fn by_name(&self, name: &str) -> Option<(&String, &Made)> {
        self.volumes.iter().find(|(_, volume)| volume.name == name)
    }

    pub(super) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }
}

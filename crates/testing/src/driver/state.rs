//! What the driver has and what it saw.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use stowage_csi::v1::{ControllerExpandVolumeRequest, ControllerModifyVolumeRequest};

use super::abilities::Abilities;
use super::changes::Growth;

/// A volume of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Made {
    /// The name CreateVolume gave.
    pub name: String,
    /// Its size.
    pub bytes: i64,
    /// Whether only one node may have it at a time, as far as its capabilities say.
    pub single_node: bool,
    /// What was written last; nothing is 0.
    pub content: u64,
    /// What it was made from.
    pub source: Option<Source>,
    /// Whether the test itself took it over, so that no object need own it and nobody may delete it.
    pub by_hand: bool,
    /// The only node that has it, of a driver whose volumes are local.
    pub node: Option<String>,
}

/// What a volume was made from, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A snapshot.
    Snapshot(String),
    /// Another volume.
    Volume(String),
}

/// A snapshot of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cut {
    /// The name CreateSnapshot gave; members of a group have none.
    pub name: String,
    /// The volume it is of, which may be gone.
    pub volume: String,
    /// The volume's size at that moment.
    pub bytes: i64,
    /// What was written to the volume last before that moment.
    pub content: u64,
    /// That moment, in the order of writes and cuts.
    pub moment: u64,
    /// That moment as it is told: of virtual time the seconds, and the order in place of nanoseconds.
    pub created: Timestamp,
    /// How many more answers say that it is not ready.
    pub looks: u32,
    /// The group it was cut with.
    pub group: Option<String>,
    /// Whether the test itself made it or took it over, so that no object need own it.
    pub by_hand: bool,
}

impl Cut {
    /// Whether the next answer says so.
    pub fn is_ready(&self) -> bool {
        self.looks == 0
    }
}

/// A group snapshot of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grouped {
    /// The name CreateVolumeGroupSnapshot gave.
    pub name: String,
    /// Ids of its snapshots.
    pub members: Vec<String>,
    /// As each member's.
    pub created: Timestamp,
    /// Whether the test itself made it or took it over, so that no object need own it.
    pub by_hand: bool,
}

/// Everything the driver knows.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Volumes by id.
    pub volumes: BTreeMap<String, Made>,
    /// Snapshots by id.
    pub snapshots: BTreeMap<String, Cut>,
    /// Group snapshots by id.
    pub groups: BTreeMap<String, Grouped>,
    /// What was written to each volume there ever was, by moment.
    pub written: BTreeMap<String, BTreeMap<u64, u64>>,
    /// Ids of the nodes that have run the driver.
    pub nodes: BTreeSet<String>,
    /// Nodes a volume is published to by the controller.
    pub attached: BTreeMap<String, BTreeSet<String>>,
    /// Staging path by node and volume.
    pub staged: BTreeMap<(String, String), String>,
    /// Size of the file system in each volume that was ever staged: what pods have, whatever the device has.
    pub file_systems: BTreeMap<String, i64>,
    /// Target paths by node and volume.
    pub published: BTreeMap<(String, String), BTreeSet<String>>,
    /// Calls that reached the driver: RPC, what about, and the code.
    pub calls: Vec<String>,
    /// What callers did wrong, beginning with the invariant's id.
    pub violations: Vec<String>,
    /// Ids are never given twice.
    pub(super) made: u64,
    /// Writes and cuts so far.
    pub(super) moment: u64,
    /// When the call that is served arrived.
    pub(super) now: Timestamp,
    /// What it can do.
    pub abilities: Abilities,
    /// Whether each node has volumes of its own, of which the driver on another node knows nothing.
    pub(super) is_local: bool,
    /// How many answers say of a new snapshot that it is not ready.
    pub(super) ready_after: u32,
    /// How volumes grow.
    pub growth: Growth,
    /// What was asked of ControllerExpandVolume, call by call, whatever came of it.
    pub expansions: Vec<ControllerExpandVolumeRequest>,
    /// What was asked of ControllerModifyVolume, call by call, whatever came of it.
    pub modifications: Vec<ControllerModifyVolumeRequest>,
    /// The attributes in effect, by volume.
    pub attributes: BTreeMap<String, BTreeMap<String, String>>,
}

impl State {
    /// How often an RPC reached the driver.
    pub fn count(&self, rpc: &str) -> usize {
        self.calls.iter().filter(|call| call.split(' ').next() == Some(rpc)).count()
    }

    /// How many volumes, snapshots and groups were ever made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Whether nothing of the driver's is left anywhere.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
            && self.snapshots.is_empty()
            && self.groups.is_empty()
            && self.attached.is_empty()
            && self.staged.is_empty()
            && self.published.is_empty()
    }

    /// What a volume held at a moment.
    pub fn content_at(&self, volume: &str, moment: u64) -> u64 {
        let written = self.written.get(volume).and_then(|written| written.range(..=moment).next_back());
        written.map_or(0, |(_, content)| *content)
    }

    /// Where the driver's process on a node makes volumes: nowhere in particular, or there.
    pub(super) fn place(&self, node: &str) -> Option<String> {
        self.is_local.then(|| node.to_owned())
    }

    /// Whether the driver's process on a node knows the volume.
    pub(super) fn is_known(&self, id: &str, node: &str) -> bool {
        self.volumes.get(id).is_some_and(|made| made.node == self.place(node))
    }

    pub(super) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Writes to a volume.
    pub(super) fn write(&mut self, volume: &str, content: u64) {
        self.next_moment();
        if let Some(made) = self.volumes.get_mut(volume) {
            made.content = content;
            self.written.entry(volume.to_owned()).or_default().insert(self.moment, content);
        }
    }

    pub(super) fn next_moment(&mut self) {
        self.moment += 1;
    }

    /// This moment as it is told.
    pub(super) fn created(&self) -> Timestamp {
        let nanoseconds = i32::try_from(self.moment).unwrap_or(i32::MAX);
        Timestamp::new(self.now.as_second(), nanoseconds).unwrap_or(self.now)
    }
}

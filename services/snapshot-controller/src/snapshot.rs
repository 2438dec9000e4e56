//! What one decision is made from.

mod group;
mod single;

use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::object;
use stowage_model::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use stowage_runtime::cache::View;
use stowage_runtime::told::Known;

use crate::memory::{Look, Memory};
use crate::projections::SourceClaim;
use crate::watches::{Caches, Key};

pub use group::{Candidate, Group, GroupContentFacts, Member};

/// What is asked of contents that are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether a content tells the mode of the volume it was made of, so that nobody restores it in another.
    pub keep_volume_mode: bool,
    /// Whether a content tells the node that its volume is bound to.
    pub distributed: bool,
    /// Whether group snapshots are looked after.
    pub groups: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    /// There is no such object.
    Nothing,
    /// A write of ours got no answer; the fresh read that is under way wakes the key.
    Unknown,
    Single(Box<Single>),
    Content(ContentFacts),
    Claim(Box<ClaimFacts>),
    Group(Box<Group>),
    GroupContent(GroupContentFacts),
}

/// One VolumeSnapshot and what it is bound to.
#[derive(Debug, Clone, PartialEq)]
pub struct Single {
    pub snapshot: Arc<VolumeSnapshot>,
    /// The one content that it has or may have.
    pub content_name: String,
    pub content: View<VolumeSnapshotContent>,
    /// The class that it names.
    pub class: Option<Arc<VolumeSnapshotClass>>,
    /// The classes that are somebody's default, where it names none.
    pub defaults: Vec<Arc<VolumeSnapshotClass>>,
    pub claim: View<SourceClaim>,
    /// The claim's volume, if it was just read.
    pub volume: Option<Look>,
    /// Where the snapshot can be made.
    pub place: Place,
    /// Claims whose volumes are being made from it, where that matters.
    pub restoring: Vec<object::Key>,
    pub group: Membership,
    pub told: Known,
    pub policy: Policy,
}

/// Where snapshots of volumes can be made, given what the volumes are bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Every node is as good, or that does not matter.
    Anywhere,
    Node(String),
    /// No node is allowed by the affinity of all the volumes.
    Nowhere,
}

/// What a VolumeSnapshot has to do with a group snapshot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Membership {
    /// The group it belongs to.
    pub of: Option<object::Key>,
    /// That group's uid, as the snapshot tells it.
    pub owner: Option<String>,
    /// That very group's uid, while there is one.
    pub uid: Option<String>,
    /// Whether that group is going.
    pub is_going: bool,
    /// The group's name, as the content's group handle tells it.
    pub by_handle: Option<String>,
}

/// A content beside the VolumeSnapshot that it names.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentFacts {
    pub content: Arc<VolumeSnapshotContent>,
    /// That very VolumeSnapshot, if there is one.
    pub snapshot: View<VolumeSnapshot>,
    pub told: Known,
}

/// A claim, and every snapshot of it that is not ready.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimFacts {
    pub claim: Arc<SourceClaim>,
    /// `None` where a snapshot is not known for the moment.
    pub snapshots: Vec<Option<Single>>,
    pub told: Known,
}

pub fn gather(caches: &Caches, memory: &Memory, policy: Policy, key: &Key, now: Timestamp) -> Snapshot {
    let gatherer = Gatherer { caches, memory, policy, now };
    match key {
        Key::Snapshot(name) => match caches.snapshots.view(name) {
            View::Absent => Snapshot::Nothing,
            View::Unknown => Snapshot::Unknown,
            View::Known(snapshot) => Snapshot::Single(Box::new(gatherer.single(snapshot))),
        },
        Key::Content(name) => match caches.contents.view(&object::Key::cluster(name.as_str())) {
            View::Absent => Snapshot::Nothing,
            View::Unknown => Snapshot::Unknown,
            View::Known(content) => Snapshot::Content(ContentFacts {
                snapshot: caches.snapshots.view(&content.spec.volume_snapshot_ref.key()),
                content,
                told: memory.told.known(key),
            }),
        },
        Key::Claim(name) => match caches.claims.view(name) {
            View::Absent => Snapshot::Nothing,
            View::Unknown => Snapshot::Unknown,
            View::Known(claim) => Snapshot::Claim(Box::new(ClaimFacts {
                claim,
                snapshots: gatherer.snapshots_of(name),
                told: memory.told.known(key),
            })),
        },
        Key::Group(name) => match caches.groups.view(name) {
            View::Absent => Snapshot::Nothing,
            View::Unknown => Snapshot::Unknown,
            View::Known(group) => Snapshot::Group(Box::new(gatherer.group(group))),
        },
        Key::GroupContent(name) => match caches.group_contents.view(&object::Key::cluster(name.as_str())) {
            View::Absent => Snapshot::Nothing,
            View::Unknown => Snapshot::Unknown,
            View::Known(content) => Snapshot::GroupContent(GroupContentFacts {
                group: caches.groups.view(&content.spec.volume_group_snapshot_ref.key()),
                is_listed: caches.groups.is_synced(),
                content,
                told: memory.told.known(key),
            }),
        },
    }
}

/// Where and when is looked.
struct Gatherer<'a> {
    caches: &'a Caches,
    memory: &'a Memory,
    policy: Policy,
    now: Timestamp,
}

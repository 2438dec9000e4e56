//! What must happen next to one object, and why.
//!
//! A snapshot of a claim comes about in six writes: the claim's finalizer, the VolumeSnapshot's finalizers and class in one,
//! the content with all that belongs to it, what the snapshotter says in the content's status, the same in the
//! VolumeSnapshot's, and the claim's finalizer off. Each step is decided from what is there, so that it does not matter
//! where the last one was cut off.

mod class;
mod content;
mod creation;
mod deletion;
mod group;
mod protection;
mod single;
pub mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::object::{self, ObjectId, ObjectRef, kinds};
use stowage_model::{Text, VolumeSnapshotContent, annotations};
use stowage_runtime::api::Target;
use stowage_runtime::engine;
use stowage_runtime::events::Note;

use crate::metrics::Finished;
use crate::snapshot::Snapshot;

pub use creation::Plan;

/// One write, or one read that a write needs.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Reads a claim's volume.
    LookAtVolume {
        name: String,
        claim: object::Key,
    },
    /// Finalizers and default class of a VolumeSnapshot, as operations on its one version.
    PrepareSnapshot {
        target: Target,
        operations: Vec<Value>,
    },
    /// Makes the content of a VolumeSnapshot, once it is certain that this still is to be.
    CreateContent {
        snapshot: ObjectRef,
        body: Value,
        is_fresh: bool,
    },
    /// Binds a content to the VolumeSnapshot that it names.
    BindContent {
        target: Target,
        body: Value,
    },
    /// Writes what is known of a VolumeSnapshot, then tells people and notes what has ended.
    WriteStatus {
        target: Target,
        status: Value,
        tell: Vec<Note>,
        about: ObjectRef,
        finished: Vec<Finished>,
    },
    /// Lets the snapshotter delete what the content stands for.
    MarkContent {
        target: Target,
        body: Value,
    },
    DeleteContent {
        target: Target,
        snapshot: ObjectRef,
    },
    /// Drops finalizers of a VolumeSnapshot.
    ReleaseSnapshot {
        target: Target,
        operations: Vec<Value>,
    },
    /// Makes sure that a content is gone before its VolumeSnapshot is.
    ConfirmContentGone {
        content: object::Key,
    },
    /// Makes sure that a group is gone: its kind may not be watched yet.
    ConfirmGroupGone {
        group: object::Key,
        /// The one that is meant, where that is told: another may have its name by now.
        uid: Option<String>,
    },
    /// Adds or drops the finalizer of a claim.
    ProtectClaim {
        target: Target,
        keep: bool,
    },
    /// Gives a content its finalizer.
    GuardContent {
        target: Target,
        operations: Vec<Value>,
    },
    /// Makes a VolumeSnapshot that was made by hand a member of its group.
    AdoptMember {
        target: Target,
        owner: Value,
    },
    /// One act on a group or its members.
    Group(GroupAction),
    Tell {
        about: ObjectRef,
        note: Note,
    },
}

/// The same for groups.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupAction {
    /// Finalizer and default class of a group.
    Prepare {
        target: Target,
        operations: Vec<Value>,
    },
    CreateContent {
        group: ObjectRef,
        body: Value,
        is_fresh: bool,
    },
    Bind {
        target: Target,
        body: Value,
    },
    WriteStatus {
        target: Target,
        status: Value,
        tell: Vec<Note>,
        about: ObjectRef,
        finished: Vec<Finished>,
    },
    /// Makes what members lack, once it is certain that the group still is to be.
    MakeMembers {
        group: ObjectRef,
        missing: Vec<Missing>,
    },
    /// Says in a member's content what the driver said of it.
    WriteMemberStatus {
        target: Target,
        status: Value,
    },
    Mark {
        target: Target,
        body: Value,
    },
    DeleteContent {
        target: Target,
        group: ObjectRef,
    },
    DeleteMember {
        target: Target,
    },
    Release {
        target: Target,
        operations: Vec<Value>,
    },
    Guard {
        target: Target,
        operations: Vec<Value>,
    },
    /// Makes sure that a group's content is gone before the group is.
    ConfirmContentGone {
        content: object::Key,
    },
}

/// What a member of a group lacks.
#[derive(Debug, Clone, PartialEq)]
pub enum Missing {
    Snapshot(Value),
    /// Its content, whose snapshot the driver has made already.
    Content(Value),
}

/// Why a decision was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Gone,
    /// A write got no answer; the fresh read under way wakes the key.
    Unknown,
    /// What belongs to groups is not known yet; the first list of it wakes the key.
    Unlisted,
    /// People were told what is wrong.
    Broken(&'static str),
    /// The claim's volume must be read.
    NeedsVolume,
    /// The claim must be kept before a snapshot of it is begun.
    NeedsProtection,
    Creating,
    Binding,
    /// The snapshotter has said nothing yet.
    Quiet,
    Told,
    Ready,
    /// Somebody makes a volume from it.
    InUse,
    /// The group it belongs to must go first.
    InGroup,
    Deleting,
    /// The snapshotter is at it.
    ContentDeleting,
    Released,
    Protected,
    Unprotected,
    Guarding,
    Fine,
}

pub type Decision = engine::Decision<Action, Why>;

pub fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
    match snapshot {
        Snapshot::Nothing => Decision::rest(Why::Gone),
        Snapshot::Unknown => Decision::rest(Why::Unknown),
        Snapshot::Single(single) => single::decide(single, now),
        Snapshot::Content(facts) => content::decide(facts, now),
        Snapshot::Claim(facts) => protection::decide(facts, now),
        Snapshot::Group(group) => group::decide(group, now),
        Snapshot::GroupContent(facts) => group::content::decide(facts, now),
    }
}

/// The contents that actions write: a content has a key of its own.
pub fn touches(actions: &[Action]) -> Vec<ObjectId> {
    let name = |action: &Action| match action {
        Action::BindContent { target, .. }
        | Action::MarkContent { target, .. }
        | Action::DeleteContent { target, .. }
        | Action::GuardContent { target, .. } => Some(target.key.clone()),
        Action::CreateContent { body, .. } => body["metadata"]["name"].as_str().map(object::Key::cluster),
        _ => None,
    };
    let keys: BTreeSet<object::Key> = actions.iter().filter_map(name).collect();
    keys.into_iter().map(|key| ObjectId { kind: kinds::VOLUME_SNAPSHOT_CONTENT, key }).collect()
}

/// What people are told when something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Whether the content names this very VolumeSnapshot, by its uid. That of a group's member may have none yet: the original
/// makes it before the VolumeSnapshot, and may have stopped in between.
fn is_bound_to(content: &VolumeSnapshotContent, meta: &object::Meta) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    let is_member = content.meta.annotation(annotations::SNAPSHOT_GROUP_HANDLE).is_some();
    (is_member || !reference.uid.is_empty()) && reference.names(meta)
}

/// Operations that add finalizers to an object of this one version; none where all are there.
fn add_finalizers(meta: &object::Meta, wanted: &[&str]) -> Vec<Value> {
    let missing: Vec<&str> = wanted.iter().copied().filter(|finalizer| !meta.has_finalizer(finalizer)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    if meta.finalizers.is_empty() {
        return vec![json!({ "op": "add", "path": "/metadata/finalizers", "value": missing })];
    }
    let add = |finalizer| json!({ "op": "add", "path": "/metadata/finalizers/-", "value": finalizer });
    missing.into_iter().map(add).collect()
}

/// Operations that drop finalizers from an object of this one version; none where none is there.
fn drop_finalizers(meta: &object::Meta, dropped: &[&str]) -> Vec<Value> {
    let places = meta.finalizers.iter().enumerate().rev();
    let found = places.filter(|(_, finalizer)| dropped.contains(&finalizer.as_str()));
    let remove = |(place, finalizer): (usize, &Text)| {
        let path = format!("/metadata/finalizers/{place}");
        [json!({ "op": "test", "path": path, "value": finalizer }), json!({ "op": "remove", "path": path })]
    };
    found.flat_map(remove).collect()
}

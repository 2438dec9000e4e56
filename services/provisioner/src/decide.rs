//! What must happen next, and why.

mod claim;
mod source;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::claim::Claim;
use stowage_model::names::VolumeHandle;
use stowage_model::volume::Volume;
use stowage_runtime::engine;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Record, State};
use stowage_runtime::told::Known;

use crate::intent::{Intent, Made, SecretRef, Source};
use crate::migrated;
use crate::request::Problem;
use crate::snapshot::Snapshot;
use crate::source::Origin;

pub use claim::{asked, is_ours, is_wanted};
pub use source::finalizer;
pub use volume::is_ours as is_our_volume;

/// One write or the start of one driver call.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Say something about the claim or volume.
    Tell(Note),
    /// Make the intent durable.
    Record(Arc<Intent>),
    /// Start CreateVolume; `wanted` if a claim still waits for it.
    Create {
        intent: Arc<Intent>,
        wanted: bool,
    },
    /// Create the PersistentVolume.
    MakeVolume {
        intent: Arc<Intent>,
        made: Made,
    },
    /// Start DeleteVolume of a volume that has no owner.
    CleanUp {
        intent: Arc<Intent>,
        handle: VolumeHandle,
    },
    /// Make the object of a volume whose claim is gone: its class says that data is not deleted, and it may have some.
    Keep {
        intent: Arc<Intent>,
        made: Made,
    },
    /// Hold the source, so that it stays while a volume is made from it.
    Protect(Source),
    /// Go on asking without holding the source, and say so there.
    Release {
        intent: Arc<Intent>,
        note: Note,
    },
    /// No volume is being made from the source with this uid any more.
    Unprotect {
        origin: Origin,
        uid: String,
    },
    /// Start a live look at a VolumeSnapshot and its content.
    Look(Origin),
    /// Start a live look at the VolumeAttributesClass of this name.
    LookUp(String),
    /// The record has done its work.
    Forget,
    /// A write got no answer: read the volume.
    ReadVolume(String),
    /// Start DeleteVolume of a released volume.
    Delete {
        volume: Arc<Volume>,
        handle: VolumeHandle,
        secret: DeletionSecret,
    },
    /// Delete the PersistentVolume.
    RemoveVolume(Arc<Volume>),
    AddFinalizer(Arc<Volume>),
    /// The volume is deleted: its object may go.
    RemoveFinalizer(Arc<Volume>),
    /// The volume is not ours to delete: its object may go whenever somebody deletes it.
    LetGo(Arc<Volume>),
    /// Write the journal's removals now: something must not happen before.
    FlushJournal,
    /// Wait before taking a claim that belongs to nobody.
    Bid,
    /// Start GetCapacity: a claim is not taken where its volume has no room.
    AskForRoom(Arc<Intent>),
    /// Take the claim for this node.
    Take(Arc<Claim>),
    /// Let the scheduler, or the other nodes, choose another node.
    Reschedule(Arc<Claim>),
}

/// Where the secret of a DeleteVolume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionSecret {
    None,
    At(SecretRef),
    /// The volume does not say; ask its class.
    FromClass,
}

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    NotOurs,
    Gone,
    Deleting,
    Bound,
    VolumeExists,
    /// No node was chosen yet.
    WaitsForConsumer,
    /// Another node's provisioner serves it, or none.
    OtherNode,
    /// It belongs to no node yet; ours tries to get it when its time has come.
    Bidding,
    /// There is no room on the chosen node, or the driver is not there.
    NoRoom,
    /// Somebody else fills volumes from such a source.
    WaitsForPopulator,
    Problem(Problem),
    /// A live look at the source comes first.
    Looking,
    /// The source is not held yet.
    Unprotected,
    /// The source is held and need not be any more.
    Unused,
    /// The same, but another node may be using it unseen.
    LeftOver,
    /// The source is being deleted, nobody waits, and the driver may never tell.
    Unanswerable,
    /// The intent is not durable yet.
    Unrecorded,
    /// The class or the claim changed since a call that certainly made nothing.
    RequestChanged,
    Calling,
    CallDue,
    BacksOff,
    Made,
    /// The volume was made and nobody wants it any more.
    Unwanted,
    /// The volume was made, the claim is gone, but another object has it.
    OwnedBy(String),
    /// The same, but an earlier run may have given it to somebody, and its class retains.
    Retained,
    NothingMade,
    CleanedUp,
    UnknownVolume,
    InUse,
    Attached,
    /// Deleting it is left to another instance.
    Ignored,
    Released,
    Deleted,
    FinalizerMissing,
    FinalizerLeft,
    /// The record must go first.
    Recorded,
}

pub type Decision = engine::Decision<Action, Why>;

/// What must happen to this claim or volume next.
pub fn decide(s: &Snapshot, now: Timestamp) -> Decision {
    match s {
        Snapshot::Claim(s) => claim::decide(s, now),
        Snapshot::Volume(s) => volume::decide(s, now),
        Snapshot::Source(s) => source::decide(s, now),
    }
}

fn is_running<R>(record: Option<&Record<R>>) -> bool {
    record.is_some_and(|record| matches!(record.state, State::Running))
}

/// Says it, unless people know it.
fn tell(told: &Known, note: Note, now: Timestamp, why: Why) -> Decision {
    match told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell(note)], why),
    }
}

/// Starts the call unless it has to back off, for at least `delay` since it ended.
fn call<R>(record: Option<&Record<R>>, now: Timestamp, delay: Duration, action: impl FnOnce() -> Action) -> Decision {
    let due = record.map(|record| {
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        record.retry_at.max(record.since.checked_add(delay).unwrap_or(Timestamp::MAX))
    });
    match due {
        Some(due) if due > now => Decision::wait_until(due, Why::BacksOff),
        _ => Decision::act([action()], Why::CallDue),
    }
}

/// Whether the object stands for this volume of the driver. One that is no CSI volume is called as its object.
pub fn has_handle(volume: &Volume, handle: &VolumeHandle, driver: &str) -> bool {
    match &volume.spec.csi {
        Some(csi) => csi.driver == driver && csi.volume_handle == handle.as_str(),
        None => match migrated::handle_of(volume, driver) {
            Some(translated) => translated == *handle,
            None => volume.provisioned_by() == Some(driver) && volume.meta.name == handle.as_str(),
        },
    }
}

#[cfg(test)]
mod tests;

//! What must happen next to a PersistentVolume: its finalizer, and its deletion once it is released.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_model::annotations::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE};
use stowage_model::finalizers::PROVISIONER;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::volume::Volume;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;
use stowage_runtime::operation::State;

use super::{Action, Decision, DeletionSecret, Why, call, is_running, tell};
use crate::intent::SecretRef;
use crate::journal::Trace;
use crate::library::IGNORED;
use crate::migrated;
use crate::ownership;
use crate::snapshot::VolumeSnapshot;

/// What must happen to this volume next.
pub fn decide(s: &VolumeSnapshot, now: Timestamp) -> Decision {
    let volume = match &s.volume {
        View::Absent => return Decision::rest(Why::Gone),
        View::Unknown => return Decision::act([Action::ReadVolume(s.name.clone())], Why::UnknownVolume),
        View::Known(volume) => volume,
    };
    if !is_ours(volume, &s.facts.driver) {
        return Decision::rest(Why::NotOurs);
    }
    if migrated::is_still_the_plugins(volume, &s.facts.driver) {
        return Decision::rest(Why::NotOurs);
    }
    if !ownership::is_here(volume, &s.facts) {
        return Decision::rest(Why::OtherNode);
    }
    if is_running(s.deletion.as_ref()) {
        return Decision::rest(Why::Calling);
    }
    let deletes = volume.spec.reclaim_policy == ReclaimPolicy::Delete;
    let held = volume.meta.has_finalizer(PROVISIONER);
    match volume.status.phase {
        _ if !deletes && held => let_go(s, volume),
        VolumePhase::Bound if deletes && !held && !volume.meta.is_deleting() => {
            Decision::act([Action::AddFinalizer(Arc::clone(volume))], Why::FinalizerMissing)
        }
        VolumePhase::Released if deletes && (held || !volume.meta.is_deleting()) => delete(s, volume, held, now),
        _ => Decision::rest(Why::InUse),
    }
}

/// Whether this driver made the volume, or would have to delete it.
pub fn is_ours(volume: &Volume, driver: &str) -> bool {
    match &volume.spec.csi {
        Some(csi) => csi.driver == driver && volume.provisioned_by().is_none_or(|by| by == driver),
        None => volume.provisioned_by() == Some(driver) || migrated::is_ours(volume, driver),
    }
}

/// We do not delete this volume, so we need not hold its object, except while the journal could still replay its
/// making: somebody may delete the object and keep the data, and a replay would find and delete just that.
fn let_go(s: &VolumeSnapshot, volume: &Arc<Volume>) -> Decision {
    match s.trace {
        Trace::None => Decision::act([Action::LetGo(Arc::clone(volume))], Why::FinalizerLeft),
        Trace::Leaving if volume.meta.is_deleting() => Decision::act([Action::FlushJournal], Why::Recorded),
        Trace::Live | Trace::Leaving => Decision::rest(Why::Recorded),
    }
}

fn delete(s: &VolumeSnapshot, volume: &Arc<Volume>, held: bool, now: Timestamp) -> Decision {
    // The claim's record is about to see this object and leave; until then the two could call the driver at once.
    if s.trace == Trace::Live {
        return Decision::rest(Why::Recorded);
    }
    let deleted =
        s.deletion.as_ref().is_some_and(|record| matches!(&record.state, State::Done(uid) if *uid == volume.meta.uid));
    if deleted {
        return match volume.meta.is_deleting() {
            false => Decision::act([Action::RemoveVolume(Arc::clone(volume))], Why::Deleted),
            true if held => Decision::act([Action::RemoveFinalizer(Arc::clone(volume))], Why::Deleted),
            true => Decision::rest(Why::Deleted),
        };
    }
    if let Some(node) = &s.attached_to {
        let message = format!(
            "volume {} is still attached to node {node}; it is deleted once its VolumeAttachment is gone",
            volume.meta.name
        );
        return tell(&s.told, Note::warning("VolumeFailedDelete", message), now, Why::Attached);
    }
    if !s.facts.creates {
        let driver = &s.facts.driver;
        let message = format!("driver {driver:?} lacks the capability CREATE_DELETE_VOLUME; delete the volume by hand");
        return tell(&s.told, Note::warning("VolumeFailedDelete", message), now, Why::Released);
    }
    let handle = match migrated::handle_of(volume, &s.facts.driver) {
        Some(handle) => handle,
        None if s.facts.library => volume.meta.name.as_str().into(),
        None => {
            let message = format!(
                "the source of volume {} is none that driver {:?} understands; delete the volume by hand",
                volume.meta.name, s.facts.driver
            );
            return tell(&s.told, Note::warning("VolumeFailedDelete", message), now, Why::Released);
        }
    };
    // Nobody tells when another instance's volume becomes ours.
    let is_ignored =
        s.deletion.as_ref().is_some_and(|record| matches!(&record.state, State::Uncertain(f) if f.code == IGNORED));
    let delay = if is_ignored { s.facts.options.driver.retry.max } else { Duration::ZERO };
    let mut decision = call(s.deletion.as_ref(), now, delay, || Action::Delete {
        volume: Arc::clone(volume),
        handle,
        secret: secret(volume),
    });
    if !decision.actions.is_empty() {
        decision.why = Why::Released;
    } else if is_ignored {
        decision.why = Why::Ignored;
    }
    decision
}

fn secret(volume: &Volume) -> DeletionSecret {
    let annotation = |key| volume.meta.annotation(key);
    match (annotation(DELETION_SECRET_NAME), annotation(DELETION_SECRET_NAMESPACE)) {
        (None, _) | (_, None) => DeletionSecret::FromClass,
        (Some(""), _) | (_, Some("")) => DeletionSecret::None,
        (Some(name), Some(namespace)) => {
            DeletionSecret::At(SecretRef { namespace: namespace.into(), name: name.into() })
        }
    }
}

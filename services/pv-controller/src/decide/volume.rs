use stowage_model::annotations;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Claim, Volume, finalizers};
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::snapshot::VolumeSnapshot;

use super::{Decision, VolumeAction, Why};

/// What must happen to this volume next, and why. Upstream's order: protection apart, then the claim reference.
pub fn decide(s: &VolumeSnapshot) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if let Some(decision) = protection(volume) {
        return decision;
    }
    let Some(reference) = &volume.spec.claim_ref else { return phase(volume, VolumePhase::Available) };
    if reference.uid.is_empty() {
        return phase(volume, VolumePhase::Available);
    }
    match &s.claim {
        View::Unknown => Decision::rest(Why::Unknown),
        View::Absent => released(s),
        View::Known(claim) if claim.meta.uid != reference.uid => released(s),
        View::Known(claim) => referring(s, claim),
    }
}

fn referring(s: &VolumeSnapshot, claim: &Claim) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if claim.spec.volume_name == volume.meta.name {
        return phase(volume, VolumePhase::Bound);
    }
    if claim.names_volume() {
        return elsewhere(s);
    }
    if claim.spec.volume_mode != volume.spec.volume_mode {
        let text = format!(
            "volume {} has volumeMode {} but claim {} asks for {}; make one of them agree or clear the volume's claimRef",
            volume.meta.name,
            volume.spec.volume_mode,
            claim.meta.key(),
            claim.spec.volume_mode,
        );
        return tell(s, Note::warning("VolumeMismatch", text), Why::Settled);
    }
    // The claim's own decision takes it from here.
    Decision::rest(Why::Settled)
}

/// The claim found another volume: what was made for it is not needed, what a user made is free again.
fn elsewhere(s: &VolumeSnapshot) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if volume.meta.annotation(annotations::PROVISIONED_BY).is_some()
        && volume.spec.reclaim_policy == ReclaimPolicy::Delete
    {
        if !is_released(volume) {
            return Decision::act([VolumeAction::Release], Why::ClaimElsewhere);
        }
        return reclaim(s);
    }
    Decision::act([VolumeAction::Unbind], Why::ClaimElsewhere)
}

fn released(s: &VolumeSnapshot) -> Decision<VolumeAction> {
    if !is_released(&s.volume) {
        return Decision::act([VolumeAction::Release], Why::ClaimGone);
    }
    reclaim(s)
}

fn is_released(volume: &Volume) -> bool {
    matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed)
}

fn reclaim(s: &VolumeSnapshot) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if volume.migrated_to().is_some_and(|driver| !driver.is_empty()) {
        return Decision::rest(Why::ClaimGone);
    }
    let (reason, message) = match volume.spec.reclaim_policy {
        ReclaimPolicy::Retain => return Decision::rest(Why::ClaimGone),
        // Deleted by the external provisioner, which sees the phase Released.
        ReclaimPolicy::Delete if is_deleted_externally(volume) => return Decision::rest(Why::ClaimGone),
        ReclaimPolicy::Delete => (
            "VolumeFailedDelete",
            format!(
                "no deleter for a {} volume: delete its data by hand, then the object, or set persistentVolumeReclaimPolicy to Retain",
                volume.spec.other_source.unwrap_or("volume without source"),
            ),
        ),
        ReclaimPolicy::Recycle => (
            "VolumeFailedRecycle",
            "recycling is not available: set persistentVolumeReclaimPolicy to Retain or Delete".to_owned(),
        ),
        ReclaimPolicy::Unknown => (
            "VolumeUnknownReclaimPolicy",
            "unknown persistentVolumeReclaimPolicy: set it to Retain or Delete".to_owned(),
        ),
    };
    if volume.status.phase == VolumePhase::Failed {
        return Decision::rest(Why::Settled);
    }
    let phase = VolumeAction::Phase { phase: VolumePhase::Failed, message: message.clone() };
    Decision::act([phase, VolumeAction::Tell(Note::warning(reason, message))], Why::Phase(VolumePhase::Failed))
}

fn is_deleted_externally(volume: &Volume) -> bool {
    match volume.provisioned_by() {
        Some(provisioner) if !provisioner.is_empty() => !provisioner.starts_with("kubernetes.io/"),
        _ => volume.spec.csi.is_some(),
    }
}

fn phase(volume: &Volume, phase: VolumePhase) -> Decision<VolumeAction> {
    if volume.status.phase == phase {
        return Decision::rest(Why::Settled);
    }
    Decision::act([VolumeAction::Phase { phase, message: String::new() }], Why::Phase(phase))
}

fn tell(s: &VolumeSnapshot, note: Note, why: Why) -> Decision<VolumeAction> {
    if s.told.as_ref() == Some(&note) {
        return Decision::rest(why);
    }
    Decision::act([VolumeAction::Tell(note.clone()), VolumeAction::TellClaim(note)], why)
}

/// A volume object stays while it is bound, whoever asked for its deletion.
fn protection(volume: &Volume) -> Option<Decision<VolumeAction>> {
    let protected = volume.meta.has_finalizer(finalizers::VOLUME_PROTECTION);
    match (volume.meta.is_deleting(), protected) {
        (false, false) => Some(Decision::act([VolumeAction::Protect], Why::Protection)),
        (true, true) if volume.status.phase != VolumePhase::Bound => {
            Some(Decision::act([VolumeAction::Unprotect], Why::Protection))
        }
        _ => None,
    }
}

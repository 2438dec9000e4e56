//! The volume's half of binding: its phase, and what happens once its claim is gone or elsewhere.

use jiff::Timestamp;

use stowage_model::object::Key;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Claim, Volume};
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::decide::{Decision, Source, VolumeAction, Why};
use crate::snapshot::VolumeSnapshot;

use super::reclaim::{is_released, reclaim};

/// What must happen to this volume next, and why.
pub fn decide(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    if !s.rules.controllers.binder {
        return Decision::rest(Why::Off);
    }
    let volume = &*s.volume;
    let held = volume.spec.claim_ref.as_ref().filter(|held| !held.uid.is_empty());
    let claim = match (held, &s.claim) {
        (None, _) => None,
        (Some(_), View::Unknown) => return Decision::rest(Why::Unknown),
        (Some(held), View::Known(claim)) if claim.meta.uid == held.uid => Some(claim),
        (Some(_), View::Absent | View::Known(_)) => return released(s, Why::ClaimGone, now),
    };
    match (&s.eraser, claim) {
        (Some(pod), _) => still_erased(s, pod, now),
        (None, Some(claim)) => referring(s, claim, now),
        (None, None) => phase(volume, VolumePhase::Available),
    }
}

/// Whoever took the volume back has it once the pod lets go of it.
fn still_erased(s: &VolumeSnapshot, pod: &Key, now: Timestamp) -> Decision<VolumeAction> {
    let text = format!("pod {pod} still erases the volume, which is free when that has ended");
    let note = Note::normal("VolumeFailedRecycle", text);
    let is_told = s.told.said(&Source::Binder, now) == Some(&note);
    Decision::act(if is_told { vec![] } else { vec![VolumeAction::Tell(note)] }, Why::InUse)
}

fn referring(s: &VolumeSnapshot, claim: &Claim, now: Timestamp) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if claim.spec.volume_name == volume.meta.name {
        return phase(volume, VolumePhase::Bound);
    }
    if claim.names_volume() {
        return elsewhere(s, now);
    }
    if claim.spec.volume_mode != volume.spec.volume_mode {
        let text = format!(
            "volume {} has volumeMode {} but claim {} asks for {}; make one of them agree or clear the volume's claimRef",
            volume.meta.name,
            volume.spec.volume_mode,
            claim.meta.key(),
            claim.spec.volume_mode,
        );
        return tell(s, Note::warning("VolumeMismatch", text), Why::Settled, now);
    }
    // The claim's own decision takes it from here.
    Decision::rest(Why::Settled)
}

/// The claim found another volume: what was made for it is not needed, what a user made is free again.
fn elsewhere(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if volume.provisioned_by().is_some() && volume.spec.reclaim_policy == ReclaimPolicy::Delete {
        return released(s, Why::ClaimElsewhere, now);
    }
    Decision::act([VolumeAction::Unbind], Why::ClaimElsewhere)
}

fn released(s: &VolumeSnapshot, why: Why, now: Timestamp) -> Decision<VolumeAction> {
    if !is_released(&s.volume) {
        return Decision::act([VolumeAction::Release], why);
    }
    reclaim(s, now)
}

fn phase(volume: &Volume, phase: VolumePhase) -> Decision<VolumeAction> {
    if volume.status.phase == phase {
        return Decision::rest(Why::Settled);
    }
    Decision::act([VolumeAction::Phase { phase, message: String::new() }], Why::Phase(phase))
}

fn tell(s: &VolumeSnapshot, note: Note, why: Why, now: Timestamp) -> Decision<VolumeAction> {
    if s.told.said(&Source::Binder, now) == Some(&note) {
        return Decision::rest(why);
    }
    Decision::act([VolumeAction::Tell(note.clone()), VolumeAction::TellClaim(note)], why)
}

/// Whether the volume, seen fresh, has lost its claim: what precedes Released.
pub fn has_lost_its_claim(volume: &Volume, claim: Option<&Claim>) -> bool {
    let Some(held) = volume.spec.claim_ref.as_ref().filter(|held| !held.uid.is_empty()) else { return false };
    match claim.filter(|claim| claim.meta.uid == held.uid) {
        None => true,
        Some(claim) => claim.names_volume() && claim.spec.volume_name != volume.meta.name,
    }
}

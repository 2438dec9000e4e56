use jiff::Timestamp;

use stowage_model::object::Key;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Claim, Volume, finalizers, migration};
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::snapshot::VolumeSnapshot;

use super::claim::migration_change;
use super::reclaim::{is_released, reclaim};
use super::{Decision, VolumeAction, VolumeTidy, Why};

/// What must happen to this volume next, and why. Upstream's order: metadata, then the claim reference.
pub fn decide(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    if let Some(decision) = metadata(s) {
        return decision;
    }
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
        (Some(pod), _) => still_erased(s, pod),
        (None, Some(claim)) => referring(s, claim, now),
        (None, None) => phase(volume, VolumePhase::Available),
    }
}

/// Whoever took the volume back has it once the pod lets go of it.
fn still_erased(s: &VolumeSnapshot, pod: &Key) -> Decision<VolumeAction> {
    let text = format!("pod {pod} still erases the volume, which is free when that has ended");
    let note = Note::normal("VolumeFailedRecycle", text);
    let is_told = s.told.as_ref() == Some(&note);
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
        return tell(s, Note::warning("VolumeMismatch", text), Why::Settled);
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

fn tell(s: &VolumeSnapshot, note: Note, why: Why) -> Decision<VolumeAction> {
    if s.told.as_ref() == Some(&note) {
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

/// Finalizers and the annotation of migration, all in one write.
fn metadata(s: &VolumeSnapshot) -> Option<Decision<VolumeAction>> {
    let (volume, rules) = (&*s.volume, &s.rules.controllers);
    let meta = &volume.meta;
    if rules.volume_protection && may_go(s) {
        return Some(Decision::act([VolumeAction::Unprotect], Why::Protection));
    }
    let mut wanted = meta.finalizers.clone();
    let mut tidy = VolumeTidy::default();
    if let Some(provisioner) = volume.provisioned_by().filter(|name| rules.binder && !name.is_empty()) {
        tidy.migrated_to = migration_change(provisioner, volume.migrated_to());
        deletion_finalizers(s, provisioner, &mut wanted);
    }
    if rules.volume_protection && !meta.is_deleting() && !meta.has_finalizer(finalizers::VOLUME_PROTECTION) {
        wanted.push(finalizers::VOLUME_PROTECTION.to_owned());
    }
    tidy.finalizers = (wanted != meta.finalizers).then_some(wanted);
    let why = if tidy.migrated_to.is_some() { Why::Migration } else { Why::Protection };
    (tidy != VolumeTidy::default()).then(|| Decision::act([VolumeAction::Tidy(tidy)], why))
}

/// A volume object stays while it is bound, also while its claim is already marked and only its phase is missing; and
/// while its data is being deleted, so that both finalizers go in one write.
fn may_go(s: &VolumeSnapshot) -> bool {
    let volume = &*s.volume;
    let meta = &volume.meta;
    let completing = matches!(&s.claim, View::Known(claim) if volume.is_bound_to(claim)
        && claim.spec.volume_name == meta.name && !claim.meta.is_deleting());
    meta.is_deleting()
        && meta.has_finalizer(finalizers::VOLUME_PROTECTION)
        && volume.status.phase != VolumePhase::Bound
        && !completing
        && !(s.rules.controllers.binder && meta.has_finalizer(finalizers::IN_TREE_DELETER))
}

/// Which finalizers guard the deletion of a provisioned volume's data.
fn deletion_finalizers(s: &VolumeSnapshot, provisioner: &str, list: &mut Vec<String>) {
    let volume = &*s.volume;
    if migration::driver_of(provisioner).is_some() {
        return list.retain(|name| name != finalizers::IN_TREE_DELETER);
    }
    if !provisioner.starts_with(migration::IN_TREE) {
        return;
    }
    list.retain(|name| name != finalizers::PROVISIONER);
    match volume.spec.reclaim_policy {
        // A finalizer cannot be added to an object that is being deleted, nor is one needed once the data is gone.
        ReclaimPolicy::Delete
            if !volume.meta.is_deleting()
                && !s.is_data_deleted()
                && !volume.meta.has_finalizer(finalizers::IN_TREE_DELETER) =>
        {
            list.push(finalizers::IN_TREE_DELETER.to_owned());
        }
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle => list.retain(|name| name != finalizers::IN_TREE_DELETER),
        _ => {}
    }
}

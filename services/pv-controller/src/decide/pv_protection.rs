//! pv-protection: a volume stays while a claim has it. The binder's own finalizer and annotation ride on the same write.

use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Text, finalizers, migration};
use stowage_runtime::cache::View;

use crate::snapshot::VolumeSnapshot;

use super::migration::migration_change;
use super::{Decision, VolumeAction, VolumeTidy, Why};

/// Finalizers and the annotation of migration, all in one write.
pub fn decide(s: &VolumeSnapshot) -> Option<Decision<VolumeAction>> {
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
        wanted.push(finalizers::VOLUME_PROTECTION.into());
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
fn deletion_finalizers(s: &VolumeSnapshot, provisioner: &str, list: &mut Vec<Text>) {
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
            list.push(finalizers::IN_TREE_DELETER.into());
        }
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle => list.retain(|name| name != finalizers::IN_TREE_DELETER),
        _ => {}
    }
}

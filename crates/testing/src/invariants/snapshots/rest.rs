//! What must hold of snapshots when nothing is going on: volumes are made from what they name, and nothing is held for nothing.

use stowage_model::claim::Claim;
use stowage_model::object::Projection;
use stowage_model::phase::ClaimPhase;
use stowage_model::volume_snapshot::{DeletionPolicy, VolumeSnapshot};
use stowage_model::{annotations, finalizers};

use crate::driver::Source;

use super::{Observed, Violation, violation};

impl Observed {
    /// Claims whose volume was made from something else than they name, as far as that still can be told.
    pub(super) fn restored_from_elsewhere(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for claim in self.claims.iter().filter(|claim| claim.is_fully_bound()) {
            let wanted = self.wanted_source(claim);
            let made = self.handle_of(claim).and_then(|handle| self.driver.volumes.get(handle));
            let Some(made) = made.filter(|made| made.name == claim.provisioned_volume_name()) else { continue };
            if wanted.is_some() && made.source != wanted {
                let (key, source) = (claim.key(), &made.source);
                let text = format!("claim {key} is to be made from {wanted:?}, but was made from {source:?}");
                found.push(violation("S1", text));
            }
        }
        found
    }

    fn wanted_source(&self, claim: &Claim) -> Option<Source> {
        let source = claim.data_source()?;
        match source.kind.as_str() {
            "VolumeSnapshot" => {
                let snapshot = self.snapshots.iter().find(|snapshot| is_source_of(claim, *snapshot))?;
                Some(Source::Snapshot(self.content_of(snapshot)?.snapshot_handle()?.to_owned()))
            }
            "PersistentVolumeClaim" => {
                let source = self.claims.iter().find(|source| is_source_of(claim, *source))?;
                Some(Source::Volume(self.handle_of(source)?.to_owned()))
            }
            _ => None,
        }
    }

    fn handle_of(&self, claim: &Claim) -> Option<&str> {
        let volume = self.volumes.iter().find(|volume| volume.meta.name == claim.spec.volume_name)?;
        self.ours(volume)
    }

    /// What somebody still holds although nobody needs it: finalizers, marks, and objects that should be gone.
    pub(super) fn held_for_nothing(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut held = |text: String| found.push(violation("L1", text));
        for claim in self.claims.iter().filter(|claim| claim.meta.has_finalizer(finalizers::CLAIM_AS_SNAPSHOT_SOURCE)) {
            let is_cutting = |snapshot: &VolumeSnapshot| {
                snapshot.meta.namespace == claim.meta.namespace
                    && snapshot.spec.source.persistent_volume_claim_name.as_deref() == Some(&claim.meta.name)
                    && !snapshot.is_ready()
            };
            if !self.snapshots.iter().any(is_cutting) {
                held(format!("claim {} is kept for a snapshot, but none is being made of it", claim.key()));
            }
        }
        for content in self.ours_of_contents() {
            let name = &content.meta.name;
            if content.is_ready() && content.meta.annotation(annotations::SNAPSHOT_BEING_CREATED).is_some() {
                held(format!("content {name} is ready and still marked as being created"));
            }
            // One that was never bound is an administrator's.
            let is_deletable = content.snapshot_handle().is_some()
                && content.spec.deletion_policy == DeletionPolicy::Delete
                && !content.spec.volume_snapshot_ref.uid.is_empty();
            if is_deletable && !content.meta.has_finalizer(finalizers::SNAPSHOT_CONTENT_BOUND) {
                held(format!("content {name} has a snapshot to delete and no finalizer to wait for that"));
            }
            let owner = self.snapshots.iter().find(|s| content.spec.volume_snapshot_ref.names(&s.meta));
            if content.meta.is_deleting() && owner.is_none_or(|owner| owner.meta.is_deleting()) {
                held(format!("content {name} is being deleted and does not go"));
            }
        }
        for snapshot in self.snapshots.iter().filter(|snapshot| snapshot.meta.is_deleting()) {
            let restores = |claim: &Claim| claim.status.phase == ClaimPhase::Pending && is_source_of(claim, snapshot);
            let group = snapshot.status.as_ref().and_then(|status| status.volume_group_snapshot_name.as_deref());
            let in_group = |name: &str| {
                self.group_snapshots
                    .iter()
                    .any(|group| group.meta.namespace == snapshot.meta.namespace && group.meta.name == name)
            };
            if !self.claims.iter().any(restores) && !group.is_some_and(in_group) {
                held(format!("snapshot {} is being deleted and does not go", snapshot.key()));
            }
        }
        for group in self.group_snapshots.iter().filter(|group| group.meta.is_deleting()) {
            held(format!("group snapshot {} is being deleted and does not go", group.key()));
        }
        for content in self.ours_of_group_contents() {
            let owner = self.group_snapshots.iter().find(|g| content.spec.volume_group_snapshot_ref.names(&g.meta));
            if content.meta.is_deleting() && owner.is_none_or(|owner| owner.meta.is_deleting()) {
                held(format!("group content {} is being deleted and does not go", content.meta.name));
            }
        }
        found
    }
}

/// Whether a claim names an object as what its volume is made from.
fn is_source_of<T: Projection>(claim: &Claim, object: &T) -> bool {
    let (meta, kind) = (object.meta(), T::KIND.kind);
    claim.meta.namespace == meta.namespace
        && claim.data_source().is_some_and(|source| source.kind == kind && source.name == meta.name)
}

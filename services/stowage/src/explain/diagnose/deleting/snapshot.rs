//! A VolumeSnapshot that was deleted.

use stowage_model::object::{Key, kinds};
use stowage_model::{VolumeSnapshot, finalizers};

use super::super::{View, kubectl_claim, quoted, snapshot as life};
use super::{filling, foreign, gone_soon, unneeded, unreleased};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who};

/// Why a deleted snapshot is still there.
pub fn snapshot(view: &View<'_>, snapshot: &VolumeSnapshot) -> Vec<Cause> {
    let meta = &snapshot.meta;
    if meta.finalizers.is_empty() {
        return vec![gone_soon(view, meta)];
    }
    let held = |finalizer: &str| match finalizer {
        finalizers::SNAPSHOT_AS_SOURCE | finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER => {
            restored_from(view, snapshot, finalizer)
        }
        finalizers::SNAPSHOT_BOUND => content_there(view, snapshot),
        finalizers::SNAPSHOT_IN_GROUP => {
            let why = format!("finalizer {finalizer}: it belongs to a VolumeGroupSnapshot");
            let way_out = "delete the group: `kubectl get volumegroupsnapshots`".to_owned();
            Cause::stuck("in-group", Who::user(), why, way_out)
        }
        other => foreign(view, meta, kinds::VOLUME_SNAPSHOT, other),
    };
    meta.finalizers.iter().map(|finalizer| held(finalizer)).collect()
}

fn restored_from(view: &View<'_>, snapshot: &VolumeSnapshot, finalizer: &str) -> Cause {
    match view.index.copies(snapshot).first() {
        Some(claim) => {
            let why = format!("finalizer {finalizer}: claim {} is being filled from it", claim.meta.key());
            let way_out = format!("`stowage explain {}`", kubectl_claim(claim));
            filling(view, claim, "restore-under-way", why, way_out)
        }
        None => {
            let who = match finalizer {
                finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER => provisioner_of(view, snapshot),
                _ => view.who("snapshot-controller"),
            };
            unneeded(view, &view.g.claims, who, &snapshot.meta, finalizer)
        }
    }
}

fn provisioner_of(view: &View<'_>, snapshot: &VolumeSnapshot) -> Who {
    match life::content_of(view, snapshot) {
        Some(content) => view.sidecar("provisioner", &content.spec.driver),
        None => Who::named("provisioner of the snapshot's driver"),
    }
}

fn content_there(view: &View<'_>, snapshot: &VolumeSnapshot) -> Cause {
    let finalizer = finalizers::SNAPSHOT_BOUND;
    let content = snapshot.bound_content().map(|name| view.g.contents.look(&Key::cluster(name)));
    let content = match content {
        Some(Look::There(content)) => content,
        Some(Look::Unread) => {
            return unneeded(view, &view.g.contents, Who::unknown(), &snapshot.meta, finalizer);
        }
        _ => return unreleased(view, view.who("snapshot-controller"), &snapshot.meta, finalizer),
    };
    let who = view.sidecar("snapshotter", &content.spec.driver);
    let name = &content.meta.name;
    let error = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
    if let Some(error) = error {
        let why = format!("the driver does not delete it: {error} (status.error of VolumeSnapshotContent {name})");
        return Cause::stuck("delete-failed", who, why, "remove what the driver names; it is tried again by itself");
    }
    if let Some(told) = view.complaint(content, &["SnapshotDeleteError"], &[]) {
        let why = quoted(told, view.now);
        return Cause::stuck("delete-failed", who, why, "remove what the driver names; it is tried again by itself");
    }
    let (silence, way_out) = view.silence(&who);
    let since = snapshot.meta.deletion_timestamp;
    let why = format!("VolumeSnapshotContent {name} is still there: {silence}");
    view.slow("content-not-deleted", who, since, why, way_out)
}

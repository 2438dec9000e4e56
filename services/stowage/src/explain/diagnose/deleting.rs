//! What was deleted and is still there: which finalizer holds it, and who holds that.

use stowage_model::object::{Key, Kind, Meta, Projection, kinds};
use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Pod, Volume, VolumeSnapshot, finalizers};

use super::{View, attaching, kubectl, kubectl_claim, mounting, quoted, some};
use crate::explain::gathered::{Look, Seen};
use crate::explain::report::{Cause, Who};

/// Nobody whose finalizer we know: the object's own user must have set it.
fn foreign(meta: &Meta, kind: Kind, finalizer: &str) -> Cause {
    let why = format!("metadata.finalizers holds {finalizer:?}, which belongs to no storage controller known here");
    let way_out = format!(
        "find who set it and why it is not released; remove it by hand only when that component is gone for good: `kubectl \
         edit {}`",
        kubectl(kind.plural, &meta.key())
    );
    Cause::stuck("foreign-finalizer", Who::named(format!("the owner of {finalizer}")), why, way_out)
}

/// Its finalizer may go, and whoever has to take it off does not.
fn unreleased(view: &View<'_>, who: Who, meta: &Meta, finalizer: &str) -> Cause {
    let (silence, way_out) = view.silence(&who);
    let why = format!("nothing is seen to need finalizer {finalizer}, and it is still there: {silence}");
    view.slow("finalizer-not-released", who, meta.deletion_timestamp, why, way_out)
}

/// As `unreleased`, if whoever needs the finalizer would have been seen among these.
fn unneeded<T: Projection>(view: &View<'_>, among: &Seen<T>, who: Who, meta: &Meta, finalizer: &str) -> Cause {
    if among.is_known {
        return unreleased(view, who, meta, finalizer);
    }
    let why = format!("finalizer {finalizer} is held, nothing that was seen needs it");
    view.unseen(T::KIND, meta.deletion_timestamp, why)
}

/// Why a deleted claim is still there.
pub fn claim(view: &View<'_>, claim: &Claim) -> Vec<Cause> {
    let meta = &claim.meta;
    if meta.finalizers.is_empty() {
        return vec![gone_soon(view, meta)];
    }
    let held = |finalizer: &str| match finalizer {
        finalizers::CLAIM_PROTECTION => claim_in_use(view, claim),
        finalizers::CLAIM_AS_SNAPSHOT_SOURCE => snapshot_of(view, claim),
        finalizers::CLONING_PROTECTION => clone_of(view, claim),
        other => foreign(meta, kinds::CLAIM, other),
    };
    meta.finalizers.iter().map(|finalizer| held(finalizer)).collect()
}

fn gone_soon(view: &View<'_>, meta: &Meta) -> Cause {
    let why = "deletion was asked for and no finalizer holds it";
    let way_out = "look at it again; if it stays, the API server's garbage collection does not run";
    view.slow("deletion-slow", Who::named("API server"), meta.deletion_timestamp, why, way_out)
}

fn claim_in_use(view: &View<'_>, claim: &Claim) -> Cause {
    let holders = view.holders_of(claim);
    let finalizer = finalizers::CLAIM_PROTECTION;
    // One that runs tells more than one that has ended.
    let Some(first) = holders.iter().find(|pod| !pod.is_terminal()).or_else(|| holders.first()) else {
        return unneeded(view, &view.g.pods, view.who("pv-controller"), &claim.meta, finalizer);
    };
    let names = some(holders.iter().map(|pod| pod.meta.name.as_str()));
    let ended = match first.is_terminal() {
        true => format!(", which has ended ({}) and holds it until it is deleted", first.status.phase),
        false => String::new(),
    };
    let why = format!("finalizer {finalizer}: used by pod {names}{ended}");
    let owner = first.meta.controller().map(|owner| format!("{} {}", owner.kind, owner.name));
    let delete = format!("kubectl delete {}", kubectl(kinds::POD.plural, &first.meta.key()));
    let way_out = match (first.meta.is_deleting(), owner) {
        (true, _) => {
            format!("the pod is being deleted: `stowage explain {}`", kubectl(kinds::POD.plural, &first.meta.key()))
        }
        (false, Some(owner)) => format!("scale down or delete {owner}, which makes the pod; or `{delete}`"),
        (false, None) => format!("`{delete}`"),
    };
    Cause::stuck("used-by-pod", Who::user(), why, way_out)
}

fn snapshot_of(view: &View<'_>, claim: &Claim) -> Cause {
    let finalizer = finalizers::CLAIM_AS_SNAPSHOT_SOURCE;
    let is_of = |one: &&VolumeSnapshot| {
        one.meta.namespace == claim.meta.namespace
            && one.spec.source.persistent_volume_claim_name.as_deref() == Some(&claim.meta.name)
            && !one.is_ready()
    };
    let Some(snapshot) = view.g.snapshots.objects.iter().find(is_of) else {
        return unneeded(view, &view.g.snapshots, view.who("snapshot-controller"), &claim.meta, finalizer);
    };
    let inner = super::snapshot::causes(view, snapshot).into_iter().next();
    let because = inner.as_ref().map(|cause| format!(": {}", cause.why)).unwrap_or_default();
    let why = format!("finalizer {finalizer}: VolumeSnapshot {} of it is not ready{because}", snapshot.meta.name);
    let delete = kubectl(kinds::VOLUME_SNAPSHOT.plural, &snapshot.meta.key());
    let way_out = format!("let the snapshot succeed, or give it up: `kubectl delete {delete}`");
    Cause::stuck("snapshot-under-way", inner.map_or_else(Who::user, |cause| cause.who), why, way_out)
}

/// A claim that is being filled from this object.
fn filled_from<'a>(view: &View<'a>, kind: Kind, from: &Meta) -> Option<&'a Claim> {
    let is_copy = |claim: &&Claim| {
        let source = claim.data_source().filter(|source| source.kind == kind.kind && source.name == from.name);
        let namespace = source.map(|source| source.namespace.as_deref().unwrap_or(&claim.meta.namespace));
        namespace == Some(from.namespace.as_str()) && !claim.is_bind_completed()
    };
    view.g.claims.objects.iter().find(is_copy)
}

fn clone_of(view: &View<'_>, claim: &Claim) -> Cause {
    let finalizer = finalizers::CLONING_PROTECTION;
    let driver = claim.storage_provisioner().unwrap_or("its driver");
    match filled_from(view, kinds::CLAIM, &claim.meta) {
        Some(copy) => {
            let why = format!("finalizer {finalizer}: claim {} is being filled from it", copy.meta.key());
            let way_out = format!("`stowage explain {}`", kubectl_claim(copy));
            Cause::stuck("clone-under-way", view.sidecar("provisioner", driver), why, way_out)
        }
        None => unneeded(view, &view.g.claims, view.sidecar("provisioner", driver), &claim.meta, finalizer),
    }
}

/// Why a deleted volume is still there.
pub fn volume(view: &View<'_>, volume: &Volume) -> Vec<Cause> {
    let meta = &volume.meta;
    if meta.finalizers.is_empty() {
        return vec![gone_soon(view, meta)];
    }
    let held = |finalizer: &str| match finalizer {
        finalizers::VOLUME_PROTECTION => vec![still_bound(view, volume)],
        finalizers::PROVISIONER => delete_in_driver(view, volume),
        finalizers::IN_TREE_DELETER => vec![unreleased(view, view.who("pv-controller"), meta, finalizer)],
        other if other.starts_with("external-attacher/") => vec![still_attached(view, volume, other)],
        other => vec![foreign(meta, kinds::VOLUME, other)],
    };
    // The one that the others wait for comes first.
    let order = |finalizer: &&str| match *finalizer {
        finalizers::VOLUME_PROTECTION => 0,
        other if other.starts_with("external-attacher/") => 1,
        finalizers::PROVISIONER => 2,
        _ => 3,
    };
    let mut held_by: Vec<&str> = meta.finalizers.iter().map(|finalizer| &**finalizer).collect();
    held_by.sort_by_key(order);
    held_by.into_iter().flat_map(held).collect()
}

fn still_bound(view: &View<'_>, volume: &Volume) -> Cause {
    let finalizer = finalizers::VOLUME_PROTECTION;
    let reference = volume.spec.claim_ref.as_ref().filter(|_| volume.status.phase == VolumePhase::Bound);
    let claim = reference.map(|reference| reference.key());
    match claim.as_ref().map(|key| view.g.claims.look(key)) {
        Some(Look::There(claim)) => {
            let why = format!("finalizer {finalizer}: bound to claim {}", claim.meta.key());
            let way_out = match claim.meta.is_deleting() {
                true => format!("the claim is being deleted: `stowage explain {}`", kubectl_claim(claim)),
                false => {
                    format!("delete the claim, if its data is not needed: `kubectl delete {}`", kubectl_claim(claim))
                }
            };
            Cause::stuck("bound-to-claim", Who::user(), why, way_out)
        }
        Some(Look::Unread) => {
            let why = format!("finalizer {finalizer} is held, and status.phase is Bound");
            view.unseen(kinds::CLAIM, volume.meta.deletion_timestamp, why)
        }
        _ => unreleased(view, view.who("pv-controller"), &volume.meta, finalizer),
    }
}

fn still_attached(view: &View<'_>, volume: &Volume, finalizer: &str) -> Cause {
    match view.attachments_of(&volume.meta.name).next() {
        Some(attachment) => attaching::detaching(view, attachment, volume.meta.deletion_timestamp),
        None => {
            let driver = volume.spec.csi.as_ref().map_or("its driver", |csi| csi.driver.as_str());
            unneeded(view, &view.g.attachments, view.sidecar("attacher", driver), &volume.meta, finalizer)
        }
    }
}

/// The driver is to delete it, or was asked and refuses.
pub fn delete_in_driver(view: &View<'_>, volume: &Volume) -> Vec<Cause> {
    let driver = volume.provisioned_by().or_else(|| volume.spec.csi.as_ref().map(|csi| csi.driver.as_str()));
    let driver = driver.unwrap_or("its driver");
    let who = view.sidecar("provisioner", driver);
    let mut causes = Vec::new();
    if let Some(told) = view.complaint(volume, &["VolumeFailedDelete"], &["VolumeDeleted"]) {
        let way_out = "remove what the driver names; it is tried again by itself";
        causes.push(Cause::stuck("delete-failed", who.clone(), quoted(told, view.now), way_out));
    } else if volume.status.phase == VolumePhase::Failed && !volume.status.message.is_empty() {
        let why = format!("{} (status.message)", volume.status.message);
        causes.push(Cause::stuck(
            "delete-failed",
            who.clone(),
            why,
            "remove what is named; it is tried again by itself",
        ));
    }
    let since = volume.meta.deletion_timestamp.or(volume.status.last_phase_transition_time);
    let attached = view.attachments_of(&volume.meta.name).next();
    causes.extend(attached.map(|one| attaching::detaching(view, one, since)));
    if causes.is_empty() && !view.g.attachments.is_known && !view.is_dead(&who) {
        let why = "its data is not deleted yet, which waits until it is attached nowhere";
        causes.push(view.unseen(kinds::VOLUME_ATTACHMENT, since, why));
    }
    if causes.is_empty() {
        let (silence, way_out) = view.silence(&who);
        let since = if view.is_dead(&who) { Some(jiff::Timestamp::MIN) } else { since };
        causes.push(view.slow(
            "deleter-silent",
            who,
            since,
            format!("its data is not deleted yet: {silence}"),
            way_out,
        ));
    }
    causes
}

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
        other => foreign(meta, kinds::VOLUME_SNAPSHOT, other),
    };
    meta.finalizers.iter().map(|finalizer| held(finalizer)).collect()
}

fn restored_from(view: &View<'_>, snapshot: &VolumeSnapshot, finalizer: &str) -> Cause {
    match filled_from(view, kinds::VOLUME_SNAPSHOT, &snapshot.meta) {
        Some(claim) => {
            let why = format!("finalizer {finalizer}: claim {} is being filled from it", claim.meta.key());
            Cause::stuck("restore-under-way", Who::user(), why, format!("`stowage explain {}`", kubectl_claim(claim)))
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
    match super::snapshot::content_of(view, snapshot) {
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

/// Why a deleted pod is still there.
pub fn pod(view: &View<'_>, pod: &Pod) -> Vec<Cause> {
    let meta = &pod.meta;
    let mut causes: Vec<Cause> = meta.finalizers.iter().map(|finalizer| foreign(meta, kinds::POD, finalizer)).collect();
    let node = pod.spec.node_name.as_str();
    if node.is_empty() {
        causes.push(gone_soon(view, meta));
        return causes;
    }
    if let Some(trouble) = mounting::node_trouble(view, node) {
        let way_out = format!(
            "once {node} is certainly off: `kubectl taint node {node} \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`; or bring it back"
        );
        causes.push(Cause { way_out, ..trouble });
    }
    // The deletion timestamp is when the grace ends.
    let told = view.complaint(pod, &["FailedUnMount", "FailedUnmount", "FailedKillPod", "FailedUnmapDevice"], &[]);
    if let Some(told) = told {
        let who = Who::named(format!("kubelet of {node}"));
        causes.push(Cause::stuck(
            "unmount-failed",
            who,
            quoted(told, view.now),
            "remove what is named; it is tried again by itself",
        ));
    }
    if causes.is_empty() {
        let who = Who::named(format!("kubelet of {node}"));
        let why =
            format!("the kubelet of {node} has not ended it yet: its containers stop, then its volumes are unmounted");
        let way_out = format!("read the log of the kubelet on {node}");
        causes.push(view.slow("kubelet-silent", who, meta.deletion_timestamp, why, way_out));
    }
    causes
}

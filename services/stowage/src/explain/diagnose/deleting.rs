//! What was deleted and is still there: which finalizer holds it, and who holds that.

mod snapshot;
mod volume;

use stowage_model::object::{Kind, Meta, Projection, kinds};
use stowage_model::{Claim, Pod, finalizers};

use super::leader::driver_of;
use super::{View, behind, binding, kubectl, kubectl_claim, mounting, quoted, some, worst};
use crate::explain::gathered::Seen;
use crate::explain::report::{Cause, Who};

pub use snapshot::snapshot;
pub use volume::{delete_in_driver, volume};

/// Nobody whose finalizer we know: the object's own user must have set it.
fn foreign(view: &View<'_>, meta: &Meta, kind: Kind, finalizer: &str) -> Cause {
    let why = format!("metadata.finalizers holds {finalizer:?}, which belongs to no storage controller known here");
    let way_out = format!(
        "find who set it and why it is not released; remove it by hand only when that component is gone for good: `kubectl \
         edit {}`",
        kubectl(kind.plural, &meta.key())
    );
    let who = Who::named(format!("the owner of {finalizer}"));
    view.slow("foreign-finalizer", who, meta.deletion_timestamp, why, way_out)
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
        other => foreign(view, meta, kinds::CLAIM, other),
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
    // One that nobody has deleted tells more than one that goes, one that runs more than one that has ended.
    let Some(first) = holders.iter().min_by_key(|pod| (pod.meta.is_deleting(), pod.is_terminal())) else {
        return unneeded(view, &view.g.pods, view.who("pv-controller"), &claim.meta, finalizer);
    };
    let names = some(holders.iter().map(|pod| pod.meta.name.as_str()));
    let ended = match first.is_terminal() {
        true => format!(", which has ended ({}) and holds it until it is deleted", first.status.phase),
        false => String::new(),
    };
    let why = format!("finalizer {finalizer}: used by pod {names}{ended}");
    if first.meta.is_deleting()
        && let Some(inner) = worst(pod(view, first))
    {
        let way_out =
            format!("the pod is being deleted: `stowage explain {}`", kubectl(kinds::POD.plural, &first.meta.key()));
        return behind(inner, "used-by-pod", why, way_out);
    }
    let owner = first.meta.controller().map(|owner| format!("{} {}", owner.kind, owner.name));
    let delete = format!("kubectl delete {}", kubectl(kinds::POD.plural, &first.meta.key()));
    let way_out = match owner {
        Some(owner) => format!("scale down or delete {owner}, which makes the pod; or `{delete}`"),
        None => format!("`{delete}`"),
    };
    view.slow("used-by-pod", Who::user(), claim.meta.deletion_timestamp, why, way_out)
}

fn snapshot_of(view: &View<'_>, claim: &Claim) -> Cause {
    let finalizer = finalizers::CLAIM_AS_SNAPSHOT_SOURCE;
    let unready = view.index.unready(claim).first();
    let held = unready.and_then(|snapshot| Some((snapshot, worst(super::snapshot::causes(view, snapshot))?)));
    let Some((snapshot, inner)) = held else {
        return unneeded(view, &view.g.snapshots, view.who("snapshot-controller"), &claim.meta, finalizer);
    };
    let name = &snapshot.meta.name;
    let why = format!("finalizer {finalizer}: VolumeSnapshot {name} of it is not ready: {}", inner.why);
    let delete = kubectl(kinds::VOLUME_SNAPSHOT.plural, &snapshot.meta.key());
    let way_out = format!("let the snapshot succeed, or give it up: `kubectl delete {delete}`");
    behind(inner, "snapshot-under-way", why, way_out)
}

fn clone_of(view: &View<'_>, claim: &Claim) -> Cause {
    let finalizer = finalizers::CLONING_PROTECTION;
    let volume = view.g.volumes.named(&claim.spec.volume_name).there();
    let driver = claim.storage_provisioner().or_else(|| driver_of(volume?));
    let who = match driver {
        Some(driver) => view.sidecar("provisioner", driver),
        None => Who::named("provisioner of the claim's driver"),
    };
    match view.index.copies(claim).first() {
        Some(copy) => {
            let why = format!("finalizer {finalizer}: claim {} is being filled from it", copy.meta.key());
            let way_out = format!("`stowage explain {}`", kubectl_claim(copy));
            filling(view, copy, "clone-under-way", why, way_out)
        }
        None => unneeded(view, &view.g.claims, who, &claim.meta, finalizer),
    }
}

/// A claim is being filled from what was deleted: that goes on as the claim does.
fn filling(view: &View<'_>, copy: &Claim, id: &'static str, why: String, way_out: String) -> Cause {
    match worst(binding::causes(view, copy)) {
        Some(inner) => behind(inner, id, why, way_out),
        None => view.slow(id, Who::unknown(), copy.meta.creation_timestamp, why, way_out),
    }
}

/// Why a deleted pod is still there.
pub fn pod(view: &View<'_>, pod: &Pod) -> Vec<Cause> {
    let meta = &pod.meta;
    let mut causes: Vec<Cause> =
        meta.finalizers.iter().map(|finalizer| foreign(view, meta, kinds::POD, finalizer)).collect();
    let node = pod.spec.node_name.as_str();
    if node.is_empty() {
        causes.push(gone_soon(view, meta));
        return causes;
    }
    match mounting::node_trouble(view, node) {
        // Nothing is there to be tainted, and no kubelet.
        Some(trouble) if view.g.nodes.named(node).is_absent() => {
            let who = Who::named("pod garbage collection (kube-controller-manager, or the scheduler of a stack)");
            let why = format!("{}: its pods are collected", trouble.why);
            let way_out = format!(
                "wait a minute; if it stays and {node} is certainly off: `kubectl delete {} --force`",
                kubectl(kinds::POD.plural, &meta.key())
            );
            causes.push(view.slow(trouble.id, who, meta.deletion_timestamp, why, way_out));
            return causes;
        }
        Some(trouble) => {
            let way_out = format!(
                "once {node} is certainly off: `kubectl taint node {node} \
                 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`; or bring it back"
            );
            causes.push(Cause { way_out, ..trouble });
        }
        None => {}
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

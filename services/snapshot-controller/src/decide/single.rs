//! One VolumeSnapshot that is not being deleted.

use jiff::Timestamp;
use serde_json::json;

use stowage_model::object::{Projection, kinds};
use stowage_model::volume_snapshot::DeletionPolicy;
use stowage_model::{VolumeSnapshotContent, finalizers};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;

use super::creation::{Plan, Step};
use super::{Action, Decision, Problem, Why, add_finalizers, creation, deletion, is_bound_to, status};
use crate::snapshot::Single;
use crate::watches;

pub fn decide(single: &Single, now: Timestamp) -> Decision {
    let snapshot = &single.snapshot;
    if snapshot.meta.is_deleting() {
        return deletion::decide(single, now);
    }
    let source = &snapshot.spec.source;
    if source.persistent_volume_claim_name.is_some() == source.volume_snapshot_content_name.is_some() {
        let message = "spec.source must have exactly one of persistentVolumeClaimName and volumeSnapshotContentName; delete \
                       this snapshot and create it anew";
        return status::fail(single, Problem::new("SnapshotValidationError", message), now);
    }
    let content = match &single.content {
        View::Unknown => return Decision::rest(Why::Unknown),
        View::Known(content) => content,
        View::Absent => return without_content(single, now),
    };
    match problem_with(single, content) {
        Some(problem) => status::fail(single, problem, now),
        None => with_content(single, content, now),
    }
}

fn without_content(single: &Single, now: Timestamp) -> Decision {
    let snapshot = &single.snapshot;
    if let Some(name) = &snapshot.spec.source.volume_snapshot_content_name {
        let message = format!("VolumeSnapshotContent {name:?} does not exist; create it, or delete this snapshot");
        return status::fail(single, Problem::new("SnapshotContentMissing", message), now);
    }
    if snapshot.is_ready() {
        return status::fail(single, creation::missing_content(single), now);
    }
    // The content of a group's member is made with its group.
    if watches::group_owner(snapshot).is_some() {
        return Decision::rest(Why::Quiet);
    }
    match creation::step(single) {
        Step::Unknown => Decision::rest(Why::Unknown),
        Step::Look { volume, claim } => Decision::act([Action::LookAtVolume { name: volume, claim }], Why::NeedsVolume),
        Step::Broken(problem) => {
            let failed = status::fail(single, problem, now);
            // Volumes are not watched: what is wrong with one is looked at again.
            let again_at = single.volume.as_ref().map(|look| look.until);
            let wake_at = failed.wake_at.into_iter().chain(again_at).min();
            Decision { wake_at, ..failed }
        }
        Step::Make(plan) => make(single, plan),
    }
}

/// The claim is kept first, so that it cannot go under the snapshot; its own key sees to that.
fn make(single: &Single, plan: Plan) -> Decision {
    let is_protected = matches!(&single.claim, View::Known(claim) if claim.is_protected());
    if !is_protected {
        // The claim's key decides by the volume that was read: before that is forgotten it is read again.
        let wake_at = single.volume.as_ref().map(|look| look.until);
        return Decision { wake_at, ..Decision::rest(Why::NeedsProtection) };
    }
    let snapshot = &single.snapshot;
    let mut wanted = vec![finalizers::SNAPSHOT_AS_SOURCE];
    if plan.policy == DeletionPolicy::Delete {
        wanted.push(finalizers::SNAPSHOT_BOUND);
    }
    let mut operations = add_finalizers(&snapshot.meta, &wanted);
    if snapshot.spec.volume_snapshot_class_name.is_none() {
        operations.push(json!({ "op": "add", "path": "/spec/volumeSnapshotClassName", "value": plan.class }));
    }
    let create = |is_fresh| Action::CreateContent { snapshot: snapshot.reference(), body: plan.body.clone(), is_fresh };
    if operations.is_empty() {
        return Decision::act([create(false)], Why::Creating);
    }
    let prepare = Action::PrepareSnapshot { target: Target::exact(&snapshot.meta), operations };
    Decision::act([prepare, create(true)], Why::Creating)
}

/// What keeps this content from being the snapshot's.
fn problem_with(single: &Single, content: &VolumeSnapshotContent) -> Option<Problem> {
    let (snapshot, name) = (&single.snapshot, &content.meta.name);
    let reference = &content.spec.volume_snapshot_ref;
    let source = &content.spec.source;
    if snapshot.spec.source.volume_snapshot_content_name.is_some() {
        if source.snapshot_handle.is_none() {
            let message = format!(
                "VolumeSnapshotContent {name:?} has no spec.source.snapshotHandle: it was made for a snapshot of a claim, not \
                 for one that exists; name another content"
            );
            return Some(Problem::new("SnapshotContentMismatch", message));
        }
        if !reference.names(&snapshot.meta) {
            return Some(misbound(single, content, "SnapshotContentMisbound"));
        }
        return None;
    }
    if source.volume_handle.is_none() {
        let message = format!(
            "VolumeSnapshotContent {name:?} has no spec.source.volumeHandle: it stands for a snapshot that existed before; delete \
             that content, or name it in spec.source.volumeSnapshotContentName of a new snapshot"
        );
        return Some(Problem::new("SnapshotContentMismatch", message));
    }
    if source.snapshot_handle.is_some() {
        let message = format!(
            "VolumeSnapshotContent {name:?} has both a volumeHandle and a snapshotHandle in spec.source, and a snapshot of a \
             claim needs the first alone; delete that content"
        );
        return Some(Problem::new("SnapshotHandleSet", message));
    }
    if !is_bound_to(content, &snapshot.meta) {
        let reason = if snapshot.is_ready() { "SnapshotMisbound" } else { "SnapshotContentMisbound" };
        return Some(misbound(single, content, reason));
    }
    None
}

fn misbound(single: &Single, content: &VolumeSnapshotContent, reason: &'static str) -> Problem {
    let (reference, meta) = (&content.spec.volume_snapshot_ref, &single.snapshot.meta);
    let other = if reference.key() == meta.key() {
        format!("an earlier VolumeSnapshot of this name (uid {:?})", reference.uid)
    } else if reference.namespace == meta.namespace {
        format!("VolumeSnapshot {:?}", reference.name)
    } else {
        "a VolumeSnapshot of another namespace".to_owned()
    };
    Problem::new(
        reason,
        format!(
            "VolumeSnapshotContent {:?} belongs to {other} by its spec.volumeSnapshotRef; correct that, or delete this \
             snapshot: nothing of the content goes with it",
            content.meta.name
        ),
    )
}

/// Binds both sides and copies what the content says.
fn with_content(single: &Single, content: &VolumeSnapshotContent, now: Timestamp) -> Decision {
    let (snapshot, meta) = (&single.snapshot, &single.snapshot.meta);
    let mut actions = Vec::new();
    let mut wanted = vec![finalizers::SNAPSHOT_AS_SOURCE];
    if content.spec.deletion_policy == DeletionPolicy::Delete {
        wanted.push(finalizers::SNAPSHOT_BOUND);
    }
    let operations = add_finalizers(meta, &wanted);
    if !operations.is_empty() {
        actions.push(Action::PrepareSnapshot { target: Target::exact(meta), operations });
    }
    if let Some(bind) = bind(single, content) {
        actions.push(bind);
    }
    if !actions.is_empty() {
        return Decision::act(actions, Why::Binding);
    }
    let named = snapshot.status.as_ref().and_then(|status| status.volume_group_snapshot_name.as_ref());
    let lacks_group = named.is_none() && single.group.by_handle.is_some();
    if !snapshot.is_ready() || snapshot.bound_content().is_none() || lacks_group {
        return status::copy(single, content, now);
    }
    match adopt(single) {
        Some(adopt) => Decision::act([adopt], Why::Ready),
        None => Decision::rest(Why::Ready),
    }
}

/// What a content that was made by hand still lacks.
fn bind(single: &Single, content: &VolumeSnapshotContent) -> Option<Action> {
    let snapshot = &single.snapshot;
    let spec = &content.spec;
    let class = snapshot.spec.volume_snapshot_class_name.as_ref();
    let is_bound = !spec.volume_snapshot_ref.uid.is_empty();
    let lacks_class = class.is_some() && spec.volume_snapshot_class_name.is_none();
    if is_bound && !lacks_class {
        return None;
    }
    let mut body = json!({ "spec": { "volumeSnapshotRef": { "uid": snapshot.meta.uid } } });
    if let Some(class) = class {
        body["spec"]["volumeSnapshotClassName"] = class.as_str().into();
    }
    if !content.meta.is_deleting() && !content.meta.has_finalizer(finalizers::SNAPSHOT_CONTENT_BOUND) {
        let mut all = content.meta.finalizers.clone();
        all.push(finalizers::SNAPSHOT_CONTENT_BOUND.into());
        body["metadata"] = json!({ "finalizers": all });
    }
    Some(Action::BindContent { target: Target::exact(&content.meta), body })
}

/// Members that an administrator made by hand get their owner once their group is known.
fn adopt(single: &Single) -> Option<Action> {
    let (group, uid) = (single.group.of.as_ref()?, single.group.uid.as_ref()?);
    if watches::group_owner(&single.snapshot).is_some() {
        return None;
    }
    let owner = json!({
        "apiVersion": kinds::VOLUME_GROUP_SNAPSHOT.api_version(),
        "kind": kinds::VOLUME_GROUP_SNAPSHOT.kind,
        "name": group.name,
        "uid": uid,
    });
    Some(Action::AdoptMember { target: Target::exact(&single.snapshot.meta), owner })
}

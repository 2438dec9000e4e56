//! A VolumeSnapshot on its way out: nobody uses it, then its content goes if its policy says so, then it is let go.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use stowage_model::object::{Key, Projection};
use stowage_model::volume_snapshot::DeletionPolicy;
use stowage_model::{VolumeSnapshotContent, annotations, finalizers};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::{Action, Decision, Why, drop_finalizers, is_bound_to, status};
use crate::snapshot::Single;

/// After so long people are told what the deletion waits for.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

const PENDING: &str = "SnapshotDeletePending";

const OURS: [&str; 3] = [finalizers::SNAPSHOT_AS_SOURCE, finalizers::SNAPSHOT_BOUND, finalizers::SNAPSHOT_IN_GROUP];

pub fn decide(single: &Single, now: Timestamp) -> Decision {
    let snapshot = &single.snapshot;
    if !OURS.iter().any(|finalizer| snapshot.meta.has_finalizer(finalizer)) {
        return Decision::rest(Why::Released);
    }
    let content = match &single.content {
        View::Unknown => return Decision::rest(Why::Unknown),
        View::Known(content) => Some(content).filter(|content| is_bound_to(content, &snapshot.meta)),
        View::Absent => None,
    };
    if let Some(group) = single.group.of.as_ref().filter(|_| single.group.uid.is_some()) {
        if single.group.is_going {
            return Decision::rest(Why::InGroup);
        }
        let message = format!(
            "the snapshot belongs to VolumeGroupSnapshot {:?} and goes with it: delete that, and all its snapshots are deleted",
            group.name
        );
        return status::tell(single, Note::warning(PENDING, message), Why::InGroup, now);
    }
    if content.is_some()
        && let Some(message) = use_of(single)
    {
        return status::tell(single, Note::warning(PENDING, message), Why::InUse, now);
    }
    // A group that is not watched yet would look as if it were gone.
    let confirm = |group| Action::ConfirmGroupGone { group, uid: single.group.owner.clone() };
    let confirm = single.group.of.clone().map(confirm);
    let mut actions: Vec<Action> = confirm.into_iter().collect();
    let Some(content) = content else {
        if single.content == View::Absent && !single.content_name.is_empty() {
            actions.push(Action::ConfirmContentGone { content: Key::cluster(single.content_name.as_str()) });
        }
        return release(single, actions);
    };
    if content.meta.annotation(annotations::SNAPSHOT_BEING_DELETED).is_none() {
        actions.push(mark(content));
    }
    if content.spec.deletion_policy != DeletionPolicy::Delete {
        return release(single, actions);
    }
    if !content.meta.is_deleting() {
        let target = Target { key: content.meta.key(), uid: content.meta.uid.clone(), revision: None };
        actions.push(Action::DeleteContent { target, snapshot: snapshot.reference() });
        return Decision::act(actions, Why::Deleting);
    }
    if !actions.iter().all(|action| matches!(action, Action::ConfirmGroupGone { .. })) {
        return Decision::act(actions, Why::Deleting);
    }
    wait_for(single, content, now)
}

/// Who makes a volume from the snapshot.
fn use_of(single: &Single) -> Option<String> {
    if !single.restoring.is_empty() {
        let claims: Vec<String> = single.restoring.iter().map(|claim| format!("{:?}", claim.name)).collect();
        return Some(format!(
            "volumes are being made from the snapshot for the claims {}; it goes once they are bound or deleted",
            claims.join(", ")
        ));
    }
    let finalizer = finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER;
    single.snapshot.meta.has_finalizer(finalizer).then(|| {
        format!(
            "a provisioner is making a volume from the snapshot, which goes once the provisioner has dropped its finalizer \
             {finalizer}; if no provisioner is at work any more, remove that finalizer"
        )
    })
}

/// Tells the snapshotter that it may delete; a content without our finalizer would be gone before it could.
fn mark(content: &VolumeSnapshotContent) -> Action {
    let mut metadata = json!({ "annotations": { annotations::SNAPSHOT_BEING_DELETED: "yes" } });
    let guard = finalizers::SNAPSHOT_CONTENT_BOUND;
    if !content.meta.is_deleting() && !content.meta.has_finalizer(guard) {
        let mut all = content.meta.finalizers.clone();
        all.push(guard.into());
        metadata["finalizers"] = json!(all);
    }
    Action::MarkContent { target: Target::exact(&content.meta), body: json!({ "metadata": metadata }) }
}

fn release(single: &Single, mut actions: Vec<Action>) -> Decision {
    let meta = &single.snapshot.meta;
    let operations = drop_finalizers(meta, &OURS);
    actions.push(Action::ReleaseSnapshot { target: Target::exact(meta), operations });
    Decision::act(actions, Why::Released)
}

/// The snapshotter is to delete the content; if it does not, people are told who that is.
fn wait_for(single: &Single, content: &VolumeSnapshotContent, now: Timestamp) -> Decision {
    let since = content.meta.deletion_timestamp.unwrap_or(now);
    let late_at = since.saturating_add(PATIENCE).unwrap_or(Timestamp::MAX);
    if now < late_at {
        return Decision::wait_until(late_at, Why::ContentDeleting);
    }
    let (name, driver) = (&content.meta.name, &content.spec.driver);
    let error = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
    let said = error.map(|error| format!("; it said last: {error}")).unwrap_or_default();
    let doing = if content.meta.annotation(annotations::SNAPSHOT_BEING_CREATED).is_some() {
        "still asks the driver whether the snapshot was made"
    } else {
        "has not deleted the snapshot in the driver"
    };
    let message = format!(
        "the snapshotter of driver {driver:?} {doing}, and VolumeSnapshotContent {name:?} waits for it{said}; see that the driver \
         and its csi-snapshotter run. If the driver is gone for good, remove the finalizer {} from that content, and what is \
         left in its storage by hand",
        finalizers::SNAPSHOT_CONTENT_BOUND
    );
    status::tell(single, Note::warning(PENDING, message), Why::ContentDeleting, now)
}

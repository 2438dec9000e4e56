//! A VolumeGroupSnapshot on its way out takes all its members along.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use stowage_model::object::{Key, Projection};
use stowage_model::volume_snapshot::DeletionPolicy;
use stowage_model::{VolumeGroupSnapshotContent, annotations, finalizers};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::super::{Decision, GroupAction, Why, drop_finalizers};
use super::{act, is_bound_to, tell};
use crate::snapshot::Group;

/// After so long people are told what the deletion waits for.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

const PENDING: &str = "SnapshotDeletePending";

pub fn decide(group: &Group, now: Timestamp) -> Decision {
    let object = &group.group;
    if !object.meta.has_finalizer(finalizers::GROUP_SNAPSHOT_BOUND) {
        return Decision::rest(Why::Released);
    }
    let content = match &group.content {
        View::Unknown => return Decision::rest(Why::Unknown),
        View::Known(content) => Some(content).filter(|content| is_bound_to(content, &object.meta)),
        View::Absent => None,
    };
    if let Some(message) = use_of(group) {
        return tell(group, Note::warning(PENDING, message), Why::InUse, now);
    }
    let mut actions = Vec::new();
    if group.content == View::Absent {
        let content = Key::cluster(group.content_name.as_str());
        actions.push(GroupAction::ConfirmContentGone { content });
    }
    if let Some(content) = content {
        if content.meta.annotation(annotations::GROUP_SNAPSHOT_BEING_DELETED).is_none() {
            actions.push(mark(content));
        }
        if content.spec.deletion_policy == DeletionPolicy::Delete && !content.meta.is_deleting() {
            let target = Target { key: content.meta.key(), uid: content.meta.uid.clone(), revision: None };
            actions.push(GroupAction::DeleteContent { target, group: object.reference() });
        }
    }
    let members = group.snapshots.iter().filter(|snapshot| !snapshot.meta.is_deleting());
    actions.extend(members.map(|snapshot| GroupAction::DeleteMember { target: Target::any_version(&snapshot.meta) }));
    match content.filter(|content| content.spec.deletion_policy == DeletionPolicy::Delete) {
        Some(content) if actions.is_empty() => wait_for(group, content, now),
        Some(_) => act(actions, Why::Deleting),
        None => {
            let operations = drop_finalizers(&object.meta, &[finalizers::GROUP_SNAPSHOT_BOUND]);
            actions.push(GroupAction::Release { target: Target::exact(&object.meta), operations });
            act(actions, Why::Released)
        }
    }
}

/// Who makes volumes from snapshots of the group.
fn use_of(group: &Group) -> Option<String> {
    if !group.restoring.is_empty() {
        let claims: Vec<String> = group.restoring.iter().map(|claim| format!("{:?}", claim.name)).collect();
        return Some(format!(
            "volumes are being made from snapshots of the group for the claims {}; it goes once they are bound or deleted",
            claims.join(", ")
        ));
    }
    let finalizer = finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER;
    let held = group.snapshots.iter().filter(|snapshot| snapshot.meta.has_finalizer(finalizer));
    let held: Vec<String> = held.map(|snapshot| format!("{:?}", snapshot.meta.name)).collect();
    (!held.is_empty()).then(|| {
        format!(
            "a provisioner is making volumes from the group's VolumeSnapshots {}, and the group goes once it has dropped its \
             finalizer {finalizer} from them; if no provisioner is at work any more, remove that finalizer",
            held.join(", ")
        )
    })
}

fn mark(content: &VolumeGroupSnapshotContent) -> GroupAction {
    let mut metadata = json!({ "annotations": { annotations::GROUP_SNAPSHOT_BEING_DELETED: "yes" } });
    let guard = finalizers::GROUP_SNAPSHOT_CONTENT_BOUND;
    if !content.meta.is_deleting() && !content.meta.has_finalizer(guard) {
        let mut all = content.meta.finalizers.clone();
        all.push(guard.into());
        metadata["finalizers"] = json!(all);
    }
    GroupAction::Mark { target: Target::exact(&content.meta), body: json!({ "metadata": metadata }) }
}

fn wait_for(group: &Group, content: &VolumeGroupSnapshotContent, now: Timestamp) -> Decision {
    let since = content.meta.deletion_timestamp.unwrap_or(now);
    let late_at = since.saturating_add(PATIENCE).unwrap_or(Timestamp::MAX);
    if now < late_at {
        return Decision::wait_until(late_at, Why::ContentDeleting);
    }
    let (name, driver) = (&content.meta.name, &content.spec.driver);
    let error = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
    let said = error.map(|error| format!("; it said last: {error}")).unwrap_or_default();
    let message = format!(
        "the snapshotter of driver {driver:?} has not deleted the group snapshot, and VolumeGroupSnapshotContent {name:?} waits \
         for it{said}; see that the driver and its csi-snapshotter run. If the driver is gone for good, remove the finalizer {} \
         from that content, and what is left in its storage by hand",
        finalizers::GROUP_SNAPSHOT_CONTENT_BOUND
    );
    tell(group, Note::warning(PENDING, message), Why::ContentDeleting, now)
}

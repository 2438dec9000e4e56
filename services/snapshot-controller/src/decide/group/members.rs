//! The members of a group that the driver has made: a VolumeSnapshot and a content for each.

use serde_json::{Value, json};

use stowage_model::object::{Projection, kinds};
use stowage_model::volume_snapshot::DeletionPolicy;
use stowage_model::{
    Volume, VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent, annotations, finalizers, labels,
};
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;

use super::super::creation::{reference, secret_annotations};
use super::super::{Action, Decision, GroupAction, Missing, Why};
use super::creation;
use crate::secrets;
use crate::snapshot::{Group, Member};

/// What is missing of the members; nothing once all are there, or none can be.
pub fn decide(group: &Group, content: &VolumeGroupSnapshotContent) -> Option<Decision> {
    let handle = content.group_handle()?;
    let is_unknown = |member: &Member| member.snapshot == View::Unknown || member.content == View::Unknown;
    if group.members.iter().any(is_unknown) {
        return Some(Decision::rest(Why::Unknown));
    }
    // Which claim a member is of is told by its volume.
    if group.members.iter().any(|member| member.snapshot == View::Absent || member.content == View::Absent) {
        let looks = creation::unread(group);
        if !looks.is_empty() {
            return Some(Decision::together(looks, Why::NeedsVolume));
        }
    }
    let missing: Vec<Missing> =
        group.members.iter().filter_map(|member| missing(group, content, handle, member)).collect();
    let said = group.members.iter().filter_map(|member| match (&member.snapshot, &member.content) {
        (View::Known(_), View::Known(own)) => status(own, handle, member),
        _ => None,
    });
    let mut actions: Vec<Action> = said.map(Action::Group).collect();
    if !missing.is_empty() {
        actions.push(Action::Group(GroupAction::MakeMembers { group: group.group.reference(), missing }));
    }
    // One member in trouble does not hold up the others.
    (!actions.is_empty()).then(|| Decision::together(actions, Why::Creating))
}

/// What a member lacks next: its VolumeSnapshot, whose uid its content needs, then that.
fn missing(group: &Group, content: &VolumeGroupSnapshotContent, handle: &str, member: &Member) -> Option<Missing> {
    let View::Known(snapshot) = &member.snapshot else {
        return Some(Missing::Snapshot(snapshot_body(group, content, member)));
    };
    let is_wanted = member.content == View::Absent && !snapshot.meta.is_deleting();
    is_wanted.then(|| Missing::Content(content_body(group, content, handle, member, snapshot)))
}

/// The claim's volume that the member is of, as far as it was chosen.
fn volume_of<'a>(
    group: &'a Group,
    content: &VolumeGroupSnapshotContent,
    member: &Member,
) -> Option<(&'a str, &'a Volume)> {
    group.claims.iter().flatten().find_map(|candidate| {
        let volume = candidate.volume.as_ref()?.volume.as_deref()?;
        let csi = volume.spec.csi.as_ref()?;
        let is_it = csi.driver == content.spec.driver && csi.volume_handle == member.info.volume_handle;
        is_it.then_some((candidate.claim.meta.name.as_str(), volume))
    })
}

fn snapshot_body(group: &Group, content: &VolumeGroupSnapshotContent, member: &Member) -> Value {
    let meta = &group.group.meta;
    let mut own = vec![finalizers::SNAPSHOT_IN_GROUP, finalizers::SNAPSHOT_AS_SOURCE];
    if content.spec.deletion_policy == DeletionPolicy::Delete {
        own.push(finalizers::SNAPSHOT_BOUND);
    }
    // As the original: a volume whose claim is gone leaves an empty name.
    let claim = volume_of(group, content, member).map(|(claim, _)| claim).unwrap_or_default();
    json!({
        "metadata": {
            "namespace": meta.namespace,
            "name": member.snapshot_name,
            "finalizers": own,
            "ownerReferences": [{
                "apiVersion": kinds::VOLUME_GROUP_SNAPSHOT.api_version(),
                "kind": kinds::VOLUME_GROUP_SNAPSHOT.kind,
                "name": meta.name,
                "uid": meta.uid,
            }],
        },
        "spec": { "source": { "persistentVolumeClaimName": claim } },
    })
}

fn content_body(
    group: &Group,
    content: &VolumeGroupSnapshotContent,
    handle: &str,
    member: &Member,
    snapshot: &VolumeSnapshot,
) -> Value {
    // Only the content's name is known when a member is deleted, so only that may be in the name of its secret.
    let parameters = group.class.as_ref().map(|class| &class.parameters);
    let secret =
        parameters.and_then(|all| secrets::resolve(&secrets::GROUP, all, &group.content_name, None).ok().flatten());
    let mut notes = secret_annotations(secret.as_ref());
    notes[annotations::SNAPSHOT_GROUP_HANDLE] = handle.into();
    let mut spec = json!({
        "volumeSnapshotRef": reference(VolumeSnapshot::KIND, &snapshot.meta),
        "deletionPolicy": content.spec.deletion_policy.as_str(),
        "driver": content.spec.driver,
        "source": { "volumeHandle": member.info.volume_handle },
    });
    if let Some((_, volume)) = volume_of(group, content, member) {
        spec["sourceVolumeMode"] = volume.spec.volume_mode.as_str().into();
    }
    let mut metadata = json!({
        "name": member.content_name,
        "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND],
        "annotations": notes,
    });
    // The node that made the group looks after its members.
    if let Some(node) = content.meta.labels.get(labels::SNAPSHOT_MANAGED_BY) {
        metadata["labels"] = json!({ labels::SNAPSHOT_MANAGED_BY: node });
    }
    json!({ "metadata": metadata, "spec": spec })
}

/// What the driver said of a member, where its content does not say it yet. What the snapshotter says later stands.
fn status(own: &VolumeSnapshotContent, handle: &str, member: &Member) -> Option<GroupAction> {
    if own.meta.is_deleting() {
        return None;
    }
    let info = &member.info;
    let said = own.status.clone().unwrap_or_default();
    // Also over an error: it is of an earlier look.
    let is_ready = info.ready_to_use == Some(true) && said.ready_to_use != Some(true);
    let status = if said.snapshot_handle.is_none() || said.volume_group_snapshot_handle.is_none() {
        json!({
            "snapshotHandle": info.snapshot_handle,
            "volumeGroupSnapshotHandle": handle,
            "creationTime": info.creation_time,
            "restoreSize": info.restore_size,
            "readyToUse": info.ready_to_use.unwrap_or_default(),
        })
    } else if is_ready {
        json!({ "readyToUse": true, "error": null })
    } else {
        return None;
    };
    Some(GroupAction::WriteMemberStatus { target: Target::exact(&own.meta), status })
}

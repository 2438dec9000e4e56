//! What a VolumeGroupSnapshot's status says: what its content says, and what went wrong with a member.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::VolumeGroupSnapshotContent;
use stowage_model::object::Projection;
use stowage_model::volume_group_snapshot::{VolumeGroupSnapshotContentStatus, VolumeGroupSnapshotStatus};
use stowage_model::volume_snapshot::SnapshotError;
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use super::super::status::failure;
use super::super::{Decision, GroupAction, Problem, Why};
use super::{act, tell};
use crate::metrics::Finished;
use crate::snapshot::{Group, Member};

/// As for a single snapshot.
const PATIENCE: SignedDuration = SignedDuration::from_secs(2);

/// As for a single snapshot, too.
const SILENCE: SignedDuration = SignedDuration::from_mins(1);

/// Copies what the content says, once it says something or is late to.
pub fn copy(group: &Group, content: &VolumeGroupSnapshotContent, now: Timestamp) -> Decision {
    let object = &group.group;
    let said = content.status.clone().unwrap_or_default();
    let is_silent = said == VolumeGroupSnapshotContentStatus::default();
    let late_at = after(content, PATIENCE);
    if is_silent && object.bound_content().is_none() && now < late_at {
        return Decision::wait_until(late_at, Why::Quiet);
    }
    let before = object.status.clone().unwrap_or_default();
    let after = desired(group, content, &before, &said);
    let changes = difference(&before, &after);
    let is_ready = after.ready_to_use == Some(true);
    let why = if is_ready { Why::Ready } else { Why::Told };
    if changes == json!({}) {
        return if is_silent { wait(group, content, now) } else { Decision::rest(why) };
    }
    let (mut notes, mut finished) = (Vec::new(), Vec::new());
    if before.creation_time.is_none() && after.creation_time.is_some() {
        let message = format!("driver {:?} has made the group snapshot", content.spec.driver);
        notes.push(Note::normal("GroupSnapshotCreated", message));
        finished.push(Finished::Created);
    }
    if before.ready_to_use != Some(true) && is_ready {
        notes.push(Note::normal("GroupSnapshotReady", "volumes can be made from all snapshots of the group"));
        finished.push(Finished::Ready);
    }
    let (target, about) = (Target::exact(&object.meta), object.reference());
    act([GroupAction::WriteStatus { target, status: changes, tell: notes, about, finished }], why)
}

/// So long after the content was made.
fn after(content: &VolumeGroupSnapshotContent, patience: SignedDuration) -> Timestamp {
    let made = content.meta.creation_timestamp.unwrap_or(Timestamp::MIN);
    made.saturating_add(patience).unwrap_or(Timestamp::MAX)
}

/// Where no snapshotter answers at all, people are told whom to look for.
fn wait(group: &Group, content: &VolumeGroupSnapshotContent, now: Timestamp) -> Decision {
    let late_at = after(content, SILENCE);
    if now < late_at {
        return Decision::wait_until(late_at, Why::Quiet);
    }
    let message = format!(
        "no snapshotter of driver {:?} has said anything about VolumeGroupSnapshotContent {:?} yet; see that the driver and its \
         csi-snapshotter run, the latter with --feature-gates=CSIVolumeGroupSnapshot=true",
        content.spec.driver, content.meta.name
    );
    tell(group, Note::normal("CreatingGroupSnapshot", message), Why::Quiet, now)
}

fn desired(
    group: &Group,
    content: &VolumeGroupSnapshotContent,
    before: &VolumeGroupSnapshotStatus,
    said: &VolumeGroupSnapshotContentStatus,
) -> VolumeGroupSnapshotStatus {
    let error = said.error.clone().or_else(|| group.members.iter().find_map(trouble));
    let ready = said.ready_to_use.unwrap_or_default()
        && (error.is_none() || said.error.is_some())
        && !group.members.iter().any(is_unready);
    let bound = before.bound_volume_group_snapshot_content_name.clone().filter(|name| !name.is_empty());
    VolumeGroupSnapshotStatus {
        bound_volume_group_snapshot_content_name: bound.or_else(|| Some(content.meta.name.clone())),
        creation_time: before.creation_time.or(said.creation_time),
        ready_to_use: Some(ready),
        error: if ready { None } else { error },
    }
}

/// Whether no volume can be made from a member yet.
fn is_unready(member: &Member) -> bool {
    matches!(&member.content, View::Known(content) if !content.is_ready())
}

/// What went wrong with a member.
fn trouble(member: &Member) -> Option<SnapshotError> {
    let View::Known(content) = &member.content else { return None };
    let error = content.status.as_ref()?.error.as_ref()?;
    let message = error.message.as_deref().unwrap_or_default();
    Some(SnapshotError {
        time: error.time,
        message: Some(format!("member VolumeSnapshot {:?}: {message}", member.snapshot_name)),
    })
}

fn difference(before: &VolumeGroupSnapshotStatus, after: &VolumeGroupSnapshotStatus) -> Value {
    let mut changes = json!({});
    if before.bound_volume_group_snapshot_content_name != after.bound_volume_group_snapshot_content_name {
        changes["boundVolumeGroupSnapshotContentName"] = json!(after.bound_volume_group_snapshot_content_name);
    }
    if before.creation_time != after.creation_time {
        changes["creationTime"] = json!(after.creation_time.map(|time| time.to_string()));
    }
    if before.ready_to_use != after.ready_to_use {
        changes["readyToUse"] = json!(after.ready_to_use);
    }
    if before.error != after.error {
        changes["error"] = match &after.error {
            Some(error) => json!({ "time": error.time.map(|time| time.to_string()), "message": error.message }),
            None => Value::Null,
        };
    }
    changes
}

/// Says in the status and in an event what is wrong; each once.
pub fn fail(group: &Group, problem: Problem, now: Timestamp) -> Decision {
    let object = &group.group;
    let why = Why::Broken(problem.reason);
    let note = Note::warning(problem.reason, problem.message.clone());
    let status = object.status.clone().unwrap_or_default();
    let said = status.error.as_ref().and_then(|error| error.message.as_deref());
    if said == Some(problem.message.as_str()) && status.ready_to_use == Some(false) {
        return tell(group, note, why, now);
    }
    let failed = failure(&problem.message, now);
    let action = GroupAction::WriteStatus {
        target: Target::exact(&object.meta),
        status: failed,
        tell: vec![note],
        about: object.reference(),
        finished: Vec::new(),
    };
    act([action], why)
}

//! What a VolumeSnapshot's status says, copied from its content.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::object::Projection;
use stowage_model::volume_snapshot::{SnapshotError, VolumeSnapshotContentStatus, VolumeSnapshotStatus};
use stowage_model::{Quantity, VolumeSnapshotContent};
use stowage_runtime::api::Target;
use stowage_runtime::events::Note;

use super::{Action, Decision, Problem, Why};
use crate::metrics::Finished;
use crate::snapshot::Single;

/// How long the snapshotter has to say something before people are told that nothing was said: most are faster, and one
/// write does for both. Creation is told in whole seconds, so it is one to two.
const PATIENCE: SignedDuration = SignedDuration::from_secs(2);

/// After so long without a word of the snapshotter people are told that.
const SILENCE: SignedDuration = SignedDuration::from_mins(1);

/// Copies what the content says, once it says something or is late to.
pub fn copy(single: &Single, content: &VolumeSnapshotContent, now: Timestamp) -> Decision {
    let told = content.status.clone().unwrap_or_default();
    let is_silent = told == VolumeSnapshotContentStatus::default();
    let late_at = after(content, PATIENCE);
    if is_silent && single.snapshot.bound_content().is_none() && now < late_at {
        return Decision::wait_until(late_at, Why::Quiet);
    }
    let before = single.snapshot.status.clone().unwrap_or_default();
    let wanted = desired(&before, &told, content, single.group.by_handle.as_deref());
    let changes = difference(&before, &wanted);
    let why = match (wanted.ready_to_use, &wanted.error) {
        (Some(true), _) => Why::Ready,
        (_, None) => Why::Quiet,
        (_, Some(_)) => Why::Told,
    };
    if changes == json!({}) {
        return if is_silent { wait(single, content, now) } else { Decision::rest(why) };
    }
    let meta = &single.snapshot.meta;
    let (mut tell, mut finished) = (Vec::new(), Vec::new());
    if before.creation_time.is_none() && wanted.creation_time.is_some() {
        tell.push(Note::normal("SnapshotCreated", format!("driver {:?} has made the snapshot", content.spec.driver)));
        finished.push(Finished::Created);
    }
    if before.ready_to_use != Some(true) && wanted.ready_to_use == Some(true) {
        tell.push(Note::normal("SnapshotReady", "volumes can be made from the snapshot"));
        finished.push(Finished::Ready);
    }
    let action = Action::WriteStatus {
        target: Target::exact(meta),
        status: changes,
        tell,
        about: single.snapshot.reference(),
        finished,
    };
    Decision::act([action], why)
}

/// So long after the content was made.
fn after(content: &VolumeSnapshotContent, patience: SignedDuration) -> Timestamp {
    let made = content.meta.creation_timestamp.unwrap_or(Timestamp::MIN);
    made.saturating_add(patience).unwrap_or(Timestamp::MAX)
}

/// Where no snapshotter answers at all, people are told whom to look for.
fn wait(single: &Single, content: &VolumeSnapshotContent, now: Timestamp) -> Decision {
    let late_at = after(content, SILENCE);
    if now < late_at {
        return Decision::wait_until(late_at, Why::Quiet);
    }
    let driver = &content.spec.driver;
    let message = format!(
        "no snapshotter of driver {driver:?} has said anything about VolumeSnapshotContent {:?} yet; see that the driver and its \
         csi-snapshotter run",
        content.meta.name
    );
    tell(single, Note::normal("CreatingSnapshot", message), Why::Quiet, now)
}

fn desired(
    before: &VolumeSnapshotStatus,
    told: &VolumeSnapshotContentStatus,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> VolumeSnapshotStatus {
    let size = told.restore_size.map(|bytes| Quantity::from_bytes(bytes).to_string());
    // A driver may learn the size late; one that was told stays.
    let has_size = before.restore_size.as_deref().is_some_and(|size| size != "0");
    let ready = told.ready_to_use.unwrap_or_default();
    VolumeSnapshotStatus {
        bound_volume_snapshot_content_name: before
            .bound_volume_snapshot_content_name
            .clone()
            .filter(|name| !name.is_empty())
            .or_else(|| Some(content.meta.name.clone())),
        creation_time: before.creation_time.or_else(|| told.creation_time.and_then(whole_second)),
        ready_to_use: Some(ready),
        restore_size: if has_size { before.restore_size.clone() } else { size.or_else(|| before.restore_size.clone()) },
        error: if ready { None } else { told.error.clone() },
        volume_group_snapshot_name: before.volume_group_snapshot_name.clone().or_else(|| group.map(str::to_owned)),
    }
}

/// Kubernetes writes times in whole seconds.
fn whole_second(nanoseconds: i64) -> Option<Timestamp> {
    Timestamp::from_second(nanoseconds.div_euclid(1_000_000_000)).ok()
}

/// The fields that differ, as a merge patch.
fn difference(before: &VolumeSnapshotStatus, after: &VolumeSnapshotStatus) -> Value {
    let mut changes = json!({});
    let mut differ = |field: &str, differs: bool, value: Value| {
        if differs {
            changes[field] = value;
        }
    };
    differ(
        "boundVolumeSnapshotContentName",
        before.bound_volume_snapshot_content_name != after.bound_volume_snapshot_content_name,
        json!(after.bound_volume_snapshot_content_name),
    );
    let created = after.creation_time.map(|time| time.to_string());
    differ("creationTime", before.creation_time != after.creation_time, json!(created));
    differ("readyToUse", before.ready_to_use != after.ready_to_use, json!(after.ready_to_use));
    differ("restoreSize", before.restore_size != after.restore_size, json!(after.restore_size));
    differ("error", before.error != after.error, error(after.error.as_ref()));
    differ(
        "volumeGroupSnapshotName",
        before.volume_group_snapshot_name != after.volume_group_snapshot_name,
        json!(after.volume_group_snapshot_name),
    );
    changes
}

fn error(error: Option<&SnapshotError>) -> Value {
    match error {
        Some(error) => json!({ "time": error.time.map(|time| time.to_string()), "message": error.message }),
        None => Value::Null,
    }
}

/// Says in the status and in an event what is wrong; each once.
pub fn fail(single: &Single, problem: Problem, now: Timestamp) -> Decision {
    let snapshot = &single.snapshot;
    let why = Why::Broken(problem.reason);
    let note = Note::warning(problem.reason, problem.message.clone());
    let status = snapshot.status.clone().unwrap_or_default();
    let said = status.error.as_ref().and_then(|error| error.message.as_deref());
    if said == Some(problem.message.as_str()) && status.ready_to_use == Some(false) {
        return tell(single, note, why, now);
    }
    let failed = failure(&problem.message, now);
    let action = Action::WriteStatus {
        target: Target::exact(&snapshot.meta),
        status: failed,
        tell: vec![note],
        about: snapshot.reference(),
        finished: Vec::new(),
    };
    Decision::act([action], why)
}

/// A status that says what is wrong, in whole seconds as Kubernetes writes them.
pub fn failure(message: &str, now: Timestamp) -> Value {
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!({ "readyToUse": false, "error": { "time": second.to_string(), "message": message } })
}

/// Tells people something, unless they know it.
pub fn tell(single: &Single, note: Note, why: Why, now: Timestamp) -> Decision {
    match single.told.until(&(), &note, now) {
        Some(again_at) => Decision::wait_until(again_at, why),
        None => Decision::act([Action::Tell { about: single.snapshot.reference(), note }], why),
    }
}

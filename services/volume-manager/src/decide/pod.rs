//! A pod: find out what its volumes are, say in its status when they are mounted, finish its deletion when they are not.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::condition;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::phase::PodPhase;
use stowage_model::pod::{Container, Pod};
use stowage_runtime::api::Target;
use stowage_runtime::engine::Decision;
use stowage_runtime::events::seconds;
use stowage_runtime::operation::State;
use stowage_runtime::told::Known;

use super::{Action, Record};
use crate::conditions::{Wanted, status_patch};
use crate::desired::Resolution;

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub uid: String,
    pub pod: View,
    pub resolution: Option<Resolution>,
    pub resolving: Option<Record>,
    /// Volumes that are or may be mounted for it.
    pub held: usize,
    /// Volumes that certainly are mounted for it.
    pub mounted: usize,
    pub has_dir: bool,
    /// Whether operations on its mounts are over and still remembered.
    pub has_records: bool,
    /// What was told about it already.
    pub told: Known<String, ()>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum View {
    Absent,
    Known(Arc<Pod>),
    Unknown(ObjectKey),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    WriteWithoutAnswer,
    Gone,
    /// Its volumes must be unmounted first.
    Unmounting,
    Unmounted,
    /// Somebody else must agree to its end.
    HeldByFinalizers,
    Terminal,
    VolumesUnknown,
    Resolving,
    BackingOff,
    Problem,
    Mounting,
    Mounted,
    Running,
}

/// Whether its volumes should be mounted.
///
/// No container is run here, so nothing has to stop first: its volumes go as soon as its deletion was asked for.
pub fn is_live(pod: &Pod) -> bool {
    !pod.meta.is_deleting() && !pod.is_terminal()
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let pod = match &s.pod {
        View::Unknown(key) => return Decision::act([Action::ReadPod(key.clone())], Why::WriteWithoutAnswer),
        View::Absent => return forget(s),
        View::Known(pod) => pod,
    };
    if is_live(pod) {
        return live(s, pod, now);
    }
    if s.held > 0 {
        return Decision::rest(Why::Unmounting);
    }
    let mut actions = Vec::new();
    if s.has_dir {
        actions.push(Action::RemovePodDir { uid: s.uid.clone() });
    }
    if !pod.meta.is_deleting() {
        return Decision::act(actions, Why::Terminal);
    }
    if pod.meta.deletion_grace_period_seconds == Some(0) && !pod.meta.finalizers.is_empty() {
        return Decision::act(actions, Why::HeldByFinalizers);
    }
    actions.push(Action::DeletePod { target: Target::any_version(&pod.meta) });
    Decision::act(actions, Why::Unmounted)
}

fn forget(s: &Snapshot) -> Decision<Action, Why> {
    if s.held > 0 {
        return Decision::rest(Why::Unmounting);
    }
    let mut actions = Vec::new();
    if s.has_dir {
        actions.push(Action::RemovePodDir { uid: s.uid.clone() });
    }
    let resolved = s.resolving.as_ref().is_some_and(|record| record.state != State::Running);
    if s.resolution.is_some() || resolved || !s.told.is_empty() || s.has_records {
        actions.push(Action::ForgetPod { uid: s.uid.clone() });
    }
    Decision::act(actions, Why::Gone)
}

fn live(s: &Snapshot, pod: &Arc<Pod>, now: Timestamp) -> Decision<Action, Why> {
    let resolve = |why| Decision::act([Action::Resolve { pod: Arc::clone(pod) }], why);
    let running = s.resolving.as_ref().is_some_and(|record| !record.may_start(now) && record.retry_at <= now);
    let Some(resolution) = &s.resolution else {
        return match &s.resolving {
            _ if running => Decision::rest(Why::Resolving),
            Some(record) if !record.may_start(now) => Decision::wait_until(record.retry_at, Why::BackingOff),
            _ => resolve(Why::VolumesUnknown),
        };
    };
    let mounted = resolution.is_complete() && s.mounted >= resolution.uses.len();
    if let Some(action) = status(pod, mounted, now) {
        return Decision::act([action], if mounted { Why::Mounted } else { Why::Mounting });
    }
    if resolution.is_complete() {
        return Decision::rest(if mounted { Why::Running } else { Why::Mounting });
    }
    let message = resolution.problems.join("; ");
    let Some(again_at) = s.told.until(&message, &(), now) else {
        return Decision::act([Action::Explain { pod: pod.reference(), message }], Why::Problem);
    };
    match &s.resolving {
        _ if running => Decision::wait_until(again_at, Why::Resolving),
        Some(record) if !record.may_start(now) => Decision::wait_until(record.retry_at.min(again_at), Why::BackingOff),
        _ => resolve(Why::Problem),
    }
}

/// The write that brings its status up to date. A pod that was Running stays so: its mounts outlive this process.
fn status(pod: &Pod, mounted: bool, now: Timestamp) -> Option<Action> {
    let existing = &pod.status.conditions;
    let is_running = pod.status.phase == PodPhase::Running;
    let ready = condition::find(existing, "Ready");
    let up_to_date = match mounted {
        true => is_running && ready.is_some_and(condition::Condition::is_true),
        false => is_running || (ready.is_some() && pod.status.start_time.is_some()),
    };
    if up_to_date {
        return None;
    }
    let unready = |kind| {
        let names: Vec<&str> = pod.spec.containers.iter().map(|container| container.name.as_str()).collect();
        let message = format!("containers with unready status: [{}]", names.join(" "));
        Wanted { kind, holds: false, reason: "ContainersNotReady", message }
    };
    let conditions = match mounted {
        true => ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"].map(Wanted::holds),
        false => [
            Wanted { kind: "PodReadyToStartContainers", holds: false, reason: "", message: String::new() },
            Wanted::holds("Initialized"),
            unready("ContainersReady"),
            unready("Ready"),
        ],
    };
    let mut fields = json!({
        "phase": if mounted { PodPhase::Running } else { PodPhase::Pending }.as_str(),
        "startTime": seconds(pod.status.start_time.unwrap_or(now)),
        "containerStatuses": container_statuses(&pod.spec.containers, mounted, now),
    });
    if !pod.spec.init_containers.is_empty() {
        fields["initContainerStatuses"] = init_container_statuses(&pod.spec.init_containers, mounted, now);
    }
    let patch = status_patch(existing, &conditions, fields, now);
    Some(Action::PatchPodStatus { target: Target::exact(&pod.meta), patch })
}

fn container_statuses(containers: &[Container], mounted: bool, now: Timestamp) -> Value {
    let state = match mounted {
        true => json!({ "running": { "startedAt": seconds(now) } }),
        false => json!({ "waiting": { "reason": "ContainerCreating" } }),
    };
    containers.iter().map(|container| container_status(container, mounted, &state)).collect()
}

fn init_container_statuses(containers: &[Container], mounted: bool, now: Timestamp) -> Value {
    let ended = json!({
        "reason": "Completed", "exitCode": 0, "startedAt": seconds(now), "finishedAt": seconds(now),
    });
    let state = match mounted {
        true => json!({ "terminated": ended }),
        false => json!({ "waiting": { "reason": "PodInitializing" } }),
    };
    containers.iter().map(|container| container_status(container, mounted, &state)).collect()
}

fn container_status(container: &Container, ready: bool, state: &Value) -> Value {
    json!({
        "name": container.name, "ready": ready, "started": ready, "restartCount": 0,
        "image": "", "imageID": "", "state": state,
    })
}

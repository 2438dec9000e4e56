//! A pod: find out what its volumes are, say in its status when they are mounted, finish its deletion when they are not.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::condition;
use stowage_model::node_view::NodePod;
use stowage_model::object::{Key as ObjectKey, Projection};
use stowage_model::phase::PodPhase;
use stowage_model::pod::{Container, Pod};
use stowage_runtime::api::{Patch, Target};
use stowage_runtime::engine::Decision;
use stowage_runtime::events::seconds;
use stowage_runtime::told::Known;

use super::Action;
use super::waiting::Waiting;
use crate::conditions::{Wanted, status_patch};
use crate::desired_state::PodVolumes;

/// A claim that is not bound, or a volume that is not there, may be on its way to this node already.
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(1);

/// How a container ends that is given no time: by SIGKILL.
const KILLED: i32 = 137;

/// How long the kubelet waits for a pod's volumes before it looks whether the node is full.
const LIMIT_PATIENCE: SignedDuration = SignedDuration::from_secs(123);

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub uid: String,
    pub pod: View,
    /// What its volumes turn out to be now; none for a pod that is to have none.
    pub found: Option<PodVolumes>,
    /// What was noted of that.
    pub noted: Option<PodVolumes>,
    /// Since when its problems are what was noted.
    pub problems_since: Option<Timestamp>,
    /// Volumes that are or may be mounted for it.
    pub held: usize,
    /// Volumes that certainly are mounted for it.
    pub mounted: usize,
    pub has_dir: bool,
    /// Whether operations on its mounts are over and still remembered.
    pub has_records: bool,
    /// What keeps its volumes from being mounted.
    pub waits_for: Waiting,
    /// What it holds too much of.
    pub evicted: Option<String>,
    /// What was told about it already.
    pub told: Known<String, ()>,
    /// It was to be there for as long as somebody holds it, and nobody does.
    pub is_abandoned: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum View {
    Absent,
    Known(Arc<NodePod>),
    Unknown(ObjectKey),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    WriteWithoutAnswer,
    Gone,
    Abandoned,
    /// Its volumes must be unmounted first.
    Unmounting,
    Unmounted,
    /// Somebody else must agree to its end.
    HeldByFinalizers,
    Terminal,
    /// Its volumes are not what was noted.
    Populate,
    Problem,
    /// The node can take no more volumes of a driver, and the pod is to go elsewhere.
    Rejected,
    /// It holds more than it may.
    Evicted,
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

/// The object of a static pod has another uid than the pod.
fn any_version(pod: &NodePod) -> Target {
    Target { uid: pod.object_uid().to_owned(), ..Target::any_version(&pod.meta) }
}

fn exact(pod: &NodePod) -> Target {
    Target { uid: pod.object_uid().to_owned(), ..Target::exact(&pod.meta) }
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let pod = match &s.pod {
        View::Unknown(key) => return Decision::act([Action::ReadPod(key.clone())], Why::WriteWithoutAnswer),
        View::Absent => return forget(s),
        View::Known(pod) => pod,
    };
    if is_live(pod) && s.is_abandoned {
        return Decision::act([Action::EndPod { target: any_version(pod) }], Why::Abandoned);
    }
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
        // What its volumes were made of need not be watched any more.
        actions.extend(forgotten(s));
        return Decision::act(actions, Why::Terminal);
    }
    if pod.meta.deletion_grace_period_seconds == Some(0) && !pod.meta.finalizers.is_empty() {
        return Decision::act(actions, Why::HeldByFinalizers);
    }
    actions.push(Action::DeletePod { target: any_version(pod) });
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
    actions.extend(forgotten(s));
    Decision::act(actions, Why::Gone)
}

/// Nothing of the pod is on the node any more: what is remembered of it can go.
fn forgotten(s: &Snapshot) -> Option<Action> {
    let is_remembered = s.noted.is_some() || !s.told.is_empty() || s.has_records;
    is_remembered.then(|| Action::ForgetPod { uid: s.uid.clone() })
}

fn live(s: &Snapshot, pod: &Arc<NodePod>, now: Timestamp) -> Decision<Action, Why> {
    if let Some(message) = &s.evicted {
        return evict(s, pod, message, now);
    }
    if s.found != s.noted {
        let volumes = Box::new(s.found.clone().unwrap_or_default());
        return Decision::act([Action::Populate { uid: s.uid.clone(), volumes }], Why::Populate);
    }
    let Some(volumes) = &s.noted else { return Decision::rest(Why::Mounting) };
    let mounted = volumes.is_complete() && s.mounted >= volumes.volumes.len();
    let is_over = s.waits_for.over_limit.first().filter(|_| !mounted && pod.status.phase != PodPhase::Running);
    let rejected_at = is_over.and_then(|_| pod.status.start_time?.checked_add(LIMIT_PATIENCE).ok());
    if rejected_at.is_some_and(|at| at <= now) {
        return reject(s, pod);
    }
    // What is settled within a moment is not worth a write.
    let said_at = pod.status.start_time.and_then(|start| start.checked_add(PATIENCE).ok());
    let cause = s.waits_for.sentence.as_deref().filter(|_| said_at.is_some_and(|at| at <= now));
    if let Some(action) = status(pod, mounted, cause, now) {
        return Decision::act([action], if mounted { Why::Mounted } else { Why::Mounting });
    }
    let said_at = said_at.filter(|at| *at > now && !mounted && pod.status.phase != PodPhase::Running);
    let wake_at = said_at.into_iter().chain(rejected_at).min();
    if volumes.is_complete() {
        return Decision { wake_at, ..Decision::rest(if mounted { Why::Running } else { Why::Mounting }) };
    }
    let decision = troubled(s, pod, volumes, now);
    Decision { wake_at: decision.wake_at.into_iter().chain(wake_at).min(), ..decision }
}

/// The drivers are asked again how many volumes the node can take, so that no other pod comes here for the same end.
fn reject(s: &Snapshot, pod: &NodePod) -> Decision<Action, Why> {
    let drivers: Vec<String> = s.waits_for.over_limit.iter().cloned().collect();
    let message = format!("the node can take no more volumes of {}", drivers.join(", "));
    let status = json!({ "phase": "Failed", "reason": "VolumeAttachmentLimitExceeded", "message": message });
    let patch = Patch::Merge(json!({ "status": status }));
    let asked = drivers.into_iter().map(|driver| Action::Refresh { driver });
    let write = Action::PatchPodStatus { target: exact(pod), patch };
    Decision::act(asked.chain([write]).collect::<Vec<Action>>(), Why::Rejected)
}

/// As the kubelet ends a pod that it evicts: told first, and failed for good.
fn evict(s: &Snapshot, pod: &Arc<NodePod>, message: &str, now: Timestamp) -> Decision<Action, Why> {
    let failed = |kind| Wanted { kind, holds: false, reason: "PodFailed", message: String::new() };
    let conditions = [failed("ContainersReady"), failed("Ready")];
    let ended = json!({ "terminated": { "reason": "Error", "exitCode": KILLED, "finishedAt": seconds(now) } });
    let containers = pod.spec.containers.iter();
    let fields = json!({
        "phase": PodPhase::Failed.as_str(),
        "reason": "Evicted",
        "message": message,
        "containerStatuses": containers.map(|container| container_status(container, false, &ended)).collect::<Value>(),
    });
    let patch = status_patch(&pod.status.conditions, &conditions, fields, now);
    let write = Action::PatchPodStatus { target: exact(pod), patch };
    let tell = || Action::TellEviction { pod: pod.reference(), message: message.to_owned() };
    let told = s.told.until(&message.to_owned(), &(), now);
    Decision::act(told.is_none().then(tell).into_iter().chain([write]).collect::<Vec<Action>>(), Why::Evicted)
}

fn troubled(s: &Snapshot, pod: &Arc<NodePod>, volumes: &PodVolumes, now: Timestamp) -> Decision<Action, Why> {
    // What may be settled in a moment is not worth an event.
    let since = s.problems_since.unwrap_or(now);
    let settled_at = since.checked_add(PATIENCE).unwrap_or(since);
    let is_settled = now >= settled_at || volumes.problems.iter().any(|problem| !problem.is_waiting);
    if !is_settled {
        return Decision::wait_until(settled_at, Why::Problem);
    }
    let problems: Vec<&str> = volumes.problems.iter().map(|problem| problem.message.as_str()).collect();
    let message = problems.join("; ");
    match s.told.until(&message, &(), now) {
        Some(again_at) => Decision::wait_until(again_at, Why::Problem),
        None => Decision::act([Action::Explain { pod: pod.reference(), message }], Why::Problem),
    }
}

/// The write that brings its status up to date. A pod that was Running stays so: its mounts outlive this process.
///
/// Without a cause, what was said before stays.
fn status(pod: &NodePod, mounted: bool, cause: Option<&str>, now: Timestamp) -> Option<Action> {
    let existing = &pod.status.conditions;
    let is_running = pod.status.phase == PodPhase::Running;
    let ready = condition::find(existing, "Ready");
    let up_to_date = match mounted {
        true => is_running && ready.is_some_and(condition::Condition::is_true),
        false => {
            let is_said = cause.is_none() || ready.is_some_and(|ready| ready.message == unready_message(pod, cause));
            is_running || (ready.is_some() && pod.status.start_time.is_some() && is_said)
        }
    };
    if up_to_date {
        return None;
    }
    let unready = |kind| {
        let message = unready_message(pod, cause);
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
        "containerStatuses": container_statuses(&pod.spec.containers, mounted, cause, now),
    });
    if !pod.spec.init_containers.is_empty() {
        fields["initContainerStatuses"] = init_container_statuses(&pod.spec.init_containers, mounted, cause, now);
    }
    let patch = status_patch(existing, &conditions, fields, now);
    Some(Action::PatchPodStatus { target: exact(pod), patch })
}

fn unready_message(pod: &Pod, cause: Option<&str>) -> String {
    let names: Vec<&str> = pod.spec.containers.iter().map(|container| container.name.as_str()).collect();
    let cause = cause.map(|cause| format!("; {cause}")).unwrap_or_default();
    format!("containers with unready status: [{}]{cause}", names.join(" "))
}

fn waiting(reason: &str, cause: Option<&str>) -> Value {
    match cause {
        Some(cause) => json!({ "waiting": { "reason": reason, "message": cause } }),
        None => json!({ "waiting": { "reason": reason } }),
    }
}

fn container_statuses(containers: &[Container], mounted: bool, cause: Option<&str>, now: Timestamp) -> Value {
    let state = match mounted {
        true => json!({ "running": { "startedAt": seconds(now) } }),
        false => waiting("ContainerCreating", cause),
    };
    containers.iter().map(|container| container_status(container, mounted, &state)).collect()
}

fn init_container_statuses(containers: &[Container], mounted: bool, cause: Option<&str>, now: Timestamp) -> Value {
    let ended = json!({
        "reason": "Completed", "exitCode": 0, "startedAt": seconds(now), "finishedAt": seconds(now),
    });
    let state = match mounted {
        true => json!({ "terminated": ended }),
        false => waiting("PodInitializing", cause),
    };
    containers.iter().map(|container| container_status(container, mounted, &state)).collect()
}

fn container_status(container: &Container, ready: bool, state: &Value) -> Value {
    json!({
        "name": container.name, "ready": ready, "started": ready, "restartCount": 0,
        "image": "", "imageID": "", "state": state,
    })
}

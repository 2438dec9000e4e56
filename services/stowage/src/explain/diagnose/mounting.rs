//! The node's part: stage, publish, and say so.

use jiff::Timestamp;

use stowage_model::phase::PodPhase;
use stowage_model::{Node, Pod, VolumeAttachment, condition};

use super::{View, attaching, quoted};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who, ago};
use crate::explain::told::Told;

/// What the kubelet tells of volumes it cannot give to a pod.
const FAILURES: [&str; 5] =
    ["FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedMountOnFilesystemMismatch", "VolumeFailedRestore"];

/// What the attach-detach controller tells of each volume that came to the pod's node.
const ATTACHED: &str = "SuccessfulAttachVolume";

/// Only a pod whose volumes are mounted comes so far.
pub const AFTER_MOUNT: [&str; 8] =
    ["Pulling", "Pulled", "Created", "Started", "BackOff", "Failed", "FailedCreatePodSandBox", "SandboxChanged"];

/// Whether the pod has its volumes; `None` when its objects do not tell.
pub fn is_mounted(view: &View<'_>, pod: &Pod) -> Option<bool> {
    if matches!(pod.status.phase, PodPhase::Running | PodPhase::Succeeded) {
        return Some(true);
    }
    let told = view.told(pod);
    if told.iter().any(|told| AFTER_MOUNT.contains(&told.reason.as_str())) {
        return Some(true);
    }
    let ready = condition::find(&pod.status.conditions, "PodReadyToStartContainers");
    match ready {
        Some(ready) if ready.is_true() => Some(true),
        _ if told.iter().any(|told| FAILURES.contains(&told.reason.as_str())) => Some(false),
        Some(_) => Some(false),
        None => None,
    }
}

/// Why the node does not give the pod its volumes.
pub fn causes(view: &View<'_>, pod: &Pod) -> Vec<Cause> {
    let node = pod.spec.node_name.as_str();
    let kubelet = || Who::named(format!("kubelet of {node}"));
    let mut causes: Vec<Cause> = node_trouble(view, node).into_iter().collect();
    if let Some(told) = failure(view, pod) {
        let way_out = hint(&told.message, pod);
        causes.push(Cause::stuck("mount-failed", kubelet(), quoted(told, view.now), way_out));
    }
    if causes.is_empty() && is_mounted(view, pod) == Some(false) {
        // Its turn begins when the last volume is attached.
        let since = attached_at(view, pod).max(attaching::scheduled_at(pod)).or(pod.meta.creation_timestamp);
        let way_out = format!("read the log of the kubelet on {node}, and of the driver's pod there");
        let why = format!("the kubelet of {node} has not mounted the volumes and has told nothing");
        causes.push(view.slow("kubelet-silent", kubelet(), since, why, way_out));
    }
    causes
}

/// The last failure that is none of the past; what only says that time is up hides the one that says why.
fn failure<'a>(view: &View<'a>, pod: &Pod) -> Option<&'a Told> {
    let told = view.told(pod);
    let attached_at = attached_at(view, pod);
    let is_umbrella = |told: &Told| told.message.contains("timed out waiting for the condition");
    let is_over = |failure: &Told| {
        (failure.reason == "FailedAttachVolume" && is_attached_since(view, pod, failure))
            || (is_umbrella(failure) && attached_at.is_some_and(|at| failure.last().is_some_and(|last| last < at)))
    };
    let is_failure = |told: &&Told| FAILURES.contains(&told.reason.as_str()) && !is_over(told);
    let failures = || told.iter().copied().filter(is_failure);
    failures().find(|told| !is_umbrella(told)).or_else(|| failures().next())
}

/// Whether the volume is attached now that could not be: every move of a volume of one node begins with such a failure.
fn is_attached_since(view: &View<'_>, pod: &Pod, failure: &Told) -> bool {
    let Some(name) = volume_in(&failure.message) else { return false };
    let succeeded = |told: &&Told| told.reason == ATTACHED && volume_in(&told.message) == Some(name);
    let told = view.told(pod).into_iter().find(succeeded);
    told.is_some_and(|told| told.last() >= failure.last()) || attachment(view, pod, name).is_some()
}

/// The volume that the attach-detach controller speaks of: `... for volume "NAME"`.
fn volume_in(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("for volume \"")?;
    rest.split('"').next()
}

/// A volume's attachment to the pod's node, if it is attached.
fn attachment<'a>(view: &View<'a>, pod: &Pod, volume: &str) -> Option<&'a VolumeAttachment> {
    let is_here = |one: &VolumeAttachment| one.spec.node_name == pod.spec.node_name && !one.meta.is_deleting();
    view.attachments_of(volume).find(|one| is_here(one) && one.status.attached)
}

/// When the last of the pod's volumes came to its node, as far as that is known: not before that was asked for.
fn attached_at(view: &View<'_>, pod: &Pod) -> Option<Timestamp> {
    let told = view.told(pod).into_iter().filter(|told| told.reason == ATTACHED).filter_map(Told::last);
    let claims = pod.claims().filter_map(|key| view.g.claims.look(&key).there());
    let attachments = claims.filter_map(|claim| attachment(view, pod, &claim.spec.volume_name));
    told.chain(attachments.filter_map(|one| one.meta.creation_timestamp)).max()
}

fn hint(text: &str, pod: &Pod) -> String {
    let namespace = &pod.meta.namespace;
    if text.contains("configmap") && text.contains("not found") {
        return format!("create the ConfigMap: `kubectl get configmaps -n {namespace}`");
    }
    if text.contains("secret") && text.contains("not found") {
        return format!("create the Secret: `kubectl get secrets -n {namespace}`");
    }
    if text.contains("not found in the list of registered CSI drivers") {
        return format!("see that the driver's pod on {} runs", pod.spec.node_name);
    }
    if text.contains("Multi-Attach") {
        return "delete the pod that has the volume on the other node, or wait until it is gone".to_owned();
    }
    "remove what is named; it is tried again by itself".to_owned()
}

/// The node itself is the trouble.
pub fn node_trouble(view: &View<'_>, name: &str) -> Option<Cause> {
    let who = || Who::named(format!("kubelet of {name}"));
    match view.g.nodes.named(name) {
        Look::Absent => Some(Cause::stuck(
            "node-missing",
            Who::user(),
            format!("spec.nodeName is {name:?}, and there is no such Node"),
            "delete the pod, so that it is placed anew",
        )),
        Look::There(node) if !Node::is_ready(node) => {
            let ready = node.ready();
            let since: Option<Timestamp> = ready.and_then(|ready| ready.last_transition_time);
            let since = since.map(|at| format!(" for {}", ago(at, view.now))).unwrap_or_default();
            let message = ready.map(|ready| ready.message.as_str()).filter(|text| !text.is_empty());
            let message = message.map(|text| format!(": {text}")).unwrap_or_default();
            let tainted = if node.is_out_of_service() { ", and is tainted out-of-service" } else { "" };
            Some(Cause::stuck(
                "node-not-ready",
                who(),
                format!("node {name} has not been ready{since}{tainted}{message}"),
                format!(
                    "bring the node back (`kubectl describe node {name}`), or delete the pod so that it is placed elsewhere"
                ),
            ))
        }
        _ => None,
    }
}

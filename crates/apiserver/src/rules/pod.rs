//! Pods.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::metadata::{self, subdomain};
use super::one_of;
use crate::object::{default, filled, member_mut, restore, text, timestamp};
use crate::status::Faults;
use crate::store::DEFAULT_ACCOUNT;

mod mounts;
mod volumes;

/// Fields of `spec` that may change in a pod that is there.
const MUTABLE: [&str; 4] = ["activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates"];

pub(super) fn create(tree: &mut Value) {
    let spec = member_mut(tree, "spec");
    // Two names of one field; the older one wins only where it stands alone.
    let older = spec.get("serviceAccount").and_then(Value::as_str).unwrap_or(DEFAULT_ACCOUNT).to_owned();
    default(spec, "serviceAccountName", older);
    let account = spec.get("serviceAccountName").cloned().unwrap_or_default();
    spec.insert("serviceAccount".to_owned(), account);
    tolerate_for_a_while(spec);
    set_priority(spec);
    let qos = quality(tree);
    default(member_mut(tree, "status"), "qosClass", qos);
    default(member_mut(tree, "status"), "phase", "Pending");
}

/// Taints of nodes that are not ready or cannot be reached.
const SILENT: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// So many seconds a pod stays on a node that is not heard of, unless it says otherwise.
const TOLERATED: u64 = 300;

/// As the admission plugin DefaultTolerationSeconds.
fn tolerate_for_a_while(spec: &mut Map<String, Value>) {
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if tolerations.is_null() {
        *tolerations = json!([]);
    }
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    for key in SILENT {
        let covers = |toleration: &Value| {
            ["", key].contains(&text(toleration, "/key")) && ["", "NoExecute"].contains(&text(toleration, "/effect"))
        };
        if !tolerations.iter().any(covers) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED,
            }));
        }
    }
}

/// As the admission plugin Priority in a cluster that has only the two classes that every cluster has.
fn set_priority(spec: &mut Map<String, Value>) {
    let priority = match spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default() {
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        _ => 0,
    };
    default(spec, "priority", priority);
    default(spec, "preemptionPolicy", "PreemptLowerPriority");
}

/// Who writes a pod back need not know its priority.
pub(super) fn keep_priority(new: &mut Value, old: &Value) {
    let before = old.get("spec").and_then(Value::as_object);
    let spec = member_mut(new, "spec");
    for field in ["priority", "preemptionPolicy"] {
        if spec.get(field).is_none_or(Value::is_null) {
            restore(spec, before, field);
        }
    }
}

/// How firmly the pod's resources are promised to it.
fn quality(tree: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| tree.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten());
    let (mut any, mut all) = (false, true);
    for container in containers {
        for resource in ["cpu", "memory"] {
            let amount = |list: &str| filled(container, &format!("/resources/{list}/{resource}"));
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            all &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Fills in what the author of a pod, or of a template for pods, left out.
pub(super) fn default_spec(spec: &mut Map<String, Value>) {
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "schedulerName", "default-scheduler");
    default(spec, "enableServiceLinks", true);
    default(spec, "securityContext", json!({}));
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        volumes::default_volume(volume);
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                default_container(container);
            }
        }
    }
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let newest = image.ends_with(":latest") || !image.rsplit('/').next().unwrap_or_default().contains([':', '@']);
    default(container, "imagePullPolicy", if newest { "Always" } else { "IfNotPresent" });
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", "TCP");
        }
    }
}

/// Notes in the status that a node was found.
pub(crate) fn mark_scheduled(tree: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(now),
    });
    let slot = member_mut(tree, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Some(conditions) = slot.as_array_mut() {
        conditions.retain(|c| text(c, "/type") != "PodScheduled");
        conditions.push(condition);
    }
}

pub(super) fn validate(tree: &Value, faults: &mut Faults) {
    volumes::validate_claims(tree, faults);
    validate_spec("spec", tree.get("spec").unwrap_or(&Value::Null), faults);
}

/// Checks the spec of a pod, or of a template for pods, at `path`.
pub(super) fn validate_spec(path: &str, spec: &Value, faults: &mut Faults) {
    let policies = ["Always", "OnFailure", "Never"];
    one_of(&format!("{path}.restartPolicy"), "/restartPolicy", spec, &policies, faults);
    validate_names(path, spec, faults);
    let volumes = volumes::validate(path, spec, faults);
    if filled(spec, "/containers").is_none() {
        faults.required(format!("{path}.containers"), "");
    }
    let mut names = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in spec.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            for field in ["name", "image"] {
                if filled(container, &format!("/{field}")).is_none() {
                    faults.required(format!("{path}.{field}"), "");
                }
            }
            let name = text(container, "/name");
            if !name.is_empty() && !metadata::is_dns_label(name) {
                faults.invalid(format_args!("{path}.name"), format_args!("{name:?}"), metadata::LABEL);
            }
            if !name.is_empty() && !names.insert(name) {
                faults.duplicate(format!("{path}.name"), &name.into());
            }
            mounts::validate(&path, container, &volumes, faults);
        }
    }
}

/// Names of other objects and of hosts: they become parts of paths, on nodes and in the API.
fn validate_names(path: &str, spec: &Value, faults: &mut Faults) {
    for field in ["nodeName", "serviceAccountName", "priorityClassName", "runtimeClassName"] {
        subdomain(format_args!("{path}.{field}"), text(spec, &format!("/{field}")), faults);
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, &format!("/{field}"));
        if !name.is_empty() && !metadata::is_dns_label(name) {
            faults.invalid(format_args!("{path}.{field}"), format_args!("{name:?}"), metadata::LABEL);
        }
    }
}

/// Checks the status that a write to it would leave.
pub(super) fn validate_status(tree: &Value, faults: &mut Faults) {
    subdomain("status.nominatedNodeName", text(tree, "/status/nominatedNodeName"), faults);
}

/// The node is set by a binding only, and most of the rest never changes.
pub(super) fn validate_update(new: &Value, old: &Value, faults: &mut Faults) {
    let mut spec = new.get("spec").cloned().unwrap_or_default();
    let before = old.get("spec").cloned().unwrap_or_default();
    if let Some(members) = spec.as_object_mut() {
        for field in MUTABLE {
            restore(members, before.as_object(), field);
        }
        for list in ["containers", "initContainers"] {
            let images: Vec<Value> = before
                .get(list)
                .and_then(Value::as_array)
                .map(|l| l.iter().map(|c| c.get("image").cloned().unwrap_or_default()).collect())
                .unwrap_or_default();
            let containers = members.get_mut(list).and_then(Value::as_array_mut);
            for (container, image) in containers.into_iter().flatten().zip(images) {
                if let Some(container) = container.as_object_mut() {
                    container.insert("image".to_owned(), image);
                }
            }
        }
    }
    if spec != before {
        faults.forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, \
             `spec.activeDeadlineSeconds`, `spec.tolerations`, `spec.terminationGracePeriodSeconds`; a node is set \
             through the binding subresource",
        );
    }
}

//! Pods.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::one_of;
use crate::object::{default, filled, member_mut, restore, text, timestamp};
use crate::status::Faults;

/// Fields of `spec` that may change in a pod that is there.
const MUTABLE: [&str; 4] = ["activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates"];

pub(super) fn create(tree: &mut Value) {
    let spec = member_mut(tree, "spec");
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "schedulerName", "default-scheduler");
    default(spec, "enableServiceLinks", true);
    default(spec, "securityContext", json!({}));
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
                let newest = image.ends_with(":latest") || !image.rsplit('/').next().unwrap_or_default().contains(':');
                default(container, "imagePullPolicy", if newest { "Always" } else { "IfNotPresent" });
                default(container, "terminationMessagePath", "/dev/termination-log");
                default(container, "terminationMessagePolicy", "File");
                default(container, "resources", json!({}));
            }
        }
    }
    default(member_mut(tree, "status"), "phase", "Pending");
}

/// Notes in the status that a node was found.
pub(crate) fn mark_scheduled(tree: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": timestamp(now),
    });
    let slot = member_mut(tree, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Some(conditions) = slot.as_array_mut() {
        conditions.retain(|c| text(c, "/type") != "PodScheduled");
        conditions.push(condition);
    }
}

pub(super) fn validate(tree: &Value, faults: &mut Faults) {
    one_of("spec.restartPolicy", "/spec/restartPolicy", tree, &["Always", "OnFailure", "Never"], faults);
    let list = |pointer: &str| tree.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut volumes = BTreeSet::new();
    for (index, volume) in list("/spec/volumes").iter().enumerate() {
        let name = text(volume, "/name");
        if name.is_empty() {
            faults.required(&format!("spec.volumes[{index}].name"), "");
        } else if !volumes.insert(name.to_owned()) {
            faults.invalid(&format!("spec.volumes[{index}].name"), format!("{name:?}"), "must be unique");
        }
        let claim = volume.get("persistentVolumeClaim");
        if claim.is_some_and(|c| text(c, "/claimName").is_empty()) {
            faults.required(&format!("spec.volumes[{index}].persistentVolumeClaim.claimName"), "");
        }
    }
    let containers = list("/spec/containers");
    if containers.is_empty() {
        faults.required("spec.containers", "");
    }
    for (list_name, containers) in [("containers", containers), ("initContainers", list("/spec/initContainers"))] {
        for (index, container) in containers.iter().enumerate() {
            validate_container(&format!("spec.{list_name}[{index}]"), container, &volumes, faults);
        }
    }
}

fn validate_container(path: &str, container: &Value, volumes: &BTreeSet<String>, faults: &mut Faults) {
    for field in ["name", "image"] {
        if filled(container, &format!("/{field}")).is_none() {
            faults.required(&format!("{path}.{field}"), "");
        }
    }
    for (list, place) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
        for (index, mount) in container.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
            let name = text(mount, "/name");
            if !volumes.contains(name) {
                faults.invalid(
                    &format!("{path}.{list}[{index}].name"),
                    format!("{name:?}"),
                    "is not one of spec.volumes",
                );
            }
            if text(mount, &format!("/{place}")).is_empty() {
                faults.required(&format!("{path}.{list}[{index}].{place}"), "");
            }
        }
    }
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

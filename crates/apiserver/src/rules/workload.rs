//! Deployments, StatefulSets, DaemonSets and ReplicaSets: kept for those who run them, with their defaults and checks.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::pod;
use crate::kind::Kind;
use crate::object::{default, filled, member_mut, restore};
use crate::status::Faults;

/// Fields of a StatefulSet's spec that may change.
const MUTABLE_STATEFUL: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(super) fn complete(kind: &Kind, tree: &mut Value) {
    let spec = member_mut(tree, "spec");
    match kind.kind {
        "Deployment" => {
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "progressDeadlineSeconds", 600);
            default_rollout(spec, "strategy", json!({"maxSurge": "25%", "maxUnavailable": "25%"}));
        }
        "StatefulSet" => {
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "podManagementPolicy", "OrderedReady");
            default_rollout(spec, "updateStrategy", json!({"partition": 0}));
            let retention = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            default(spec, "persistentVolumeClaimRetentionPolicy", retention);
            for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
                default(member_mut(claim, "spec"), "volumeMode", "Filesystem");
                default(member_mut(claim, "status"), "phase", "Pending");
            }
        }
        "DaemonSet" => {
            default(spec, "revisionHistoryLimit", 10);
            default_rollout(spec, "updateStrategy", json!({"maxSurge": 0, "maxUnavailable": 1}));
        }
        _ => default(spec, "replicas", 1),
    }
    if let Some(pod) = tree.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut) {
        pod::default_spec(pod);
    }
}

fn default_rollout(spec: &mut Map<String, Value>, name: &str, rolling: Value) {
    let slot = spec.entry(name).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = json!({});
    }
    if let Some(strategy) = slot.as_object_mut() {
        default(strategy, "type", "RollingUpdate");
        if strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate") {
            let slot = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
            if let (Some(found), Some(defaults)) = (slot.as_object_mut(), rolling.as_object()) {
                for (name, value) in defaults {
                    default(found, name, value.clone());
                }
            }
        }
    }
}

pub(super) fn validate(kind: &Kind, tree: &Value, faults: &mut Faults) {
    let labels = tree.pointer("/spec/template/metadata/labels");
    match filled(tree, "/spec/selector") {
        None => faults.required("spec.selector", ""),
        Some(selector) => {
            let wanted = selector.get("matchLabels").and_then(Value::as_object);
            let unlike =
                wanted.into_iter().flatten().any(|(name, value)| labels.and_then(|l| l.get(name)) != Some(value));
            if unlike {
                let shown = labels.cloned().unwrap_or_else(|| json!({}));
                faults.invalid("spec.template.metadata.labels", shown, "`selector` does not match template `labels`");
            }
        }
    }
    if let Some(replicas) = tree.pointer("/spec/replicas").and_then(Value::as_i64).filter(|count| *count < 0) {
        faults.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
    }
    // The claims that a StatefulSet makes for its pods are volumes of theirs.
    let mut pod = tree.pointer("/spec/template/spec").cloned().unwrap_or_else(|| json!({}));
    if kind.kind == "StatefulSet" {
        let claims = tree.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        let names = claims.into_iter().flatten().filter_map(|c| c.pointer("/metadata/name").cloned());
        let volumes = names.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let added: Vec<Value> = volumes.collect();
        if let Some(spec) = pod.as_object_mut() {
            let slot = spec.entry("volumes").or_insert_with(|| json!([]));
            if let Some(list) = slot.as_array_mut() {
                let names: BTreeSet<String> = added.iter().map(|volume| volume["name"].to_string()).collect();
                list.retain(|volume| volume.get("name").is_none_or(|name| !names.contains(&name.to_string())));
                list.extend(added);
            }
        }
    }
    pod::validate_spec("spec.template.spec", &pod, faults);
    if pod.get("restartPolicy").and_then(Value::as_str).is_some_and(|policy| policy != "Always") {
        let policy = pod["restartPolicy"].as_str().unwrap_or_default().to_owned();
        faults.unsupported("spec.template.spec.restartPolicy", &policy, &["Always"]);
    }
}

pub(super) fn validate_update(kind: &Kind, new: &Value, old: &Value, faults: &mut Faults) {
    if kind.kind != "StatefulSet" {
        super::immutable("spec.selector", "/spec/selector", new, old, faults);
        return;
    }
    let mut spec = new.get("spec").cloned().unwrap_or_default();
    let before = old.get("spec").cloned().unwrap_or_default();
    if let Some(members) = spec.as_object_mut() {
        for field in MUTABLE_STATEFUL {
            restore(members, before.as_object(), field);
        }
    }
    if spec != before {
        faults.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
             'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}

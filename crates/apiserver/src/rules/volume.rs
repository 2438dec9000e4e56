//! PersistentVolumes.

use jiff::Timestamp;
use serde_json::Value;

use stowage_model::finalizers;

use super::claim::{quantity_of, validate_access_modes};
use super::{immutable, metadata, one_of, source};
use crate::object::{add_finalizer, default, filled, member_mut, text, timestamp};
use crate::status::Faults;

/// Members of `spec` that are not the volume's source.
const NOT_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

const PHASE_TIME: &str = "lastPhaseTransitionTime";

/// What a volume's author may leave out.
pub(super) fn complete(tree: &mut Value) {
    let spec = member_mut(tree, "spec");
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
    if let Some(host) = spec.get_mut("hostPath").and_then(Value::as_object_mut) {
        host.entry("type").or_insert_with(|| "".into());
    }
}

/// Admission, and the status every new volume has.
pub(super) fn create(tree: &mut Value, now: Timestamp) {
    add_finalizer(tree, finalizers::VOLUME_PROTECTION);
    let status = member_mut(tree, "status");
    status.insert("phase".to_owned(), "Pending".into());
    status.insert(PHASE_TIME.to_owned(), timestamp(now).into());
}

/// Says when the phase changed, unless the writer did.
pub(super) fn stamp_phase(new: &mut Value, old: &Value, now: Timestamp) {
    let pointer = "/status/lastPhaseTransitionTime";
    let (asked, before) = (filled(new, pointer).cloned(), filled(old, pointer).cloned());
    let changed = text(new, "/status/phase") != text(old, "/status/phase");
    let stamp = match (changed, asked) {
        (false, None) => before,
        (true, asked) if asked.is_none() || asked == before => Some(timestamp(now).into()),
        (_, asked) => asked,
    };
    if let Some(stamp) = stamp {
        member_mut(new, "status").insert(PHASE_TIME.to_owned(), stamp);
    }
}

pub(super) fn validate(tree: &Value, faults: &mut Faults) {
    validate_access_modes("spec.accessModes", tree, faults);
    one_of("spec.volumeMode", "/spec/volumeMode", tree, &["Block", "Filesystem"], faults);
    let policies = ["Delete", "Recycle", "Retain"];
    one_of("spec.persistentVolumeReclaimPolicy", "/spec/persistentVolumeReclaimPolicy", tree, &policies, faults);
    match tree.pointer("/spec/capacity/storage") {
        None | Some(Value::Null) => faults.required("spec.capacity", "storage is required"),
        Some(size) => match quantity_of(size) {
            None => faults.invalid("spec.capacity[storage]", size, "must be a quantity such as 10Gi"),
            Some(value) if value <= 0 => faults.invalid("spec.capacity[storage]", size, "must be greater than zero"),
            Some(_) => {}
        },
    }
    validate_affinity(tree, faults);
    validate_source(tree, faults);
    let class = text(tree, "/spec/storageClassName");
    if !class.is_empty() && !metadata::is_dns_subdomain(class) {
        faults.invalid("spec.storageClassName", format!("{class:?}"), metadata::SUBDOMAIN);
    }
    match tree.pointer("/spec/volumeAttributesClassName").and_then(Value::as_str) {
        None => {}
        Some("") => faults.required("spec.volumeAttributesClassName", "an empty string is disallowed"),
        Some(_) if filled(tree, "/spec/csi").is_none() => {
            faults.required("spec.csi", "has to be specified when using volumeAttributesClassName");
        }
        Some(class) => metadata::subdomain("spec.volumeAttributesClassName", class, faults),
    }
}

fn validate_source(tree: &Value, faults: &mut Faults) {
    let sources = sources(tree);
    let Some(first) = sources.first() else {
        faults.required("spec", "must specify a volume type");
        return;
    };
    for second in &sources[1..] {
        faults.forbidden(format!("spec.{second}"), "may not specify more than 1 volume type");
    }
    let (path, found) = (format!("spec.{first}"), &tree["spec"][*first]);
    match *first {
        "csi" => source::csi(&path, found, faults),
        "hostPath" => {
            source::host_path(&path, found, faults);
            let root = text(found, "/path").split('/').all(|part| matches!(part, "" | "."));
            if root && text(tree, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
                let detail = "may not be 'recycle' for a hostPath mount of '/'";
                faults.forbidden("spec.persistentVolumeReclaimPolicy", detail);
            }
        }
        "local" => {
            source::local(&path, found, faults);
            if filled(tree, "/spec/nodeAffinity/required").is_none() {
                faults.required("spec.nodeAffinity", "Local volume requires node affinity");
            }
        }
        "nfs" => source::nfs(&path, found, faults),
        _ => {}
    }
}

/// The nodes that can reach the volume.
fn validate_affinity(tree: &Value, faults: &mut Faults) {
    let Some(affinity) = tree.pointer("/spec/nodeAffinity").filter(|a| a.is_object()) else { return };
    let path = "spec.nodeAffinity.required";
    let Some(required) = affinity.get("required").filter(|r| r.is_object()) else {
        faults.required(path, "must specify required node constraints");
        return;
    };
    let terms = required.get("nodeSelectorTerms").and_then(Value::as_array);
    if terms.is_none_or(Vec::is_empty) {
        faults.required(format!("{path}.nodeSelectorTerms"), "must have at least one node selector term");
    }
    for (number, term) in terms.into_iter().flatten().enumerate() {
        for list in ["matchExpressions", "matchFields"] {
            for (index, one) in term.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
                let path = format!("{path}.nodeSelectorTerms[{number}].{list}[{index}]");
                validate_requirement(&path, one, faults);
            }
        }
    }
}

fn validate_requirement(path: &str, requirement: &Value, faults: &mut Faults) {
    let values = requirement.get("values").and_then(Value::as_array).map_or(0, Vec::len);
    match text(requirement, "/operator") {
        "In" | "NotIn" if values == 0 => {
            faults.required(format!("{path}.values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if values > 0 => faults
            .forbidden(format!("{path}.values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        "Gt" | "Lt" if values != 1 => {
            faults.required(format!("{path}.values"), "must be specified single value when `operator` is 'Lt' or 'Gt'")
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            faults.invalid(format!("{path}.operator"), format!("{other:?}"), "not a valid selector operator");
        }
    }
    if text(requirement, "/key").is_empty() {
        faults.invalid(format!("{path}.key"), "\"\"", "name part must be non-empty");
    }
}

fn sources(tree: &Value) -> Vec<&str> {
    tree.get("spec")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(name, value)| !NOT_SOURCES.contains(&name.as_str()) && value.is_object())
        .map(|(name, _)| name.as_str())
        .collect()
}

pub(super) fn validate_update(new: &Value, old: &Value, faults: &mut Faults) {
    let of = |tree: &Value| -> Vec<(String, Value)> {
        sources(tree).into_iter().map(|s| (s.to_owned(), tree["spec"][s].clone())).collect()
    };
    let mut asked = of(new);
    // The secret for expansion may be set later, once.
    if old.pointer("/spec/csi/controllerExpandSecretRef").is_none_or(Value::is_null) {
        for (_, source) in asked.iter_mut().filter(|(name, _)| name == "csi") {
            source.as_object_mut().map(|members| members.remove("controllerExpandSecretRef"));
        }
    }
    if asked != of(old) {
        faults.forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation");
    }
    // Upstream names these two fields without `spec`.
    immutable("volumeMode", "/spec/volumeMode", new, old, faults);
    if filled(old, "/spec/nodeAffinity").is_some() {
        immutable("nodeAffinity", "/spec/nodeAffinity", new, old, faults);
    }
    let class = "/spec/volumeAttributesClassName";
    if filled(old, class).is_some() && new.pointer(class).is_none_or(Value::is_null) {
        faults.forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
    }
}

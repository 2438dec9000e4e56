//! PersistentVolumes.

use jiff::Timestamp;
use serde_json::Value;

use super::claim::{quantity_of, validate_access_modes};
use super::{immutable, one_of};
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

pub(super) fn create(tree: &mut Value, now: Timestamp) {
    add_finalizer(tree, "kubernetes.io/pv-protection");
    let spec = member_mut(tree, "spec");
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
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
    let sources = sources(tree);
    match sources.as_slice() {
        [] => faults.required("spec", "must specify a volume type"),
        [_] => {}
        [_, second, ..] => faults.forbidden(&format!("spec.{second}"), "may not specify more than 1 volume type"),
    }
    if let Some(csi) = filled(tree, "/spec/csi") {
        for field in ["driver", "volumeHandle"] {
            if filled(csi, &format!("/{field}")).is_none() {
                faults.required(&format!("spec.csi.{field}"), "");
            }
        }
    }
    if filled(tree, "/spec/local").is_some() && filled(tree, "/spec/nodeAffinity").is_none() {
        faults.required("spec.nodeAffinity", "Local volume requires node affinity");
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
        sources(tree).into_iter().map(|s| (s.to_owned(), without_secret_references(&tree["spec"][s]))).collect()
    };
    if of(new) != of(old) {
        faults.forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation");
    }
    immutable("spec.volumeMode", "/spec/volumeMode", new, old, faults);
    if filled(old, "/spec/nodeAffinity").is_some() {
        immutable("spec.nodeAffinity", "/spec/nodeAffinity", new, old, faults);
    }
}

/// Upstream lets the secret for expansion be set later.
fn without_secret_references(source: &Value) -> Value {
    let mut source = source.clone();
    if let Some(members) = source.as_object_mut() {
        members.remove("controllerExpandSecretRef");
    }
    source
}

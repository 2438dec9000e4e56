//! What the API server does to objects on their way in: defaults, admission, validation.
//!
//! The rules of each kind are those of upstream's strategies and admission plugins, as far as storage depends on them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::finalizers;

use crate::crd;
use crate::kind::Kind;
use crate::object::{add_finalizer, default, member_mut, metadata_mut, restore, text};
use crate::status::{Faults, Status};
use crate::store::{Ground, Subresource};

pub(crate) mod claim;
pub(crate) mod event;
pub(crate) mod metadata;
pub(crate) mod pod;
mod rbac;
pub(crate) mod schema;
pub(crate) mod service_account;
mod source;
mod storage;
mod volume;
mod workload;

/// What an object's author may leave out, in a new object and in one that replaces another.
pub(crate) fn complete(kind: &Kind, tree: &mut Value) {
    if kind.custom {
        return;
    }
    match kind.kind {
        "PersistentVolumeClaim" => claim::complete(tree),
        "PersistentVolume" => volume::complete(tree),
        "Pod" => pod::default_spec(member_mut(tree, "spec")),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => workload::complete(kind, tree),
        "Service" => default(member_mut(tree, "spec"), "type", "ClusterIP"),
        "StorageClass" | "CSIDriver" => storage::complete(kind, tree),
        "Secret" => {
            default_at_root(tree, "type", "Opaque");
            merge_texts(tree);
        }
        "RoleBinding" | "ClusterRoleBinding" => rbac::default_binding(tree),
        _ => {}
    }
}

/// Admission of a new object, and its first status.
pub(crate) fn create(ground: &Ground, kind: &Kind, tree: &mut Value, now: Timestamp) -> Result<(), Status> {
    if kind.custom {
        return Ok(());
    }
    match kind.kind {
        "Namespace" => {
            let name = text(tree, "/metadata/name").to_owned();
            let labels = metadata_mut(tree).entry("labels").or_insert(Value::Null);
            if labels.is_null() {
                *labels = Value::Object(serde_json::Map::new());
            }
            if let Some(labels) = labels.as_object_mut() {
                labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
            }
            default(member_mut(tree, "status"), "phase", "Active");
            default(member_mut(tree, "spec"), "finalizers", json!(["kubernetes"]));
        }
        "PersistentVolumeClaim" => claim::create(ground, tree),
        "PersistentVolume" => volume::create(tree, now),
        "Pod" => {
            pod::create(tree);
            return service_account::admit(ground, tree);
        }
        // Nobody but an attacher says that it is attached.
        "VolumeAttachment" => {
            if let Some(members) = tree.as_object_mut() {
                members.insert("status".to_owned(), json!({ "attached": false }));
            }
        }
        "VolumeAttributesClass" => add_finalizer(tree, finalizers::ATTRIBUTES_CLASS_PROTECTION),
        "CustomResourceDefinition" => crd::create(ground, tree, now),
        _ => {}
    }
    Ok(())
}

/// What the server adds to an object that is being replaced.
pub(crate) fn update(
    ground: &Ground,
    part: Subresource,
    kind: &Kind,
    new: &mut Value,
    old: &Value,
    now: Timestamp,
) -> Result<(), Status> {
    if kind.custom {
        return Ok(());
    }
    match (kind.kind, part) {
        // Only what ends a namespace takes these away.
        ("Namespace", Subresource::Main) => {
            let before = old.get("spec").and_then(Value::as_object);
            restore(member_mut(new, "spec"), before, "finalizers");
        }
        ("CustomResourceDefinition", Subresource::Main) => crd::update(ground, new, now),
        ("PersistentVolume", Subresource::Status) => volume::stamp_phase(new, old, now),
        ("PersistentVolumeClaim", Subresource::Main) => return claim::admit_update(ground, new, old),
        ("Pod", Subresource::Main) => pod::keep_priority(new, old),
        _ => {}
    }
    Ok(())
}

/// Checks an object as it would be after the write.
pub(crate) fn validate(kind: &Kind, tree: &Value, faults: &mut Faults) {
    if kind.custom {
        return;
    }
    match kind.kind {
        "CustomResourceDefinition" => crd::validate(tree, faults),
        "PersistentVolumeClaim" => claim::validate(tree, faults),
        "PersistentVolume" => volume::validate(tree, faults),
        "Pod" => pod::validate(tree, faults),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => workload::validate(kind, tree, faults),
        "StorageClass"
        | "VolumeAttachment"
        | "CSINode"
        | "CSIDriver"
        | "CSIStorageCapacity"
        | "VolumeAttributesClass" => {
            storage::validate(kind, tree, faults);
        }
        "Role" | "ClusterRole" => rbac::validate_role(kind, tree, faults),
        "RoleBinding" | "ClusterRoleBinding" => rbac::validate_binding(kind, tree, faults),
        _ => {}
    }
}

/// Checks the status that a write to it would leave.
pub(crate) fn validate_status(kind: &Kind, tree: &Value, faults: &mut Faults) {
    match kind.kind {
        _ if kind.custom => {}
        "Pod" => pod::validate_status(tree, faults),
        "PersistentVolumeClaim" => claim::validate_status(tree, faults),
        "VolumeAttachment" => storage::validate_attachment_status(tree, faults),
        _ => {}
    }
}

/// Checks what a write changed.
pub(crate) fn validate_update(kind: &Kind, new: &Value, old: &Value, faults: &mut Faults) {
    if kind.custom {
        return;
    }
    match kind.kind {
        "CustomResourceDefinition" => crd::validate_update(new, old, faults),
        "PersistentVolumeClaim" => claim::validate_update(new, old, faults),
        "PersistentVolume" => volume::validate_update(new, old, faults),
        "Pod" => pod::validate_update(new, old, faults),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => {
            workload::validate_update(kind, new, old, faults);
        }
        "StorageClass"
        | "VolumeAttachment"
        | "VolumeAttributesClass"
        | "CSIStorageCapacity"
        | "CSIDriver"
        | "CSINode" => {
            storage::validate_update(kind, new, old, faults);
        }
        "Secret" | "ConfigMap" => immutable_data(new, old, faults),
        "RoleBinding" | "ClusterRoleBinding" => rbac::validate_binding_update(new, old, faults),
        _ => {}
    }
}

/// A Secret's texts are for writing only: they become data, and replace what has the same name there.
fn merge_texts(tree: &mut Value) {
    let Some(members) = tree.as_object_mut() else { return };
    let Some(Value::Object(texts)) = members.remove("stringData") else { return };
    let data = members.entry("data").or_insert(Value::Null);
    if !data.is_object() {
        *data = json!({});
    }
    let texts = texts.into_iter().filter_map(|(name, value)| Some((name, STANDARD.encode(value.as_str()?).into())));
    if let Some(data) = data.as_object_mut() {
        data.extend(texts);
    }
}

fn default_at_root(tree: &mut Value, name: &str, value: &str) {
    if let Some(members) = tree.as_object_mut() {
        default(members, name, value);
    }
}

fn immutable_data(new: &Value, old: &Value, faults: &mut Faults) {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return;
    }
    for field in ["immutable", "data", "binaryData"] {
        if new.get(field) != old.get(field) {
            faults.forbidden(field, "field is immutable when `immutable` is set");
        }
    }
}

/// A field that may not change once the object is there.
pub(crate) fn immutable(field: &str, pointer: &str, new: &Value, old: &Value, faults: &mut Faults) {
    let (now, before) = (new.pointer(pointer), old.pointer(pointer));
    if now != before {
        let shown = now.map_or_else(|| "null".to_owned(), Value::to_string);
        faults.invalid(field, shown, "field is immutable");
    }
}

/// One of a few words.
pub(crate) fn one_of(field: &str, pointer: &str, tree: &Value, words: &[&str], faults: &mut Faults) {
    if let Some(value) = tree.pointer(pointer).and_then(Value::as_str).filter(|v| !words.contains(v)) {
        faults.unsupported(field, value, words);
    }
}

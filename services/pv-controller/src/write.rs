//! The bodies of the writes: merge patches of exactly the fields this service owns.

use serde_json::{Value, json};

use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Volume, annotations};

use crate::decide::claim::Status;

/// The volume's pointer to its claim.
pub fn reserve(claim: &Claim, marked: bool) -> Value {
    let mut body = json!({ "spec": { "claimRef": {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.meta.namespace,
        "name": claim.meta.name,
        "uid": claim.meta.uid,
        "resourceVersion": claim.meta.revision.to_string(),
    } } });
    if marked {
        body["metadata"] = json!({ "annotations": { annotations::BOUND_BY_CONTROLLER: "yes" } });
    }
    body
}

/// The claim's pointer to its volume, and the mark that binding is completed.
pub fn complete(volume: &str, marked: bool) -> Value {
    let mut notes = json!({ annotations::BIND_COMPLETED: "yes" });
    if marked {
        notes[annotations::BOUND_BY_CONTROLLER] = "yes".into();
    }
    json!({ "metadata": { "annotations": notes }, "spec": { "volumeName": volume } })
}

/// The request to an external provisioner, under both of its names.
pub fn ask(provisioner: &str) -> Value {
    let notes = json!({
        annotations::STORAGE_PROVISIONER: provisioner,
        annotations::BETA_STORAGE_PROVISIONER: provisioner,
    });
    json!({ "metadata": { "annotations": notes } })
}

/// The default class for a claim that named none.
pub fn class(class: &str) -> Value {
    json!({ "spec": { "storageClassName": class } })
}

/// The claim's status; members without a value are removed.
pub fn status(status: &Status) -> Value {
    let modes = status.access_modes.names();
    json!({ "status": {
        "phase": status.phase.as_str(),
        "accessModes": if modes.is_empty() { Value::Null } else { json!(modes) },
        "capacity": status.capacity.map_or(Value::Null, |size| json!({ "storage": size.to_string() })),
        "currentVolumeAttributesClassName": status.attributes_class,
    } })
}

/// The volume's phase and its message.
pub fn phase(phase: VolumePhase, message: &str) -> Value {
    json!({ "status": {
        "phase": phase.as_str(),
        "message": if message.is_empty() { Value::Null } else { message.into() },
    } })
}

/// The volume without its claim.
pub fn unbind(volume: &Volume) -> Value {
    if volume.is_bound_by_controller() {
        json!({
            "metadata": { "annotations": { annotations::BOUND_BY_CONTROLLER: null } },
            "spec": { "claimRef": null },
        })
    } else {
        json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } })
    }
}

//! Types: whether an object can be what its kind says, and which of its fields the kind does not have.

use k8s_openapi::api::{apps, coordination, core, events, rbac, storage};
use k8s_openapi::apiextensions_apiserver;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kind::Kind;
use crate::status::Status;

/// Members that hold quantities by name.
const QUANTITIES: [&str; 5] = ["requests", "limits", "capacity", "allocatable", "allocatedResources"];

/// The paths of fields that the kind does not have, or 400 if a field has the wrong type.
pub(crate) fn unknown_fields(kind: &Kind, tree: &Value) -> Result<Vec<String>, Status> {
    let check: fn(&Value) -> Result<Value, serde_json::Error> = match kind.kind {
        _ if kind.custom => return Ok(Vec::new()),
        "Event" if kind.group == "events.k8s.io" => round_trip::<events::v1::Event>,
        "Service" => round_trip::<core::v1::Service>,
        "Deployment" => round_trip::<apps::v1::Deployment>,
        "StatefulSet" => round_trip::<apps::v1::StatefulSet>,
        "DaemonSet" => round_trip::<apps::v1::DaemonSet>,
        "ReplicaSet" => round_trip::<apps::v1::ReplicaSet>,
        "CustomResourceDefinition" => {
            round_trip::<apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>
        }
        "Namespace" => round_trip::<core::v1::Namespace>,
        "Node" => round_trip::<core::v1::Node>,
        "Pod" => round_trip::<core::v1::Pod>,
        "PersistentVolume" => round_trip::<core::v1::PersistentVolume>,
        "PersistentVolumeClaim" => round_trip::<core::v1::PersistentVolumeClaim>,
        "Secret" => round_trip::<core::v1::Secret>,
        "ConfigMap" => round_trip::<core::v1::ConfigMap>,
        "ServiceAccount" => round_trip::<core::v1::ServiceAccount>,
        "Event" => round_trip::<core::v1::Event>,
        "Lease" => round_trip::<coordination::v1::Lease>,
        "StorageClass" => round_trip::<storage::v1::StorageClass>,
        "VolumeAttachment" => round_trip::<storage::v1::VolumeAttachment>,
        "CSIDriver" => round_trip::<storage::v1::CSIDriver>,
        "CSINode" => round_trip::<storage::v1::CSINode>,
        "CSIStorageCapacity" => round_trip::<storage::v1::CSIStorageCapacity>,
        "VolumeAttributesClass" => round_trip::<storage::v1::VolumeAttributesClass>,
        "ClusterRole" => round_trip::<rbac::v1::ClusterRole>,
        "ClusterRoleBinding" => round_trip::<rbac::v1::ClusterRoleBinding>,
        "Role" => round_trip::<rbac::v1::Role>,
        "RoleBinding" => round_trip::<rbac::v1::RoleBinding>,
        _ => return Ok(Vec::new()),
    };
    let known = check(tree).map_err(|error| {
        Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {error}",
            kind.kind,
            kind.api_version(),
            kind.kind
        ))
    })?;
    let mut unknown = Vec::new();
    compare(tree, &known, "", &mut unknown);
    Ok(unknown)
}

/// What is left of an object that is read as `T` and written again.
fn round_trip<T: DeserializeOwned + Serialize>(tree: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(T::deserialize(tree)?)
}

fn compare(tree: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (tree, known) {
        (Value::Object(members), Value::Object(known)) => {
            for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => compare(value, known, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(elements), Value::Array(known)) => {
            for (index, (element, known)) in elements.iter().zip(known).enumerate() {
                compare(element, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Brings an object of a built-in kind into the one form in which it is kept: a null member is the same as none, and
/// quantities are text.
pub(crate) fn tidy(kind: &Kind, tree: &mut Value) {
    if !kind.custom && kind.kind != "CustomResourceDefinition" {
        drop_nulls(tree);
    }
    spell_quantities(kind, tree);
}

fn drop_nulls(tree: &mut Value) {
    match tree {
        Value::Object(members) => {
            members.retain(|_, value| !value.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn spell_quantities(kind: &Kind, tree: &mut Value) {
    // Its `allocatable` counts volumes, and what the members of custom kinds hold only their schema knows.
    if kind.kind != "CSINode" && !kind.custom && kind.kind != "CustomResourceDefinition" {
        spell(tree);
    }
}

fn spell(tree: &mut Value) {
    match tree {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                if matches!(name.as_str(), "sizeLimit" | "maximumVolumeSize" | "capacity") && value.is_number() {
                    *value = value.to_string().into();
                } else if let (true, Value::Object(amounts)) = (QUANTITIES.contains(&name.as_str()), &mut *value) {
                    for amount in amounts.values_mut().filter(|a| a.is_number()) {
                        *amount = amount.to_string().into();
                    }
                } else {
                    spell(value);
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(spell),
        _ => {}
    }
}

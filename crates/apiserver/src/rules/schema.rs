//! Types: whether an object can be what its kind says, and which of its fields the kind does not have.

use k8s_openapi::api::{apps, coordination, core, events, rbac, storage};
use k8s_openapi::apiextensions_apiserver;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kind::Kind;
use crate::place::{Noted, Place};
use crate::quantity;
use crate::status::Status;

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
    let mut unknown = Noted::default();
    compare(tree, &known, &Place::Root, &mut unknown);
    Ok(unknown.places)
}

/// What is left of an object that is read as `T` and written again.
fn round_trip<T: DeserializeOwned + Serialize>(tree: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(T::deserialize(tree)?)
}

fn compare(tree: &Value, known: &Value, place: &Place<'_>, unknown: &mut Noted) {
    match (tree, known) {
        (Value::Object(members), Value::Object(known)) => {
            for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                let place = place.member(name);
                match known.get(name) {
                    Some(known) => compare(value, known, &place, unknown),
                    None => unknown.note(&place),
                }
            }
        }
        (Value::Array(elements), Value::Array(known)) => {
            for (index, (element, known)) in elements.iter().zip(known).enumerate() {
                compare(element, known, &place.element(index), unknown);
            }
        }
        _ => {}
    }
}

/// Brings an object of a built-in kind into the one form in which it is kept: a null member is the same as none, and
/// quantities have one spelling.
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
    if kind.custom {
        return;
    }
    let claim: &[&str] = &["spec/resources/*/*", "status/capacity/*", "status/allocatedResources/*"];
    match kind.kind {
        "PersistentVolumeClaim" => spell_at(tree, claim),
        "PersistentVolume" => spell_at(tree, &["spec/capacity/*"]),
        "Node" => spell_at(tree, &["status/capacity/*", "status/allocatable/*"]),
        "CSIStorageCapacity" => spell_at(tree, &["capacity", "maximumVolumeSize"]),
        "Pod" => tree.get_mut("spec").into_iter().for_each(|spec| spell_at(spec, POD_QUANTITIES)),
        "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet" => {
            tree.pointer_mut("/spec/template/spec").into_iter().for_each(|spec| spell_at(spec, POD_QUANTITIES));
            let claims = tree.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
            claims.into_iter().flatten().for_each(|template| spell_at(template, claim));
        }
        _ => {}
    }
}

/// Where the spec of a pod has quantities.
const POD_QUANTITIES: &[&str] = &[
    "containers/*/resources/*/*",
    "containers/*/env/*/valueFrom/resourceFieldRef/divisor",
    "initContainers/*/resources/*/*",
    "initContainers/*/env/*/valueFrom/resourceFieldRef/divisor",
    "resources/*/*",
    "overhead/*",
    "volumes/*/emptyDir/sizeLimit",
    "volumes/*/ephemeral/volumeClaimTemplate/spec/resources/*/*",
    "volumes/*/downwardAPI/items/*/resourceFieldRef/divisor",
];

fn spell_at(tree: &mut Value, paths: &[&str]) {
    for path in paths {
        let parts: Vec<&str> = path.split('/').collect();
        spell_below(tree, &parts);
    }
}

/// `*` stands for every member or element.
fn spell_below(tree: &mut Value, path: &[&str]) {
    match (path, tree) {
        ([], amount) => spell_amount(amount),
        (["*", rest @ ..], Value::Object(members)) => members.values_mut().for_each(|v| spell_below(v, rest)),
        (["*", rest @ ..], Value::Array(elements)) => elements.iter_mut().for_each(|v| spell_below(v, rest)),
        ([name, rest @ ..], Value::Object(members)) => {
            if let Some(member) = members.get_mut(*name) {
                spell_below(member, rest);
            }
        }
        _ => {}
    }
}

/// What is no quantity stays, for the checks to refuse.
fn spell_amount(amount: &mut Value) {
    let written = match &*amount {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    *amount = quantity::canonical(&written).unwrap_or(written).into();
}

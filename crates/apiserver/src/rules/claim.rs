//! PersistentVolumeClaims.

use serde_json::{Map, Value};

use stowage_model::finalizers;

use super::{metadata, one_of};
use crate::kind::Kind;
use crate::object::{add_finalizer, default, filled, is_default_class, member_mut, text};
use crate::quantity;
use crate::status::{Faults, Status};
use crate::store::Ground;

/// The model's `BETA_STORAGE_CLASS`, as a pointer.
pub(crate) const BETA_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
const CLASS: &str = "/spec/volumeAttributesClassName";
const STORAGE_REQUEST: &str = "/spec/resources/requests/storage";
/// How far an expansion can be.
const RESIZE_STATUSES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];
pub(crate) const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// What a claim's author may leave out.
pub(super) fn complete(tree: &mut Value) {
    let spec = member_mut(tree, "spec");
    default(spec, "volumeMode", "Filesystem");
    normalize_sources(spec);
}

/// Admission: default class, in-use protection.
pub(crate) fn create(ground: &Ground, tree: &mut Value) {
    let has_class = tree.pointer("/spec/storageClassName").is_some_and(|v| !v.is_null());
    if !has_class
        && tree.pointer(BETA_CLASS).is_none()
        && let Some(class) = default_class(ground)
    {
        member_mut(tree, "spec").insert("storageClassName".to_owned(), class.into());
    }
    add_finalizer(tree, finalizers::CLAIM_PROTECTION);
    default(member_mut(tree, "status"), "phase", "Pending");
}

/// The newest of the classes marked as default; of two made in the same second, the first by name.
fn default_class(ground: &Ground) -> Option<String> {
    let mut best: Option<(String, String)> = None;
    for (name, object) in ground.classes() {
        let tree = object.tree();
        if !is_default_class(&tree) {
            continue;
        }
        let made = text(&tree, "/metadata/creationTimestamp").to_owned();
        if best.as_ref().is_none_or(|(newest, _)| made > *newest) {
            best = Some((made, name.to_owned()));
        }
    }
    best.map(|(_, name)| name)
}

/// `dataSource` and `dataSourceRef` say the same, unless the source is in another namespace: then only the second is set.
fn normalize_sources(spec: &mut Map<String, Value>) {
    let known = |source: &Value| {
        matches!((text(source, "/apiGroup"), text(source, "/kind")), ("", "PersistentVolumeClaim"))
            || (text(source, "/apiGroup"), text(source, "/kind")) == ("snapshot.storage.k8s.io", "VolumeSnapshot")
    };
    // Sources of other kinds were once ignored, and still are unless the newer field names them.
    if spec.get("dataSource").is_some_and(|source| source.is_object() && !known(source)) {
        spec.remove("dataSource");
    }
    let set = |name: &str| spec.get(name).filter(|v| v.is_object()).cloned();
    match (set("dataSource"), set("dataSourceRef")) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (None, Some(source)) if text(&source, "/namespace").is_empty() => {
            spec.insert("dataSource".to_owned(), source);
        }
        _ => {}
    }
}

pub(crate) fn validate(tree: &Value, faults: &mut Faults) {
    validate_spec("spec", tree, faults);
}

/// Checks the `spec` of a claim or of a template for claims; `path` is where it stands.
pub(crate) fn validate_spec(path: &str, tree: &Value, faults: &mut Faults) {
    validate_access_modes(&format!("{path}.accessModes"), tree, faults);
    one_of(&format!("{path}.volumeMode"), "/spec/volumeMode", tree, &["Block", "Filesystem"], faults);
    let size = format!("{path}.resources[storage]");
    match tree.pointer(STORAGE_REQUEST) {
        None | Some(Value::Null) => faults.required(&size, ""),
        Some(request) => match quantity_of(request) {
            None => faults.invalid(&size, request, "must be a quantity such as 10Gi"),
            Some(value) if value <= 0 => faults.invalid(&size, request, "must be greater than zero"),
            Some(_) => {}
        },
    }
    let class = text(tree, "/spec/storageClassName");
    if !class.is_empty() && !metadata::is_dns_subdomain(class) {
        faults.invalid(format!("{path}.storageClassName"), format!("{class:?}"), metadata::SUBDOMAIN);
    }
    metadata::subdomain(format_args!("{path}.volumeAttributesClassName"), text(tree, CLASS), faults);
    for field in ["dataSource", "dataSourceRef"] {
        let Some(source) = filled(tree, &format!("/spec/{field}")) else { continue };
        for part in ["kind", "name"] {
            if filled(source, &format!("/{part}")).is_none() {
                faults.required(format!("{path}.{field}.{part}"), "");
            }
        }
        let group = text(source, "/apiGroup");
        if group.is_empty() && text(source, "/kind") != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            faults.invalid(format!("{path}.{field}"), format!("{:?}", text(source, "/kind")), detail);
        }
    }
    let same = |name: &str| ["apiGroup", "kind", "name"].map(|p| text(tree, &format!("/spec/{name}/{p}")).to_owned());
    let both = filled(tree, "/spec/dataSource").is_some() && filled(tree, "/spec/dataSourceRef").is_some();
    if both && same("dataSource") != same("dataSourceRef") {
        faults.invalid(path, "\"dataSource\"", "must match dataSourceRef");
    }
}

pub(crate) fn quantity_of(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => quantity::parse(text),
        Value::Number(number) => quantity::parse(&number.to_string()),
        _ => None,
    }
}

pub(super) fn validate_access_modes(field: &str, tree: &Value, faults: &mut Faults) {
    let modes: Vec<&str> = tree
        .pointer("/spec/accessModes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|m| m.as_str().unwrap_or_default())
        .collect();
    if modes.is_empty() {
        faults.required(field, "at least 1 access mode is required");
    }
    for mode in modes.iter().filter(|m| !ACCESS_MODES.contains(m)) {
        faults.unsupported(field, mode, &ACCESS_MODES);
    }
    if modes.contains(&"ReadWriteOncePod") && modes.len() > 1 {
        faults.forbidden(field, "may not use ReadWriteOncePod with other access modes");
    }
}

/// The status that controllers write: capacities are quantities that are not negative, and an expansion is at one of the
/// steps that there are.
pub(crate) fn validate_status(tree: &Value, faults: &mut Faults) {
    for list in ["allocatedResources", "allocatedResourceStatuses"] {
        let names = tree.pointer(&format!("/status/{list}")).and_then(Value::as_object);
        // What Kubernetes itself names is the size only; others have a prefix.
        let is_native = |name: &&String| !name.contains('/') || name.contains("kubernetes.io/");
        for name in names.into_iter().flat_map(Map::keys).filter(is_native).filter(|name| *name != "storage") {
            faults.unsupported(format!("status.{list}"), name, &["storage"]);
        }
    }
    let steps = tree.pointer("/status/allocatedResourceStatuses").and_then(Value::as_object);
    for step in steps.into_iter().flat_map(Map::values).map(|step| step.as_str().unwrap_or_default()) {
        if !RESIZE_STATUSES.contains(&step) {
            faults.unsupported("status.allocatedResourceStatuses", step, &RESIZE_STATUSES);
        }
    }
    for list in ["capacity", "allocatedResources"] {
        let amounts = tree.pointer(&format!("/status/{list}")).and_then(Value::as_object);
        for (name, amount) in amounts.into_iter().flatten() {
            match quantity_of(amount) {
                None => faults.invalid(format!("status.{list}[{name}]"), amount, "must be a quantity such as 10Gi"),
                Some(value) if value < 0 => {
                    faults.invalid(format!("status.{list}[{name}]"), amount, "must be greater than or equal to 0");
                }
                Some(_) => {}
            }
        }
    }
}

/// A claim's spec is fixed but for the volume's name (once), the class (from none), and growth when bound.
pub(crate) fn validate_update(new: &Value, old: &Value, faults: &mut Faults) {
    let mut comparable = new.get("spec").cloned().unwrap_or_default();
    let before = old.get("spec").cloned().unwrap_or_default();
    let put_back = |spec: &mut Value, name: &str| {
        if let Some(members) = spec.as_object_mut() {
            crate::object::restore(members, before.as_object(), name);
        }
    };
    if text(old, "/spec/volumeName").is_empty() {
        put_back(&mut comparable, "volumeName");
    }
    let had_class = old.pointer("/spec/storageClassName").is_some_and(|v| !v.is_null());
    let beta = old.pointer(BETA_CLASS);
    if !had_class && beta.is_none_or(|b| Some(b) == new.pointer("/spec/storageClassName")) {
        put_back(&mut comparable, "storageClassName");
    }
    if text(old, "/status/phase") == "Bound" {
        put_back(&mut comparable, "volumeAttributesClassName");
        let (asked, had) = (new.pointer(STORAGE_REQUEST), old.pointer(STORAGE_REQUEST));
        if asked != had {
            // Shrinking back must stay above what is there already: recovery from a failed expansion.
            let floor = old.pointer("/status/capacity/storage").and_then(quantity_of);
            let asked = asked.and_then(quantity_of);
            if asked < had.and_then(quantity_of) && asked <= floor {
                faults.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
            }
            let storage = before.pointer("/resources/requests/storage").cloned().unwrap_or_default();
            if let Some(slot) = comparable.pointer_mut("/resources/requests/storage") {
                *slot = storage;
            }
        }
    }
    let (asked, current) = (new.pointer(CLASS), old.pointer("/status/currentVolumeAttributesClassName"));
    if asked != old.pointer(CLASS) && current.is_some_and(|c| !c.is_null()) {
        match asked.and_then(Value::as_str) {
            None => faults.forbidden(
                "spec.volumeAttributesClassName",
                "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some("") => faults.forbidden(
                "spec.volumeAttributesClassName",
                "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some(_) => {}
        }
    }
    if comparable != before {
        faults.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
}

/// Growth needs a class that allows it (admission plugin PersistentVolumeClaimResize). Of a claim that is not bound,
/// validation says that its spec is fixed, and upstream validates before this plugin is asked.
pub(crate) fn admit_update(ground: &Ground, new: &Value, old: &Value) -> Result<(), Status> {
    let asked = new.pointer(STORAGE_REQUEST).and_then(quantity_of);
    let is_bound = text(old, "/status/phase") == "Bound";
    if !is_bound || asked <= old.pointer(STORAGE_REQUEST).and_then(quantity_of) {
        return Ok(());
    }
    let kind = Kind::named("PersistentVolumeClaim");
    let name = text(old, "/metadata/name");
    let class = filled(old, BETA_CLASS).or_else(|| filled(old, "/spec/storageClassName")).and_then(Value::as_str);
    let allows = class
        .and_then(|class| ground.classes().find(|(name, _)| *name == class))
        .is_some_and(|(_, class)| class.tree().get("allowVolumeExpansion") == Some(&Value::Bool(true)));
    if allows {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(Status::forbidden(kind, name, why))
}

#[cfg(test)]
mod tests {
    use stowage_model::annotations;

    #[test]
    fn the_pointer_to_the_beta_class_is_the_models_annotation() {
        let name = annotations::BETA_STORAGE_CLASS.replace('/', "~1");
        assert_eq!(super::BETA_CLASS, format!("/metadata/annotations/{name}"));
    }
}

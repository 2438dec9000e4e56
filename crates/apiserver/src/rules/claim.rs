//! PersistentVolumeClaims.

use serde_json::Value;

use super::one_of;
use crate::kind::Kind;
use crate::object::{add_finalizer, default, filled, member_mut, text};
use crate::quantity;
use crate::status::{Faults, Status};
use crate::store::Store;

const BETA_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
const STORAGE_REQUEST: &str = "/spec/resources/requests/storage";
pub(crate) const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// Admission (default class, in-use protection) and defaults.
pub(crate) fn create(store: &Store, tree: &mut Value) {
    let has_class = tree.pointer("/spec/storageClassName").is_some_and(|v| !v.is_null());
    if !has_class
        && tree.pointer(BETA_CLASS).is_none()
        && let Some(class) = default_class(store)
    {
        member_mut(tree, "spec").insert("storageClassName".to_owned(), class.into());
    }
    add_finalizer(tree, "kubernetes.io/pvc-protection");
    default(member_mut(tree, "spec"), "volumeMode", "Filesystem");
    default(member_mut(tree, "status"), "phase", "Pending");
}

/// The newest of the classes marked as default; of two made in the same second, the first by name.
fn default_class(store: &Store) -> Option<String> {
    const MARKS: [&str; 2] = [
        "/metadata/annotations/storageclass.kubernetes.io~1is-default-class",
        "/metadata/annotations/storageclass.beta.kubernetes.io~1is-default-class",
    ];
    let mut best: Option<(String, String)> = None;
    for (key, object) in store.newest_all(Kind::named("StorageClass")) {
        let tree = object.tree();
        if !MARKS.iter().any(|mark| text(&tree, mark) == "true") {
            continue;
        }
        let made = text(&tree, "/metadata/creationTimestamp").to_owned();
        if best.as_ref().is_none_or(|(newest, _)| made > *newest) {
            best = Some((made, key.name.to_string()));
        }
    }
    best.map(|(_, name)| name)
}

pub(crate) fn validate(tree: &Value, faults: &mut Faults) {
    validate_access_modes("spec.accessModes", tree, faults);
    one_of("spec.volumeMode", "/spec/volumeMode", tree, &["Block", "Filesystem"], faults);
    match tree.pointer(STORAGE_REQUEST) {
        None | Some(Value::Null) => faults.required("spec.resources[storage]", ""),
        Some(request) => match quantity_of(request) {
            None => faults.invalid("spec.resources[storage]", request, "must be a quantity such as 10Gi"),
            Some(value) if value <= 0 => {
                faults.invalid("spec.resources[storage]", request, "must be greater than zero");
            }
            Some(_) => {}
        },
    }
    for field in ["dataSource", "dataSourceRef"] {
        if let Some(source) = filled(tree, &format!("/spec/{field}")) {
            for part in ["kind", "name"] {
                if filled(source, &format!("/{part}")).is_none() {
                    faults.required(&format!("spec.{field}.{part}"), "");
                }
            }
        }
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
            // Shrinking back is allowed only down to what is there already: recovery from a failed expansion.
            let floor = old.pointer("/status/capacity/storage").and_then(quantity_of);
            let asked = asked.and_then(quantity_of);
            if asked < had.and_then(quantity_of) && asked < floor {
                faults.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
            }
            let storage = before.pointer("/resources/requests/storage").cloned().unwrap_or_default();
            if let Some(slot) = comparable.pointer_mut("/resources/requests/storage") {
                *slot = storage;
            }
        }
    }
    if comparable != before {
        faults.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
}

/// Growth needs a class that allows it (admission plugin PersistentVolumeClaimResize).
pub(crate) fn admit_update(store: &Store, new: &Value, old: &Value) -> Result<(), Status> {
    let asked = new.pointer(STORAGE_REQUEST).and_then(quantity_of);
    if asked <= old.pointer(STORAGE_REQUEST).and_then(quantity_of) {
        return Ok(());
    }
    let kind = Kind::named("PersistentVolumeClaim");
    let name = text(old, "/metadata/name");
    if text(old, "/status/phase") != "Bound" {
        return Err(Status::forbidden(kind, name, "only bound persistent volume claims can be expanded"));
    }
    let class = filled(old, BETA_CLASS).or_else(|| filled(old, "/spec/storageClassName")).and_then(Value::as_str);
    let allows = class
        .and_then(|class| store.newest(Kind::named("StorageClass"), "", class))
        .is_some_and(|class| class.tree().get("allowVolumeExpansion") == Some(&Value::Bool(true)));
    if allows {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(Status::forbidden(kind, name, why))
}

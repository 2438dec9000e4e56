//! The kinds of storage.k8s.io.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::claim::quantity_of;
use super::{immutable, metadata, one_of, source};
use crate::kind::Kind;
use crate::object::{default, member_mut, text};
use crate::status::Faults;

pub(super) fn complete(kind: &Kind, tree: &mut Value) {
    match kind.kind {
        "StorageClass" => {
            if let Some(class) = tree.as_object_mut() {
                default(class, "reclaimPolicy", "Delete");
                default(class, "volumeBindingMode", "Immediate");
            }
        }
        "CSIDriver" => {
            let spec = member_mut(tree, "spec");
            default(spec, "attachRequired", true);
            default(spec, "podInfoOnMount", false);
            default(spec, "storageCapacity", false);
            default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            default(spec, "volumeLifecycleModes", json!(["Persistent"]));
            default(spec, "requiresRepublish", false);
            default(spec, "seLinuxMount", false);
        }
        _ => {}
    }
}

/// Upstream's limits on the parameters of classes: how many, and their size together.
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 << 10;
const MAX_NODE_ID: usize = 256;
const MAX_ERROR: usize = 1024;

pub(super) fn validate(kind: &Kind, tree: &Value, faults: &mut Faults) {
    match kind.kind {
        "StorageClass" => {
            let provisioner = text(tree, "/provisioner");
            if provisioner.is_empty() {
                faults.required("provisioner", "");
            } else if !metadata::is_qualified_name(&provisioner.to_lowercase()) {
                faults.invalid("provisioner", format!("{provisioner:?}"), metadata::QUALIFIED);
            }
            validate_parameters(tree, true, faults);
            one_of("reclaimPolicy", "/reclaimPolicy", tree, &["Delete", "Retain"], faults);
            let modes = ["Immediate", "WaitForFirstConsumer"];
            one_of("volumeBindingMode", "/volumeBindingMode", tree, &modes, faults);
            validate_topologies(tree, faults);
        }
        "VolumeAttachment" => validate_attachment(tree, faults),
        "VolumeAttributesClass" => {
            source::driver_name("driverName", text(tree, "/driverName"), faults);
            validate_parameters(tree, false, faults);
        }
        "CSIStorageCapacity" => {
            if text(tree, "/storageClassName").is_empty() {
                faults.required("storageClassName", "");
            }
            metadata::subdomain("storageClassName", text(tree, "/storageClassName"), faults);
            for field in ["capacity", "maximumVolumeSize"] {
                let amount = tree.get(field).filter(|amount| !amount.is_null());
                if let Some(amount) = amount.filter(|amount| quantity_of(amount).is_none_or(|value| value < 0)) {
                    faults.invalid(field, amount, "must be greater than or equal to 0");
                }
            }
        }
        "CSINode" => validate_node(tree, faults),
        "CSIDriver" => validate_driver(tree, faults),
        _ => {}
    }
}

fn validate_parameters(tree: &Value, may_be_empty: bool, faults: &mut Faults) {
    let parameters = tree.get("parameters").and_then(Value::as_object);
    let count = parameters.map_or(0, serde_json::Map::len);
    let pairs = || parameters.into_iter().flatten();
    let bytes: usize = pairs().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if count > MAX_PARAMETERS {
        faults.too_long("parameters", &format!("may not have more than {MAX_PARAMETERS} entries"));
    } else if bytes > MAX_PARAMETER_BYTES {
        faults.too_long("parameters", &format!("may not be more than {MAX_PARAMETER_BYTES} bytes"));
    }
    if pairs().any(|(name, _)| name.is_empty()) {
        faults.invalid("parameters", "\"\"", "field can not be empty.");
    }
    if !may_be_empty && count == 0 {
        faults.required("parameters", "must contain at least one key/value pair");
    }
}

fn validate_topologies(tree: &Value, faults: &mut Faults) {
    for (number, term) in list(tree, "/allowedTopologies").enumerate() {
        for (index, expression) in list(term, "/matchLabelExpressions").enumerate() {
            let path = format!("allowedTopologies[{number}].matchLabelExpressions[{index}]");
            if list(expression, "/values").next().is_none() {
                faults.required(format!("{path}.values"), "");
            }
            let key = text(expression, "/key");
            if !metadata::is_qualified_name(key) {
                faults.invalid(format!("{path}.key"), format!("{key:?}"), metadata::QUALIFIED);
            }
        }
    }
}

fn validate_attachment(tree: &Value, faults: &mut Faults) {
    const EXACTLY_ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    source::driver_name("spec.attacher", text(tree, "/spec/attacher"), faults);
    let node = text(tree, "/spec/nodeName");
    if !metadata::is_dns_subdomain(node) {
        faults.invalid("spec.nodeName", format!("{node:?}"), metadata::SUBDOMAIN);
    }
    let part = |name: &str| tree.pointer(&format!("/spec/source/{name}")).filter(|v| !v.is_null());
    match (part("persistentVolumeName"), part("inlineVolumeSpec")) {
        (None, None) => faults.required("spec.source", EXACTLY_ONE),
        (Some(_), Some(_)) => faults.forbidden("spec.source", EXACTLY_ONE),
        (Some(name), None) if name.as_str().is_none_or(str::is_empty) => {
            faults.required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName");
        }
        (Some(name), None) => {
            let name = name.as_str().unwrap_or_default();
            metadata::subdomain("spec.source.persistentVolumeName", name, faults);
        }
        (None, Some(inline)) => match inline.get("csi").filter(|csi| csi.is_object()) {
            Some(csi) => source::csi("spec.source.inlineVolumeSpec.csi", csi, faults),
            None => faults
                .required("spec.source.inlineVolumeSpec.csi", "has to be specified in the context of inline volumes"),
        },
    }
    validate_attachment_status(tree, faults);
}

/// What an attacher reports.
pub(super) fn validate_attachment_status(tree: &Value, faults: &mut Faults) {
    for error in ["attachError", "detachError"] {
        if text(tree, &format!("/status/{error}/message")).len() > MAX_ERROR {
            faults.too_long(format!("status.{error}.message"), &format!("may not be more than {MAX_ERROR} bytes"));
        }
    }
    let metadata = tree.pointer("/status/attachmentMetadata").and_then(Value::as_object);
    let pairs = metadata.into_iter().flatten();
    let bytes: usize = pairs.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > MAX_PARAMETER_BYTES {
        faults.too_long("status.attachmentMetadata", &format!("may not be more than {MAX_PARAMETER_BYTES} bytes"));
    }
}

fn validate_node(tree: &Value, faults: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, driver) in list(tree, "/spec/drivers").enumerate() {
        let path = format!("spec.drivers[{index}]");
        let (name, id) = (text(driver, "/name"), text(driver, "/nodeID"));
        source::driver_name(&format!("{path}.name"), name, faults);
        if id.is_empty() {
            faults.required(format!("{path}.nodeID"), "");
        } else if id.len() > MAX_NODE_ID {
            let detail = format!("must be {MAX_NODE_ID} characters or less");
            faults.invalid(format!("{path}.nodeID"), format!("{id:?}"), &detail);
        }
        if let Some(count) = driver.pointer("/allocatable/count").and_then(Value::as_i64).filter(|count| *count < 0) {
            faults.invalid(format!("{path}.allocatable.count"), count, "must be greater than or equal to 0");
        }
        if !names.insert(name) {
            faults.duplicate(format!("{path}.name"), &name.into());
        }
        let mut keys = BTreeSet::new();
        for key in list(driver, "/topologyKeys").map(|key| key.as_str().unwrap_or_default()) {
            if !keys.insert(key) {
                faults.duplicate(&path, &key.into());
            }
            if !metadata::is_qualified_name(key) {
                faults.invalid(&path, format!("{key:?}"), metadata::QUALIFIED);
            }
        }
    }
}

fn validate_driver(tree: &Value, faults: &mut Faults) {
    let policies = ["ReadWriteOnceWithFSType", "File", "None"];
    one_of("spec.fsGroupPolicy", "/spec/fsGroupPolicy", tree, &policies, faults);
    for mode in list(tree, "/spec/volumeLifecycleModes").map(|mode| mode.as_str().unwrap_or_default()) {
        if !matches!(mode, "Persistent" | "Ephemeral") {
            faults.unsupported("spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
        }
    }
    let mut audiences = BTreeSet::new();
    for (index, request) in list(tree, "/spec/tokenRequests").enumerate() {
        let path = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "/audience");
        if !audiences.insert(audience) {
            faults.duplicate(format!("{path}.audience"), &audience.into());
        }
        let seconds = request.get("expirationSeconds").and_then(Value::as_i64);
        if let Some(seconds) = seconds.filter(|seconds| *seconds < 600) {
            let detail = "may not specify a duration less than 10 minutes";
            faults.invalid(format!("{path}.expirationSeconds"), seconds, detail);
        }
    }
    let period = tree.pointer("/spec/nodeAllocatableUpdatePeriodSeconds").and_then(Value::as_i64);
    if let Some(period) = period.filter(|period| *period < 10) {
        let detail = "must be greater than or equal to 10 seconds";
        faults.invalid("spec.nodeAllocatableUpdatePeriodSeconds", period, detail);
    }
}

fn list<'a>(tree: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    tree.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn validate_update(kind: &Kind, new: &Value, old: &Value, faults: &mut Faults) {
    let fields: &[(&str, &str)] = match kind.kind {
        "StorageClass" => &[
            ("parameters", "/parameters"),
            ("provisioner", "/provisioner"),
            ("reclaimPolicy", "/reclaimPolicy"),
            ("volumeBindingMode", "/volumeBindingMode"),
        ],
        "VolumeAttachment" => &[("spec", "/spec")],
        "VolumeAttributesClass" => &[("driverName", "/driverName"), ("parameters", "/parameters")],
        "CSIStorageCapacity" => &[("nodeTopology", "/nodeTopology"), ("storageClassName", "/storageClassName")],
        "CSIDriver" => &[
            // The name upstream gives it.
            ("spec.attachedRequired", "/spec/attachRequired"),
            ("spec.volumeLifecycleModes", "/spec/volumeLifecycleModes"),
        ],
        _ => &[],
    };
    for (field, pointer) in fields {
        immutable(field, pointer, new, old, faults);
    }
    if kind.kind == "CSINode" {
        validate_node_update(new, old, faults);
    }
}

/// What a driver said about its node stays, but for how many volumes fit.
fn validate_node_update(new: &Value, old: &Value, faults: &mut Faults) {
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        driver.as_object_mut().map(|members| members.remove("allocatable"));
        driver
    };
    for before in list(old, "/spec/drivers") {
        let now = list(new, "/spec/drivers").find(|driver| driver.get("name") == before.get("name"));
        if let Some(now) = now.filter(|now| fixed(now) != fixed(before)) {
            faults.invalid("spec.drivers", now, "field is immutable");
        }
    }
}

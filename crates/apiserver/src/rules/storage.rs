//! The kinds of storage.k8s.io.

use serde_json::{Value, json};

use super::{immutable, metadata, one_of};
use crate::kind::Kind;
use crate::object::{default, filled, member_mut, text};
use crate::status::Faults;

pub(super) fn create(kind: &Kind, tree: &mut Value) {
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

pub(super) fn validate(kind: &Kind, tree: &Value, faults: &mut Faults) {
    let mut require = |pointer: &str, field: &str| {
        if filled(tree, pointer).is_none() {
            faults.required(field, "");
        }
    };
    match kind.kind {
        "StorageClass" => {
            require("/provisioner", "provisioner");
            one_of("reclaimPolicy", "/reclaimPolicy", tree, &["Delete", "Retain"], faults);
            let modes = ["Immediate", "WaitForFirstConsumer"];
            one_of("volumeBindingMode", "/volumeBindingMode", tree, &modes, faults);
        }
        "VolumeAttachment" => {
            require("/spec/attacher", "spec.attacher");
            require("/spec/nodeName", "spec.nodeName");
            let source = "/spec/source";
            let named = filled(tree, &format!("{source}/persistentVolumeName")).is_some();
            let inline = filled(tree, &format!("{source}/inlineVolumeSpec")).is_some();
            match (named, inline) {
                (false, false) => faults
                    .required("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName"),
                (true, true) => faults
                    .forbidden("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName"),
                _ => {}
            }
        }
        "VolumeAttributesClass" => require("/driverName", "driverName"),
        "CSIStorageCapacity" => require("/storageClassName", "storageClassName"),
        "CSINode" => {
            let drivers = tree.pointer("/spec/drivers").and_then(Value::as_array);
            for (index, driver) in drivers.into_iter().flatten().enumerate() {
                for field in ["name", "nodeID"] {
                    if text(driver, &format!("/{field}")).is_empty() {
                        faults.required(&format!("spec.drivers[{index}].{field}"), "");
                    }
                }
            }
        }
        "CSIDriver" => {
            let name = text(tree, "/metadata/name");
            if name.len() > 63 || !metadata::is_dns_subdomain(name) {
                faults.invalid(
                    "metadata.name",
                    format!("{name:?}"),
                    "a CSI driver name is a DNS name of at most 63 characters",
                );
            }
            let policies = ["ReadWriteOnceWithFSType", "File", "None"];
            one_of("spec.fsGroupPolicy", "/spec/fsGroupPolicy", tree, &policies, faults);
        }
        _ => {}
    }
}

pub(super) fn validate_update(kind: &Kind, new: &Value, old: &Value, faults: &mut Faults) {
    let fields: &[&str] = match kind.kind {
        "StorageClass" => &["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"],
        "VolumeAttachment" => &["spec"],
        "VolumeAttributesClass" => &["driverName", "parameters"],
        "CSIStorageCapacity" => &["nodeTopology", "storageClassName"],
        _ => &[],
    };
    for field in fields {
        immutable(field, &format!("/{field}"), new, old, faults);
    }
}

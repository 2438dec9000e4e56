//! Volume sources, as pods and PersistentVolumes share them.

use serde_json::Value;

use super::metadata::is_dns_subdomain;
use crate::object::{filled, text};
use crate::status::Faults;

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
/// Limit of CSI on the name of a driver.
const MAX_DRIVER_NAME: usize = 63;

/// A CSI driver's name.
pub(super) fn driver_name(field: &str, name: &str, faults: &mut Faults) {
    if name.is_empty() {
        faults.required(field, "");
        return;
    }
    if name.len() > MAX_DRIVER_NAME {
        faults.too_long(field, &format!("may not be more than {MAX_DRIVER_NAME} bytes"));
    }
    if !is_dns_subdomain(&name.to_lowercase()) {
        faults.invalid(field, format!("{name:?}"), super::metadata::SUBDOMAIN);
    }
}

/// `..` is no part of any path given to a node.
pub(super) fn no_backsteps(field: &str, path: &str, faults: &mut Faults) {
    if path.split('/').any(|part| part == "..") {
        faults.invalid(field, format!("{path:?}"), "must not contain '..'");
    }
}

/// A path that stays below the directory it is used in.
pub(super) fn descending(field: &str, path: &str, faults: &mut Faults) {
    if path.starts_with('/') {
        faults.invalid(field, format!("{path:?}"), "must be a relative path");
    }
    no_backsteps(field, path, faults);
}

/// A descending path that does not begin with the dots that the kubelet keeps for itself.
pub(super) fn not_reserved(field: &str, path: &str, faults: &mut Faults) {
    descending(field, path, faults);
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
        faults.invalid(field, format!("{path:?}"), "must not start with '..'");
    }
}

pub(super) fn host_path(path: &str, source: &Value, faults: &mut Faults) {
    let host = text(source, "/path");
    if host.is_empty() {
        faults.required(format!("{path}.path"), "");
        return;
    }
    no_backsteps(&format!("{path}.path"), host, faults);
    super::one_of(&format!("{path}.type"), "/type", source, &HOST_PATH_TYPES, faults);
}

pub(super) fn nfs(path: &str, source: &Value, faults: &mut Faults) {
    let share = text(source, "/path");
    if text(source, "/server").is_empty() {
        faults.required(format!("{path}.server"), "");
    }
    if share.is_empty() {
        faults.required(format!("{path}.path"), "");
    }
    if !share.starts_with('/') {
        faults.invalid(format!("{path}.path"), format!("{share:?}"), "must be an absolute path");
    }
}

pub(super) fn local(path: &str, source: &Value, faults: &mut Faults) {
    match text(source, "/path") {
        "" => faults.required(format!("{path}.path"), ""),
        local => no_backsteps(&format!("{path}.path"), local, faults),
    }
}

/// The source of a PersistentVolume that a CSI driver provides.
pub(super) fn csi(path: &str, source: &Value, faults: &mut Faults) {
    driver_name(&format!("{path}.driver"), text(source, "/driver"), faults);
    if text(source, "/volumeHandle").is_empty() {
        faults.required(format!("{path}.volumeHandle"), "");
    }
    for secret in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeStageSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(reference) = filled(source, &format!("/{secret}")) else { continue };
        for part in ["name", "namespace"] {
            if text(reference, &format!("/{part}")).is_empty() {
                faults.required(format!("{path}.{secret}.{part}"), "");
            }
        }
    }
}

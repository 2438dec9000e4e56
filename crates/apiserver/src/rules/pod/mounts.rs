//! Where the containers of a pod have its volumes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::object::{filled, text};
use crate::rules::source;
use crate::status::Faults;

const PROPAGATIONS: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];

fn list<'a>(container: &'a Value, name: &str) -> &'a [Value] {
    container.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The text at `pointer` of every element of a list.
fn all<'a>(container: &'a Value, name: &str, pointer: &str) -> BTreeSet<&'a str> {
    list(container, name).iter().map(|element| text(element, pointer)).collect()
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Checks one container's mounts and devices against the pod's volumes.
pub(super) fn validate(path: &str, container: &Value, volumes: &BTreeMap<&str, &Value>, faults: &mut Faults) {
    validate_mounts(&format!("{path}.volumeMounts"), container, volumes, faults);
    validate_devices(&format!("{path}.volumeDevices"), container, volumes, faults);
}

fn validate_mounts(path: &str, container: &Value, volumes: &BTreeMap<&str, &Value>, faults: &mut Faults) {
    let devices = all(container, "volumeDevices", "/name");
    let device_paths = all(container, "volumeDevices", "/devicePath");
    let mut places = BTreeSet::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let one = format!("{path}[{index}]");
        let (name, place) = (text(mount, "/name"), text(mount, "/mountPath"));
        if name.is_empty() {
            faults.required(format!("{one}.name"), "");
        }
        if !volumes.contains_key(name) {
            faults.not_found(format!("{one}.name"), name);
        }
        if place.is_empty() {
            faults.required(format!("{one}.mountPath"), "");
        }
        if !places.insert(place) {
            faults.invalid(format!("{one}.mountPath"), quoted(place), "must be unique");
        }
        if devices.contains(name) {
            faults.invalid(format!("{one}.name"), quoted(name), "must not already exist in volumeDevices");
        }
        if device_paths.contains(place) {
            let field = format!("{one}.mountPath");
            faults.invalid(&field, quoted(place), "must not already exist as a path in volumeDevices");
        }
        let (sub, expression) = (text(mount, "/subPath"), text(mount, "/subPathExpr"));
        if !sub.is_empty() && !expression.is_empty() {
            let field = format!("{one}.subPathExpr");
            faults.invalid(&field, quoted(expression), "subPathExpr and subPath are mutually exclusive");
        }
        // Upstream names these fields without the index.
        for (name, value) in [("subPath", sub), ("subPathExpr", expression)] {
            source::descending(&format!("{path}.{name}"), value, faults);
        }
        validate_propagation(&format!("{path}.mountPropagation"), container, mount, faults);
        validate_recursive(&format!("{path}.recursiveReadOnly"), mount, faults);
    }
}

/// Mounts that reach the node are for containers that may do as much anyway.
fn validate_propagation(field: &str, container: &Value, mount: &Value, faults: &mut Faults) {
    super::super::one_of(field, "/mountPropagation", mount, &PROPAGATIONS, faults);
    let privileged = container.pointer("/securityContext/privileged") == Some(&Value::Bool(true));
    if text(mount, "/mountPropagation") == "Bidirectional" && !privileged {
        faults.forbidden(field, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn validate_recursive(field: &str, mount: &Value, faults: &mut Faults) {
    let asked = text(mount, "/recursiveReadOnly");
    match asked {
        "" | "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if mount.get("readOnly") != Some(&Value::Bool(true)) {
                faults.forbidden(field, "may only be specified when readOnly is true");
            }
            if !matches!(text(mount, "/mountPropagation"), "" | "None") {
                faults.forbidden(field, "may only be specified when mountPropagation is None or not specified");
            }
        }
        other => faults.unsupported(field, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn validate_devices(path: &str, container: &Value, volumes: &BTreeMap<&str, &Value>, faults: &mut Faults) {
    let mounts = all(container, "volumeMounts", "/name");
    let mount_paths = all(container, "volumeMounts", "/mountPath");
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in list(container, "volumeDevices").iter().enumerate() {
        let one = format!("{path}[{index}]");
        let (name, place) = (text(device, "/name"), text(device, "/devicePath"));
        if name.is_empty() {
            faults.required(format!("{one}.name"), "");
        } else if !names.insert(name) {
            faults.invalid(format!("{one}.name"), quoted(name), "must be unique");
        }
        match volumes.get(name) {
            None => faults.not_found(format!("{one}.name"), name),
            Some(volume) => {
                let claimed = ["/persistentVolumeClaim", "/ephemeral"].iter().any(|s| filled(volume, s).is_some());
                if !claimed {
                    faults.invalid(
                        format!("{one}.name"),
                        quoted(name),
                        "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                    );
                }
            }
        }
        let field = format!("{one}.devicePath");
        if place.is_empty() {
            faults.required(&field, "");
        } else if !places.insert(place) {
            faults.invalid(&field, quoted(place), "must be unique");
        }
        if place.split('/').any(|part| part == "..") {
            faults.invalid(&field, quoted(place), "can not contain backsteps ('..')");
        }
        if mounts.contains(name) {
            faults.invalid(format!("{one}.name"), quoted(name), "must not already exist in volumeMounts");
        }
        if mount_paths.contains(place) {
            faults.invalid(&field, quoted(place), "must not already exist as a path in volumeMounts");
        }
    }
}

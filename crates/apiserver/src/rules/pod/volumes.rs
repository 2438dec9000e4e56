//! The volumes of a pod: defaults and checks.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::object::{default, filled, text};
use crate::quantity;
use crate::rules::{claim, metadata, source};
use crate::status::Faults;

/// Read by all, written by the owner.
const FILE_MODE: i64 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Fills in what the author of a volume left out.
pub(super) fn default_volume(volume: &mut Value) {
    let Some(members) = volume.as_object_mut() else { return };
    if !members.iter().any(|(name, value)| name != "name" && !value.is_null()) {
        members.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = members.get_mut(source).and_then(Value::as_object_mut) {
            default(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(host) = members.get_mut("hostPath").and_then(Value::as_object_mut) {
        host.entry("type").or_insert_with(|| "".into());
    }
    if let Some(spec) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec").and_then(Value::as_object_mut) {
        default(spec, "volumeMode", "Filesystem");
    }
    for items in ["/downwardAPI/items", "/projected/sources"] {
        for item in volume.pointer_mut(items).and_then(Value::as_array_mut).into_iter().flatten() {
            default_item(item);
        }
    }
}

fn default_item(item: &mut Value) {
    if let Some(token) = item.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
        default(token, "expirationSeconds", TOKEN_SECONDS);
    }
    let fields = |item: &mut Value| {
        if let Some(field) = item.get_mut("fieldRef").and_then(Value::as_object_mut) {
            default(field, "apiVersion", "v1");
        }
    };
    fields(item);
    for inner in item.pointer_mut("/downwardAPI/items").and_then(Value::as_array_mut).into_iter().flatten() {
        fields(inner);
    }
}

/// The volumes of a pod by name, checked.
pub(super) fn validate<'a>(path: &str, spec: &'a Value, faults: &mut Faults) -> BTreeMap<&'a str, &'a Value> {
    let mut volumes = BTreeMap::new();
    for (index, volume) in spec.get("volumes").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        let name = text(volume, "/name");
        if name.is_empty() {
            faults.required(format!("{path}.name"), "");
        } else if !metadata::is_dns_label(name) {
            faults.invalid(format!("{path}.name"), format!("{name:?}"), metadata::LABEL);
        } else if volumes.insert(name, volume).is_some() {
            faults.duplicate(format!("{path}.name"), &name.into());
        }
        validate_source(&path, volume, faults);
    }
    volumes
}

/// The claim of an ephemeral volume has a name made of the pod's and the volume's.
pub(super) fn validate_claims(pod: &Value, faults: &mut Faults) {
    let name = text(pod, "/metadata/name");
    for (index, volume) in pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let claim = format!("{name}-{}", text(volume, "/name"));
        if filled(volume, "/ephemeral").is_some() && !metadata::is_dns_subdomain(&claim) {
            let why =
                format!("PVC name {claim:?}: must be a name that a claim may have, of no more than 253 characters");
            faults.invalid(
                format_args!("spec.volumes[{index}].name"),
                format_args!("{:?}", text(volume, "/name")),
                why,
            );
        }
    }
}

fn validate_source(path: &str, volume: &Value, faults: &mut Faults) {
    let none = Map::new();
    let mut sources = volume.as_object().unwrap_or(&none).iter().filter(|(n, v)| *n != "name" && v.is_object());
    let Some((name, found)) = sources.next() else {
        faults.required(path, "must specify a volume type");
        return;
    };
    for (second, _) in sources {
        faults.forbidden(format!("{path}.{second}"), "may not specify more than 1 volume type");
    }
    let path = format!("{path}.{name}");
    let mut require = |part: &str| {
        if text(found, &format!("/{part}")).is_empty() {
            faults.required(format!("{path}.{part}"), "");
        }
    };
    match name.as_str() {
        "persistentVolumeClaim" => require("claimName"),
        "secret" => {
            require("secretName");
            items(&path, found, faults);
        }
        "configMap" => {
            require("name");
            items(&path, found, faults);
        }
        "hostPath" => source::host_path(&path, found, faults),
        "nfs" => source::nfs(&path, found, faults),
        "emptyDir" => {
            let limit = found.get("sizeLimit").and_then(Value::as_str);
            if limit.is_some_and(|limit| quantity::parse(limit).is_none_or(|size| size < 0)) {
                faults.forbidden(format!("{path}.sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "csi" => {
            source::driver_name(&format!("{path}.driver"), text(found, "/driver"), faults);
            let secret = filled(found, "/nodePublishSecretRef");
            if secret.is_some_and(|secret| text(secret, "/name").is_empty()) {
                faults.required(format!("{path}.nodePublishSecretRef.name"), "");
            }
            let name = secret.map_or("", |secret| text(secret, "/name"));
            metadata::subdomain(format_args!("{path}.nodePublishSecretRef.name"), name, faults);
        }
        "ephemeral" => match filled(found, "/volumeClaimTemplate") {
            None => faults.required(format!("{path}.volumeClaimTemplate"), ""),
            Some(template) => claim::validate_spec(&format!("{path}.volumeClaimTemplate.spec"), template, faults),
        },
        "downwardAPI" => downward(&path, found, faults),
        "projected" => projected(&path, found, faults),
        _ => {}
    }
}

/// Keys of a Secret or ConfigMap and the files they become.
fn items(path: &str, found: &Value, faults: &mut Faults) {
    for (index, item) in found.get("items").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let path = format!("{path}.items[{index}]");
        if text(item, "/key").is_empty() {
            faults.required(format!("{path}.key"), "");
        }
        match text(item, "/path") {
            "" => faults.required(format!("{path}.path"), ""),
            file => source::not_reserved(&format!("{path}.path"), file, faults),
        }
        file_mode(&format!("{path}.mode"), item.get("mode"), faults);
    }
    file_mode(&format!("{path}.defaultMode"), found.get("defaultMode"), faults);
}

fn file_mode(field: &str, mode: Option<&Value>, faults: &mut Faults) {
    if let Some(mode) = mode.and_then(Value::as_i64).filter(|mode| !(0..=0o777).contains(mode)) {
        faults.invalid(field, mode, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

fn downward(path: &str, found: &Value, faults: &mut Faults) {
    file_mode(&format!("{path}.defaultMode"), found.get("defaultMode"), faults);
    for item in found.get("items").and_then(Value::as_array).into_iter().flatten() {
        match text(item, "/path") {
            "" => faults.required(format!("{path}.path"), ""),
            file => source::not_reserved(&format!("{path}.path"), file, faults),
        }
        match (filled(item, "/fieldRef"), filled(item, "/resourceFieldRef")) {
            (None, None) => faults.required(path, "one of fieldRef and resourceFieldRef is required"),
            (Some(_), Some(_)) => faults.invalid(
                path,
                "\"resource\"",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ),
            _ => {}
        }
    }
}

fn projected(path: &str, found: &Value, faults: &mut Faults) {
    file_mode(&format!("{path}.defaultMode"), found.get("defaultMode"), faults);
    for (index, part) in found.get("sources").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let part_path = format!("{path}.sources[{index}]");
        let named = part.as_object().map_or(0, |members| members.values().filter(|v| v.is_object()).count());
        if named > 1 {
            faults.forbidden(&part_path, "may not specify more than 1 volume type per source");
        }
        for source in ["secret", "configMap"] {
            if let Some(inner) = part.get(source).filter(|s| s.is_object()) {
                if text(inner, "/name").is_empty() {
                    faults.required(format!("{part_path}.{source}.name"), "");
                }
                items(&format!("{part_path}.{source}"), inner, faults);
            }
        }
        if let Some(inner) = part.get("downwardAPI").filter(|s| s.is_object()) {
            downward(&format!("{part_path}.downwardAPI"), inner, faults);
        }
        if let Some(token) = part.get("serviceAccountToken").filter(|s| s.is_object()) {
            let seconds = token.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(TOKEN_SECONDS);
            if seconds < 600 {
                let field = format!("{part_path}.serviceAccountToken.expirationSeconds");
                faults.invalid(&field, seconds, "may not specify a duration less than 10 minutes");
            }
            match text(token, "/path") {
                "" => faults.required(format!("{path}.path"), ""),
                file => source::not_reserved(&format!("{path}.path"), file, faults),
            }
        }
    }
}

//! Admission of pods by their service accounts, as kube-apiserver's ServiceAccount plugin has it: the account must be there,
//! and each container gets its token, the cluster's authority and the namespace as files.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Ground;
use crate::object::{Object, filled, member_mut, name_suffix, text};
use crate::status::Status;
use crate::store::{DEFAULT_ACCOUNT, ROOT_AUTHORITY};

/// Where programs look for their token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
/// An hour, and seven seconds by which these tokens are told from others.
const TOKEN_SECONDS: u64 = 3607;
/// Annotation of a pod that a node made from a file: it has no account.
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";
/// Beyond the attempts for a pod's own name.
const SUFFIX: u32 = 100;

/// What the admission of one pod depends on.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The account, or why there is none.
    pub account: Result<Arc<Object>, Status>,
    /// The write's id, from which the volume's name is made.
    pub id: u128,
}

/// The account that a pod will have.
pub(crate) fn account_of(pod: &Value) -> &str {
    ["/spec/serviceAccountName", "/spec/serviceAccount"]
        .into_iter()
        .map(|field| text(pod, field))
        .find(|name| !name.is_empty())
        .unwrap_or(DEFAULT_ACCOUNT)
}

pub(super) fn admit(ground: &Ground, pod: &mut Value) -> Result<(), Status> {
    let Some(admission) = ground.admission() else { return Ok(()) };
    if filled(pod, MIRROR).is_some() {
        return Ok(());
    }
    let account = admission.account.as_ref().map_err(|missing| {
        let why = format!("error looking up service account: {}", missing.message);
        Status::forbidden(ground.kind(), text(pod, "/metadata/name"), why)
    })?;
    let account = account.tree();
    let flag = |object: &Value, field: &str| object.pointer(field).and_then(Value::as_bool);
    let own = flag(pod, "/spec/automountServiceAccountToken");
    if own.or_else(|| flag(&account, "/automountServiceAccountToken")).unwrap_or(true) {
        mount_token(member_mut(pod, "spec"), admission.id);
    }
    let secrets = account.get("imagePullSecrets").filter(|secrets| secrets.as_array().is_some_and(|l| !l.is_empty()));
    if let Some(secrets) = secrets.filter(|_| filled(pod, "/spec/imagePullSecrets").is_none()) {
        member_mut(pod, "spec").insert("imagePullSecrets".to_owned(), secrets.clone());
    }
    Ok(())
}

fn mount_token(spec: &mut Map<String, Value>, id: u128) {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let is_ours = |volume: &&Value| text(volume, "/name").starts_with(VOLUME) && volume.get("projected").is_some();
    let existing = volumes.into_iter().flatten().find(is_ours).map(|volume| text(volume, "/name").to_owned());
    let name = existing.clone().unwrap_or_else(|| format!("{VOLUME}{}", name_suffix(id, SUFFIX)));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let mounts = container.entry("volumeMounts").or_insert(Value::Null);
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().all(|mount| text(mount, "/mountPath") != MOUNT_PATH) {
                mounts.push(json!({ "name": name, "readOnly": true, "mountPath": MOUNT_PATH }));
                mounted = true;
            }
        }
    }
    if mounted && existing.is_none() {
        let volumes = spec.entry("volumes").or_insert(Value::Null);
        if volumes.is_null() {
            *volumes = json!([]);
        }
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.push(volume(&name));
        }
    }
}

fn volume(name: &str) -> Value {
    let namespace =
        json!({ "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } });
    json!({ "name": name, "projected": { "defaultMode": 0o644, "sources": [
        { "serviceAccountToken": { "expirationSeconds": TOKEN_SECONDS, "path": "token" } },
        { "configMap": { "name": ROOT_AUTHORITY, "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [namespace] } },
    ]}})
}

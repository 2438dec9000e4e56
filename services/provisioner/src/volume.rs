//! The PersistentVolume object of a volume that was made.

use serde_json::{Value, json};

use stowage_model::access_mode::{AccessMode, AccessModes};
use stowage_model::annotations::{
    CSI_PROVISIONER_IDENTITY, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, MODIFY_SECRET_NAME,
    MODIFY_SECRET_NAMESPACE, PROVISIONED_BY,
};
use stowage_model::claim::Claim;
use stowage_model::finalizers;
use stowage_model::phase::VolumeMode;
use stowage_model::quantity::Quantity;
use stowage_model::topology;

use crate::facts::Facts;
use crate::intent::{Intent, Location, Made, SecretRef};

/// The object as it is created; the API server adds its own finalizer and status.
pub fn body(claim: &Claim, intent: &Intent, made: &Made, facts: &Facts) -> Value {
    let mut spec = json!({
        "accessModes": claim.spec.access_modes.names(),
        "capacity": { "storage": Quantity::from_bytes(made.bytes).to_string() },
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.meta.namespace,
            "name": claim.meta.name,
            "uid": claim.meta.uid,
            "resourceVersion": claim.meta.revision.to_string(),
        },
        "persistentVolumeReclaimPolicy": intent.class.reclaim_policy,
        "storageClassName": intent.class.name,
        "volumeMode": claim.spec.volume_mode.as_str(),
    });
    if !intent.class.mount_options.is_empty() {
        spec["mountOptions"] = json!(intent.class.mount_options);
    }
    if let Some(attributes) = &intent.request.attributes {
        spec["volumeAttributesClassName"] = attributes.class.as_str().into();
    }
    match &made.location {
        Some(Location { field, value }) => spec[field] = value.clone(),
        None => spec["csi"] = source(claim, intent, made, facts),
    }
    if (facts.topology || made.location.is_some())
        && let Some(affinity) = topology::to_node_affinity(&made.topology)
    {
        spec["nodeAffinity"] = affinity;
    }
    json!({
        "metadata": {
            "name": intent.volume,
            "annotations": annotations(intent, facts),
            "finalizers": [finalizers::PROVISIONER],
        },
        "spec": spec,
    })
}

/// The object of a volume whose claim is gone, as its record knows that.
pub fn unclaimed(intent: &Intent, made: &Made, facts: &Facts) -> serde_json::Result<Value> {
    let modes: Vec<&str> =
        intent.request.modes.iter().filter_map(|mode| AccessMode::of_csi(*mode)).map(AccessMode::as_str).collect();
    let volume_mode = if intent.request.mount.is_some() { VolumeMode::Filesystem } else { VolumeMode::Block };
    let claim = serde_json::from_value(json!({
        "metadata": {
            "namespace": intent.claim.namespace, "name": intent.claim.name, "uid": intent.claim.uid, "resourceVersion": "0",
        },
        "spec": { "accessModes": modes, "volumeMode": volume_mode.as_str() },
    }))?;
    let mut body = body(&claim, intent, made, facts);
    // Nobody knows the last one.
    if let Some(claim) = body["spec"]["claimRef"].as_object_mut() {
        claim.remove("resourceVersion");
    }
    Ok(body)
}

fn annotations(intent: &Intent, facts: &Facts) -> Value {
    let deletion = intent.secrets.provisioner.as_ref();
    let mut annotations = json!({
        PROVISIONED_BY: intent.class.plugin.as_ref().unwrap_or(&facts.driver),
        // Present even when empty: an absent one would have the class asked again at deletion.
        DELETION_SECRET_NAME: deletion.map_or("", |secret| &secret.name),
        DELETION_SECRET_NAMESPACE: deletion.map_or("", |secret| &secret.namespace),
    });
    if let Some(modify) = &intent.secrets.controller_modify {
        annotations[MODIFY_SECRET_NAME] = modify.name.as_str().into();
        annotations[MODIFY_SECRET_NAMESPACE] = modify.namespace.as_str().into();
    }
    annotations
}

fn source(claim: &Claim, intent: &Intent, made: &Made, facts: &Facts) -> Value {
    let mut attributes = json!({ CSI_PROVISIONER_IDENTITY: facts.identity });
    for (key, value) in &made.context {
        attributes[key] = value.as_str().into();
    }
    let mut source = json!({
        "driver": facts.driver,
        "volumeHandle": made.handle,
        "volumeAttributes": attributes,
    });
    if let Some(mount) = &intent.request.mount
        && claim.spec.volume_mode != VolumeMode::Block
        && !mount.fs_type.is_empty()
    {
        source["fsType"] = mount.fs_type.as_str().into();
    }
    if facts.options.controller_publish_readonly
        && claim.spec.access_modes == AccessModes::from([AccessMode::ReadOnlyMany])
    {
        source["readOnly"] = true.into();
    }
    let secrets = &intent.secrets;
    for (field, secret) in [
        ("controllerPublishSecretRef", &secrets.controller_publish),
        ("nodeStageSecretRef", &secrets.node_stage),
        ("nodePublishSecretRef", &secrets.node_publish),
        ("controllerExpandSecretRef", &secrets.controller_expand),
        ("nodeExpandSecretRef", &secrets.node_expand),
    ] {
        if let Some(SecretRef { namespace, name }) = secret {
            source[field] = json!({ "namespace": namespace, "name": name });
        }
    }
    source
}

#[cfg(test)]
mod tests;

//! The objects `up` and `demo` create, as plain manifests.

use serde_json::{Value, json};

use stowage_model::object::kinds;

/// What the API server must know about a driver of which we know only what it answers.
pub fn csi_driver(name: &str, attach_required: bool, storage_capacity: bool) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "attachRequired": attach_required,
            "podInfoOnMount": true,
            "storageCapacity": storage_capacity,
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "volumeLifecycleModes": ["Persistent"],
        },
    })
}

/// The same of our own driver. On one machine it has inline volumes too; and pods that are not root can write whatever the
/// class says of file systems.
pub fn own_csi_driver(name: &str, attach_required: bool, storage_capacity: bool) -> Value {
    let mut driver = csi_driver(name, attach_required, storage_capacity);
    driver["spec"]["volumeLifecycleModes"] = json!(["Persistent", "Ephemeral"]);
    driver["spec"]["fsGroupPolicy"] = "File".into();
    driver
}

/// A class of the driver. Claims of a class that allows growth wait for ever for a driver that cannot.
pub fn class(name: &str, driver: &str, default: bool, binding: &str, expansion: bool) -> Value {
    json!({
        "metadata": {
            "name": name,
            "annotations": { "storageclass.kubernetes.io/is-default-class": default.to_string() },
        },
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": binding,
        "allowVolumeExpansion": expansion,
    })
}

/// A class of snapshots of the driver, in the group of snapshots or of group snapshots.
pub fn snapshot_class(name: &str, driver: &str, default: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { default: "true" } },
        "driver": driver,
        "deletionPolicy": "Delete",
    })
}

/// A snapshot of a claim.
pub fn snapshot(name: &str, class: &str, claim: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "volumeSnapshotClassName": class, "source": { "persistentVolumeClaimName": claim } },
    })
}

/// What a new volume is filled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// A VolumeSnapshot by its name.
    Snapshot(&'a str),
    /// A claim by its name.
    Claim(&'a str),
}

/// A claim of one writer whose volume holds what another holds.
pub fn claim_from(name: &str, class: &str, size: &str, source: Source<'_>) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["dataSource"] = match source {
        Source::Snapshot(name) => {
            json!({ "apiGroup": kinds::VOLUME_SNAPSHOT.group, "kind": kinds::VOLUME_SNAPSHOT.kind, "name": name })
        }
        Source::Claim(name) => json!({ "kind": kinds::CLAIM.kind, "name": name }),
    };
    claim
}

/// A claim of one writer.
pub fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": { "requests": { "storage": size } },
        },
    })
}

/// A pod that mounts the claim on one node.
pub fn pod(name: &str, claim: &str, node: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "none",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

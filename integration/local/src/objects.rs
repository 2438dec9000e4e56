//! The objects a test creates.

use serde_json::{Value, json};
use stowage_model::Kind;

/// The driver whose pool all nodes see.
pub const DRIVER: &str = "shared.csi.stowage.dev";
/// The driver whose pools belong to one node each.
pub const LOCAL_DRIVER: &str = "local.csi.stowage.dev";
/// A class whose volumes are made at once.
pub const IMMEDIATE: &str = "immediate";
/// A class whose volumes are made when a pod needs them.
pub const WAITING: &str = "waiting";

/// A class whose volumes are made at once, with a file system that grows without the capability SYS_RESOURCE.
pub const XFS: &str = "xfs";
/// A class of the local driver whose volumes are made at once, by any node.
pub const LOCAL_IMMEDIATE: &str = "local-immediate";
/// A class of the local driver whose volumes are made on the node of their pod.
pub const LOCAL_WAITING: &str = "local-waiting";

/// Classes of the local driver whose volumes are made on the node of their pod, and which file systems these have.
pub const LOCAL_OF: [(&str, &str); 3] = [("local-ext4", "ext4"), ("local-xfs", "xfs"), ("local-btrfs", "btrfs")];

/// A class of snapshots.
pub const SNAPSHOTS: &str = "snapshots";
/// A class of snapshots of the local driver, and of its group snapshots.
pub const LOCAL_SNAPSHOTS: &str = "local-snapshots";

/// What the cluster knows about a driver.
pub fn csi_driver(name: &str, attach_required: bool) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "attachRequired": attach_required, "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent"],
            "fsGroupPolicy": "File",
        },
    })
}

/// A class of a driver.
pub fn class(name: &str, driver: &str, binding: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
        "volumeBindingMode": binding,
        "allowVolumeExpansion": true,
    })
}

/// A class of snapshots or group snapshots of a driver.
pub fn snapshot_class(name: &str, driver: &str) -> Value {
    json!({ "metadata": { "name": name }, "driver": driver, "deletionPolicy": "Delete" })
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

/// The same for a device without a file system.
pub fn device_claim(name: &str, class: &str, size: &str) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["volumeMode"] = "Block".into();
    claim
}

/// A claim whose volume begins as a copy of something.
pub fn copy(name: &str, class: &str, size: &str, (kind, source): (Kind, &str)) -> Value {
    let mut claim = claim(name, class, size);
    claim["spec"]["dataSource"] = json!({ "kind": kind.kind, "name": source });
    if !kind.group.is_empty() {
        claim["spec"]["dataSource"]["apiGroup"] = kind.group.into();
    }
    claim
}

/// A snapshot of a claim.
pub fn snapshot(name: &str, class: &str, claim: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "volumeSnapshotClassName": class, "source": { "persistentVolumeClaimName": claim } },
    })
}

/// A snapshot of all claims with a label.
pub fn group_snapshot(name: &str, class: &str, (label, value): (&str, &str)) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "volumeGroupSnapshotClassName": class, "source": { "selector": { "matchLabels": { label: value } } } },
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

/// A pod that has the claim as a device on one node.
pub fn device_pod(name: &str, claim: &str, node: &str) -> Value {
    let mut pod = pod(name, claim, node);
    pod["spec"]["containers"][0] = json!({
        "name": "main",
        "image": "none",
        "volumeDevices": [{ "name": "data", "devicePath": "/dev/data" }],
    });
    pod
}

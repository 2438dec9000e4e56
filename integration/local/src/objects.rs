//! The objects a test creates.

use serde_json::{Value, json};

/// The driver whose pool all nodes see.
pub const DRIVER: &str = "shared.csi.stowage.dev";
/// The driver whose pools belong to one node each.
pub const LOCAL_DRIVER: &str = "local.csi.stowage.dev";
/// A class whose volumes are made at once.
pub const IMMEDIATE: &str = "immediate";
/// A class whose volumes are made when a pod needs them.
pub const WAITING: &str = "waiting";

/// A class of the local driver whose volumes are made at once, by any node.
pub const LOCAL_IMMEDIATE: &str = "local-immediate";
/// A class of the local driver whose volumes are made on the node of their pod.
pub const LOCAL_WAITING: &str = "local-waiting";

/// A class of snapshots.
pub const SNAPSHOTS: &str = "snapshots";

/// What the cluster knows about a driver.
pub fn csi_driver(name: &str, attach_required: bool) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attachRequired": attach_required, "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent"] },
    })
}

/// A class of a driver.
pub fn class(name: &str, driver: &str, binding: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": binding,
    })
}

/// A class of snapshots of a driver.
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

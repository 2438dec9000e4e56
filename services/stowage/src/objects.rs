//! The objects `up` and `demo` create, as plain manifests.

use serde_json::{Value, json};

/// What the API server must know about the driver.
pub fn csi_driver(name: &str, attach_required: bool) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "attachRequired": attach_required, "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent"] },
    })
}

/// A class of the driver.
pub fn class(name: &str, driver: &str, default: bool, binding: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "annotations": { "storageclass.kubernetes.io/is-default-class": default.to_string() },
        },
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": binding,
    })
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

//! The objects a life is about.

use serde_json::{Value, json};

use stowage_model::object::{Key, Kind};
use stowage_testing::world::DRIVER;

/// The namespace of claims and pods.
pub const NAMESPACE: &str = "default";

/// The class of every claim.
pub const CLASS: &str = "fast";

/// When a class lets its volumes be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Once a pod that uses the claim has a node.
    WaitForFirstConsumer,
    /// At once.
    Immediate,
}

impl Binding {
    /// As the API and the name of a case spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitForFirstConsumer => "WaitForFirstConsumer",
            Self::Immediate => "Immediate",
        }
    }
}

/// The driver's object: attach is required.
pub fn csi_driver() -> Value {
    json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": true } })
}

/// The class.
pub fn class(binding: Binding) -> Value {
    json!({
        "metadata": { "name": CLASS },
        "provisioner": DRIVER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": binding.as_str(),
    })
}

/// A claim of the class.
pub fn claim(name: &str, size: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": { "requests": { "storage": size } },
        },
    })
}

/// A claim whose volume is made from another claim's, or from a snapshot.
pub fn claim_from(name: &str, kind: Kind, source: &str) -> Value {
    let mut claim = claim(name, "1Gi");
    claim["spec"]["dataSource"] = json!({ "kind": kind.kind, "name": source });
    if !kind.group.is_empty() {
        claim["spec"]["dataSource"]["apiGroup"] = kind.group.into();
    }
    claim
}

/// The class of every snapshot.
pub fn snapshot_class(policy: &str) -> Value {
    json!({ "metadata": { "name": CLASS }, "driver": DRIVER, "deletionPolicy": policy })
}

/// A snapshot of a claim.
pub fn snapshot(name: &str, claim: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "volumeSnapshotClassName": CLASS, "source": { "persistentVolumeClaimName": claim } },
    })
}

/// A snapshot of all claims with a label.
pub fn group_snapshot(name: &str, (label, value): (&str, &str)) -> Value {
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "volumeGroupSnapshotClassName": CLASS, "source": { "selector": { "matchLabels": { label: value } } } },
    })
}

/// A snapshot that the driver has already, and the content that stands for it.
pub fn known_snapshot(name: &str, handle: &str) -> (Value, Value) {
    let snapshot = json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "source": { "volumeSnapshotContentName": name } },
    });
    let content = json!({
        "metadata": { "name": name },
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": { "snapshotHandle": handle },
            "volumeSnapshotRef": { "namespace": NAMESPACE, "name": name },
        },
    });
    (snapshot, content)
}

/// A pod that mounts a claim.
pub fn pod(name: &str, claim: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "containers": [{
                "name": "main",
                "image": "none",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

/// A pod that mounts a claim on a certain node.
pub fn pod_on(name: &str, claim: &str, node: &str) -> Value {
    let mut pod = pod(name, claim);
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    pod
}

/// The key of a claim, pod or snapshot.
pub fn key(name: &str) -> Key {
    Key::namespaced(NAMESPACE, name)
}

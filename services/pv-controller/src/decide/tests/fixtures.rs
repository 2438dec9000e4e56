//! Objects under construction, as the scenario tables write them.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use stowage_model::object::{Key, Kind, kinds};
use stowage_model::{annotations, finalizers};

use super::world::NOW;

/// One object under construction.
#[derive(Debug, Clone)]
pub struct Fixture {
    pub kind: Kind,
    pub tree: Value,
}

pub fn claim() -> Fixture {
    claim_named("c", "u")
}

pub fn claim_named(name: &str, uid: &str) -> Fixture {
    let tree = json!({
        "metadata": { "namespace": "n", "name": name, "uid": uid, "finalizers": [finalizers::CLAIM_PROTECTION] },
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
        "status": { "phase": "Pending" },
    });
    Fixture { kind: kinds::CLAIM, tree }
}

pub fn volume(name: &str, size: &str) -> Fixture {
    let tree = json!({
        "metadata": { "name": name, "uid": format!("u-{name}"), "finalizers": [finalizers::VOLUME_PROTECTION] },
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "capacity": { "storage": size },
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": { "path": "/x" },
        },
        "status": { "phase": "Pending" },
    });
    Fixture { kind: kinds::VOLUME, tree }
}

pub fn class(name: &str, provisioner: &str) -> Fixture {
    let tree = json!({
        "metadata": { "name": name, "uid": name },
        "provisioner": provisioner,
        "volumeBindingMode": "Immediate",
    });
    Fixture { kind: kinds::STORAGE_CLASS, tree }
}

pub fn attributes_class(name: &str) -> Fixture {
    let tree = json!({
        "metadata": { "name": name, "uid": name, "finalizers": [finalizers::ATTRIBUTES_CLASS_PROTECTION] },
        "driverName": "d",
    });
    Fixture { kind: kinds::ATTRIBUTES_CLASS, tree }
}

/// A running pod on a node that uses claim `c`.
pub fn pod(name: &str) -> Fixture {
    let tree = json!({
        "metadata": { "namespace": "n", "name": name, "uid": format!("u-{name}") },
        "spec": {
            "nodeName": "node",
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c" } }],
        },
        "status": { "phase": "Running" },
    });
    Fixture { kind: kinds::POD, tree }
}

impl Fixture {
    pub fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let mut at = &mut self.tree;
        for part in pointer.split('.') {
            at = &mut at[part];
        }
        *at = value.into();
        self
    }

    pub fn build<T: DeserializeOwned>(&self) -> T {
        serde_json::from_value(self.tree.clone()).unwrap()
    }

    pub fn key(&self) -> Key {
        let text = |name: &str| self.tree["metadata"][name].as_str().unwrap_or_default().to_owned();
        Key::namespaced(text("namespace"), text("name"))
    }

    pub fn uid(self, uid: &str) -> Self {
        self.with("metadata.uid", uid)
    }

    pub fn size(self, size: &str) -> Self {
        self.with("spec.resources.requests.storage", size)
    }

    pub fn modes(self, modes: &[&str]) -> Self {
        self.with("spec.accessModes", modes)
    }

    pub fn mode(self, mode: &str) -> Self {
        self.with("spec.volumeMode", mode)
    }

    pub fn class(self, class: &str) -> Self {
        self.with("spec.storageClassName", class)
    }

    pub fn attributes(self, class: &str) -> Self {
        self.with("spec.volumeAttributesClassName", class)
    }

    pub fn names(self, volume: &str) -> Self {
        self.with("spec.volumeName", volume)
    }

    pub fn bound(self, size: &str) -> Self {
        self.with("status.phase", "Bound")
            .with("status.capacity", json!({ "storage": size }))
            .with("status.accessModes", json!(["ReadWriteOnce", "ReadOnlyMany"]))
    }

    pub fn completed(self, volume: &str) -> Self {
        self.names(volume).annotate(annotations::BIND_COMPLETED, "yes")
    }

    pub fn marked(self) -> Self {
        self.annotate(annotations::BOUND_BY_CONTROLLER, "yes")
    }

    pub fn annotate(mut self, key: &str, value: &str) -> Self {
        self.tree["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.tree["metadata"]["labels"][key] = value.into();
        self
    }

    pub fn selects(self, key: &str, value: &str) -> Self {
        self.with("spec.selector", json!({ "matchLabels": { key: value } }))
    }

    pub fn deleting(self) -> Self {
        self.with("metadata.deletionTimestamp", NOW)
    }

    pub fn finalizers(self, list: &[&str]) -> Self {
        self.with("metadata.finalizers", list)
    }

    pub fn phase(self, phase: &str) -> Self {
        self.with("status.phase", phase)
    }

    pub fn available(self) -> Self {
        self.phase("Available")
    }

    pub fn refers(self, name: &str, uid: &str) -> Self {
        self.with("spec.claimRef", json!({ "namespace": "n", "name": name, "uid": uid }))
    }

    pub fn policy(self, policy: &str) -> Self {
        self.with("spec.persistentVolumeReclaimPolicy", policy)
    }

    pub fn csi(self) -> Self {
        self.with("spec.hostPath", Value::Null).with("spec.csi", json!({ "driver": "d", "volumeHandle": "h" }))
    }

    pub fn source(self, member: &str) -> Self {
        self.with("spec.hostPath", Value::Null).with(&format!("spec.{member}"), json!({ "volumeID": "x" }))
    }

    pub fn provisioned(self, driver: &str) -> Self {
        self.annotate(annotations::PROVISIONED_BY, driver)
    }

    pub fn late(self) -> Self {
        self.with("volumeBindingMode", "WaitForFirstConsumer")
    }

    pub fn default_class(self) -> Self {
        self.annotate(annotations::DEFAULT_CLASS, "true")
    }

    pub fn on_node(self, node: &str) -> Self {
        self.annotate(annotations::SELECTED_NODE, node)
    }

    pub fn unplaced(self) -> Self {
        self.with("spec.nodeName", "").phase("Pending")
    }

    /// The pod's volume is ephemeral: its claim is named after pod and volume.
    pub fn ephemeral(self) -> Self {
        let template = json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "storageClassName": "gold" } });
        self.with("spec.volumes", json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }]))
    }

    pub fn owned_by(self, pod: &str) -> Self {
        let owner = json!({ "kind": "Pod", "name": pod, "uid": format!("u-{pod}"), "controller": true });
        self.with("metadata.ownerReferences", json!([owner]))
    }

    pub fn unused(self, holds: bool) -> Self {
        let status = if holds { "True" } else { "False" };
        self.with("status.conditions", json!([{ "type": "Unused", "status": status, "reason": "x" }]))
    }
}

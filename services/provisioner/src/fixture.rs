//! One good claim, class, volume and driver; tests spoil one field each.

use std::sync::Arc;

use serde_json::{Value, json};

use stowage_model::access_mode::AccessMode;
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::volume::Volume;

use crate::facts::Facts;
use crate::intent::{Intent, Made};
use crate::options::Options;
use crate::request;
use crate::requirement::Cluster;

pub const DRIVER: &str = "shared.csi.stowage.dev";
pub const UID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
pub const VOLUME: &str = "pvc-7c9e6679-7425-40de-944b-e07fc1f90ae7";
pub const HANDLE: &str = "pool-a/1";

pub fn facts() -> Facts {
    Facts {
        driver: DRIVER.into(),
        identity: "1700000000000-42-shared.csi.stowage.dev".into(),
        creates: true,
        finer_modes: false,
        attaches: true,
        snapshots: true,
        clones: true,
        modifies: true,
        topology: false,
        modes: AccessMode::KNOWN.into_iter().collect(),
        block: true,
        library: false,
        node: None,
        options: Options::default(),
    }
}

pub fn claim_json() -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": "db", "uid": UID, "resourceVersion": "7",
            "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER },
            "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
        },
        "status": { "phase": "Pending" },
    })
}

pub fn class_json() -> Value {
    json!({
        "metadata": { "name": "fast", "uid": "class-1", "resourceVersion": "3" },
        "provisioner": DRIVER,
        "parameters": { "pool": "a", "csi.storage.k8s.io/fstype": "ext4" },
        "mountOptions": ["noatime"],
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    })
}

/// The volume made for the claim, as it is while bound.
pub fn volume_json() -> Value {
    json!({
        "metadata": {
            "name": VOLUME, "uid": "volume-1", "resourceVersion": "9",
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "claimRef": { "namespace": "shop", "name": "db", "uid": UID },
            "csi": { "driver": DRIVER, "volumeHandle": HANDLE },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
        },
        "status": { "phase": "Bound" },
    })
}

pub fn claim() -> Claim {
    claim_with(|_| {})
}

pub fn claim_with(spoil: impl FnOnce(&mut Value)) -> Claim {
    read(claim_json(), spoil)
}

pub fn class_with(spoil: impl FnOnce(&mut Value)) -> StorageClass {
    read(class_json(), spoil)
}

pub fn volume_with(spoil: impl FnOnce(&mut Value)) -> Arc<Volume> {
    Arc::new(read(volume_json(), spoil))
}

pub fn read<T: serde::de::DeserializeOwned>(mut object: Value, spoil: impl FnOnce(&mut Value)) -> T {
    spoil(&mut object);
    serde_json::from_value(object).unwrap()
}

pub fn intent() -> Arc<Intent> {
    Arc::new(request::build(&claim(), &class_with(|_| {}), &facts(), &Cluster::default()).unwrap())
}

pub fn made() -> Made {
    Made { handle: HANDLE.into(), bytes: 1 << 30, ..Made::default() }
}

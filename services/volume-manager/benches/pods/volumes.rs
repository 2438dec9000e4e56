//! The kinds of volumes that are measured, and the objects they are made of.

use serde_json::{Value, json};

use stowage_model::Claim;
use stowage_model::object::kinds;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::cache::Cache;

use crate::driver::DRIVER;
use crate::world::{NAMESPACE, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    EmptyDir,
    EmptyDirMemory,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    HostPath,
    Local,
    Csi,
}

impl Plugin {
    pub const ALL: [Self; 9] = [
        Self::EmptyDir,
        Self::EmptyDirMemory,
        Self::ConfigMap,
        Self::Secret,
        Self::DownwardApi,
        Self::Projected,
        Self::HostPath,
        Self::Local,
        Self::Csi,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::EmptyDir => "emptyDir",
            Self::EmptyDirMemory => "emptyDir-Memory",
            Self::ConfigMap => "configMap",
            Self::Secret => "secret",
            Self::DownwardApi => "downwardAPI",
            Self::Projected => "projected",
            Self::HostPath => "hostPath",
            Self::Local => "local",
            Self::Csi => "csi",
        }
    }

    /// The objects of a volume: each has its own.
    pub async fn prepare(self, world: &World, n: usize) {
        let metadata = json!({ "namespace": NAMESPACE, "name": format!("o{n}") });
        let create = async |kind, body| drop(world.user.create_raw(kind, body).await.unwrap());
        match self {
            Self::EmptyDir | Self::EmptyDirMemory | Self::DownwardApi => {}
            Self::ConfigMap | Self::Projected => {
                create(kinds::CONFIG_MAP, json!({ "metadata": metadata, "data": { "key": format!("value {n}") } }))
                    .await
            }
            Self::Secret => {
                create(kinds::SECRET, json!({ "metadata": metadata, "stringData": { "key": format!("value {n}") } }))
                    .await
            }
            Self::HostPath => std::fs::create_dir_all(world.elsewhere(n)).unwrap(),
            Self::Local => {
                std::fs::create_dir_all(world.elsewhere(n)).unwrap();
                let selected = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["node"] });
                let spec = json!({
                    "local": { "path": world.elsewhere(n) },
                    "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [selected] }] } },
                });
                claim(world, n, spec).await;
            }
            Self::Csi => claim(world, n, json!({ "csi": { "driver": DRIVER, "volumeHandle": handle(n) } })).await,
        }
    }

    /// The volume as a pod names it.
    pub fn source(self, world: &World, n: usize) -> Value {
        let name = format!("o{n}");
        let label = json!([{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }]);
        match self {
            Self::EmptyDir => json!({ "emptyDir": {} }),
            Self::EmptyDirMemory => json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }),
            Self::ConfigMap => json!({ "configMap": { "name": name } }),
            Self::Secret => json!({ "secret": { "secretName": name } }),
            Self::DownwardApi => json!({ "downwardAPI": { "items": label } }),
            Self::Projected => json!({ "projected": { "sources": [
                { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
                { "configMap": { "name": name } },
                { "downwardAPI": { "items": label } },
            ] } }),
            Self::HostPath => json!({ "hostPath": { "path": world.elsewhere(n), "type": "Directory" } }),
            Self::Local | Self::Csi => json!({ "persistentVolumeClaim": { "claimName": name } }),
        }
    }
}

/// What the driver calls a volume.
pub fn handle(n: usize) -> String {
    format!("h{n}")
}

/// A claim that is bound to a volume of this kind.
async fn claim(world: &World, n: usize, source: Value) {
    let (name, volume) = (format!("o{n}"), format!("v{n}"));
    let claim = json!({
        "metadata": {
            "namespace": NAMESPACE, "name": name, "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": volume, "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = world.user.create_raw(kinds::CLAIM, claim).await.unwrap();
    let claim: Claim = serde_json::from_value(claim).unwrap();
    let mut spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "claimRef": { "namespace": NAMESPACE, "name": name, "uid": claim.meta.uid },
    });
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    let volume = json!({ "metadata": { "name": volume }, "spec": spec });
    world.user.create_raw(kinds::VOLUME, volume).await.unwrap();
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } }));
    let target = Target::any_version(&claim.meta);
    world.user.patch(&Cache::<Claim>::new(), &target, Part::Status, bound).await.unwrap();
}

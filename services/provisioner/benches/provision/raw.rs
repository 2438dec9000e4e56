//! The server's own rate: the writes of a claim's way to its volume, on the same objects, with the same watches open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use stowage_model::object::Key;
use stowage_model::{Claim, Volume};
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;

use crate::driver::DRIVER;
use crate::world::{CLASS, NAMESPACE, World};

/// A claim asks for a volume, gets it, and both are bound.
pub const WRITES: usize = 5;

/// Writes per second.
pub async fn rate(count: usize) -> f64 {
    let mut world = World::start(Duration::ZERO, None).await;
    world.ask("c", count).await;
    let (claims, volumes) = (world.watch::<Claim>().await, world.watch::<Volume>().await);
    // The benchmark's and the binder's are open in the other run too.
    let _others = (world.watch::<Claim>().await, world.watch::<Volume>().await, world.watch::<Claim>().await);
    let begin = Instant::now();
    World::each(count, |n| write(world.user.clone(), claims.clone(), volumes.clone(), n)).await;
    (count * WRITES) as f64 / begin.elapsed().as_secs_f64()
}

async fn write(api: Api, claims: Cache<Claim>, volumes: Cache<Volume>, n: usize) {
    let patch_claim = async |claim: &Claim, part, body: Value| -> Arc<Claim> {
        api.patch(&claims, &Target::exact(&claim.meta), part, Patch::Merge(body)).await.unwrap()
    };
    let claim = claims.get(&Key::namespaced(NAMESPACE, format!("c{n}"))).unwrap();
    let asks = json!({ "metadata": { "annotations": {
        "volume.kubernetes.io/storage-provisioner": DRIVER, "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
    } } });
    let claim = patch_claim(&claim, Part::Main, asks).await;
    let volume = api.create(&volumes, volume(&claim)).await.unwrap();
    let target = Target::exact(&volume.meta);
    let phase = Patch::Merge(json!({ "status": { "phase": "Bound", "message": null } }));
    let of_volume = api.patch(&volumes, &target, Part::Status, phase);
    let of_claim = async {
        let named = json!({
            "metadata": { "annotations": {
                "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
            } },
            "spec": { "volumeName": volume.meta.name },
        });
        let claim = patch_claim(&claim, Part::Main, named).await;
        let status = json!({ "status": {
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
        } });
        patch_claim(&claim, Part::Status, status).await;
    };
    let (of_volume, ()) = tokio::join!(of_volume, of_claim);
    of_volume.unwrap();
}

fn volume(claim: &Claim) -> Value {
    json!({
        "metadata": {
            "name": claim.provisioned_volume_name(),
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
            "csi": { "driver": DRIVER, "volumeHandle": claim.provisioned_volume_name() },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.meta.namespace,
                "name": claim.meta.name, "uid": claim.meta.uid, "resourceVersion": claim.meta.revision.to_string(),
            },
        },
    })
}

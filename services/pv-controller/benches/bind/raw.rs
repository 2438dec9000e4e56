//! The server's own rate of conditional writes: those of a binding, on the same objects, with the same watches open.

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use stowage_model::object::{Key, kinds};
use stowage_model::{AttributesClass, Claim, Pod, StorageClass, Volume};
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;

use crate::run::Run;
use crate::world::{NAMESPACE, Shape, World};
use crate::{IN_FLIGHT, processor_seconds};

/// One pair's writes, in the order in which a binding needs them.
struct Pair {
    api: Api,
    /// As many writes at once as the controller has.
    turns: Arc<Semaphore>,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    claim: Key,
    volume: Key,
    class: String,
}

impl World {
    /// Writes per second, and the processor time that each takes.
    pub async fn raw_rate(&self, shape: Shape, pairs: usize) -> Run {
        self.class(shape).await;
        if shape != Shape::Dynamic {
            self.available_volumes(pairs, shape).await;
        }
        self.create_all(pairs, |n| (kinds::CLAIM, self.claim(n))).await;
        let (claims, _a) = self.watch::<Claim>().await;
        let (volumes, _b) = self.watch::<Volume>().await;
        let (_classes, _c) = self.watch::<StorageClass>().await;
        let (_pods, _d) = self.watch::<Pod>().await;
        let (_attributes_classes, _f) = self.watch::<AttributesClass>().await;
        // The benchmark's own watch of claims is open in the other run too.
        let (_seen, _e) = self.watch::<Claim>().await;
        let (api, turns) = (Api::new(self.controller.clone()), Arc::new(Semaphore::new(IN_FLIGHT)));
        let (begin, processor) = (Instant::now(), processor_seconds());
        let prefix = self.prefix.clone();
        let tasks = futures::stream::iter(0..pairs).map(move |n| {
            let pair = Pair {
                api: api.clone(),
                turns: Arc::clone(&turns),
                claims: claims.clone(),
                volumes: volumes.clone(),
                claim: Key::namespaced(NAMESPACE, format!("{prefix}-c{n}")),
                volume: Key::cluster(format!("{prefix}-v{n}")),
                class: prefix.clone(),
            };
            async move { tokio::spawn(pair.write(shape)).await.unwrap() }
        });
        // On the workers, as the controller's loop is: the main thread would be one more than there are cores.
        let written = tokio::spawn(tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<usize>>());
        let writes = written.await.unwrap().into_iter().sum::<usize>() as f64;
        let (rate, processor) = (writes / begin.elapsed().as_secs_f64(), (processor_seconds() - processor) / writes);
        Run { rate, processor, ..Run::default() }
    }
}

impl Pair {
    async fn write(self, shape: Shape) -> usize {
        let mut claim = self.claims.get(&self.claim).unwrap();
        let (volume, reserved) = if shape == Shape::Dynamic {
            let body = json!({ "metadata": { "annotations": {
                "volume.kubernetes.io/storage-provisioner": "driver.example",
                "volume.beta.kubernetes.io/storage-provisioner": "driver.example",
            } } });
            claim = self.patch_claim(&claim, Part::Main, body).await;
            let _turn = self.turns.acquire().await.unwrap();
            (self.api.create(&self.volumes, World::provisioned(&claim, &self.class)).await.unwrap(), 2)
        } else {
            let volume = self.volumes.get(&self.volume).unwrap();
            let body = json!({
                "metadata": { "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } },
                "spec": { "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE,
                    "name": claim.meta.name, "uid": claim.meta.uid, "resourceVersion": claim.meta.revision.to_string(),
                } },
            });
            (self.patch_volume(&volume, Part::Main, body).await, 1)
        };
        let phase =
            self.patch_volume(&volume, Part::Status, json!({ "status": { "phase": "Bound", "message": null } }));
        let claim_writes = async {
            let body = json!({
                "metadata": { "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
                } },
                "spec": { "volumeName": volume.meta.name },
            });
            let claim = self.patch_claim(&claim, Part::Main, body).await;
            let body = json!({ "status": {
                "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
                "conditions": [{
                    "type": "Unused", "status": "True", "reason": "NoPodsUsingPVC",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "message": "No pods are currently referencing this PVC",
                }],
            } });
            self.patch_claim(&claim, Part::Status, body).await;
        };
        tokio::join!(phase, claim_writes);
        reserved + 3
    }

    async fn patch_claim(&self, claim: &Claim, part: Part, body: Value) -> Arc<Claim> {
        let _turn = self.turns.acquire().await.unwrap();
        self.api.patch(&self.claims, &Target::exact(&claim.meta), part, Patch::Merge(body)).await.unwrap()
    }

    async fn patch_volume(&self, volume: &Volume, part: Part, body: Value) -> Arc<Volume> {
        let _turn = self.turns.acquire().await.unwrap();
        self.api.patch(&self.volumes, &Target::exact(&volume.meta), part, Patch::Merge(body)).await.unwrap()
    }
}

//! Volumes that somebody takes back by hand: they go to whom they belong, and only once nobody erases them any more.

use serde_json::{Value, json};

use stowage_model::object::{Key, ObjectId, Projection, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, Pod, Volume};
use stowage_runtime::api::{Part, Patch, Target};

use crate::world::{World, until, until_gone};

fn volume(name: &str, policy: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": policy,
            "nfs": { "server": "server.example", "path": "/exports/v" },
        },
    })
}

fn claim(name: &str, volume: Option<&str>) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "storageClassName": "", "volumeName": volume, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn released(uid: &str) -> Value {
    let mut released = volume("v", "Recycle");
    released["spec"]["claimRef"] = json!({ "namespace": "default", "name": "gone", "uid": uid });
    released
}

impl World {
    async fn clear_claim_reference(&self) -> Volume {
        let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("v") };
        let cleared = self.api.patch_raw(&id, json!({ "spec": { "claimRef": null } })).await.unwrap();
        serde_json::from_value(cleared).unwrap()
    }
}

#[tokio::test]
async fn a_volume_that_was_freed_goes_to_the_claim_that_is_bound_to_it_and_not_to_one_that_waits() {
    let world = World::start().await;
    world.create::<Volume>(volume("v", "Retain")).await;
    world.create::<Claim>(claim("z", None)).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    world.create::<Claim>(claim("a", None)).await;
    until(&world.events, |event| event.message.contains("no volume fits claim")).await;

    for _ in 0..10 {
        let cleared = world.clear_claim_reference().await;
        let taken = until(&world.volumes, move |volume| {
            volume.meta.revision > cleared.meta.revision
                && volume.spec.claim_ref.is_some()
                && volume.status.phase == VolumePhase::Bound
        });
        assert_eq!(taken.await.spec.claim_ref.as_ref().unwrap().name, "z");
    }
    let waiting = world.api.get::<Claim>(&Key::namespaced("default", "a")).await.unwrap().unwrap();
    assert_eq!(waiting.status.phase, ClaimPhase::Pending);
}

#[tokio::test]
async fn a_volume_that_a_pod_still_erases_is_nobodys_although_it_was_taken_back() {
    let world = World::start().await;
    world.create::<Volume>(released("old")).await;
    let pod = until(&world.pods, |pod| pod.meta.name == "recycler-for-v").await;
    // A pod that no node runs would go at once.
    let node = json!({ "target": { "kind": "Node", "name": "a" } });
    world.api.post(&pod.id(), "binding", &node).await.unwrap();
    world.create::<Claim>(claim("named", Some("v"))).await;
    world.create::<Claim>(claim("any", None)).await;
    world.clear_claim_reference().await;
    until(&world.pods, |pod| pod.meta.is_deleting()).await;

    // Whatever was to be decided has been when a later volume is ready.
    let mut later = volume("later", "Retain");
    later["spec"]["storageClassName"] = "other".into();
    world.create::<Volume>(later).await;
    until(&world.volumes, |volume| volume.meta.name == "later" && volume.status.phase == VolumePhase::Available).await;
    let held = world.api.get::<Volume>(&Key::cluster("v")).await.unwrap().unwrap();
    assert_ne!(held.status.phase, VolumePhase::Available);
    assert_eq!(held.spec.claim_ref, None);
    until(&world.events, |event| event.message.contains("recycler-for-v still erases the volume")).await;

    world.delete_now(&pod).await;
    let taken = until(&world.volumes, |volume| volume.status.phase == VolumePhase::Bound).await;
    assert_eq!(taken.spec.claim_ref.as_ref().unwrap().name, "named");
}

#[tokio::test]
async fn a_pod_that_only_looks_like_our_recycler_proves_nothing() {
    let world = World::start().await;
    let forged: Pod = world
        .create(json!({
            "metadata": {
                "namespace": "default", "name": "recycler-for-v",
                "annotations": { "stowage.dev/recycles-volume": "v", "stowage.dev/recycles-claim": "old" },
                "finalizers": ["test/held"],
            },
            "spec": { "containers": [{ "name": "x", "image": "x" }] },
        }))
        .await;
    let succeeded = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    world.api.patch(&world.pods, &Target::any_version(&forged.meta), Part::Status, succeeded).await.unwrap();
    let mut phases = world.phases();
    world.create::<Volume>(released("old")).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Failed).await;
    while let Ok(phase) = phases.try_recv() {
        assert_ne!(phase, VolumePhase::Available);
    }
    world.api.patch_raw(&forged.id(), json!({ "metadata": { "finalizers": null } })).await.unwrap();
    let uid = forged.meta.uid.clone();
    let ours = until(&world.pods, move |pod| pod.meta.uid != uid).await;
    let succeeded = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    world.api.patch(&world.pods, &Target::any_version(&ours.meta), Part::Status, succeeded).await.unwrap();
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
    until_gone(&world.pods, "recycler-for-v").await;
}

#[tokio::test]
async fn a_claim_waits_for_the_volume_that_was_given_to_it_while_a_pod_still_erases_it() {
    for with_uid in [false, true] {
        let world = World::start().await;
        world.create::<Volume>(released("old")).await;
        let pod = until(&world.pods, |pod| pod.meta.name == "recycler-for-v").await;
        world.api.post(&pod.id(), "binding", &json!({ "target": { "kind": "Node", "name": "a" } })).await.unwrap();
        let mine: Claim = world.create(claim("mine", None)).await;
        let uid = if with_uid { json!(mine.meta.uid) } else { Value::Null };
        let given = json!({ "spec": { "claimRef": { "namespace": "default", "name": "mine", "uid": uid } } });
        let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("v") };
        world.api.patch_raw(&id, given).await.unwrap();
        until(&world.pods, |pod| pod.meta.is_deleting()).await;

        world.create::<Volume>(volume("other", "Retain")).await;
        world.create::<Claim>(claim("yours", None)).await;
        let bound = until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
        assert_eq!((bound.meta.name.as_str(), bound.spec.volume_name.as_str()), ("yours", "other"));

        world.delete_now(&pod).await;
        let is_mine = |claim: &Claim| claim.meta.name == "mine" && claim.status.phase == ClaimPhase::Bound;
        assert_eq!(until(&world.claims, is_mine).await.spec.volume_name, "v");
    }
}

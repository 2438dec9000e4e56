//! The recycler pod as people see it: what is told about the pod is told about the volume too.

use http::StatusCode;
use serde_json::{Value, json};

use stowage_model::Pod;
use stowage_model::event::EventType;
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::phase::VolumePhase;
use stowage_runtime::api::{Part, Patch, Target};

use crate::world::{World, until};

impl World {
    /// A volume whose claim is gone and whose policy is to be erased.
    async fn released_volume(&self) {
        let volume = json!({
            "metadata": { "name": "v", "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } },
            "spec": {
                "capacity": { "storage": "3Gi" },
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Recycle",
                "nfs": { "server": "server.example", "path": "/exports/v" },
                "claimRef": { "namespace": "default", "name": "gone", "uid": "gone" },
            },
        });
        self.api.create_raw(kinds::VOLUME, volume).await.unwrap();
    }

    async fn tell(&self, pod: &Pod, name: &str, kind: &str, message: &str) {
        let event = json!({
            "metadata": { "namespace": "default", "name": name },
            "involvedObject": { "kind": "Pod", "namespace": "default", "name": pod.meta.name, "uid": pod.meta.uid },
            "type": kind, "reason": "Whatever", "message": message,
        });
        self.api.create_raw(kinds::EVENT, event).await.unwrap();
    }

    async fn end(&self, pod: &Pod, phase: &str) {
        let body = Patch::Merge(json!({ "status": { "phase": phase, "reason": "DeadlineExceeded" } }));
        self.api.patch(&self.pods, &Target::any_version(&pod.meta), Part::Status, body).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_told_about_the_recycler_pod_is_told_about_the_volume() {
    let world = World::start().await;
    world.released_volume().await;
    let pod = until(&world.pods, |pod| pod.meta.name == "recycler-for-v").await;
    let raw = world.api.get_raw(&pod.id()).await.unwrap().unwrap();
    assert_eq!(raw["spec"]["volumes"][0]["nfs"], json!({ "server": "server.example", "path": "/exports/v" }));
    assert_eq!(raw["spec"]["activeDeadlineSeconds"], 300, "the least for NFS is more than 3 x 30");

    let stranger: Pod =
        serde_json::from_value(json!({ "metadata": { "name": "recycler-for-v", "uid": "old" } })).unwrap();
    world.tell(&stranger, "of-an-earlier-pod", "Normal", "not for us").await;
    world.tell(&pod, "pulled", "Normal", "pulled the image").await;
    until(&world.events, |event| event.message == "Recycler pod: pulled the image").await;
    // The last word comes just before the end and must not be lost.
    world.tell(&pod, "slow", "Warning", "this takes long").await;
    world.end(&pod, "Succeeded").await;

    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available && volume.spec.claim_ref.is_none())
        .await;
    let last = until(&world.events, |event| event.message == "Recycler pod: this takes long").await;
    assert_eq!(last.event_type, EventType::Warning);
    until(&world.events, |event| event.message == "volume v is erased and free again").await;
    assert!(world.api.get::<Pod>(&Key::namespaced("default", "recycler-for-v")).await.unwrap().is_none());
    let relayed: Vec<Value> =
        world.raw_events().await.into_iter().filter(|event| event["reason"] == "RecyclerPod").collect();
    assert_eq!(relayed.len(), 2, "{relayed:?}");
    for event in relayed {
        assert_eq!(event["involvedObject"]["kind"], "PersistentVolume");
        assert_eq!(event["involvedObject"]["name"], "v");
        assert_eq!(event["source"]["component"], "persistentvolume-controller");
    }
}

#[tokio::test]
async fn a_recycler_pod_that_fails_makes_the_volume_failed_with_its_reason() {
    let world = World::start().await;
    world.released_volume().await;
    let pod = until(&world.pods, |pod| pod.meta.name == "recycler-for-v").await;
    world.end(&pod, "Failed").await;
    let failed = until(&world.volumes, |volume| volume.status.phase == VolumePhase::Failed).await;
    assert!(failed.status.message.starts_with("cannot erase the volume: "), "{}", failed.status.message);
    assert!(failed.status.message.contains("DeadlineExceeded"), "{}", failed.status.message);
    let told = until(&world.events, |event| event.message.starts_with("cannot erase the volume: ")).await;
    assert_eq!(told.event_type, EventType::Warning);
}

async fn is_told_as_failed(world: &World, text: &'static str) {
    let failed = until(&world.volumes, |volume| volume.status.phase == VolumePhase::Failed).await;
    assert!(failed.status.message.contains(text), "{}", failed.status.message);
    until(&world.events, |event| event.message.starts_with("cannot erase the volume: ")).await;
    let events = world.raw_events().await;
    let told = events.iter().find(|event| event["reason"] == "VolumeFailedRecycle").unwrap();
    assert_eq!(told["type"], "Warning");
}

#[tokio::test]
async fn s6_04_a_recycler_pod_whose_namespace_is_missing_makes_the_volume_failed() {
    let world = World::start().await;
    world.wire.refuse("POST", "/pods", StatusCode::NOT_FOUND);
    world.released_volume().await;
    is_told_as_failed(&world, "(404)").await;
    until(&world.pods, |pod| pod.meta.name == "recycler-for-v").await;
}

#[tokio::test]
async fn s6_05_an_earlier_pod_that_does_not_go_is_told_and_the_volume_is_recycled_once_it_went() {
    let world = World::start().await;
    let stranger: Pod = world
        .create(json!({
            "metadata": { "namespace": "default", "name": "recycler-for-v", "finalizers": ["test/held"] },
            "spec": { "nodeName": "a", "containers": [{ "name": "x", "image": "x" }] },
        }))
        .await;
    world.released_volume().await;
    is_told_as_failed(&world, "earlier pod default/recycler-for-v").await;
    until(&world.pods, |pod| pod.meta.is_deleting()).await;

    world.api.patch_raw(&stranger.id(), json!({ "metadata": { "finalizers": null } })).await.unwrap();
    world.delete_now(&stranger).await;
    let uid = stranger.meta.uid.clone();
    let ours = until(&world.pods, move |pod| pod.meta.uid != uid).await;
    world.end(&ours, "Succeeded").await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
}

//! What is looked at once more before a step that cannot be taken back, while the caches lag behind.

use http::StatusCode;
use serde_json::{Value, json};

use stowage_model::object::{Key, Projection};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{AttributesClass, Claim, Pod, StorageClass, Volume};
use stowage_runtime::api::{Deletion, Target};
use stowage_runtime::cache::Cache;

use crate::world::{World, feed, until, until_gone};

fn claim(name: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name, "finalizers": ["kubernetes.io/pvc-protection"] },
        "spec": {
            "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": { "path": "/x" },
        },
    })
}

fn pod(name: &str, claim: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "nodeName": "a", "containers": [{ "name": "x", "image": "x" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

impl World {
    async fn delete<T: Projection>(&self, object: &T) {
        let target = Target::any_version(object.meta());
        self.api.delete(&Cache::<T>::new(), &target, Deletion::default()).await.unwrap();
    }

    async fn claim(&self, name: &str) -> Option<Claim> {
        self.api.get(&Key::namespaced("default", name)).await.unwrap()
    }
}

#[tokio::test]
async fn a_claim_is_kept_for_a_pod_that_the_watch_has_not_shown() {
    let world = World::start().await;
    let used: Claim = world.create(claim("used")).await;
    let unused: Claim = world.create(claim("unused")).await;
    world.wire.hold("WATCH", "/pods");
    let user: Pod = world.create(pod("p", "used")).await;
    world.delete(&used).await;
    world.wire.asked("LIST", "/pods", 2).await;
    world.delete(&unused).await;
    until_gone(&world.claims, "unused").await;
    let kept = world.claim("used").await.expect("a pod uses it");
    assert!(kept.meta.has_finalizer("kubernetes.io/pvc-protection"));
    world.delete_now(&user).await;
    world.wire.release("WATCH", "/pods");
    until_gone(&world.claims, "used").await;
}

#[tokio::test]
async fn a_volume_is_not_released_while_its_claim_only_has_not_been_seen() {
    let world = World::start().await;
    let mut phases = world.phases();
    world.wire.hold("WATCH", "/persistentvolumeclaims");
    let owner: Claim = world.create(claim("c")).await;
    let mut body = volume("v");
    body["spec"]["claimRef"] = json!({ "namespace": "default", "name": "c", "uid": owner.meta.uid });
    world.create::<Volume>(body).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Bound).await;
    while let Ok(phase) = phases.try_recv() {
        assert_ne!(phase, VolumePhase::Released);
    }
}

#[tokio::test]
async fn a_claim_is_not_collected_while_its_pod_only_has_not_been_seen() {
    let world = World::start().await;
    world.wire.hold("WATCH", "/pods");
    let owner: Pod = world.create(pod("p", "none")).await;
    let owned = |name: &str, uid: &str| {
        let mut body = claim(name);
        body["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true }]);
        body
    };
    world.create::<Claim>(owned("kept", &owner.meta.uid)).await;
    world.wire.asked("GET", "/pods/p", 1).await;
    world.create::<Claim>(owned("orphan", "of-another-pod")).await;
    until_gone(&world.claims, "orphan").await;
    assert!(!world.claim("kept").await.expect("its pod is there").meta.is_deleting());
}

#[tokio::test]
async fn an_attributes_class_is_kept_for_a_claim_that_the_watch_has_not_shown() {
    let world = World::start().await;
    let class: AttributesClass = world
        .create(json!({
            "metadata": { "name": "gold", "finalizers": ["kubernetes.io/vac-protection"] },
            "driverName": "d", "parameters": { "a": "b" },
        }))
        .await;
    world.wire.hold("WATCH", "/persistentvolumeclaims");
    let mut body = claim("c");
    body["spec"]["volumeAttributesClassName"] = "gold".into();
    let user: Claim = world.create(body).await;
    let classes = feed::<AttributesClass>(&world.api);
    let looks = world.wire.count("LIST", "/persistentvolumeclaims");
    world.delete(&class).await;
    world.wire.asked("LIST", "/persistentvolumeclaims", looks + 1).await;
    // Work that comes later, and is done.
    let other = json!({ "metadata": { "name": "silver" }, "driverName": "d", "parameters": { "a": "b" } });
    world.create::<AttributesClass>(other).await;
    until(&classes, |class| class.meta.name == "silver" && class.meta.has_finalizer("kubernetes.io/vac-protection"))
        .await;
    let kept: AttributesClass = world.api.get(&class.key()).await.unwrap().expect("a claim names it");
    assert!(kept.meta.has_finalizer("kubernetes.io/vac-protection"));
    world.delete(&user).await;
    world.wire.release("WATCH", "/persistentvolumeclaims");
    until_gone(&classes, "gold").await;
}

fn of_class(mut body: Value, class: &str) -> Value {
    body["spec"]["storageClassName"] = class.into();
    body
}

#[tokio::test]
async fn a_claim_waits_for_its_pod_although_the_watch_has_not_shown_its_class() {
    let world = World::start().await;
    world.wire.hold("WATCH", "/storageclasses");
    let late = json!({
        "metadata": { "name": "late" }, "provisioner": "d.example", "volumeBindingMode": "WaitForFirstConsumer",
    });
    world.create::<StorageClass>(late).await;
    world.create::<Volume>(of_class(volume("v"), "late")).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
    world.create::<Claim>(of_class(claim("c"), "late")).await;
    tokio::select! {
        _ = until(&world.events, |event| event.message.contains("binds late")) => {}
        _ = until(&world.volumes, |volume| volume.spec.claim_ref.is_some()) => panic!("bound although no pod is there"),
    }
    assert_eq!(world.wire.count("GET", "/storageclasses/late"), 1);
}

#[tokio::test]
async fn a_class_is_asked_for_once_if_it_is_missing_and_never_if_it_is_known() {
    let world = World::start().await;
    let now = json!({ "metadata": { "name": "now" }, "provisioner": "d.example", "volumeBindingMode": "Immediate" });
    world.create::<StorageClass>(now).await;
    world.create::<Claim>(of_class(claim("first"), "now")).await;
    until(&world.claims, |claim| claim.storage_provisioner().is_some()).await;
    for class in ["now", "none"] {
        world.create::<Volume>(of_class(volume(class), class)).await;
        world.create::<Claim>(of_class(claim(&format!("of-{class}")), class)).await;
        until(&world.volumes, move |volume| volume.meta.name == class && volume.status.phase == VolumePhase::Bound)
            .await;
    }
    assert_eq!(world.wire.count("GET", "/storageclasses/now"), 0);
    assert_eq!(world.wire.count("GET", "/storageclasses/none"), 1);
}

#[tokio::test]
async fn a_claim_is_not_lost_while_its_volume_only_has_not_been_seen() {
    let world = World::start().await;
    world.wire.hold("WATCH", "/persistentvolumes");
    let completed = |name: &str, volume: &str| {
        let mut body = claim(name);
        body["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
        body["spec"]["volumeName"] = volume.into();
        body
    };
    world.create::<Volume>(volume("v")).await;
    world.create::<Claim>(completed("restored", "v")).await;
    until(&world.claims, |claim| claim.meta.name == "restored" && claim.status.phase == ClaimPhase::Bound).await;
    world.create::<Claim>(completed("lost", "gone")).await;
    until(&world.events, |event| event.message.contains("\"gone\" is gone")).await;
    let told = world.raw_events().await;
    let lost = told.iter().filter(|event| event["reason"] == "ClaimLost").map(|event| &event["involvedObject"]["name"]);
    assert_eq!(lost.collect::<Vec<_>>(), ["lost"]);
    assert_eq!(world.claim("lost").await.unwrap().status.phase, ClaimPhase::Lost);
}

#[tokio::test]
async fn a_claim_gets_the_volume_whose_watch_event_comes_before_its_answer() {
    let world = World::start().await;
    world.create::<Claim>(claim("c")).await;
    until(&world.events, |event| event.message.contains("no volumes")).await;
    world.wire.hold("PATCH", "/persistentvolumes/v/status");
    world.create::<Volume>(volume("v")).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
    // The claim was woken for the volume by now: work that came later is done.
    let mut later = claim("later");
    later["spec"]["resources"]["requests"]["storage"] = "9Gi".into();
    world.create::<Claim>(later).await;
    until(&world.events, |event| event.message.contains("1 too small")).await;
    world.wire.asked("PATCH", "/persistentvolumes/v/status", 1).await;
    world.wire.release("PATCH", "/persistentvolumes/v/status");
    until(&world.claims, |claim| claim.meta.name == "c" && claim.status.phase == ClaimPhase::Bound).await;
}

#[tokio::test]
async fn a_volume_whose_look_fails_is_not_called_failed() {
    let world = World::start().await;
    let mut phases = world.phases();
    let mut body = volume("v");
    body["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
    body["spec"]["hostPath"]["path"] = "/tmp/stowage-no-such-volume".into();
    body["spec"]["claimRef"] = json!({ "namespace": "default", "name": "gone", "uid": "gone" });
    world.wire.refuse("GET", "/persistentvolumes/v", StatusCode::INTERNAL_SERVER_ERROR);
    world.create::<Volume>(body).await;
    until_gone(&world.volumes, "v").await;
    while let Ok(phase) = phases.try_recv() {
        assert_ne!(phase, VolumePhase::Failed);
    }
    world.shows_no("status=\"fail-unknown\"");
}

#[tokio::test]
async fn many_claims_that_are_deleted_at_once_share_their_looks_at_the_pods() {
    let world = World::start().await;
    let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    let mut claims = Vec::new();
    for name in &names {
        claims.push(world.create::<Claim>(claim(name)).await);
    }
    let before = world.wire.count("LIST", "/namespaces/default/pods");
    world.wire.hold("LIST", "/namespaces/default/pods");
    for claim in &claims {
        world.delete(claim).await;
    }
    world.wire.asked("LIST", "/namespaces/default/pods", before + 1).await;
    world.wire.release("LIST", "/namespaces/default/pods");
    for name in &names {
        until_gone(&world.claims, String::leak(name.clone())).await;
    }
    let looks = world.wire.count("LIST", "/namespaces/default/pods") - before;
    assert!(looks < names.len() / 2, "{looks} looks");
}

#[tokio::test]
async fn a_volume_whose_claim_reference_has_no_name_has_lost_its_claim() {
    let world = World::start().await;
    let mut body = volume("v");
    body["spec"]["claimRef"] = json!({ "namespace": "default", "uid": "gone" });
    world.create::<stowage_model::Volume>(body).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Released).await;
    assert_eq!(world.wire.count("GET", "/persistentvolumeclaims/"), 0, "that would be a list");
    assert_eq!(world.wire.count("LIST", "/persistentvolumeclaims/"), 0, "that would be a list");
}

#[tokio::test]
async fn claims_that_wait_for_a_look_at_the_pods_keep_no_other_from_being_bound() {
    let world = World::start_with(pv_controller::Options { parallel: 2, ..Default::default() }).await;
    let names: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    let mut claims = Vec::new();
    for name in &names {
        claims.push(world.create::<Claim>(claim(name)).await);
    }
    let path = "/namespaces/default/pods";
    let before = world.wire.count("LIST", path);
    world.wire.refuse("LIST", path, StatusCode::INTERNAL_SERVER_ERROR);
    world.wire.hold("LIST", path);
    for claim in &claims {
        world.delete(claim).await;
    }
    world.wire.asked("LIST", path, before + 1).await;
    world.create::<Claim>(claim("bound")).await;
    world.create::<stowage_model::Volume>(volume("v")).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;

    world.wire.release("LIST", path);
    for name in &names {
        until_gone(&world.claims, String::leak(name.clone())).await;
    }
    let looks = world.wire.count("LIST", path) - before;
    assert!(looks <= 4, "{looks} looks for {} claims that two at a time are decided on", names.len());
}

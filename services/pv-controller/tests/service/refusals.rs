//! What people are told of writes that the server refuses: rows of the scenario tables that only the real writes show.

use http::StatusCode;
use serde_json::{Value, json};

use stowage_model::event::EventType;
use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, Pod, StorageClass, Volume};
use stowage_runtime::api::{Deletion, Target};
use stowage_runtime::cache::Cache;

use crate::world::{World, until};

async fn class(world: &World, provisioner: &str) {
    let class = json!({ "metadata": { "name": "gold" }, "provisioner": provisioner });
    world.create::<StorageClass>(class).await;
}

fn claim() -> Value {
    json!({
        "metadata": { "namespace": "default", "name": "c" },
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

async fn told(world: &World, kind: &str, reason: &str, text: &'static str) {
    until(&world.events, move |event| event.message.contains(text)).await;
    let events = world.raw_events().await;
    let is_it = |event: &&Value| event["message"].as_str().is_some_and(|message| message.contains(text));
    let event = events.iter().find(is_it).unwrap();
    assert_eq!((&event["type"], &event["reason"]), (&kind.into(), &reason.into()), "{event}");
    assert_eq!(event["source"]["component"], "persistentvolume-controller");
    assert_eq!(event["involvedObject"]["name"], "c");
}

#[tokio::test]
async fn s11_08_to_12_a_volume_that_cannot_be_saved_is_told_and_saved_later() {
    let options = pv_controller::Options { host_path_provisioner: true, ..Default::default() };
    let world = World::start_with(options).await;
    class(&world, "kubernetes.io/host-path").await;
    for _ in 0..5 {
        world.wire.refuse("POST", "/persistentvolumes", StatusCode::FORBIDDEN);
    }
    world.create::<Claim>(claim()).await;
    told(&world, "Warning", "ProvisioningFailed", "cannot save the volume").await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    told(&world, "Normal", "ProvisioningSucceeded", " is made by ").await;
    assert_eq!(world.wire.count("POST", "/persistentvolumes"), 1, "made once");
    let events = world.raw_events().await;
    let refusals = events.iter().filter(|event| event["reason"] == "ProvisioningFailed");
    let times: u64 = refusals.map(|event| event["count"].as_u64().unwrap()).sum();
    assert_eq!(times, 5, "told at each refusal: {events:?}");
}

#[tokio::test]
async fn a_provisioner_that_cannot_be_asked_is_told_and_asked_later() {
    let world = World::start().await;
    class(&world, "driver.example").await;
    world.wire.refuse("PATCH", "/persistentvolumeclaims/c", StatusCode::FORBIDDEN);
    world.create::<Claim>(claim()).await;
    told(&world, "Warning", "ProvisioningFailed", "cannot ask the provisioner").await;
    until(&world.claims, |claim| claim.storage_provisioner().is_some()).await;
    told(&world, "Normal", "ExternalProvisioning", "driver.example").await;
}

#[tokio::test]
async fn a_webhook_that_is_down_is_told_and_counted() {
    let options = pv_controller::Options { host_path_provisioner: true, ..Default::default() };
    for (provisioner, verb, path, text) in [
        ("driver.example", "PATCH", "/persistentvolumeclaims/c", "cannot ask the provisioner"),
        ("kubernetes.io/host-path", "POST", "/persistentvolumes", "cannot save the volume"),
    ] {
        let world = World::start_with(options.clone()).await;
        class(&world, provisioner).await;
        world.wire.refuse(verb, path, StatusCode::INTERNAL_SERVER_ERROR);
        world.create::<Claim>(claim()).await;
        told(&world, "Warning", "ProvisioningFailed", text).await;
        let labels = format!("plugin_name=\"{provisioner}\",operation_name=\"provision\"");
        world.shows(&format!("volume_operation_errors_total{{{labels}}} 1"));
    }
}

#[tokio::test]
async fn a_default_class_that_cannot_be_given_for_a_webhook_is_counted() {
    let world = World::start().await;
    let mut unclassed = claim();
    unclassed["spec"]["storageClassName"] = Value::Null;
    world.create::<Claim>(unclassed).await;
    until(&world.events, |event| event.message.contains("no volume fits claim")).await;
    world.wire.refuse("PATCH", "/persistentvolumeclaims/c", StatusCode::INTERNAL_SERVER_ERROR);
    let default = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    let gold = json!({ "metadata": { "name": "gold", "annotations": default }, "provisioner": "driver.example" });
    world.create::<StorageClass>(gold).await;
    until(&world.claims, |claim| claim.class_name() == "gold").await;
    world.shows("retroactive_storageclass_errors_total 1");
}

#[tokio::test]
async fn a_claim_that_cannot_be_made_for_a_pod_is_told_of_the_pod() {
    let world = World::start().await;
    world.wire.refuse("POST", "/persistentvolumeclaims", StatusCode::INTERNAL_SERVER_ERROR);
    let pod = json!({
        "metadata": { "namespace": "default", "name": "p" },
        "spec": {
            "containers": [{ "name": "x", "image": "x" }],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": claim()["spec"] } } }],
        },
    });
    world.create::<Pod>(pod).await;
    let event = until(&world.events, |event| event.message.contains("cannot create claim default/p-data")).await;
    assert_eq!(event.event_type, EventType::Warning);
    until(&world.claims, |claim| claim.meta.name == "p-data").await;
}

fn volume() -> Value {
    json!({
        "metadata": { "name": "v" },
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
            "hostPath": { "path": "/tmp/v" },
        },
    })
}

#[tokio::test]
async fn a_binding_that_is_refused_is_told_and_tried_again() {
    for (path, code) in [
        ("/persistentvolumes/v", StatusCode::FORBIDDEN),
        ("/persistentvolumeclaims/c", StatusCode::FORBIDDEN),
        ("/persistentvolumeclaims/c/status", StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let world = World::start().await;
        class(&world, "kubernetes.io/no-provisioner").await;
        world.create::<Volume>(volume()).await;
        until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
        world.wire.refuse("PATCH", path, code);
        world.create::<Claim>(claim()).await;
        told(&world, "Warning", "FailedBinding", "cannot bind to volume \"v\"").await;
        until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    }
}

/// Until everything is told that was to be told so far.
async fn nobody_is_warned(world: &World) {
    let mut later = claim();
    later["metadata"]["name"] = "later".into();
    world.create::<Claim>(later).await;
    until(&world.events, |event| event.message.contains("makes no volumes here")).await;
    let events = world.raw_events().await;
    let of_first = |event: &&Value| event["involvedObject"]["name"] == "c";
    assert!(events.iter().filter(of_first).all(|event| event["type"] == "Normal"), "{events:?}");
}

#[tokio::test]
async fn a_write_that_was_stored_although_the_answer_says_otherwise_is_no_failure() {
    for path in ["/persistentvolumes/v", "/persistentvolumeclaims/c", "/persistentvolumeclaims/c/status"] {
        let world = World::start().await;
        class(&world, "kubernetes.io/no-provisioner").await;
        world.create::<Volume>(volume()).await;
        until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
        world.wire.lose("PATCH", path);
        world.create::<Claim>(claim()).await;
        until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
        nobody_is_warned(&world).await;
    }
}

#[tokio::test]
async fn a_phase_that_cannot_be_written_is_no_failure_of_the_claim_that_is_bound() {
    let world = World::start().await;
    class(&world, "kubernetes.io/no-provisioner").await;
    world.create::<Volume>(volume()).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
    world.wire.refuse("PATCH", "/persistentvolumes/v/status", StatusCode::FORBIDDEN);
    world.create::<Claim>(claim()).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Bound).await;
    nobody_is_warned(&world).await;
}

#[tokio::test]
async fn a_finalizer_that_cannot_be_added_is_told() {
    let world = World::start().await;
    class(&world, "kubernetes.io/no-provisioner").await;
    world.create::<Volume>(volume()).await;
    world.create::<Claim>(claim()).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    let mut bare = claim();
    bare["metadata"]["name"] = "bare".into();
    world.wire.refuse("PATCH", "/persistentvolumeclaims/bare", StatusCode::FORBIDDEN);
    world.create::<Claim>(bare).await;
    let id = ObjectId { kind: kinds::CLAIM, key: Key::namespaced("default", "bare") };
    // The server's admission has given it one.
    world.api.patch_raw(&id, json!({ "metadata": { "finalizers": null } })).await.unwrap();
    until(&world.events, |event| event.message.contains("cannot protect the claim by a finalizer")).await;
    until(&world.claims, |claim| claim.meta.name == "bare" && !claim.meta.finalizers.is_empty()).await;
}

#[tokio::test]
async fn a_claim_is_bound_while_the_answer_about_its_volumes_phase_is_late() {
    let world = World::start().await;
    class(&world, "kubernetes.io/no-provisioner").await;
    world.create::<Volume>(volume()).await;
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Available).await;
    world.wire.hold("PATCH", "/persistentvolumes/v/status");
    world.create::<Claim>(claim()).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
}

#[tokio::test]
async fn s11_19_a_volume_that_was_saved_although_the_answer_says_otherwise_is_told_as_made() {
    let options = pv_controller::Options { host_path_provisioner: true, ..Default::default() };
    let world = World::start_with(options).await;
    class(&world, "kubernetes.io/host-path").await;
    world.wire.lose("POST", "/persistentvolumes");
    world.create::<Claim>(claim()).await;
    told(&world, "Normal", "ProvisioningSucceeded", " is made by ").await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    let events = world.raw_events().await;
    assert!(events.iter().all(|event| event["type"] == "Normal"), "{events:?}");
}

#[tokio::test]
async fn the_status_of_a_bound_claim_is_kept_in_line_while_it_is_being_deleted() {
    let world = World::start().await;
    class(&world, "kubernetes.io/no-provisioner").await;
    world.create::<Volume>(volume()).await;
    let mut held = claim();
    held["metadata"]["finalizers"] = json!(["example.org/held"]);
    world.create::<Claim>(held).await;
    let bound = until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    let any = Target::any_version(&bound.meta);
    world.api.delete(&Cache::<Claim>::new(), &any, Deletion::default()).await.unwrap();
    let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("v") };
    let modes = json!({ "spec": { "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] } });
    world.api.patch_raw(&id, modes).await.unwrap();
    until(&world.claims, |claim| claim.meta.is_deleting() && claim.status.access_modes.len() == 2).await;
}

#[tokio::test]
async fn the_status_of_a_bound_claim_that_cannot_be_written_is_tried_with_backoff() {
    let world = World::start().await;
    class(&world, "kubernetes.io/no-provisioner").await;
    world.create::<Volume>(volume()).await;
    world.create::<Claim>(claim()).await;
    until(&world.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
    for _ in 0..50 {
        world.wire.refuse("PATCH", "/persistentvolumeclaims/c/status", StatusCode::INTERNAL_SERVER_ERROR);
    }
    let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("v") };
    let modes = json!({ "spec": { "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] } });
    world.api.patch_raw(&id, modes).await.unwrap();
    // Each refusal is followed by a look, and some of them are met at once.
    world.wire.asked("GET", "/persistentvolumeclaims/c", 8).await;
    let text = world.metrics.encode();
    let retries = text.lines().find_map(|line| line.strip_prefix("workqueue_retries_total{name=\"claims\"} "));
    assert!(retries.is_some_and(|retries| retries.parse::<u64>().unwrap() > 0), "{retries:?}");
}

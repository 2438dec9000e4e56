//! What people are told of writes that the server refuses: rows of the scenario tables that only the real writes show.

use http::StatusCode;
use serde_json::{Value, json};

use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, StorageClass};

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
    told(&world, "Normal", "ProvisioningSucceeded", "Successfully provisioned volume").await;
    assert_eq!(world.wire.count("POST", "/persistentvolumes"), 1, "made once");
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

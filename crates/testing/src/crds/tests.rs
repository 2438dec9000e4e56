use serde_json::json;

use stowage_model::object::{Key, kinds};
use stowage_model::volume_snapshot::VolumeSnapshot;

use super::install;
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn once_installed_snapshots_are_served_and_their_status_is_a_subresource() {
    let world = World::new(1);
    install(world.admin()).await.unwrap();
    let body = json!({
        "metadata": {"namespace": "default", "name": "monday"},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
        "status": {"readyToUse": true},
    });
    world.admin().create(kinds::VOLUME_SNAPSHOT, body).await.unwrap();
    let key = Key::namespaced("default", "monday");
    assert!(!world.admin().get::<VolumeSnapshot>(&key).unwrap().is_ready());
    let ready = json!({"status": {"readyToUse": true, "restoreSize": "1Gi"}});
    world.admin().patch(kinds::VOLUME_SNAPSHOT, &key, "/status", &ready).await.unwrap();
    assert!(world.admin().get::<VolumeSnapshot>(&key).unwrap().is_ready());
}

#[tokio::test(start_paused = true)]
async fn once_installed_a_content_without_a_policy_is_refused() {
    let world = World::new(1);
    install(world.admin()).await.unwrap();
    let body = json!({
        "metadata": {"name": "content"},
        "spec": {"driver": "driver.test", "source": {"volumeHandle": "v"}, "volumeSnapshotRef": {"namespace": "n", "name": "s"}},
    });
    let refused = world.admin().create(kinds::VOLUME_SNAPSHOT_CONTENT, body).await.unwrap_err().to_string();
    assert!(refused.contains("deletionPolicy"), "{refused}");
}

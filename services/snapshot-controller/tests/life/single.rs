use serde_json::json;

use snapshot_controller::Options;
use stowage_model::object::{Key, kinds};
use stowage_model::{finalizers, labels};

use super::stage::{Snapshotter, Stage, named};

#[tokio::test(start_paused = true)]
async fn a_dynamic_snapshot_takes_five_writes_of_ours_and_no_time() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            let unknown = json!({ "metadata": { "annotations": { "x": "y" } } });
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
            stage.until("the claim is let go", || !stage.is_kept("data")).await;
            stage.world.settle().await;
            stage.world.admin().patch(kinds::VOLUME_SNAPSHOT, &named("nightly"), "", &unknown).await.unwrap();
            stage.world.settle().await;
        })
        .await;
    let writes = stage.writes();
    assert_eq!(writes.len(), 5, "{writes:#?}");
    for (write, part) in writes.iter().zip([
        "PUT /api/v1/namespaces/shop/persistentvolumeclaims/data",
        "PATCH /apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/nightly",
        "POST /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents",
        "PATCH /apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/nightly/status",
        "PUT /api/v1/namespaces/shop/persistentvolumeclaims/data",
    ]) {
        assert!(write.contains(part), "{write} is not {part}");
    }
    let snapshot = stage.get("nightly").unwrap();
    let status = snapshot.status.unwrap();
    let content = &stage.contents()[0];
    assert_eq!(status.bound_volume_snapshot_content_name.as_deref(), Some(content.meta.name.as_str()));
    assert_eq!(content.meta.name, format!("snapcontent-{}", snapshot.meta.uid));
    assert_eq!((status.restore_size.as_deref(), status.error), (Some("1Gi"), None));
    assert_eq!(status.creation_time.unwrap().to_string(), "2023-11-14T22:13:20Z");
    assert_eq!(content.spec.source_volume_mode.as_deref(), Some("Filesystem"));
    let mut reasons = stage.reasons("nightly");
    reasons.sort();
    assert_eq!(reasons, ["CreatingSnapshot", "SnapshotCreated", "SnapshotReady"]);
    assert_eq!(stage.missed_wakeups(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_snapshots_of_a_claim_share_its_finalizer() {
    let stage = Stage::set().await;
    stage.add_class("other", json!({ "deletionPolicy": "Retain" })).await;
    for number in 0..20 {
        stage.snapshot(&format!("s{number}"), Some("gold")).await;
    }
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            for number in 0..20 {
                stage.until_ready(&format!("s{number}")).await;
            }
            stage.until("the claim is let go", || !stage.is_kept("data")).await;
        })
        .await;
    let of_claim = stage.writes().iter().filter(|write| write.contains("persistentvolumeclaims")).count();
    assert!(of_claim <= 4, "{of_claim}: {:#?}", stage.writes());
    assert_eq!(stage.writes().len() - of_claim, 60);
}

#[tokio::test(start_paused = true)]
async fn the_default_class_of_the_driver_is_taken_and_written_down() {
    let stage = Stage::set().await;
    let default = json!({ "annotations": { "snapshot.storage.kubernetes.io/is-default-class": "true" } });
    stage.add_class("silver", json!({ "metadata": default, "deletionPolicy": "Retain" })).await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("nightly", None).await;
            stage.until_ready("nightly").await;
        })
        .await;
    let snapshot = stage.get("nightly").unwrap();
    assert_eq!(snapshot.spec.volume_snapshot_class_name.as_deref(), Some("silver"));
    assert_eq!(snapshot.meta.finalizers, [finalizers::SNAPSHOT_AS_SOURCE]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_exists_already_is_bound_on_both_sides() {
    let stage = Stage::set().await;
    let content = json!({
        "metadata": { "name": "mine" },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": "old" },
            "deletionPolicy": "Retain",
            "driver": "driver.test",
            "source": { "snapshotHandle": "from-before" },
        },
    });
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            let body = json!({
                "metadata": { "namespace": "shop", "name": "old" },
                "spec": { "source": { "volumeSnapshotContentName": "mine" } },
            });
            stage.create(kinds::VOLUME_SNAPSHOT, body).await;
            let missing = || stage.get("old").and_then(|snapshot| snapshot.status?.error).is_some();
            stage.until("the missing content is told", missing).await;
            stage.create(kinds::VOLUME_SNAPSHOT_CONTENT, content).await;
            stage.until_ready("old").await;
            assert_eq!(stage.get("old").unwrap().status.unwrap().error, None);
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("old")).await.unwrap();
            stage.until("it is gone", || stage.get("old").is_none()).await;
        })
        .await;
    let content = &stage.contents()[0];
    assert!(!content.meta.is_deleting() && content.meta.has_finalizer(finalizers::SNAPSHOT_CONTENT_BOUND));
    assert!(stage.reasons("old").contains(&"SnapshotContentMissing".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_deleted_with_its_content_in_three_writes_of_ours() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
            stage.until("the claim is let go", || !stage.is_kept("data")).await;
            let before = stage.writes().len();
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("nightly")).await.unwrap();
            stage.until("it is gone", || stage.get("nightly").is_none()).await;
            assert_eq!(stage.contents(), []);
            assert_eq!(stage.writes().len() - before, 3, "{:#?}", stage.writes());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_stays_while_a_claim_is_restored_from_it() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
            let copy = json!({
                "metadata": { "namespace": "shop", "name": "copy" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } },
                    "dataSource": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly" },
                },
            });
            stage.create(kinds::CLAIM, copy).await;
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("nightly")).await.unwrap();
            stage.until("why is told", || stage.reasons("nightly").contains(&"SnapshotDeletePending".to_owned())).await;
            assert!(!stage.contents()[0].meta.is_deleting());
            let bound = json!({ "status": { "phase": "Bound" } });
            stage.world.admin().patch(kinds::CLAIM, &named("copy"), "/status", &bound).await.unwrap();
            stage.until("it is gone", || stage.get("nightly").is_none()).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn fields_newer_than_this_code_survive_every_write() {
    let stage = Stage::set().await;
    let odd = json!({ "metadata": { "annotations": { "new/field": "kept" }, "labels": { "l": "kept" } } });
    let admin = stage.world.admin();
    admin.patch(kinds::CLAIM, &named("data"), "", &odd).await.unwrap();
    let before = admin.get_raw(kinds::CLAIM, &named("data")).unwrap();
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
            stage.until("the claim is let go", || !stage.is_kept("data")).await;
        })
        .await;
    let after = admin.get_raw(kinds::CLAIM, &named("data")).unwrap();
    assert_eq!((&before["spec"], &before["status"]), (&after["spec"], &after["status"]));
    assert_eq!(after["metadata"]["annotations"], before["metadata"]["annotations"]);
    assert_eq!(after["metadata"]["finalizers"], before["metadata"]["finalizers"]);
}

#[tokio::test(start_paused = true)]
async fn where_nodes_make_their_own_snapshots_a_content_tells_its_node() {
    let stage = Stage::set().await;
    for (name, zone) in [("a", "north"), ("b", "south")] {
        let node = json!({ "metadata": { "name": name, "labels": { "zone": zone } } });
        stage.create(kinds::NODE, node).await;
    }
    let local = json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["south"] }] },
    ] } } } });
    stage.world.admin().patch(kinds::VOLUME, &Key::cluster("pv-data"), "", &local).await.unwrap();
    let options =
        Options { distributed_snapshotting: true, prevent_volume_mode_conversion: false, ..Options::default() };
    stage
        .play(options, Snapshotter::Ready, async {
            stage.snapshot("nightly", Some("gold")).await;
            stage.until_ready("nightly").await;
        })
        .await;
    let content = &stage.contents()[0];
    assert_eq!(content.meta.labels.get(labels::SNAPSHOT_MANAGED_BY).map(String::as_str), Some("b"));
    assert_eq!(content.spec.source_volume_mode, None);
}

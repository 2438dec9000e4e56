//! Nothing is stuck without a word on what to do.

use std::time::Duration;

use serde_json::json;

use snapshot_controller::Options;
use stowage_model::object::kinds;

use super::stage::{SERVICE, Snapshotter, Stage, named};

#[tokio::test(start_paused = true)]
async fn issue_1305_a_snapshot_without_its_class_does_not_keep_the_claim() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("broken", Some("no-such-class")).await;
            stage.snapshot("good", Some("gold")).await;
            stage.until_ready("good").await;
            stage.until("the claim is let go", || !stage.is_kept("data")).await;
            let error = || stage.get("broken").and_then(|broken| broken.status?.error?.message).unwrap_or_default();
            stage.until("the missing class is told", || error().contains("\"no-such-class\"")).await;
            // Nothing holds it either.
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("broken")).await.unwrap();
            stage.until("it is gone", || stage.get("broken").is_none()).await;
        })
        .await;
    assert!(stage.reasons("broken").contains(&"GetSnapshotClassFailed".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_late_is_found() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("early", Some("late")).await;
            stage.until("its lack is told", || !stage.reasons("early").is_empty()).await;
            stage.add_class("late", json!({ "deletionPolicy": "Delete" })).await;
            stage.until_ready("early").await;
        })
        .await;
    assert_eq!(stage.missed_wakeups(), 0);
}

#[tokio::test(start_paused = true)]
async fn where_no_snapshotter_answers_the_snapshot_says_that_it_is_bound_and_not_ready() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Silent, async {
            stage.snapshot("nightly", Some("gold")).await;
            let bound = || stage.get("nightly").is_some_and(|snapshot| snapshot.bound_content().is_some());
            stage.until("it is bound", bound).await;
            assert!(stage.world.elapsed() <= Duration::from_secs(3), "{:?}", stage.world.elapsed());
            assert!(stage.is_kept("data"));
            // Whoever deletes the claim hears of it, and the way out works.
            stage.world.admin().delete(kinds::CLAIM, &named("data")).await.unwrap();
            stage.until("why it stays is told", || stage.reasons("data") == ["SnapshotInProgress"]).await;
            stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("nightly")).await.unwrap();
            stage.until("why", || stage.reasons("nightly").contains(&"SnapshotDeletePending".to_owned())).await;
            let content = stage.contents().remove(0);
            let free = json!({ "metadata": { "finalizers": null } });
            let key = content.meta.key();
            stage.world.admin().patch(kinds::VOLUME_SNAPSHOT_CONTENT, &key, "", &free).await.unwrap();
            stage.until("the snapshot is gone", || stage.get("nightly").is_none()).await;
            stage
                .until("so is the claim's finalizer", || {
                    stage.world.admin().get_raw(kinds::CLAIM, &named("data")).is_none() || !stage.is_kept("data")
                })
                .await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_refuses_is_told_at_the_snapshot_and_does_not_hold_a_claim_that_is_deleted() {
    let stage = Stage::set().await;
    stage
        .play(Options::default(), Snapshotter::Refusing, async {
            stage.snapshot("nightly", Some("gold")).await;
            let error = || stage.get("nightly").and_then(|snapshot| snapshot.status?.error?.message);
            stage.until("the error is told", || error().as_deref() == Some("the pool is full")).await;
            assert!(stage.is_kept("data"));
            stage.world.admin().delete(kinds::CLAIM, &named("data")).await.unwrap();
            let free = || stage.world.admin().get_raw(kinds::CLAIM, &named("data")).is_none() || !stage.is_kept("data");
            stage.until("the claim goes", free).await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_waits_for_its_claim_to_be_bound() {
    let stage = Stage::set().await;
    let pending = json!({ "status": { "phase": "Pending" } });
    stage.world.admin().patch(kinds::CLAIM, &named("data"), "/status", &pending).await.unwrap();
    stage
        .play(Options::default(), Snapshotter::Ready, async {
            stage.snapshot("nightly", Some("gold")).await;
            let told = || stage.reasons("nightly").contains(&"SnapshotContentCreationFailed".to_owned());
            stage.until("it is told", told).await;
            let bound = json!({ "status": { "phase": "Bound" } });
            stage.world.admin().patch(kinds::CLAIM, &named("data"), "/status", &bound).await.unwrap();
            stage.until_ready("nightly").await;
        })
        .await;
    assert_eq!(stage.get("nightly").unwrap().status.unwrap().error, None);
}

#[tokio::test(start_paused = true)]
async fn definitions_that_are_not_served_are_waited_for_or_given_up_as_asked() {
    let world = stowage_testing::World::new(1);
    let options = Options { definitions_within: Some(Duration::from_secs(30)), ..Options::default() };
    let ended = snapshot_controller::run(world.life(SERVICE).context, options).await;
    let reason = ended.unwrap_err().to_string();
    assert!(reason.contains("snapshot.storage.k8s.io/v1") && reason.contains("30s"), "{reason}");
    let waiting = snapshot_controller::run(world.life(SERVICE).context, Options::default());
    assert!(tokio::time::timeout(Duration::from_secs(600), waiting).await.is_err(), "without a limit it waits");
}

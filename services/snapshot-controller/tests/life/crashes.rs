//! 5.13: stopped at any write, the controller finds its way.

use serde_json::json;

use snapshot_controller::Options;
use stowage_model::object::kinds;
use stowage_testing::{Fault, Mode};

use super::stage::{SERVICE, Snapshotter, Stage, named};

/// A snapshot is made and deleted, one with a default class is deleted in the middle.
async fn story(stage: &Stage) {
    stage.snapshot("nightly", Some("gold")).await;
    stage.snapshot("doomed", None).await;
    stage.until("its content is made", || stage.contents().len() >= 2).await;
    stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("doomed")).await.unwrap();
    stage.until_ready("nightly").await;
    stage.world.admin().delete(kinds::VOLUME_SNAPSHOT, &named("nightly")).await.unwrap();
    stage.until("both are gone", || stage.get("nightly").is_none() && stage.get("doomed").is_none()).await;
    stage.until("the claim is let go", || !stage.is_kept("data")).await;
    assert_eq!(stage.contents(), [], "nothing is left behind");
}

async fn set() -> Stage {
    let stage = Stage::set().await;
    let default = json!({ "annotations": { "snapshot.storage.kubernetes.io/is-default-class": "true" } });
    stage.add_class("silver", json!({ "metadata": default, "deletionPolicy": "Delete" })).await;
    stage
}

#[tokio::test(start_paused = true)]
async fn stopped_at_any_write_it_leaves_nothing_behind() {
    let recording = set().await;
    recording.play(Options::default(), Snapshotter::Ready, story(&recording)).await;
    let points = recording.world.trace().text().lines().filter(|line| line.starts_with(SERVICE)).count();
    let mut swept = 0;
    for number in 1..=points {
        for mode in Mode::ALL {
            let stage = set().await;
            let fault = Fault { service: SERVICE.into(), number, mode };
            stage.world.arm(fault.clone(), None);
            stage.play(Options::default(), Snapshotter::Ready, story(&stage)).await;
            // Events are written beside the work, so that the last of them may be missing.
            swept += usize::from(!stage.world.is_armed());
        }
    }
    stowage_testing::tell(&format!("{swept} of {points} points in all modes swept"));
    assert!(swept > 60, "{swept}");
}

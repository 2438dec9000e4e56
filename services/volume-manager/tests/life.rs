//! The life of a pod's volume on one node: in-process API server, a driver behind its registration socket, real files
//! but no mounts. The test plays scheduler, attach-detach controller and user. Virtual time must not pass.

// Helpers of a test may fail as loudly as the test itself.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/asked.rs"]
mod asked;
#[path = "life/attaches.rs"]
mod attaches;
#[path = "life/codes.rs"]
mod codes;
#[path = "life/devices.rs"]
mod devices;
#[path = "life/driver.rs"]
mod driver;
#[path = "life/flex_drivers.rs"]
mod flex_drivers;
#[path = "life/model.rs"]
mod model;
#[path = "life/ports.rs"]
mod ports;
#[path = "life/requests.rs"]
mod requests;
#[path = "life/rows.rs"]
mod rows;
#[path = "life/size_limits.rs"]
mod size_limits;
#[path = "life/stage.rs"]
mod stage;
#[path = "life/sweep.rs"]
mod sweep;
#[path = "life/takeover.rs"]
mod takeover;

use std::time::Duration;

use serde_json::json;

use stage::{POD, Stage, UNIQUE, within};

#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_volume_in_the_right_order_and_gives_it_back() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.driver_is_registered().await;
    stage.create_pod(POD).await;

    stage.node_reports_in_use(true).await;
    assert_eq!(stage.driver.calls(), Vec::<String>::new(), "staged before it was attached");
    stage.attach().await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
    let published = stage.driver.last_publish();
    assert_eq!(published.publish_context["token"], "7");
    assert_eq!(published.volume_context["csi.storage.k8s.io/pod.name"], POD);
    assert!(stage.staging_dir().join("vol_data.json").try_exists().unwrap());

    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    assert!(!stage.staging_dir().try_exists().unwrap(), "the staging directory is left");
    stage.pod_dirs_are_gone().await;
    assert_eq!(node.occupancy.mounts(), Some(0));
    assert_eq!(stage.elapsed(), Duration::ZERO, "something polled");
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_while_the_service_is_down_is_cleaned_up_after_the_restart() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    node.crash();
    stage.force_delete_pod(POD).await;
    assert!(stage.in_use().await, "the report must outlive the process");

    let node = stage.start();
    node.occupancy.empty().await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    stage.pod_dirs_are_gone().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_the_pod_alive_stages_and_publishes_again_and_undoes_nothing() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    node.crash();

    let _node = stage.start();
    stage.driver.called(4).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "stage", "publish"]);
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_restart_before_the_first_stage_does_not_withdraw_the_report() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.node_reports_in_use(true).await;
    node.crash();

    let _node = stage.start();
    stage.attach().await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.withdrawals(), 0);
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_times_out_is_tried_again_after_its_backoff() {
    let stage = Stage::set().await;
    stage.driver.fail_next(tonic::Status::aborted("busy"));
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "stage", "publish"]);
    assert!(stage.elapsed() >= Duration::from_millis(500), "{:?}", stage.elapsed());
    assert!(stage.elapsed() < Duration::from_secs(2), "{:?}", stage.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_pods_share_one_stage() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod("one").await;
    stage.create_pod("two").await;
    stage.attach().await;
    stage.pod_is_running("one").await;
    stage.pod_is_running("two").await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "publish"]);
    stage.delete_pod("one").await;
    stage.pod_is_gone("one").await;
    stage.delete_pod("two").await;
    stage.pod_is_gone("two").await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls()[3..], ["unpublish", "unpublish", "unstage"]);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_comes_late_is_waited_for_without_a_poll() {
    let stage = Stage::set_without_driver().await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.event_about(POD, "is not registered on this node").await;
    stage.plug_in();
    stage.pod_is_running(POD).await;
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_goes_leaves_node_and_csi_node() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.driver_is_registered().await;
    stage.unplug();
    within(stage.csi_node_until(|drivers| drivers.is_empty())).await;
    within(stage.node_until(|node| node.meta.annotation("csi.volume.kubernetes.io/nodeid").is_none())).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanishes_is_registered_again_with_what_is_in_use() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    let before = stage.node().await.meta.uid;
    stage.delete_node().await;
    within(stage.node_until(move |node| node.meta.uid != before && node.is_in_use(UNIQUE) && node.is_ready())).await;
}

#[tokio::test(start_paused = true)]
async fn draining_a_node_ends_with_nothing_in_use() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    within(volume_manager::drain(&stage.context(), "node")).await.unwrap();
    assert!(!stage.in_use().await);
    within(node.occupancy.empty()).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_volume_is_told_and_the_pod_stays_pending() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod_with("empty", json!([{ "name": "data", "gitRepo": { "repository": "x" } }])).await;
    stage.event_about("empty", "gitRepo is disabled").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_says_in_its_status_what_it_waits_for() {
    let stage = Stage::set_without_driver().await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_says(POD, "driver driver.example is not registered on this node").await;
    stage.plug_in();
    stage.driver_is_registered().await;
    stage.pod_says(POD, "it is not attached to the node yet").await;
    assert!(stage.elapsed() < Duration::from_secs(3), "only what lasts is worth a write, but then at once");
    stage.attach().await;
    stage.pod_is_running(POD).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_tells_all_its_conditions_and_every_five_minutes_that_they_hold() {
    let stage = Stage::set().await;
    let _node = stage.start();
    let told = |node: &stowage_model::node::Node| {
        let conditions = node.status.conditions.iter();
        conditions.filter_map(|one| Some((one.kind.clone(), one.last_heartbeat_time?))).collect::<Vec<_>>()
    };
    stage.node_until(|node| told(node).len() == 4).await;
    let first = told(&stage.node().await);
    let kinds: Vec<&str> = first.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    stage.node_until(|node| told(node).iter().all(|(_, at)| *at > first[0].1)).await;
    let passed = stage.elapsed().as_secs();
    assert!((299..=311).contains(&passed), "{passed} s");
}

/// What could not be explained was logged and dropped, so the volume was taken out of the list while mounted (M2).
#[tokio::test(start_paused = true)]
async fn a_volume_whose_metadata_cannot_be_read_after_a_restart_stays_in_use() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    node.crash();
    stage.force_delete_pod(POD).await;
    stage.spoil_metadata();

    let _node = stage.start();
    stage.driver_is_registered().await;
    stage.settle().await;
    assert_eq!(stage.withdrawals(), 0);
    assert!(stage.in_use().await);
}

/// It stayed in use until the next restart, so it could never be detached.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_metadata_was_lost_and_is_written_anew_is_given_back_with_its_pod() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    node.crash();
    stage.spoil_metadata();

    let _node = stage.start();
    within(stage.driver.called(4)).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "stage", "publish"]);
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls()[4..], ["unpublish", "unstage"]);
}

/// The refusal left the Node as it was, so nothing woke the volume that had waited for the write to end.
#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_while_a_withdrawal_is_refused_gets_its_volume_without_time_passing() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod("one").await;
    stage.attach().await;
    stage.pod_is_running("one").await;
    stage.refusal.of("\"volumesInUse\":[]");
    stage.delete_pod("one").await;
    stage.refusal.reached().await;
    stage.create_pod("two").await;
    stage.settle().await;
    stage.refusal.go_on();
    stage.pod_is_running("two").await;
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_volume_manager_that_hears_no_more_of_sockets_ends_and_says_so() {
    let stage = Stage::set().await;
    let stop = within(stage.run_until_sockets_are_unwatched()).await.unwrap_err();
    assert!(stop.to_string().contains("no longer watched"), "{stop}");
}

/// The caches never sync when the API server does not answer, and nothing else was waited for.
#[tokio::test(start_paused = true)]
async fn a_volume_manager_that_cannot_reach_the_server_still_stops() {
    let stage = Stage::set().await;
    within(stage.run_and_stop_without_a_server()).await.unwrap();
}

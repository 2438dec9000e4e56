//! A node that attaches its volumes itself (`--enable-controller-attach-detach=false`): the test plays the driver's
//! attacher, and nobody plays the attach-detach controller.

use std::time::Duration;

use serde_json::{Value, json};

use stowage_model::VolumeAttachment;

use crate::driver::NAME;
use crate::stage::{Cluster, HANDLE, POD, Stage, UNIQUE, within};

fn attaching() -> Cluster {
    Cluster { attaches: true, ..Cluster::default() }
}

fn attached() -> Value {
    json!({ "attached": true, "attachmentMetadata": { "token": "7" } })
}

fn is_gone(found: Option<&VolumeAttachment>) -> bool {
    found.is_none()
}

#[tokio::test(start_paused = true)]
async fn s57_a_node_that_attaches_itself_makes_the_attachment_and_deletes_it_after_the_unstage() {
    let stage = Stage::set_in(attaching()).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    let made = stage.attachment_when(|found| found.is_some()).await.unwrap();
    assert_eq!(made.meta.name, stowage_model::names::attachment(HANDLE, NAME, "node"));
    assert_eq!((made.spec.attacher.as_str(), made.volume_name()), (NAME, Some("pv")));
    stage.settle().await;
    assert_eq!(stage.driver.calls(), Vec::<String>::new(), "staged before it was attached");
    stage.attacher_says(attached()).await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
    assert_eq!(stage.driver.last_publish().publish_context["token"], "7");
    stage.event(POD, "SuccessfulAttachVolume", "is attached to node node").await;

    stage.delete_pod(POD).await;
    stage.attachment_when(|found| found.is_some_and(|found| found.meta.is_deleting())).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"], "detached while it was staged");
    assert!(stage.in_use().await, "in use no more while it is attached");
    stage.attacher_detaches().await;
    stage.attachment_when(is_gone).await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.elapsed(), Duration::ZERO, "something polled");
}

#[tokio::test(start_paused = true)]
async fn s58_a_device_is_attached_mapped_unmapped_and_detached() {
    let volume = json!({ "volumeMode": "Block" });
    let stage = Stage::set_in(Cluster { in_memory: true, volume, ..attaching() }).await;
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.attacher_says(attached()).await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
    stage.event(POD, "SuccessfulMountVolume", "globalMapPath").await;
    stage.event(POD, "SuccessfulMountVolume", "volumeMapPath").await;
    stage.delete_pod(POD).await;
    stage.attacher_detaches().await;
    stage.attachment_when(is_gone).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
}

/// The block variant of row 55: the controller attaches.
#[tokio::test(start_paused = true)]
async fn s58_a_device_that_the_controller_attaches_is_mapped_once_and_unmapped_once() {
    let volume = json!({ "volumeMode": "Block" });
    let stage = Stage::set_in(Cluster { in_memory: true, volume, ..Cluster::default() }).await;
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    assert!(stage.attachment_when(|_| true).await.is_some_and(|found| !found.meta.is_deleting()), "the node detached");
}

#[tokio::test(start_paused = true)]
async fn s92_an_attachment_that_nobody_answers_fails_in_time_and_is_not_made_twice() {
    let stage = Stage::set_in(attaching()).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    let first = stage.attachment_when(|found| found.is_some()).await.unwrap();
    stage.settle().await;
    tokio::time::advance(Duration::from_secs(121)).await;
    stage.event(POD, "FailedAttachVolume", "nobody has answered VolumeAttachment").await;
    stage.attacher_says(attached()).await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.attachment_when(|found| found.is_some()).await.unwrap().meta.uid, first.meta.uid);
}

#[tokio::test(start_paused = true)]
async fn s93_an_attacher_that_cannot_attach_is_quoted_and_waited_for() {
    let stage = Stage::set_in(attaching()).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.attacher_says(json!({ "attached": false, "attachError": { "message": "no such disk" } })).await;
    stage.event(POD, "FailedAttachVolume", "no such disk").await;
    stage.attacher_says(json!({ "attached": true, "attachError": null })).await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.elapsed(), Duration::ZERO, "it was waited for by a timer");
}

#[tokio::test(start_paused = true)]
async fn s98_an_attachment_that_somebody_took_away_is_as_good_as_detached_and_made_anew_for_the_next_pod() {
    let stage = Stage::set_in(attaching()).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.attacher_says(attached()).await;
    stage.pod_is_running(POD).await;
    stage.remove_attachment().await;
    stage.create_pod("second").await;
    stage.attacher_says(attached()).await;
    stage.pod_is_running("second").await;
    stage.remove_attachment().await;
    for pod in [POD, "second"] {
        stage.delete_pod(pod).await;
        stage.pod_is_gone(pod).await;
    }
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

/// A pod that went while nobody looked had left an attachment that nobody would ever have deleted.
#[tokio::test(start_paused = true)]
async fn what_was_attached_before_a_restart_is_detached_after_it_whether_it_was_staged_or_not() {
    for is_staged in [false, true] {
        let stage = Stage::set_in(attaching()).await;
        let node = stage.start();
        stage.create_pod(POD).await;
        stage.attachment_when(|found| found.is_some()).await;
        if is_staged {
            stage.attacher_says(attached()).await;
            stage.pod_is_running(POD).await;
        }
        node.crash();
        stage.force_delete_pod(POD).await;

        let _node = stage.start();
        if is_staged {
            stage.attacher_detaches().await;
        }
        within(stage.attachment_when(is_gone)).await;
        let expected: &[&str] = if is_staged { &["stage", "publish", "unpublish", "unstage"] } else { &[] };
        assert_eq!(stage.driver.calls(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_with_the_pod_alive_neither_detaches_nor_attaches_anew() {
    let stage = Stage::set_in(attaching()).await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attacher_says(attached()).await;
    stage.pod_is_running(POD).await;
    let first = stage.attachment_when(|found| found.is_some()).await.unwrap();
    node.crash();
    let _node = stage.start();
    within(stage.driver.called(4)).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "stage", "publish"]);
    let now = stage.attachment_when(|found| found.is_some()).await.unwrap();
    assert_eq!((now.meta.uid, now.meta.deletion_timestamp), (first.meta.uid, None));
    assert_eq!(stage.manager().await.volumes_in_use(), [UNIQUE]);
}

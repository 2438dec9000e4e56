//! Rows of the volume manager's scenarios that need a whole life: what is known of a mount after a step failed, what a
//! restart finds, and what programs of the machine are told.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Status;

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_capability::AccessType;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::object::Key;
use stowage_model::volume::Volume;
use stowage_runtime::api::Part;
use volume_manager::SeLinux;

use crate::devices::grow;
use crate::driver::NAME;
use crate::stage::{Cluster, POD, Stage, UNIQUE, unattached, within};

/// Certainly and possibly mounted volumes of the pod.
pub async fn known(stage: &Stage, pod: &str) -> (usize, usize) {
    let (manager, uid) = (stage.manager().await, stage.uid(pod));
    (manager.mounted_volumes(&uid).len(), manager.possibly_mounted_volumes(&uid).len())
}

#[tokio::test(start_paused = true)]
async fn s64_a_mounted_volume_stays_so_whatever_comes_of_publishing_it_again() {
    for status in [Status::unavailable("away"), Status::internal("broken")] {
        let stage = Stage::set_in(unattached(json!({ "requiresRepublish": true }))).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        stage.driver.fail("publish", status.clone());
        stage.patch::<CsiDriver>(NAME, Part::Main, json!({ "spec": { "podInfoOnMount": true } })).await;
        stage.event_about(POD, status.message()).await;
        assert_eq!(known(&stage, POD).await, (1, 1), "{status:?}");
        within(stage.driver.called(4)).await;
        assert_eq!(stage.driver.calls(), ["stage", "publish", "publish", "publish"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s66_a_publish_that_failed_for_good_is_not_undone_and_the_stage_is() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.fail("publish", Status::internal("broken"));
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.event_about(POD, "broken").await;
    assert_eq!(known(&stage, POD).await, (0, 0));
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unstage"]);
    assert_eq!(stage.elapsed(), Duration::ZERO, "it was tried again before the pod went");
}

#[tokio::test(start_paused = true)]
async fn s67_a_volume_that_is_mounted_and_did_not_grow_is_uncertain_and_taken_down() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
    stage.driver.fail("expand", Status::internal("no tool"));
    let _node = stage.start();
    grow(&stage).await;
    stage.create_pod(POD).await;
    stage.event_about(POD, "no tool").await;
    assert_eq!(known(&stage, POD).await, (0, 1));
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "expand", "unpublish", "unstage"]);
}

/// Its label was not known before it was staged, so it was taken for another's mount and unstaged, again and again.
#[tokio::test(start_paused = true)]
async fn a_stage_with_a_label_that_times_out_is_tried_again_after_its_backoff_and_not_undone() {
    let cluster = Cluster { se_linux: Some(SeLinux::default()), ..unattached(json!({ "seLinuxMount": true })) };
    let stage = Stage::set_in(cluster).await;
    stage.driver.fail("stage", Status::deadline_exceeded("late"));
    let _node = stage.start();
    stage.create_pod_of(POD, json!({ "securityContext": { "seLinuxOptions": { "level": "s0:c1" } } })).await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "stage", "publish"]);
    assert!(stage.elapsed() >= Duration::from_millis(500), "{:?}", stage.elapsed());
    let Some(AccessType::Mount(mount)) = stage.driver.last_publish().volume_capability.unwrap().access_type else {
        panic!("asked for a device");
    };
    assert_eq!(mount.mount_flags, ["context=\"system_u:object_r:container_file_t:s0:c1\""]);
}

/// Attachability is the CSIDriver's here (row 90); what the Node lists decides when it may be mounted again.
#[tokio::test(start_paused = true)]
async fn s72_after_a_restart_nothing_is_unmounted_before_the_own_node_is_read() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    node.crash();
    stage.force_delete_pod(POD).await;

    stage.refusal.keep_silent_about("/api/v1/nodes");
    let _node = stage.start();
    stage.refusal.reached().await;
    stage.settle().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"], "taken down before the Node was read");
    assert!(stage.in_use().await);
    stage.refusal.go_on();
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
}

#[tokio::test(start_paused = true)]
async fn s72_a_volume_found_at_start_that_the_node_does_not_list_as_attached_is_left_as_it_is() {
    let stage = Stage::set().await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    node.crash();
    let unlisted = json!({ "status": { "volumesAttached": [] } });
    stage.patch::<stowage_model::node::Node>("node", Part::Status, unlisted).await;

    let _node = stage.start();
    stage.driver_is_registered().await;
    stage.settle().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
    assert_eq!((known(&stage, POD).await, stage.withdrawals()), ((0, 1), 0));
    stage.list_as_attached().await;
    within(stage.driver.called(4)).await;
    assert_eq!(stage.driver.calls()[2..], ["stage", "publish"]);
}

#[tokio::test(start_paused = true)]
async fn s73_a_volume_found_at_start_whose_set_up_failed_is_unmounted_when_its_pod_goes() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    node.crash();
    stage.driver.fail("publish", Status::internal("broken"));
    let _node = stage.start();
    stage.event_about(POD, "broken").await;
    assert_eq!(known(&stage, POD).await, (0, 1));
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls()[2..], ["stage", "publish", "unpublish", "unstage"]);
}

#[tokio::test(start_paused = true)]
async fn s76_the_group_of_a_volume_is_a_further_one_unless_the_pod_has_it_or_it_is_no_number() {
    for (annotation, own, expected) in [
        ("2000", json!([]), vec![2000]),
        ("2000", json!([2000]), vec![]),
        ("2000", json!([3000]), vec![2000]),
        ("staff", json!([]), vec![]),
    ] {
        let stage = Stage::set_in(unattached(json!({}))).await;
        let annotated = json!({ "metadata": { "annotations": { "pv.beta.kubernetes.io/gid": annotation } } });
        stage.patch::<Volume>("pv", Part::Main, annotated).await;
        let _node = stage.start();
        stage.create_pod_of(POD, json!({ "securityContext": { "supplementalGroups": own } })).await;
        stage.pod_is_running(POD).await;
        let groups = stage.manager().await.extra_supplemental_groups(&stage.uid(POD));
        assert_eq!(groups, expected, "{annotation} beside {own}");
    }
}

#[tokio::test(start_paused = true)]
async fn s77_pods_whose_volumes_are_never_unmounted_are_waited_for_together_and_all_of_them_told() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let _node = stage.start();
    for pod in ["one", "two"] {
        stage.create_pod(pod).await;
        stage.pod_is_running(pod).await;
    }
    let uids = [stage.uid("one"), stage.uid("two")];
    let (patience, begin) = (Duration::from_secs(30), stage.elapsed());
    let manager = stage.manager().await;
    let errors = manager.wait_for_all_pods_unmount(&uids, patience).await.unwrap_err();
    assert_eq!(stage.elapsed() - begin, patience, "one after the other");
    for (uid, error) in uids.iter().zip(&errors) {
        assert!(error.to_string().contains(UNIQUE) && error.to_string().contains(uid), "{error}");
    }
    assert_eq!(errors.len(), 2);
    let goes = async {
        stage.delete_pod("one").await;
        stage.delete_pod("two").await;
    };
    let (gone, ()) = tokio::join!(manager.wait_for_all_pods_unmount(&uids, patience), goes);
    gone.unwrap();
}

/// No container is run here, so a pod that is to go needs nothing any more, whether the service has just started or not.
#[tokio::test(start_paused = true)]
async fn s78_a_pod_that_is_to_go_gets_no_volumes_neither_at_start_nor_later() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let is_held = json!({ "metadata": { "finalizers": ["example.com/kept"] } });
    for pod in ["at-start", "later"] {
        stage.create_pod(pod).await;
        stage.patch::<stowage_model::pod::Pod>(pod, Part::Main, is_held.clone()).await;
    }
    stage.delete_pod("at-start").await;
    let unplaced = stage.uid_of("at-start").await;
    let _node = stage.start();
    stage.pod_is_running("later").await;
    stage.delete_pod("later").await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    assert!(stage.manager().await.possibly_mounted_volumes(&unplaced).is_empty());
    let published = stage.driver.asked().publish;
    assert!(published.iter().all(|asked| !asked.target_path.contains(&unplaced)), "{published:?}");
}

#[tokio::test(start_paused = true)]
async fn s80_a_volume_that_may_be_mounted_is_unmounted_when_its_pod_goes() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.fail("publish", Status::unavailable("away"));
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.event_about(POD, "away").await;
    assert_eq!(known(&stage, POD).await, (0, 1));
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

fn run_pod() -> Value {
    json!({ volume_manager::api::RUN_LABEL: "true" })
}

/// A `stowage run` that was killed before it could hold its pod left the pod for ever.
#[tokio::test(start_paused = true)]
async fn a_pod_that_stands_for_a_process_is_there_while_that_holds_it_and_not_a_moment_longer() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let node = stage.start();
    let key = Key::namespaced("default", POD);
    let held = stage.manager().await.hold(key.clone());
    stage.create_labelled_pod(POD, run_pod()).await;
    stage.pod_is_running(POD).await;
    drop(held);
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);

    stage.create_labelled_pod("late", run_pod()).await;
    stage.server_has_no_pod("late").await;
    assert_eq!(stage.driver.calls().len(), 4, "mounted for nobody");

    let _held = stage.manager().await.hold(key);
    stage.create_labelled_pod(POD, run_pod()).await;
    stage.pod_is_running(POD).await;
    node.crash();
    // Who holds a pod hears when the service ends, and must hold it anew.
    let _node = stage.start();
    stage.pod_is_gone(POD).await;
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_volume_are_bound_for_containers_and_not_any_more_when_the_pod_goes() {
    let stage = Stage::set_in(Cluster { in_memory: true, ..unattached(json!({})) }).await;
    let _node = stage.start();
    let mount = json!({ "name": "data", "mountPath": "/d", "subPath": "part" });
    stage.create_pod_of(POD, json!({ "containers": [{ "name": "c", "image": "i", "volumeMounts": [mount] }] })).await;
    stage.pod_is_running(POD).await;
    let (manager, uid) = (stage.manager().await, stage.uid(POD));
    let (first, second) = tokio::join!(manager.container_mounts(&uid), manager.container_mounts(&uid));
    let mounts = first.unwrap();
    assert_eq!(mounts, second.unwrap(), "asked twice at once");
    let bound = &mounts[0].host_path;
    assert!(stage.memory.snapshot().mounts().at(bound).is_some(), "{} is not bound", bound.display());
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert!(stage.memory.snapshot().mounts().at(bound).is_none());
    let error = manager.container_mounts(&uid).await.unwrap_err();
    assert!(error.to_string().contains("no pod"), "{error}");
}

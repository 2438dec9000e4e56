//! What drivers are asked, and what stays on the disk when they refuse: rows 95 to 113 of the CSI scenarios. The
//! expected requests are those that a real kubelet sends.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tonic::Status;

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_capability::AccessType;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::{VolumeCapability, volume_capability};
use stowage_model::csi_driver::CsiDriver;
use stowage_model::names;
use stowage_runtime::api::Part;

use crate::driver::{NAME, Publishes};
use crate::stage::{Cluster, HANDLE, POD, Stage, unattached, within};

pub const DATA: &str = "vol_data.json";
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

fn mount_of(capability: Option<VolumeCapability>) -> volume_capability::MountVolume {
    match capability.unwrap().access_type.unwrap() {
        AccessType::Mount(mount) => mount,
        AccessType::Block(_) => panic!("asked for a device"),
    }
}

fn mode_of(capability: Option<VolumeCapability>) -> Mode {
    capability.unwrap().access_mode.unwrap().mode()
}

fn inline(members: Value) -> Value {
    let mut source = json!({ "driver": NAME });
    source.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    json!({ "volumes": [{ "name": "data", "csi": source }] })
}

fn with_group(group: u32) -> Value {
    json!({ "securityContext": { "fsGroup": group } })
}

fn json_at(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A group that this process may give files to.
fn a_group(stage: &Stage) -> u32 {
    let about = fs::metadata(stage.root()).unwrap();
    if about.uid() == 0 { 2000 } else { about.gid() }
}

#[tokio::test(start_paused = true)]
async fn s95_a_driver_that_does_not_attach_is_called_without_a_handshake_and_without_a_publish_context() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    assert!(!stage.in_use().await);
    let asked = stage.driver.asked();
    assert!(asked.stage[0].publish_context.is_empty() && asked.publish[0].publish_context.is_empty());
}

#[tokio::test(start_paused = true)]
async fn s95_unless_its_object_says_otherwise_a_driver_attaches() {
    for csi_driver in [None, Some(json!({})), Some(json!({ "attachRequired": true }))] {
        let stage = Stage::set_in(Cluster { csi_driver, ..Cluster::default() }).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.node_reports_in_use(true).await;
        stage.settle().await;
        assert_eq!(stage.driver.calls(), Vec::<String>::new());
        stage.attach().await;
        stage.pod_is_running(POD).await;
        assert_eq!(stage.driver.asked().stage[0].publish_context["token"], "7");
    }
}

#[tokio::test(start_paused = true)]
async fn s93_s96_s99_an_attachment_that_is_missing_or_failed_is_told_and_nothing_is_left_on_the_disk() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.list_as_attached().await;
    stage.event_about(POD, "does not exist").await;
    assert!(!stage.staging_dir().try_exists().unwrap());
    stage.attach_with(json!({ "attached": false, "attachError": { "message": "no such disk" } })).await;
    stage.event_about(POD, "is not attached: no such disk").await;
    assert!(!stage.staging_dir().try_exists().unwrap());
    assert_eq!(stage.driver.calls(), Vec::<String>::new());
    assert_eq!(stage.elapsed(), Duration::ZERO, "news of the attachment had to wait for a backoff");
}

#[tokio::test(start_paused = true)]
async fn s100_a_stage_that_may_still_run_leaves_its_metadata() {
    for status in [Status::deadline_exceeded("late"), Status::unavailable("away"), Status::aborted("busy")] {
        let stage = Stage::set_in(unattached(json!({}))).await;
        stage.driver.fail("stage", status);
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.event_about(POD, "NodeStageVolume").await;
        assert!(stage.staging_dir().join(DATA).try_exists().unwrap());
        stage.pod_is_running(POD).await;
        assert_eq!(stage.driver.calls(), ["stage", "stage", "publish"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s100_a_stage_that_failed_for_good_leaves_nothing() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.fail("stage", Status::internal("broken"));
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.event_about(POD, "broken").await;
    assert!(!stage.staging_dir().try_exists().unwrap());
    stage.pod_is_running(POD).await;
}

/// Old drivers answer UNKNOWN, because they must answer something.
#[tokio::test(start_paused = true)]
async fn s101_a_driver_without_stage_has_its_staging_directory_and_metadata_all_the_same() {
    for capabilities in [&[][..], &[Capability::Unknown]] {
        let stage = Stage::set_in(unattached(json!({}))).await;
        stage.driver.can(capabilities);
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        assert_eq!(stage.driver.calls(), ["publish"]);
        assert_eq!(stage.driver.last_publish().staging_target_path, "");
        assert!(stage.staging_dir().join("globalmount").is_dir());
        assert_eq!(json_at(&stage.staging_dir().join(DATA)), json!({ "driverName": NAME, "volumeHandle": HANDLE }));
        stage.delete_pod(POD).await;
        stage.pod_is_gone(POD).await;
        stage.node_has_nothing().await;
        assert_eq!(stage.driver.calls(), ["publish", "unpublish"]);
        assert!(!stage.staging_dir().try_exists().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn s102_the_group_goes_to_a_driver_that_can_set_it_and_the_files_are_left_to_it() {
    let stage = Stage::set_in(unattached(json!({ "fsGroupPolicy": "File" }))).await;
    stage.driver.can(&[Capability::StageUnstageVolume, Capability::VolumeMountGroup]);
    stage.driver.publishes(Publishes::Files);
    let group = a_group(&stage);
    let _node = stage.start();
    stage.create_pod_of(POD, with_group(group)).await;
    stage.pod_is_running(POD).await;
    let asked = stage.driver.asked();
    assert_eq!(mount_of(asked.stage[0].volume_capability.clone()).volume_mount_group, group.to_string());
    assert_eq!(mount_of(asked.publish[0].volume_capability.clone()).volume_mount_group, group.to_string());
    let file = fs::metadata(stage.volume_dir(POD, "pv").join("mount/inner/file")).unwrap();
    assert_eq!(file.permissions().mode() & 0o7777, 0o600);
}

#[tokio::test(start_paused = true)]
async fn s102_s108_without_that_the_files_are_given_to_the_group_and_links_are_not_followed() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.publishes(Publishes::Files);
    let group = a_group(&stage);
    let _node = stage.start();
    let outside = fs::metadata("/etc/hostname").map(|about| (about.gid(), about.mode())).ok();
    stage.create_pod_of(POD, with_group(group)).await;
    stage.pod_is_running(POD).await;
    assert_eq!(mount_of(stage.driver.last_publish().volume_capability).volume_mount_group, "");
    let mount = stage.volume_dir(POD, "pv").join("mount");
    let expected = [("", 0o2775), ("inner", 0o2775), ("inner/file", 0o660)];
    for (name, mode) in expected {
        let found = fs::metadata(mount.join(name)).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (group, mode), "{name:?} {:o}", found.mode());
    }
    assert_eq!(fs::symlink_metadata(mount.join("link")).unwrap().gid(), group);
    assert_eq!(fs::metadata("/etc/hostname").map(|about| (about.gid(), about.mode())).ok(), outside);
}

#[tokio::test(start_paused = true)]
async fn s108_who_is_not_to_change_groups_does_not() {
    let many = json!({ "accessModes": ["ReadWriteMany"] });
    let cases = [
        ("the policy is None", json!({ "fsGroupPolicy": "None" }), json!({}), false, false),
        ("no file system is named", json!({}), json!({ "csi": { "fsType": "" } }), false, false),
        ("many nodes have it", json!({}), many.clone(), false, false),
        ("only one pod has it", json!({}), json!({ "accessModes": ["ReadWriteOncePod"] }), false, true),
        ("the policy is File, many nodes", json!({ "fsGroupPolicy": "File" }), many, false, true),
        ("it is only read", json!({ "fsGroupPolicy": "File" }), json!({}), true, false),
    ];
    for (case, csi_driver, volume, read_only, changes) in cases {
        let stage = Stage::set_in(Cluster { volume, ..unattached(csi_driver) }).await;
        stage.driver.publishes(Publishes::Files);
        let group = a_group(&stage);
        let _node = stage.start();
        let claim = json!({ "claimName": "claim", "readOnly": read_only });
        let mut pod = with_group(group);
        pod["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": claim }]);
        stage.create_pod_of(POD, pod).await;
        stage.pod_is_running(POD).await;
        let file = fs::metadata(stage.volume_dir(POD, "pv").join("mount/inner/file")).unwrap();
        assert_eq!(file.mode() & 0o7777, if changes { 0o660 } else { 0o600 }, "{case}");
        assert_eq!(stage.driver.last_publish().readonly, read_only, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn s103_s111_without_its_driver_nothing_is_taken_down_and_with_it_everything_is() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    let dir = stage.volume_dir(POD, "pv");
    stage.unplug();
    stage.driver_is_gone().await;
    stage.force_delete_pod(POD).await;
    stage.settle().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
    assert!(dir.join(DATA).try_exists().unwrap() && stage.staging_dir().join(DATA).try_exists().unwrap());
    stage.plug_in();
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    let asked = stage.driver.asked();
    assert_eq!(asked.unpublish[0].target_path, dir.join("mount").to_str().unwrap());
    assert_eq!(asked.unstage[0].staging_target_path, stage.staging_dir().join("globalmount").to_str().unwrap());
    assert!(!dir.try_exists().unwrap() && !stage.staging_dir().try_exists().unwrap());
}

#[tokio::test(start_paused = true)]
async fn s104_pod_info_is_added_to_the_volumes_own_context_where_the_driver_wants_it() {
    let volume = json!({ "csi": { "volumeAttributes": { "pool": "fast" } } });
    for wants in [Some(true), Some(false), None] {
        let spec = wants.map_or_else(|| json!({}), |wants| json!({ "podInfoOnMount": wants }));
        let stage = Stage::set_in(Cluster { volume: volume.clone(), ..unattached(spec) }).await;
        let _node = stage.start();
        stage.create_pod_of(POD, json!({ "serviceAccountName": "default" })).await;
        stage.pod_is_running(POD).await;
        let uid = stage.uid(POD);
        let mut expected = vec![("pool", "fast")];
        if wants == Some(true) {
            expected.extend([
                ("csi.storage.k8s.io/ephemeral", "false"),
                ("csi.storage.k8s.io/pod.name", POD),
                ("csi.storage.k8s.io/pod.namespace", "default"),
                ("csi.storage.k8s.io/pod.uid", &uid),
                ("csi.storage.k8s.io/serviceAccount.name", "default"),
            ]);
        }
        let expected = expected.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(stage.driver.last_publish().volume_context, expected, "{wants:?}");
        let staged = &stage.driver.asked().stage[0];
        assert_eq!(staged.volume_context.len(), 1, "staging is told of a pod: {staged:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s105_an_inline_volume_is_published_under_a_handle_of_its_own_and_never_staged() {
    let modes = json!({ "podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"] });
    // It is not attached even if the driver's other volumes are.
    let stage = Stage::set_in(Cluster { csi_driver: Some(modes), ..Cluster::default() }).await;
    stage.create_secret("mine").await;
    let _node = stage.start();
    let attributes = json!({
        "volumeAttributes": { "size": "1" }, "fsType": "xfs", "nodePublishSecretRef": { "name": "mine" },
    });
    stage.create_pod_of(POD, inline(attributes)).await;
    stage.pod_is_running(POD).await;
    let (published, uid) = (stage.driver.last_publish(), stage.uid(POD));
    let handle = names::inline_handle(&uid, "data");
    assert_eq!((published.volume_id.as_str(), published.staging_target_path.as_str()), (handle.as_str(), ""));
    assert_eq!(published.volume_context["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(published.volume_context["size"], "1");
    assert_eq!(published.secrets["mine"], "x");
    assert!(published.publish_context.is_empty());
    assert_eq!(mode_of(published.volume_capability.clone()), Mode::SingleNodeWriter);
    assert_eq!(mount_of(published.volume_capability).fs_type, "xfs");
    let dir = stage.volume_dir(POD, "data");
    assert_eq!(published.target_path, dir.join("mount").to_str().unwrap());
    let expected = json!({
        "attachmentID": names::attachment(&handle, NAME, "node"), "driverName": NAME, "nodeName": "node",
        "specVolID": "data", "volumeHandle": handle, "volumeLifecycleMode": "Ephemeral",
    });
    assert_eq!(json_at(&dir.join(DATA)), expected);
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    assert_eq!(stage.driver.calls(), ["publish", "unpublish"]);
    assert_eq!(stage.driver.asked().unpublish[0].volume_id, handle);
    stage.pod_dirs_are_gone().await;
}

#[tokio::test(start_paused = true)]
async fn s106_a_publish_that_may_still_run_leaves_its_metadata_and_one_that_failed_leaves_nothing() {
    for (status, is_kept) in [
        (Status::unavailable("away"), true),
        (Status::deadline_exceeded("late"), true),
        (Status::internal("broken"), false),
        (Status::invalid_argument("wrong"), false),
    ] {
        let stage = Stage::set_in(unattached(json!({}))).await;
        stage.driver.fail("publish", status.clone());
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.event_about(POD, status.message()).await;
        let dir = stage.volume_dir(POD, "pv");
        assert_eq!((dir.join(DATA).try_exists().unwrap(), dir.try_exists().unwrap()), (is_kept, is_kept), "{status:?}");
        stage.pod_is_running(POD).await;
        assert_eq!(stage.driver.calls(), ["stage", "publish", "publish"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s106_files_that_cannot_be_given_to_the_group_leave_the_volume_published() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.publishes(Publishes::Nothing);
    let _node = stage.start();
    stage.create_pod_of(POD, with_group(a_group(&stage))).await;
    stage.event_about(POD, "give the volume's files to the pod's group").await;
    assert!(stage.volume_dir(POD, "pv").join(DATA).try_exists().unwrap());
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    assert!(stage.driver.calls().contains(&"unpublish".to_owned()), "{:?}", stage.driver.calls());
}

#[tokio::test(start_paused = true)]
async fn s107_a_final_error_after_a_restart_does_not_take_away_what_was_mounted_before() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    node.crash();
    stage.driver.fail("stage", Status::internal("stage is broken"));
    stage.driver.fail("publish", Status::internal("publish is broken"));
    let _node = stage.start();
    stage.event_about(POD, "stage is broken").await;
    assert!(stage.staging_dir().join(DATA).try_exists().unwrap());
    stage.event_after_backoff(POD, "FailedMount", "publish is broken").await;
    let dir = stage.volume_dir(POD, "pv");
    assert!(dir.join(DATA).try_exists().unwrap() && dir.join("mount").try_exists().unwrap());
    stage.driver.called(6).await;
    assert_eq!(stage.driver.calls()[2..], ["stage", "stage", "publish", "publish"]);
}

#[tokio::test(start_paused = true)]
async fn s107_a_final_error_of_a_republish_leaves_the_mount() {
    let stage = Stage::set_in(unattached(json!({ "requiresRepublish": true }))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    stage.driver.fail("publish", Status::internal("not again"));
    stage.patch::<CsiDriver>(NAME, Part::Main, json!({ "spec": { "podInfoOnMount": true } })).await;
    stage.event_about(POD, "not again").await;
    let dir = stage.volume_dir(POD, "pv");
    assert!(dir.join(DATA).try_exists().unwrap() && dir.join("mount").try_exists().unwrap());
    stage.driver.called(4).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "publish", "publish"]);
    assert_eq!(stage.driver.last_publish().volume_context["csi.storage.k8s.io/pod.name"], POD);
}

#[tokio::test(start_paused = true)]
async fn s109_tokens_are_a_map_by_audience_in_the_context_or_in_the_secrets() {
    for in_secrets in [false, true] {
        let asked = json!([{ "audience": "" }, { "audience": "vault", "expirationSeconds": 3600 }]);
        let spec = json!({ "tokenRequests": asked, "serviceAccountTokenInSecrets": in_secrets });
        let stage = Stage::set_in(unattached(spec)).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        let published = stage.driver.last_publish();
        let (there, not_there) = match in_secrets {
            true => (&published.secrets, &published.volume_context),
            false => (&published.volume_context, &published.secrets),
        };
        assert_eq!(not_there.get(TOKENS), None);
        let tokens: Value = serde_json::from_str(&there[TOKENS]).unwrap();
        for audience in ["", "vault"] {
            assert!(tokens[audience]["token"].as_str().is_some_and(|token| token.len() > 20), "{tokens}");
            assert!(tokens[audience]["expirationTimestamp"].as_str().unwrap().ends_with('Z'));
        }
        assert!(!stage.driver.asked().stage[0].volume_context.contains_key(TOKENS));
    }
}

#[tokio::test(start_paused = true)]
async fn s109_a_driver_that_republishes_gets_new_tokens_when_four_fifths_of_their_time_are_over() {
    let asked = json!([{ "audience": "vault", "expirationSeconds": 1000 }]);
    let stage = Stage::set_in(unattached(json!({ "tokenRequests": asked, "requiresRepublish": true }))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    let token = |number: usize| stage.driver.asked().publish[number].volume_context[TOKENS].clone();
    let mut count = 1;
    while token(count - 1) == token(0) {
        count += 1;
        let asked = tokio::time::timeout(Duration::from_secs(1000), stage.driver.called(1 + count));
        asked.await.expect("it was not published again");
    }
    let passed = stage.elapsed();
    assert!((Duration::from_secs(799)..Duration::from_secs(801)).contains(&passed), "{passed:?}");
}

/// Without tokens it was published again only when its CSIDriver changed, though nobody but the driver knows when to.
#[tokio::test(start_paused = true)]
async fn a_driver_that_republishes_is_asked_again_after_a_minute_or_a_half_more() {
    let stage = Stage::set_in(unattached(json!({ "requiresRepublish": true }))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    let asked = tokio::time::timeout(Duration::from_secs(300), stage.driver.called(1 + 4));
    asked.await.expect("it was not published again");
    for times in stage.driver.asked().published_at.windows(2) {
        let passed = (times[1] - times[0]).as_secs_f64();
        assert!((60.0..=90.0).contains(&passed), "{passed} s");
    }
}

/// Files change hands on a thread that the runtime does not wait for, so virtual time may leap meanwhile: nothing is timed here.
#[tokio::test(start_paused = true)]
async fn what_is_new_when_a_driver_republishes_is_given_to_the_group() {
    let stage = Stage::set_in(unattached(json!({ "requiresRepublish": true }))).await;
    stage.driver.publishes(Publishes::Files);
    let group = a_group(&stage);
    let _node = stage.start();
    stage.create_pod_of(POD, with_group(group)).await;
    stage.pod_is_running(POD).await;
    let new = stage.volume_dir(POD, "pv").join("mount/new");
    fs::write(&new, "data").unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    // Who asks for the third time has given everything to the group for the second.
    let called = stage.driver.calls().len();
    let asked = tokio::time::timeout(Duration::from_secs(3600), stage.driver.called(called + 2));
    asked.await.expect("it was not published again");
    let about = fs::metadata(&new).unwrap();
    assert_eq!((about.gid(), about.mode() & 0o7777), (group, 0o660));
}

#[tokio::test(start_paused = true)]
async fn a_changed_secret_is_told_at_once_to_a_driver_that_republishes_and_to_no_other() {
    for republishes in [true, false] {
        let reference = json!({ "name": "mine", "namespace": "default" });
        let volume = json!({ "csi": { "nodePublishSecretRef": reference } });
        let spec = json!({ "requiresRepublish": republishes });
        let stage = Stage::set_in(Cluster { volume, ..unattached(spec) }).await;
        stage.create_secret("mine").await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        stage.settle().await;
        assert_eq!(stage.driver.calls(), ["stage", "publish"], "{republishes}");
        stage.patch::<stowage_model::Secret>("mine", Part::Main, json!({ "data": { "mine": "eQ==" } })).await;
        if republishes {
            within(stage.driver.called(3)).await;
            assert_eq!(stage.driver.last_publish().secrets["mine"], "y");
            assert_eq!(stage.elapsed(), Duration::ZERO, "it was found out by the minute");
        } else {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(stage.driver.calls(), ["stage", "publish"]);
        }
    }
}

/// Six refusals, at 800 s and then 1, 2, 4, 8 and 16 s apart, each lengthened by up to a fifth; 32 s later it is renewed.
#[tokio::test(start_paused = true)]
async fn s109_a_token_that_cannot_be_renewed_is_asked_for_again_after_pauses_that_grow() {
    let asked = json!([{ "audience": "vault", "expirationSeconds": 1000 }]);
    let stage = Stage::set_in(unattached(json!({ "tokenRequests": asked, "requiresRepublish": true }))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    stage.refusal.of_many("TokenRequest", 6);
    let token = |stage: &Stage| stage.driver.last_publish().volume_context[TOKENS].clone();
    let old = token(&stage);
    let mut calls = 2;
    while token(&stage) == old {
        calls += 1;
        stage.driver.called(calls).await;
    }
    let passed = stage.elapsed();
    assert!((Duration::from_secs(863)..Duration::from_secs(877)).contains(&passed), "{passed:?}");
    // Stage, a publish at each refusal and at the renewal, and one for each minute or more that passed anyway.
    assert!(calls <= 2 + 6 + 1 + 877 / 60, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn s110_an_inline_volume_needs_a_driver_that_says_it_has_them() {
    let persistent = json!({ "volumeLifecycleModes": ["Persistent"] });
    for csi_driver in [None, Some(json!({})), Some(persistent)] {
        let stage = Stage::set_in(Cluster { csi_driver: csi_driver.clone(), ..Cluster::default() }).await;
        let _node = stage.start();
        stage.create_pod_of(POD, inline(json!({}))).await;
        stage.event_about(POD, "must list Ephemeral in spec.volumeLifecycleModes").await;
        assert_eq!(stage.driver.calls(), Vec::<String>::new());
        let Some(_) = csi_driver else { continue };
        // Modes cannot be changed; the object is made anew.
        stage.delete_csi_driver().await;
        let spec = json!({ "volumeLifecycleModes": ["Ephemeral"] });
        let object = json!({ "metadata": { "name": NAME }, "spec": spec });
        stage.create(stowage_model::object::kinds::CSI_DRIVER, object).await;
        stage.pod_is_running(POD).await;
        assert_eq!(stage.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn s110_a_claims_volume_needs_one_that_has_persistent_volumes() {
    let stage = Stage::set_in(unattached(json!({ "volumeLifecycleModes": ["Ephemeral"] }))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.event_about(POD, "must list Persistent in spec.volumeLifecycleModes").await;
}

#[tokio::test(start_paused = true)]
async fn each_call_gets_its_own_secret_and_the_volumes_first_mode_options_and_file_system() {
    let reference = |name: &str| json!({ "name": name, "namespace": "default" });
    let volume = json!({
        "accessModes": ["ReadOnlyMany", "ReadWriteOnce"], "mountOptions": ["noatime", "commit=5"],
        "csi": {
            "nodeStageSecretRef": reference("staging"), "nodePublishSecretRef": reference("publishing"),
            "volumeAttributes": { "pool": "fast" },
        },
    });
    let stage = Stage::set_in(Cluster { volume, ..unattached(json!({})) }).await;
    stage.create_secret("staging").await;
    stage.create_secret("publishing").await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    let asked = stage.driver.asked();
    let (staged, published) = (&asked.stage[0], &asked.publish[0]);
    assert_eq!((&staged.secrets["staging"][..], &published.secrets["publishing"][..]), ("x", "x"));
    assert_eq!((staged.secrets.len(), published.secrets.len()), (1, 1));
    for capability in [&staged.volume_capability, &published.volume_capability] {
        assert_eq!(mode_of(capability.clone()), Mode::MultiNodeReaderOnly);
        let mount = mount_of(capability.clone());
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".into(), "commit=5".into()]));
    }
    assert_eq!(staged.volume_context["pool"], "fast");
    let global = stage.staging_dir().join("globalmount");
    assert_eq!(staged.staging_target_path, global.to_str().unwrap());
    assert_eq!(published.staging_target_path, staged.staging_target_path);
}

#[tokio::test(start_paused = true)]
async fn a_mount_is_two_calls_to_the_driver_and_no_read_from_the_api() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.driver_is_registered().await;
    stage.settle().await;
    let before = stage.refusal.reads();
    assert!(!before.is_empty(), "reads are not counted");
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_reports_in_use(false).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    assert_eq!(stage.refusal.reads()[before.len()..], Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_missing_secret_is_told_and_nothing_is_begun() {
    let missing = json!({ "csi": { "nodePublishSecretRef": { "name": "later", "namespace": "default" } } });
    let stage = Stage::set_in(Cluster { volume: missing, ..unattached(json!({})) }).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.event_about(POD, "later").await;
    assert!(!stage.volume_dir(POD, "pv").try_exists().unwrap());
    stage.create_secret("later").await;
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_knows_the_finer_modes_is_told_them() {
    for (mode, wire) in [
        ("ReadWriteOnce", Mode::SingleNodeMultiWriter),
        ("ReadWriteOncePod", Mode::SingleNodeSingleWriter),
        ("ReadWriteMany", Mode::MultiNodeMultiWriter),
    ] {
        let volume = json!({ "accessModes": [mode] });
        let stage = Stage::set_in(Cluster { volume, ..unattached(json!({})) }).await;
        stage.driver.can(&[Capability::StageUnstageVolume, Capability::SingleNodeMultiWriter]);
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        assert_eq!(mode_of(stage.driver.last_publish().volume_capability), wire, "{mode}");
    }
}

/// Some drivers answer with a link to where the volume is; what it leads to is not ours to remove.
#[tokio::test(start_paused = true)]
async fn a_published_link_is_removed_and_never_what_it_leads_to() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.can(&[Capability::Unknown]);
    stage.driver.publishes(Publishes::Link);
    let _node = stage.start();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("data"), "mine").unwrap();
    stage.driver.links_to(outside.path());
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    let dir = stage.volume_dir(POD, "pv");
    assert!(fs::symlink_metadata(dir.join("mount")).unwrap().is_symlink());
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.pod_dirs_are_gone().await;
    assert_eq!(fs::read_to_string(outside.path().join("data")).unwrap(), "mine");
}

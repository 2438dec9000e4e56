//! Volumes as devices, and volumes that grow: what the driver is asked and what is on the node, as a kubelet has it.

use std::path::{Path, PathBuf};

use serde_json::json;
use tonic::Status;

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_capability::AccessType;
use stowage_model::claim::{Claim, ResizeStatus};
use stowage_model::volume::Volume;
use stowage_mount::{Access, Devices, MountOptions};
use stowage_runtime::api::Part;

use crate::driver::Publishes;
use crate::stage::{Cluster, HANDLE, POD, Stage, unattached, within};

const DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";

async fn with_device() -> Stage {
    let volume = json!({ "volumeMode": "Block" });
    let stage = Stage::set_in(Cluster { volume, in_memory: true, ..unattached(json!({})) }).await;
    stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
    stage.driver.publishes(Publishes::Device);
    stage
}

struct Paths {
    staging: PathBuf,
    published: PathBuf,
    bound: PathBuf,
    link: PathBuf,
    data: PathBuf,
}

fn paths(stage: &Stage, pod: &str) -> Paths {
    let (root, uid) = (stage.root(), stage.uid(pod));
    Paths {
        staging: root.join(DEVICES).join("staging/pv"),
        published: root.join(DEVICES).join("publish/pv").join(&uid),
        bound: root.join(DEVICES).join("pv/dev").join(&uid),
        link: root.join("pods").join(&uid).join("volumeDevices/kubernetes.io~csi/pv"),
        data: root.join(DEVICES).join("pv/data/vol_data.json"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_is_staged_published_bound_locked_and_linked_and_goes_in_the_reverse_order() {
    let stage = with_device().await;
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.pod_is_running(POD).await;
    let (paths, asked) = (paths(&stage, POD), stage.driver.asked());
    let staging = paths.staging.to_str().unwrap();
    assert_eq!(asked.stage[0].staging_target_path, staging);
    assert_eq!(asked.publish[0].staging_target_path, staging);
    assert_eq!(asked.publish[0].target_path, paths.published.to_str().unwrap());
    for capability in [&asked.stage[0].volume_capability, &asked.publish[0].volume_capability] {
        assert!(matches!(capability.as_ref().unwrap().access_type, Some(AccessType::Block(_))));
    }
    let tree = stage.memory.snapshot();
    assert!(tree.mounts().at(&paths.bound).is_some(), "{:#?}", tree.lines());
    assert_eq!(tree.read_link(&paths.link).unwrap().as_ref(), Some(&paths.published));
    assert!(stage.memory.device_lock(&paths.bound).await.unwrap().is_some());
    let data: serde_json::Value = serde_json::from_slice(&tree.read_file(&paths.data).unwrap().unwrap()).unwrap();
    let keys: Vec<&str> = data.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["attachmentID", "driverName", "nodeName", "specVolID", "volumeHandle"]);
    assert_eq!(tree.stat(&paths.data).unwrap().mode, 0o644);

    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    let asked = stage.driver.asked();
    assert_eq!(asked.unpublish[0].target_path, paths.published.to_str().unwrap());
    assert_eq!(asked.unstage[0].staging_target_path, staging);
    let tree = stage.memory.snapshot();
    assert_eq!(tree.mounts().iter().count(), 0);
    let dir = stage.root().join(DEVICES).join("pv");
    assert_eq!(tree.below(&dir).collect::<Vec<_>>(), Vec::<&Path>::new());
    assert!(stage.memory.device_lock(&paths.bound).await.unwrap().is_none());
}

/// What is bound is a device and not the file it was bound to: mapping it again was refused for ever.
#[tokio::test(start_paused = true)]
async fn a_device_that_is_mapped_when_the_service_starts_is_mapped_again_and_bound_once() {
    let stage = with_device().await;
    let node = stage.start();
    stage.create_device_pod(POD).await;
    stage.pod_is_running(POD).await;
    node.crash();
    let paths = paths(&stage, POD);
    stage.refuse_files_at(&paths.bound);
    let _node = stage.start();
    stage.driver.called(4).await;
    stage.settle().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "stage", "publish"]);
    let tree = stage.memory.snapshot();
    assert_eq!(tree.mounts().iter().filter(|mount| mount.target == paths.bound).count(), 1);
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.memory.snapshot().mounts().iter().count(), 0);
}

/// A device without metadata was taken for an empty leftover, and the volume was taken out of the list while bound (M2).
#[tokio::test(start_paused = true)]
async fn a_device_that_has_lost_its_metadata_stays_in_use_whether_it_is_bound_published_or_only_staged() {
    for (left, mounts) in [("bound", 1), ("published", 1), ("staged", 0)] {
        let volume = json!({ "volumeMode": "Block" });
        let stage = Stage::set_in(Cluster { volume, in_memory: true, ..Cluster::default() }).await;
        stage.driver.publishes(Publishes::Device);
        let node = stage.start();
        stage.create_device_pod(POD).await;
        stage.attach().await;
        stage.pod_is_running(POD).await;
        node.crash();
        let paths = paths(&stage, POD);
        stage.memory.with(|tree| {
            tree.remove_file(&paths.data).unwrap();
            if left != "staged" {
                tree.remove_dir(&paths.staging).unwrap();
            }
            if left == "published" {
                tree.bind(&paths.bound, &paths.published, Access::ReadWrite).unwrap();
            }
            if left != "bound" {
                tree.unmount(&paths.bound).unwrap();
                tree.remove_all(paths.data.ancestors().nth(2).unwrap()).unwrap();
            }
            if left == "staged" {
                tree.remove_all(paths.published.parent().unwrap()).unwrap();
            }
        });
        stage.force_delete_pod(POD).await;
        let _node = stage.start();
        stage.driver_is_registered().await;
        stage.settle().await;
        assert_eq!((stage.withdrawals(), stage.in_use().await), (0, true), "{left}");
        assert_eq!(stage.memory.snapshot().mounts().iter().count(), mounts, "{left}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_published_link_to_a_device_is_followed_and_the_device_itself_is_bound() {
    let stage = with_device().await;
    stage.driver.publishes(Publishes::Link);
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.pod_is_running(POD).await;
    let paths = paths(&stage, POD);
    let device = paths.published.with_file_name("elsewhere");
    assert_eq!(stage.memory.snapshot().read_link(&paths.link).unwrap(), Some(device));
}

/// A device that was still mounted in another mount namespace left the list of those in use, and was detached.
#[tokio::test(start_paused = true)]
async fn a_device_that_somebody_still_has_stays_in_use_until_it_is_given_back() {
    let volume = json!({ "volumeMode": "Block" });
    let stage = Stage::set_in(Cluster { volume, in_memory: true, ..Cluster::default() }).await;
    let (device, elsewhere) = (Path::new("/dev/disk1"), Path::new("/elsewhere"));
    stage.memory.with(|tree| tree.create_dir(Path::new("/dev")).unwrap());
    stage.driver.publishes(Publishes::Link);
    stage.driver.links_to(device);
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    stage.memory.with(|tree| {
        tree.create_dir(elsewhere).unwrap();
        tree.mount("/dev/disk1", elsewhere, "ext4", &MountOptions::default()).unwrap();
    });
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish", "unstage"]);
    assert_eq!((stage.withdrawals(), stage.in_use().await), (0, true));
    stage.memory.with(|tree| tree.unmount(elsewhere).unwrap());
    stage.node_reports_in_use(false).await;
}

/// The same of a file system: which device it is on is told by its mount alone.
#[tokio::test(start_paused = true)]
async fn a_file_system_whose_device_somebody_still_has_stays_in_use_until_it_is_given_back() {
    let stage = Stage::set_in(Cluster { in_memory: true, ..Cluster::default() }).await;
    let (staged, elsewhere) = (stage.staging_dir().join("globalmount"), Path::new("/elsewhere"));
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.attach().await;
    stage.pod_is_running(POD).await;
    // The driver says that it has unstaged before it has: by then the mount was seen.
    let mount = |at: &Path| stage.memory.with(|tree| tree.mount("/dev/disk1", at, "ext4", &MountOptions::default()));
    mount(&staged).unwrap();
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    within(stage.driver.called(4)).await;
    stage.settle().await;
    stage.memory.with(|tree| {
        tree.unmount(&staged).unwrap();
        tree.create_dir(elsewhere).unwrap();
    });
    mount(elsewhere).unwrap();
    within(stage.driver.called(6)).await;
    assert_eq!(stage.driver.calls()[2..], ["unpublish", "unstage", "unstage", "unstage"]);
    assert_eq!((stage.withdrawals(), stage.in_use().await), (0, true));
    stage.memory.with(|tree| tree.unmount(elsewhere).unwrap());
    stage.node_reports_in_use(false).await;
}

#[tokio::test(start_paused = true)]
async fn s112_a_device_without_its_staging_directory_is_not_unstaged_and_goes_all_the_same() {
    let stage = with_device().await;
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.pod_is_running(POD).await;
    let paths = paths(&stage, POD);
    stage.memory.with(|tree| tree.remove_dir(&paths.staging)).unwrap();
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "unpublish"]);
    let tree = stage.memory.snapshot();
    for gone in [&paths.data, &paths.published, paths.published.parent().unwrap()] {
        assert!(tree.stat(gone).is_none(), "{} is left", gone.display());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stage_of_a_device_that_failed_for_good_leaves_nothing_and_one_that_may_run_leaves_its_metadata() {
    for (status, is_kept) in [(Status::internal("broken"), false), (Status::unavailable("away"), true)] {
        let stage = with_device().await;
        stage.driver.fail("stage", status.clone());
        let _node = stage.start();
        stage.create_device_pod(POD).await;
        stage.event(POD, "FailedMapVolume", status.message()).await;
        let data = paths(&stage, POD).data;
        assert_eq!(stage.memory.snapshot().stat(&data).is_some(), is_kept, "{status:?}");
        stage.pod_is_running(POD).await;
    }
}

/// As the resizer leaves a claim for the node.
pub async fn grow(stage: &Stage) {
    let pending = json!({ "status": {
        "allocatedResources": { "storage": "2Gi" },
        "allocatedResourceStatuses": { "storage": "NodeResizePending" },
    } });
    stage.patch::<Claim>("claim", Part::Status, pending).await;
    stage.patch::<Volume>("pv", Part::Main, json!({ "spec": { "capacity": { "storage": "2Gi" } } })).await;
}

pub async fn claim_has_grown(stage: &Stage) {
    stage.event("claim", "FileSystemResizeSuccessful", "2Gi").await;
    let claim: Claim = stage.get("claim").await;
    assert_eq!(claim.status.capacity.storage.unwrap().bytes(), 2 << 30);
    assert_eq!(claim.status.allocated_resource_statuses.storage, ResizeStatus::None);
}

#[tokio::test(start_paused = true)]
async fn s113_a_file_system_in_use_grows_where_it_is_mounted_with_the_secret_for_it() {
    let secret = json!({ "csi": { "nodeExpandSecretRef": { "name": "growing", "namespace": "default" } } });
    let stage = Stage::set_in(Cluster { volume: secret, ..unattached(json!({})) }).await;
    stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
    stage.create_secret("growing").await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    grow(&stage).await;
    claim_has_grown(&stage).await;
    let asked = stage.driver.asked().expand.remove(0);
    assert_eq!(asked.volume_id, HANDLE);
    assert_eq!(asked.volume_path, stage.volume_dir(POD, "pv").join("mount").to_str().unwrap());
    assert_eq!(asked.staging_target_path, stage.staging_dir().join("globalmount").to_str().unwrap());
    assert_eq!(asked.capacity_range.unwrap().required_bytes, 2 << 30);
    assert_eq!(asked.secrets["growing"], "x");
    assert_eq!(stage.driver.calls(), ["stage", "publish", "expand"]);
}

/// A real kubelet names the device as the driver published it, and where it is staged.
#[tokio::test(start_paused = true)]
async fn s113_a_device_in_use_grows_where_it_is_published() {
    let stage = with_device().await;
    let _node = stage.start();
    stage.create_device_pod(POD).await;
    stage.pod_is_running(POD).await;
    grow(&stage).await;
    claim_has_grown(&stage).await;
    let (asked, paths) = (stage.driver.asked().expand.remove(0), paths(&stage, POD));
    assert_eq!(asked.volume_path, paths.published.to_str().unwrap());
    assert_eq!(asked.staging_target_path, paths.staging.to_str().unwrap());
    assert!(matches!(asked.volume_capability.unwrap().access_type, Some(AccessType::Block(_))));
}

#[tokio::test(start_paused = true)]
async fn s113_a_driver_that_cannot_grow_volumes_on_the_node_is_not_asked() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    grow(&stage).await;
    stage.event(POD, "VolumeResizeFailed", "cannot grow volumes there").await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
}

#[tokio::test(start_paused = true)]
async fn s113_a_volume_that_cannot_grow_while_in_use_is_left_until_it_is_mounted_anew() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    stage.driver.fail("expand", Status::failed_precondition("in use"));
    grow(&stage).await;
    stage.driver.called(3).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish", "expand"], "it was asked again");
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    stage.create_pod("next").await;
    stage.pod_is_running("next").await;
    claim_has_grown(&stage).await;
}

#[tokio::test(start_paused = true)]
async fn s113_another_error_is_told_and_tried_again() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    stage.driver.fail("expand", Status::internal("no tool"));
    grow(&stage).await;
    stage.event(POD, "VolumeResizeFailed", "no tool").await;
    stage.driver.called(4).await;
    claim_has_grown(&stage).await;
}

/// The resizer leaves a claim alone while it is the node's turn, so a size that the node never gets was there for ever.
#[tokio::test(start_paused = true)]
async fn s113_a_size_that_was_refused_for_good_and_that_nobody_asks_for_any_more_is_infeasible() {
    for can_expand in [true, false] {
        let stage = Stage::set_in(unattached(json!({}))).await;
        if can_expand {
            stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
            (0..10).for_each(|_| stage.driver.fail("expand", Status::internal("no tool")));
        }
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        stage.let_claim_grow().await;
        let ask_for = async |size: &str| {
            let asked = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
            stage.patch::<Claim>("claim", Part::Main, asked).await;
        };
        let resize = async || stage.get::<Claim>("claim").await.status.allocated_resource_statuses.storage;
        ask_for("2Gi").await;
        grow(&stage).await;
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        assert_eq!(resize().await, ResizeStatus::NodeResizeInProgress, "given up while somebody asks for it");
        ask_for("1536Mi").await;
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert_eq!(resize().await, ResizeStatus::NodeResizeInfeasible, "{can_expand}");
        let calls = stage.driver.calls().len();
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert_eq!(stage.driver.calls().len(), calls, "asked again for what is given up");
    }
}

//! A kubelet's directory tree is taken over as it stands, and what is left here is what a kubelet would have left.
//!
//! Names, modes and bytes are those that a real kubelet was seen to leave. Mounts are real, in a mount namespace of a
//! process of their own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::names;
use stowage_mount::{Access, Devices, LinuxMounter, Mounter};

use crate::driver::{NAME, Publishes};
use crate::stage::{Cluster, HANDLE, POD, Stage, unattached};

/// A pod that went while nobody looked.
const GONE: &str = "11111111-2222-3333-4444-555555555555";
const OLD: &str = "old-handle";

/// Runs a test of this module in a process with mounts of its own, which vanish with it.
fn in_own_namespace(test: &str) {
    let about = fs::metadata("/proc/self").unwrap();
    if about.uid() != 0 {
        eprintln!("skipped: mounts need root");
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(exe).args(["--exact", "--ignored", "--nocapture"]);
    let output = command.arg(format!("takeover::{test}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn dir(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o750)).unwrap();
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

fn staged_data(handle: &str) -> String {
    format!("{{\"driverName\":\"{NAME}\",\"volumeHandle\":\"{handle}\"}}\n")
}

fn pod_data(spec: &str, handle: &str, mode: &str) -> String {
    let attachment = names::attachment(handle, NAME, "node");
    format!(
        "{{\"attachmentID\":\"{attachment}\",\"driverName\":\"{NAME}\",\"nodeName\":\"node\",\"specVolID\":\"{spec}\",\
         \"volumeHandle\":\"{handle}\",\"volumeLifecycleMode\":\"{mode}\"}}\n"
    )
}

/// What a kubelet leaves of a pod, without volumes.
fn leave_pod(root: &Path, uid: &str) -> PathBuf {
    let pod = root.join("pods").join(uid);
    for part in ["containers/c", "plugins", "volumes/kubernetes.io~csi"] {
        dir(&pod.join(part));
    }
    put(&pod.join("etc-hosts"), "127.0.0.1 localhost\n");
    put(&pod.join("containers/c/4054ee1f"), "");
    pod.join("volumes/kubernetes.io~csi")
}

/// A staged volume, really mounted, with a file in it.
async fn leave_staged(root: &Path, handle: &str) -> PathBuf {
    let staging = root.join(names::staging_dir(NAME, handle));
    let global = staging.join("globalmount");
    dir(&global);
    put(&staging.join("vol_data.json"), &staged_data(handle));
    LinuxMounter.mount("tmpfs", &global, "tmpfs", &Default::default()).await.unwrap();
    fs::write(global.join("kept"), handle).unwrap();
    global
}

async fn leave_published(volumes: &Path, spec: &str, handle: &str, mode: &str, source: &Path) {
    let target = volumes.join(spec).join("mount");
    dir(&target);
    put(&volumes.join(spec).join("vol_data.json"), &pod_data(spec, handle, mode));
    LinuxMounter.bind(source, &target, Access::ReadWrite).await.unwrap();
}

async fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let table = LinuxMounter.mounts().await.unwrap();
    table.iter().map(|mount| mount.target.clone()).filter(|target| target.starts_with(root)).collect()
}

/// Everything below a directory, as `mode path` with uids spelled UID.
fn tree(root: &Path, uid: &str) -> Vec<String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.clone());
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                walk(&path, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(root, &mut found);
    let line = |path: &PathBuf| {
        let mode = fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        format!("{mode:04o} {}", path.strip_prefix(root).unwrap().display()).replace(uid, "UID")
    };
    let mut lines: Vec<String> = found.iter().map(line).collect();
    lines.sort_by_key(|line| line[5..].to_owned());
    lines
}

#[test]
fn a_kubelets_mounts_are_taken_over_and_those_nobody_wants_are_taken_down() {
    in_own_namespace("kubelet_to_ours");
}

#[tokio::test(start_paused = true)]
#[ignore = "runs in a mount namespace of its own"]
async fn kubelet_to_ours() {
    let modes = json!({ "volumeLifecycleModes": ["Persistent", "Ephemeral"] });
    let stage = Stage::set_in(unattached(modes)).await;
    stage.driver.publishes(Publishes::Mount);
    stage.create_pod(POD).await;
    stage.pod_is_known(POD).await;
    let (root, uid) = (stage.root().canonicalize().unwrap(), stage.uid(POD));
    let wanted = leave_staged(&root, HANDLE).await;
    leave_published(&leave_pod(&root, &uid), "pv", HANDLE, "Persistent", &wanted).await;
    let unwanted = leave_staged(&root, OLD).await;
    let of_gone = leave_pod(&root, GONE);
    leave_published(&of_gone, "old", OLD, "Persistent", &unwanted).await;
    let inline = names::inline_handle(GONE, "scratch");
    leave_published(&of_gone, "scratch", &inline, "Ephemeral", &unwanted).await;
    let before =
        (fs::read(stage.volume_dir(POD, "pv").join("vol_data.json")).unwrap(), tree(&root.join("plugins"), GONE));
    assert_eq!(mounts_below(&root).await.len(), 5);

    let _node = stage.start();
    stage.pod_is_running(POD).await;
    stage.driver.called(5).await;
    stage.dirs_are_gone(&[&root.join("pods").join(GONE), &root.join(names::staging_dir(NAME, OLD))]).await;

    let asked = stage.driver.asked();
    let unpublished: Vec<_> = asked.unpublish.iter().map(|asked| asked.volume_id.clone()).collect();
    assert!(unpublished.contains(&OLD.to_owned()) && unpublished.contains(&inline), "{unpublished:?}");
    assert_eq!(asked.unstage.iter().map(|asked| &asked.volume_id[..]).collect::<Vec<_>>(), [OLD]);
    assert_eq!(asked.stage[0].staging_target_path, stage.staging_dir().join("globalmount").to_str().unwrap());
    assert_eq!(asked.publish[0].target_path, stage.volume_dir(POD, "pv").join("mount").to_str().unwrap());
    assert_eq!(mounts_below(&root).await.len(), 2, "the pod's mounts did not stay as they were");
    assert_eq!(fs::read_to_string(stage.volume_dir(POD, "pv").join("mount/kept")).unwrap(), HANDLE);
    let data = stage.volume_dir(POD, "pv").join("vol_data.json");
    assert_eq!(fs::read(&data).unwrap(), before.0);
    assert_eq!(fs::metadata(&data).unwrap().mode() & 0o7777, 0o644);
    let of_old = names::staging_dir(NAME, OLD);
    let of_old = of_old.strip_prefix("plugins/").unwrap_or(&of_old);
    let expected: Vec<String> = before.1.into_iter().filter(|line| !line.contains(of_old)).collect();
    assert_eq!(tree(&root.join("plugins"), GONE), expected);

    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.node_has_nothing().await;
    assert_eq!(mounts_below(&root).await, Vec::<PathBuf>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_file_system_and_an_inline_volume_is_what_a_kubelet_leaves() {
    let modes = json!({ "volumeLifecycleModes": ["Persistent", "Ephemeral"] });
    let stage = Stage::set_in(unattached(modes)).await;
    let node = stage.start();
    let volumes = json!([
        { "name": "data", "persistentVolumeClaim": { "claimName": "claim" } },
        { "name": "scratch", "csi": { "driver": NAME } },
    ]);
    let mounts = json!([{ "name": "data", "mountPath": "/d" }, { "name": "scratch", "mountPath": "/s" }]);
    let containers = json!([{ "name": "c", "image": "i", "volumeMounts": mounts }]);
    stage.create_pod_of(POD, json!({ "volumes": volumes, "containers": containers })).await;
    stage.pod_is_running(POD).await;
    node.crash();
    let uid = stage.uid(POD);
    let hash = names::staging_dir(NAME, HANDLE);
    let hash = Path::new(&hash).file_name().unwrap().to_str().unwrap();
    let csi = "plugins/kubernetes.io/csi";
    let volumes = "pods/UID/volumes/kubernetes.io~csi";
    let expected = [
        "0750 plugins/kubernetes.io".to_owned(),
        format!("0750 {csi}"),
        format!("0750 {csi}/{NAME}"),
        format!("0750 {csi}/{NAME}/{hash}"),
        format!("0750 {csi}/{NAME}/{hash}/globalmount"),
        format!("0644 {csi}/{NAME}/{hash}/vol_data.json"),
        "0750 pods".to_owned(),
        "0750 pods/UID".to_owned(),
        "0750 pods/UID/plugins".to_owned(),
        "0750 pods/UID/volumes".to_owned(),
        format!("0750 {volumes}"),
        format!("0750 {volumes}/pv"),
        format!("0644 {volumes}/pv/vol_data.json"),
        format!("0750 {volumes}/scratch"),
        format!("0644 {volumes}/scratch/vol_data.json"),
    ];
    let found = tree(stage.root(), &uid);
    // What the driver made, and what the deployment of a driver makes, is theirs.
    let is_ours = |line: &&String| {
        let path = &line[5..];
        !path.ends_with("/mount") && path != "plugins" && !path.starts_with("plugins_registry")
    };
    assert_eq!(found.iter().filter(is_ours).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    let text = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(text(stage.staging_dir().join("vol_data.json")), staged_data(HANDLE));
    assert_eq!(text(stage.volume_dir(POD, "pv").join("vol_data.json")), pod_data("pv", HANDLE, "Persistent"));
    let inline = names::inline_handle(&uid, "scratch");
    assert_eq!(text(stage.volume_dir(POD, "scratch").join("vol_data.json")), pod_data("scratch", &inline, "Ephemeral"));
}

/// As in the recorded tree of a real kubelet, with the device bound twice and locked.
async fn leave_device(stage: &Stage, uid: &str) {
    let devices = stage.root().join("plugins/kubernetes.io/csi/volumeDevices");
    let (publish, bound) = (devices.join("publish/pv").join(uid), devices.join("pv/dev").join(uid));
    let attachment = names::attachment(HANDLE, NAME, "node");
    let data = format!(
        "{{\"attachmentID\":\"{attachment}\",\"driverName\":\"{NAME}\",\"nodeName\":\"node\",\"specVolID\":\"pv\",\
         \"volumeHandle\":\"{HANDLE}\"}}\n"
    );
    let link = stage.root().join("pods").join(uid).join("volumeDevices/kubernetes.io~csi/pv");
    stage.memory.with(|tree| {
        for dir in [
            &devices.join("staging/pv"),
            publish.parent().unwrap(),
            bound.parent().unwrap(),
            &devices.join("pv/data"),
            link.parent().unwrap(),
            &stage.root().join("pods").join(uid).join("volumes"),
        ] {
            tree.create_dir(dir).unwrap();
        }
        tree.write_file_with(&devices.join("pv/data/vol_data.json"), data.as_bytes(), 0o644).unwrap();
        tree.make_file(&publish, 0o600).unwrap();
        // Where a device is bound there is no file to be seen any more.
        tree.symlink(Path::new("/dev/loop0"), &bound).unwrap();
        tree.bind(&publish, &bound, Access::ReadWrite).unwrap();
        tree.symlink(&publish, &link).unwrap();
    });
    stage.memory.lock_device(&bound).await.unwrap();
}

async fn with_device() -> Stage {
    let volume = json!({ "volumeMode": "Block" });
    let stage = Stage::set_in(Cluster { volume, in_memory: true, ..unattached(json!({})) }).await;
    stage.driver.can(&[Capability::StageUnstageVolume]);
    stage.driver.publishes(Publishes::Device);
    stage
}

#[tokio::test(start_paused = true)]
async fn a_device_that_a_kubelet_mapped_is_mapped_again_for_a_pod_that_wants_it() {
    let stage = with_device().await;
    stage.create_device_pod(POD).await;
    stage.pod_is_known(POD).await;
    leave_device(&stage, &stage.uid(POD)).await;
    let before = stage.memory.snapshot().lines();
    let _node = stage.start();
    stage.pod_is_running(POD).await;
    assert_eq!(stage.driver.calls(), ["stage", "publish"]);
    let plugins_of_pod = format!("{}/pods/{}/plugins/", stage.root().display(), stage.uid(POD));
    let after: Vec<String> =
        stage.memory.snapshot().lines().into_iter().filter(|line| *line != plugins_of_pod).collect();
    let before: Vec<String> = before.into_iter().filter(|line| *line != plugins_of_pod).collect();
    assert_eq!(after, before);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_a_kubelet_mapped_for_a_pod_that_is_gone_is_taken_down() {
    let stage = with_device().await;
    leave_device(&stage, GONE).await;
    let _node = stage.start();
    stage.driver.called(2).await;
    stage.node_has_nothing().await;
    assert_eq!(stage.driver.calls(), ["unpublish", "unstage"]);
    stage.settle().await;
    let tree = stage.memory.snapshot();
    assert_eq!(tree.mounts().iter().count(), 0);
    let left = |path: &&Path| path.ends_with("pv") || path.ends_with(GONE);
    assert_eq!(tree.below(stage.root()).filter(left).collect::<Vec<_>>(), Vec::<&Path>::new());
}

/// Its directory carries a uid that no object of the API has, so it was taken for that of a pod that is gone.
#[tokio::test(start_paused = true)]
async fn the_directories_of_a_static_pod_are_those_of_its_mirror_pod_and_go_with_that() {
    const STATIC: &str = "0123456789abcdef0123456789abcdef";
    let stage = Stage::set().await;
    let scratch = stage.root().join("pods").join(STATIC).join("volumes/kubernetes.io~empty-dir/data");
    dir(&stage.root().join("pods").join(STATIC).join("plugins"));
    dir(&scratch);
    put(&scratch.join("kept"), "data");
    let annotations = json!({ "kubernetes.io/config.mirror": STATIC, "kubernetes.io/config.hash": STATIC });
    let spec = json!({ "volumes": [{ "name": "data", "emptyDir": {} }] });
    stage.create_pod_from(POD, json!({ "metadata": { "annotations": annotations }, "spec": spec })).await;
    stage.pod_is_known(POD).await;

    let _node = stage.start();
    stage.pod_is_running(POD).await;
    stage.settle().await;
    assert_eq!(fs::read_to_string(scratch.join("kept")).unwrap(), "data");
    assert!(!stage.root().join("pods").join(stage.uid(POD)).try_exists().unwrap(), "the mirror has its own");
    stage.delete_pod(POD).await;
    stage.pod_is_gone(POD).await;
    stage.pod_dirs_are_gone().await;
    assert_eq!(stage.elapsed(), std::time::Duration::ZERO);
}

/// A kubelet leaves no metadata for a driver that does not stage, only an empty directory.
#[tokio::test(start_paused = true)]
async fn an_empty_staging_directory_without_metadata_is_no_mount() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    dir(&stage.staging_dir().join("globalmount"));
    let node = stage.start();
    stage.driver_is_registered().await;
    stage.settle().await;
    assert_eq!(node.occupancy.mounts(), Some(0));
    assert_eq!(stage.driver.calls(), Vec::<String>::new());
}

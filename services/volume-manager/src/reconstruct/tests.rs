use std::fs;

use super::*;
use crate::controller::tests::controller;

const VOLUME: &str = "kubernetes.io/csi/driver^handle";

fn of_pod(lifecycle: &str) -> String {
    format!(
        "{{\"attachmentID\":\"csi-x\",\"driverName\":\"driver\",\"nodeName\":\"node\",\"specVolID\":\"pv\",\
         \"volumeHandle\":\"handle\"{lifecycle}}}\n"
    )
}

const PERSISTENT: &str = ",\"volumeLifecycleMode\":\"Persistent\"";
const STAGED: &str = "{\"driverName\":\"driver\",\"volumeHandle\":\"handle\"}\n";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn look(root: &Path) -> Reconstruction {
    let mut controller = controller().await;
    controller.host.layout = Layout::new(root);
    reconstruct(&controller.host, &controller.plugins).await.unwrap()
}

#[tokio::test]
async fn s69_what_a_kubelet_left_is_read_back_and_empty_leftovers_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::new(root.path());
    let staging = layout.root().join(stowage_model::names::staging_dir("driver", "handle"));
    fs::create_dir_all(staging.join("globalmount")).unwrap();
    write(&staging.join("vol_data.json"), STAGED);
    for uid in ["a", "b"] {
        write(&layout.pod_volume(uid, "kubernetes.io/csi", "pv").join("vol_data.json"), &of_pod(PERSISTENT));
    }
    let leftover = layout.pod_volume("c", "kubernetes.io/csi", "pv").join("mount");
    fs::create_dir_all(&leftover).unwrap();

    let Reconstruction { states, found, failed } = look(root.path()).await;
    let known = states.actual.get(&VOLUME.into()).unwrap();
    assert_eq!((known.device, known.is_reconstructed), (Some(MountState::Uncertain), true));
    assert_eq!(known.pods.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(known.pods.values().all(|pod| pod.state == MountState::Uncertain && pod.is_reconstructed));
    assert_eq!(states.pod_dirs.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(!leftover.parent().unwrap().try_exists().unwrap(), "the leftover is still there");
    assert_eq!((found, failed), (3, 1));
    assert!(states.report.unexplained.is_empty());
}

#[tokio::test]
async fn a_device_and_an_inline_volume_are_read_back() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::new(root.path());
    let data = layout.plugin("kubernetes.io/csi").join("volumeDevices/pv/data/vol_data.json");
    write(&data, &of_pod(""));
    let link = layout.pod_device("a", "kubernetes.io/csi", "pv");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/loop99", &link).unwrap();
    let inline = of_pod(",\"volumeLifecycleMode\":\"Ephemeral\"");
    write(&layout.pod_volume("b", "kubernetes.io/csi", "pv").join("vol_data.json"), &inline);

    let states = look(root.path()).await.states;
    let device = states.actual.get(&VOLUME.into()).unwrap();
    assert!(device.spec.is_block() && device.device.is_some());
    assert_eq!(device.pods.keys().collect::<Vec<_>>(), ["a"]);
    let inline = states.actual.get(&"kubernetes.io/csi/b-pv".into()).unwrap();
    assert_eq!((inline.device, inline.pods.len()), (None, 1));
}

#[tokio::test]
async fn s70_metadata_that_cannot_be_read_is_reported_and_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::new(root.path());
    let dir = layout.pod_volume("a", "kubernetes.io/csi", "pv");
    write(&dir.join("vol_data.json"), "{");
    let states = look(root.path()).await.states;
    assert_eq!(states.report.unexplained, std::slice::from_ref(&dir));
    assert!(dir.join("vol_data.json").is_file());
    assert_eq!(states.actual.mounts(), 0);
}

#[test]
fn what_a_mount_nobody_can_explain_may_be_of_stays_in_use() {
    let layout = Layout::new("/k");
    let reported = ["driver^handle", "driver^other", "twin^handle"].map(|name| format!("kubernetes.io/csi/{name}"));
    let kept = |dirs: &[PathBuf]| {
        possible_volumes(&reported, dirs, &layout).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(kept(&[]).is_empty());
    let staging = layout.root().join(stowage_model::names::staging_dir("driver", "handle"));
    assert_eq!(kept(&[staging]), reported[..1]);
    assert_eq!(kept(&[layout.pod_volume("a", "kubernetes.io/csi", "pv")]), reported);
}

#[tokio::test]
async fn a_new_node_has_nothing_mounted() {
    let root = tempfile::tempdir().unwrap();
    let found = look(&root.path().join("missing")).await;
    assert_eq!((found.states.actual.mounts(), found.states.pod_dirs.len(), found.found), (0, 0, 0));
}

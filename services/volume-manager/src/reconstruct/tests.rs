use std::fs;

use stowage_mount::LinuxMounter;

use super::*;
use crate::desired::VolumeId;

fn volume() -> VolumeId {
    VolumeId::new("driver", "handle")
}

fn at_pod(uid: &str, data: Option<Vec<u8>>, mounted: bool) -> Trace {
    let dir = PathBuf::from(format!("/k/pods/{uid}/volumes/kubernetes.io~csi/pv"));
    let owner = Owner::Pod { uid: uid.into(), dir_name: "pv".into() };
    Trace { target: dir.join("mount"), dir, owner, data, mounted }
}

fn at_staging(data: Option<Vec<u8>>, mounted: bool) -> Trace {
    let dir = PathBuf::from("/k/plugins/kubernetes.io/csi/driver/hash");
    Trace { target: dir.join("globalmount"), dir, owner: Owner::Driver("driver".into()), data, mounted }
}

#[test]
fn s69_whatever_has_metadata_may_be_mounted_whether_or_not_the_kernel_shows_it() {
    for mounted in [true, false] {
        let data = || Some(vol_data::publishing(&volume(), "pv", "node"));
        let found = conclude(vec![
            at_staging(Some(vol_data::staging(&volume())), mounted),
            at_pod("a", data(), mounted),
            at_pod("b", data(), mounted),
        ]);
        assert_eq!(found.world.staged[&volume()], Staged { hold: Hold::Uncertain, reconstructed: true });
        let pods = &found.world.published[&volume()];
        let expected = Published { spec_name: "pv".into(), hold: Hold::Uncertain, reconstructed: true };
        assert_eq!(pods.iter().collect::<Vec<_>>(), [(&"a".to_owned(), &expected), (&"b".to_owned(), &expected)]);
        assert!(found.leftovers.is_empty() && found.unexplained.is_empty());
    }
}

#[test]
fn an_unmounted_directory_without_metadata_is_an_empty_leftover() {
    let found = conclude(vec![at_staging(None, false), at_pod("a", None, false)]);
    assert_eq!(found.leftovers.len(), 2);
    assert!(found.world.staged.is_empty() && found.world.published.is_empty());
}

#[test]
fn a_mount_nobody_can_explain_is_reported_and_left_alone() {
    let found = conclude(vec![at_pod("a", None, true), at_staging(Some(b"garbage".to_vec()), true)]);
    let reasons: Vec<&str> = found.unexplained.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(reasons[0], "it has no metadata");
    assert!(reasons[1].contains("no map of texts"), "{reasons:?}");
    assert!(found.leftovers.is_empty() && found.world.published.is_empty());
}

#[test]
fn what_a_mount_nobody_can_explain_may_be_of_stays_in_use() {
    let layout = Layout::new("/k");
    let reported = ["driver^handle", "driver^other", "twin^handle"].map(|name| format!("kubernetes.io/csi/{name}"));
    let kept = |dirs: Vec<PathBuf>| {
        let mut world = World { unexplained: dirs, ..World::default() };
        world.keep_in_use(&reported, &layout);
        world.kept_in_use.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(kept(vec![]).is_empty());
    assert_eq!(kept(vec![layout.staging_dir(&volume())]), reported[..1]);
    assert_eq!(kept(vec![layout.pod_volume("a", "pv")]), reported);
}

#[tokio::test]
async fn the_files_of_a_node_are_read_back_and_leftovers_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::new(root.path());
    let staging = layout.staging_dir(&volume());
    fs::create_dir_all(layout.global_mount(&volume())).unwrap();
    fs::write(data_file(&staging), vol_data::staging(&volume())).unwrap();
    let published = layout.pod_volume("a", "pv");
    fs::create_dir_all(&published).unwrap();
    fs::write(data_file(&published), vol_data::publishing(&volume(), "pv", "node")).unwrap();
    let leftover = layout.pod_mount("b", "pv");
    fs::create_dir_all(&leftover).unwrap();
    fs::create_dir_all(layout.staging().join("volumeDevices/staging/pv")).unwrap();

    let world = reconstruct(&LinuxMounter, &layout).await.unwrap();
    assert_eq!(world.staged.keys().collect::<Vec<_>>(), [&volume()]);
    assert_eq!(world.published[&volume()].keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(world.pod_dirs.iter().collect::<Vec<_>>(), ["a", "b"]);
    assert!(!layout.pod_volume("b", "pv").try_exists().unwrap(), "the leftover is still there");
    assert!(published.try_exists().unwrap() && staging.try_exists().unwrap());
}

#[tokio::test]
async fn a_new_node_has_nothing_mounted() {
    let root = tempfile::tempdir().unwrap();
    let world = reconstruct(&LinuxMounter, &Layout::new(root.path().join("missing"))).await.unwrap();
    assert!(world.staged.is_empty() && world.published.is_empty() && world.pod_dirs.is_empty());
}

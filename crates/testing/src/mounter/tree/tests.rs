use std::path::PathBuf;

use stowage_mount::{ChangePolicy, Held, Hold, Holder, OwnershipWalk, Progress, SubPath};

use super::*;

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn staged() -> Tree {
    let mut tree = Tree::default();
    tree.create_dir(path("/root/stage/globalmount")).unwrap();
    tree.create_dir(path("/root/pod/mount")).unwrap();
    tree.mount("vol-1", path("/root/stage/globalmount"), "test", &MountOptions::default()).unwrap();
    tree
}

#[test]
fn a_bind_mount_shows_the_device_of_its_source() {
    let mut tree = staged();
    tree.bind(path("/root/stage/globalmount"), path("/root/pod/mount"), Access::ReadOnly).unwrap();
    let mounts = tree.mounts();
    let (staged, published) =
        (mounts.at(path("/root/stage/globalmount")).unwrap(), mounts.at(path("/root/pod/mount")).unwrap());
    assert_eq!((published.device, published.source.as_str()), (staged.device, "vol-1"));
    assert!(published.is_read_only());
}

#[test]
fn a_directory_that_is_or_holds_a_mount_or_a_file_is_not_removed() {
    let mut tree = staged();
    for dir in ["/root/stage/globalmount", "/root/stage"] {
        assert!(tree.remove_dir(path(dir)).unwrap_err().is_busy(), "{dir}");
    }
    tree.unmount(path("/root/stage/globalmount")).unwrap();
    tree.remove_dir(path("/root/stage/globalmount")).unwrap();
    tree.write_file(path("/root/stage/vol_data.json"), b"{}").unwrap();
    assert_eq!(tree.remove_dir(path("/root/stage")).unwrap_err().os_error(), Some(ENOTEMPTY));
    tree.remove_file(path("/root/stage/vol_data.json")).unwrap();
    tree.remove_dir(path("/root/stage")).unwrap();
    assert_eq!(tree.stat(path("/root/stage")), None);
}

#[test]
fn what_is_not_there_cannot_be_used_but_can_be_undone() {
    let mut tree = Tree::default();
    assert!(tree.mount("vol-1", path("/a"), "test", &MountOptions::default()).unwrap_err().is_missing());
    assert!(tree.write_file(path("/a/b"), b"").unwrap_err().is_missing());
    tree.unmount(path("/a")).unwrap();
    tree.remove_dir(path("/a")).unwrap();
    tree.remove_file(path("/a")).unwrap();
    assert_eq!(tree.list_dir(path("/a")).unwrap(), None);
    assert_eq!(tree.resolve(path("/a/b")), None);
}

#[test]
fn an_ownership_walk_stays_in_its_volume_and_is_skipped_where_the_root_fits() {
    let mut tree = staged();
    let root = path("/root/stage/globalmount");
    tree.create_dir(&root.join("a/other")).unwrap();
    tree.mount("vol-2", &root.join("a/other"), "test", &MountOptions::default()).unwrap();
    tree.symlink(path("/root/pod"), &root.join("link")).unwrap();
    let walk = OwnershipWalk { root: root.into(), gid: 7, read_only: false, policy: ChangePolicy::OnRootMismatch };
    assert_eq!(tree.own(&walk, &Progress::default()).unwrap().entries, 3);
    let of = |tree: &Tree, at: &Path| tree.stat(at).map(|info| (info.gid, info.mode)).unwrap();
    assert_eq!(of(&tree, root), (7, 0o2770));
    assert_eq!((of(&tree, &root.join("link")), of(&tree, &root.join("a/other")).0), ((7, 0o777), 0));
    assert!(tree.own(&walk, &Progress::default()).unwrap().skipped);
}

#[test]
fn a_sub_path_is_made_shown_reused_replaced_and_cleaned_up() {
    let mut tree = staged();
    let target = path("/root/pod/volume-subpaths/v/c/0");
    let mut part = SubPath { volume: "/root/stage/globalmount".into(), path: "a/b".into(), target: target.into() };
    assert_eq!(tree.prepare_sub_path(&part).unwrap(), FileKind::Directory);
    let first = tree.mounts().at(target).unwrap().id;
    tree.prepare_sub_path(&part).unwrap();
    assert_eq!(tree.mounts().at(target).unwrap().id, first);
    part.path = "a/c".into();
    tree.prepare_sub_path(&part).unwrap();
    assert_eq!(tree.mounts().under(target).count(), 1);
    assert_ne!(tree.mounts().at(target).unwrap().id, first);
    tree.symlink(path("/"), path("/root/stage/globalmount/out")).unwrap();
    part.path = "out/etc".into();
    assert!(tree.prepare_sub_path(&part).is_err());
    tree.clean_sub_paths(path("/root/pod/volume-subpaths")).unwrap();
    assert!(tree.stat(path("/root/pod/volume-subpaths")).is_none() && tree.mounts().at(target).is_none());
}

#[test]
fn an_orphan_with_a_mount_or_with_contents_of_a_volume_stays() {
    let mut tree = staged();
    let (pod, volume) = (path("/root/pod"), path("/root/pod/volumes/p/v"));
    tree.create_dir(&volume.join("mount")).unwrap();
    tree.bind(path("/root/stage/globalmount"), &volume.join("mount"), Access::ReadWrite).unwrap();
    assert!(tree.remove_orphan(pod).unwrap_err().is_busy());
    tree.unmount(&volume.join("mount")).unwrap();
    tree.write_file(&volume.join("vol_data.json"), b"{}").unwrap();
    assert!(tree.remove_orphan(pod).unwrap_err().to_string().contains("vol_data.json"));
    tree.remove_file(&volume.join("vol_data.json")).unwrap();
    tree.remove_orphan(pod).unwrap();
    assert_eq!(tree.stat(pod), None);
}

#[test]
fn a_mount_that_somebody_holds_goes_only_lazily_and_a_reboot_takes_all_of_them() {
    let mut tree = staged();
    let stage = path("/root/stage/globalmount");
    let holder = Holder { pid: 7, name: "nginx".into(), how: Hold::WorkingDirectory };
    tree.hold(stage, holder.clone());
    assert!(tree.unmount(stage).unwrap_err().is_busy());
    assert_eq!(tree.holders(&Held::Mount(stage.into())).found, [holder]);
    tree.unmount_lazily(stage).unwrap();
    assert!(tree.mounts().at(stage).is_none() && tree.holders(&Held::Mount(stage.into())).found.is_empty());

    tree.mount("tmpfs", stage, "tmpfs", &MountOptions::new(["size=1k"])).unwrap();
    tree.remount(stage, &MountOptions::new(["size=2k"])).unwrap();
    assert_eq!(tree.mounts().at(stage).unwrap().options, ["size=2k"]);
    tree.write_file(&stage.join("secret"), b"x").unwrap();
    tree.make_file(path("/root/dev"), 0o750).unwrap();
    let lock = tree.lock_device(path("/root/dev")).unwrap();
    assert_eq!(tree.lock_device(path("/root/dev")).unwrap(), lock);
    tree.reboot();
    assert!(tree.mounts().iter().next().is_none() && tree.stat(&stage.join("secret")).is_none());
    assert!(tree.device_lock(path("/root/dev")).is_none() && tree.stat(stage).is_some());
}

#[test]
fn links_are_followed_only_where_that_is_asked_for() {
    let mut tree = Tree::default();
    tree.create_dir(path("/v/..1")).unwrap();
    tree.write_file(path("/v/..1/key"), b"value").unwrap();
    tree.symlink(path("..1"), path("/v/..data")).unwrap();
    tree.symlink(path("..data/key"), path("/v/key")).unwrap();
    tree.symlink(path("round"), path("/v/round")).unwrap();
    assert_eq!(tree.canonical(path("/v/key")), Some(PathBuf::from("/v/..1/key")));
    assert_eq!((tree.canonical(path("/v/round")), tree.canonical(path("/v/gone"))), (None, None));
    assert_eq!(tree.read_link(path("/v/key")).unwrap(), Some(PathBuf::from("..data/key")));
    assert!(tree.read_file(path("/v/key")).is_err() && tree.read_link(path("/v")).is_err());
}

use std::error::Error as _;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use stowage_mount::{Access, FileKind, MountOptions, Mounter, SubPath, SubPaths};

use crate::{HOST, in_own_namespace};

fn part(dir: &Path, path: &str) -> SubPath {
    let target = dir.join("pod/volume-subpaths/volume/container/0");
    SubPath { volume: dir.join("volume"), path: path.into(), target }
}

fn volume(dir: &Path) -> PathBuf {
    let volume = dir.join("volume");
    fs::create_dir(&volume).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2770)).unwrap();
    volume
}

async fn clean(dir: &Path) {
    HOST.clean_sub_paths(&dir.join("pod/volume-subpaths")).await.unwrap();
    assert!(!dir.join("pod/volume-subpaths").try_exists().unwrap());
    assert_eq!(HOST.mounts().await.unwrap().under(dir).count(), 0);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn row_148_missing_directories_are_made_with_the_mode_of_the_volume_and_shown() {
    in_own_namespace(async |dir| {
        let volume = volume(&dir);
        let sub_path = part(&dir, "a/b/c");
        assert_eq!(HOST.prepare_sub_path(&sub_path).await.unwrap(), FileKind::Directory);
        for made in ["a", "a/b", "a/b/c"] {
            assert_eq!(mode(&volume.join(made)), 0o2770, "{made}");
        }
        fs::write(sub_path.target.join("file"), b"data").unwrap();
        assert_eq!(fs::read(volume.join("a/b/c/file")).unwrap(), b"data");
        assert_eq!(mode(sub_path.target.parent().unwrap()), 0o750);
        clean(&dir).await;
        assert_eq!(fs::read(volume.join("a/b/c/file")).unwrap(), b"data");
        HOST.clean_sub_paths(&dir.join("pod/volume-subpaths")).await.unwrap();
    });
}

#[test]
fn row_148_files_sockets_pipes_and_links_within_the_volume_are_shown() {
    in_own_namespace(async |dir| {
        let volume = volume(&dir);
        fs::create_dir_all(volume.join("real/deep")).unwrap();
        fs::write(volume.join("real/file"), b"data").unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), Mode::S_IRUSR).unwrap();
        let _socket = UnixListener::bind(volume.join("socket")).unwrap();
        symlink("real/file", volume.join("to-file")).unwrap();
        symlink("real", volume.join("to-real")).unwrap();
        symlink("../real/deep", volume.join("real/up-and-down")).unwrap();
        for (path, kind, shown) in [
            ("real", FileKind::Directory, "real"),
            ("real/file", FileKind::File, "real/file"),
            ("pipe", FileKind::Other, "pipe"),
            ("socket", FileKind::Other, "socket"),
            ("to-file", FileKind::File, "real/file"),
            ("to-real/file", FileKind::File, "real/file"),
            ("to-real/new", FileKind::Directory, "real/new"),
            ("real/up-and-down", FileKind::Directory, "real/deep"),
        ] {
            let sub_path = part(&dir, path);
            assert_eq!(HOST.prepare_sub_path(&sub_path).await.unwrap(), kind, "{path}");
            let (at, original) = (fs::metadata(&sub_path.target).unwrap(), fs::metadata(volume.join(shown)).unwrap());
            assert_eq!(at.ino(), original.ino(), "{path}");
            // One that is prepared again stays as it is.
            let before = HOST.mounts().await.unwrap().at(&sub_path.target).unwrap().id;
            HOST.prepare_sub_path(&sub_path).await.unwrap();
            assert_eq!(HOST.mounts().await.unwrap().at(&sub_path.target).unwrap().id, before, "{path}");
        }
        // The kinds of targets took turns above, the last one of each was replaced.
        assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 1);
        HOST.unmount(&part(&dir, "").target).await.unwrap();
        let file = part(&dir, "real/file");
        HOST.prepare_sub_path(&file).await.unwrap();
        HOST.unmount(&file.target).await.unwrap();
        assert_eq!(mode(&file.target), 0o640);
        clean(&dir).await;
    });
}

#[test]
fn row_148_a_link_out_of_the_volume_is_refused_and_no_path_of_the_machine_is_told() {
    in_own_namespace(async |dir| {
        let volume = volume(&dir);
        fs::create_dir(dir.join("outside")).unwrap();
        fs::create_dir(volume.join("inner")).unwrap();
        fs::write(volume.join("file"), b"").unwrap();
        symlink("/etc", volume.join("absolute")).unwrap();
        symlink("../outside", volume.join("relative")).unwrap();
        symlink("..", volume.join("up")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        symlink("/nowhere", volume.join("dangling-out")).unwrap();
        symlink("round", volume.join("round")).unwrap();
        symlink("/proc/self/cwd", volume.join("inner/magic")).unwrap();
        for path in [
            "absolute",
            "absolute/passwd",
            "absolute/new",
            "relative",
            "relative/new/one",
            "up",
            "up/outside",
            "up/new",
            "dangling",
            "dangling/new",
            "dangling-out",
            "dangling-out/new",
            "round",
            "inner/magic",
            "inner/magic/x",
            "file/new",
            "../outside",
            "/etc",
            "inner/../../outside",
        ] {
            let error = HOST.prepare_sub_path(&part(&dir, path)).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("{path:?}")) && !text.contains(dir.to_str().unwrap()), "{text}");
            assert_eq!(error.source().is_some(), error.to_string().starts_with("cannot prepare"), "{text}");
        }
        assert_eq!(fs::read_dir(dir.join("outside")).unwrap().count(), 0);
        assert!(!dir.join("new").try_exists().unwrap() && !Path::new("/etc/new").try_exists().unwrap());
        assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 0);
    });
}

#[test]
fn row_148_another_mount_at_the_target_is_replaced_also_while_it_is_used() {
    in_own_namespace(async |dir| {
        let volume = volume(&dir);
        fs::create_dir_all(volume.join("one")).unwrap();
        fs::create_dir_all(volume.join("two")).unwrap();
        let (one, two) = (part(&dir, "one"), part(&dir, "two"));
        HOST.prepare_sub_path(&one).await.unwrap();
        let user = fs::File::create(one.target.join("used")).unwrap();
        HOST.bind(&dir, &one.target, Access::ReadWrite).await.unwrap();
        HOST.prepare_sub_path(&two).await.unwrap();
        assert_eq!(fs::metadata(&two.target).unwrap().ino(), fs::metadata(volume.join("two")).unwrap().ino());
        assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 1);
        drop(user);
        clean(&dir).await;
    });
}

#[test]
fn row_148_a_mount_whose_server_is_gone_is_replaced() {
    in_own_namespace(async |dir| {
        volume(&dir);
        let sub_path = part(&dir, "a");
        HOST.create_dir(&sub_path.target).await.unwrap();
        let Ok(mut server) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
            eprintln!("skipped: there is no /dev/fuse");
            return;
        };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        mount(Some("gone"), &sub_path.target, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        server.flush().unwrap();
        drop(server);
        let lost = fs::metadata(&sub_path.target).unwrap_err();
        assert_eq!(lost.raw_os_error(), Some(nix::libc::ENOTCONN));
        HOST.prepare_sub_path(&sub_path).await.unwrap();
        fs::write(sub_path.target.join("file"), b"").unwrap();
        assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 1);
        clean(&dir).await;
    });
}

#[test]
fn row_148_a_directory_swapped_for_a_link_while_it_is_prepared_never_shows_what_is_outside() {
    in_own_namespace(async |dir| {
        let (volume, outside) = (volume(&dir), dir.join("outside"));
        fs::create_dir_all(outside.join("b")).unwrap();
        fs::create_dir_all(volume.join("a/b")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let swapper = {
            let (volume, outside, stop) = (volume.clone(), outside.clone(), stop.clone());
            std::thread::spawn(move || {
                // The one that is prepared may have made a directory anew at any point, so each of these may fail.
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs::rename(volume.join("a"), volume.join("aside"));
                    let _ = symlink(&outside, volume.join("a"));
                    let _ = fs::remove_file(volume.join("a"));
                    let _ = fs::rename(volume.join("aside"), volume.join("a"));
                    let _ = fs::remove_dir_all(volume.join("aside"));
                    let _ = fs::create_dir_all(volume.join("a/b"));
                }
            })
        };
        let (sub_path, forbidden) = (part(&dir, "a/b/c"), fs::metadata(outside.join("b")).unwrap().ino());
        for _ in 0..500 {
            if HOST.prepare_sub_path(&sub_path).await.is_ok() {
                assert_ne!(fs::metadata(&sub_path.target).unwrap().ino(), forbidden);
            }
        }
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
        assert_eq!(fs::read_dir(outside.join("b")).unwrap().count(), 0);
        clean(&dir).await;
    });
}

#[test]
fn row_148_what_is_no_target_is_left_where_it_is() {
    in_own_namespace(async |dir| {
        let (targets, outside) = (dir.join("pod/volume-subpaths"), dir.join("outside"));
        fs::create_dir_all(targets.join("volume/container")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), b"data").unwrap();
        symlink(&outside, targets.join("volume/container/0")).unwrap();
        assert!(HOST.clean_sub_paths(&targets).await.is_err());
        fs::remove_file(targets.join("volume/container/0")).unwrap();
        fs::write(targets.join("volume/container/0"), b"data").unwrap();
        assert!(HOST.clean_sub_paths(&targets).await.is_err());
        fs::remove_file(targets.join("volume/container/0")).unwrap();
        HOST.clean_sub_paths(&targets).await.unwrap();
        assert_eq!(fs::read(outside.join("precious")).unwrap(), b"data");
        // A link in the place of the directory itself.
        symlink(&outside, &targets).unwrap();
        assert!(HOST.clean_sub_paths(&targets).await.is_err());
        assert!(outside.join("precious").try_exists().unwrap());
    });
}

#[test]
fn a_volume_that_is_read_only_has_no_new_sub_paths() {
    in_own_namespace(async |dir| {
        let volume = volume(&dir);
        HOST.mount("none", &volume, "tmpfs", &MountOptions::new(["ro"])).await.unwrap();
        let error = HOST.prepare_sub_path(&part(&dir, "new")).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot prepare subPath \"new\": it does not exist and the volume is read-only");
        HOST.unmount(&volume).await.unwrap();
    });
}

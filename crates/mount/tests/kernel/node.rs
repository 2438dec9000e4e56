use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};
use stowage_mount::{
    Access, Devices, FileSystem, Folders, Host, Measures, MountOptions, Mounter, Probed, Result, UsageProbe,
};

use crate::{HOST, attached, in_own_namespace, tag};

#[test]
fn a_busy_mount_goes_lazily_and_one_that_is_idle_by_force() {
    in_own_namespace(async |dir| {
        for lazily in [true, false] {
            HOST.mount("none", &dir, "tmpfs", &MountOptions::default()).await.unwrap();
            let mut used = fs::File::create(dir.join("used")).unwrap();
            assert!(HOST.unmount(&dir).await.unwrap_err().is_busy());
            if lazily {
                HOST.unmount_lazily(&dir).await.unwrap();
                used.write_all(b"still mine").unwrap();
            } else {
                drop(used);
                HOST.unmount_by_force(&dir).await.unwrap();
            }
            assert_eq!(HOST.mounts().await.unwrap().at(&dir), None);
        }
        HOST.unmount_lazily(&dir).await.unwrap();
        HOST.unmount_by_force(&dir.join("gone")).await.unwrap();
    });
}

#[test]
fn row_133_a_tmpfs_gets_another_size_and_keeps_its_files_and_its_other_options() {
    in_own_namespace(async |dir| {
        assert!(HOST.remount(&dir, &MountOptions::new(["size=2m"])).await.is_err());
        HOST.mount("tmpfs", &dir, "tmpfs", &MountOptions::new(["noexec,nosuid,noatime", "size=1m", "mode=0750"]))
            .await
            .unwrap();
        fs::write(dir.join("file"), b"data").unwrap();
        HOST.remount(&dir, &MountOptions::new(["size=2m"])).await.unwrap();
        let table = HOST.mounts().await.unwrap();
        let mount = table.at(&dir).unwrap();
        for word in ["noexec", "nosuid", "noatime", "size=2048k", "mode=750"] {
            assert!(mount.options.iter().chain(&mount.super_options).any(|option| option == word), "{word}: {mount:?}");
        }
        assert_eq!(HOST.usage(&dir).await.unwrap().total_bytes, 2 << 20);
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"data");
        HOST.remount(&dir, &MountOptions::new(["ro"])).await.unwrap();
        assert!(fs::write(dir.join("file"), b"").is_err());
        HOST.unmount(&dir).await.unwrap();
    });
}

#[test]
fn a_device_is_bound_to_a_file_and_its_lock_is_found_by_that_file() {
    in_own_namespace(async |dir| {
        let device = attached(&dir.join("image"), &tag("bound")).await;
        let (node, file) = (device.0.path.clone(), dir.join("dev/0b5b-pod-uid"));
        HOST.create_dir(file.parent().unwrap()).await.unwrap();
        HOST.make_file(&file, 0o750).await.unwrap();
        HOST.bind(&node, &file, Access::ReadWrite).await.unwrap();
        assert!(fs::metadata(&file).unwrap().file_type().is_block_device());
        assert_eq!(fs::metadata(&file).unwrap().rdev(), fs::metadata(&node).unwrap().rdev());

        assert_eq!(HOST.device_lock(&file).await.unwrap(), None);
        let lock = HOST.lock_device(&file).await.unwrap();
        assert!(lock.read_only && lock.size == device.0.size && lock.backing == file, "{lock:?}");
        assert_eq!(HOST.lock_device(&file).await.unwrap().path, lock.path);
        assert_eq!(HOST.device_lock(&file).await.unwrap().unwrap().path, lock.path);
        // The device cannot become another one while it is locked.
        assert!(HOST.detach_loop(&device.0).await.unwrap_err().is_busy());
        HOST.unlock_device(&file).await.unwrap();
        HOST.unlock_device(&file).await.unwrap();
        assert_eq!(HOST.device_lock(&file).await.unwrap(), None);
        HOST.unmount(&file).await.unwrap();
        HOST.remove_file(&file).await.unwrap();
    });
}

#[test]
fn a_device_is_in_use_while_it_is_mounted() {
    in_own_namespace(async |dir| {
        let device = attached(&dir.join("image"), &tag("in-use")).await;
        let node = device.0.path.as_path();
        assert!(!HOST.is_device_in_use(node).await.unwrap());
        HOST.make_filesystem(node, FileSystem::Ext4, &[]).await.unwrap();
        let target = dir.join("target");
        HOST.create_dir(&target).await.unwrap();
        HOST.mount(node.to_str().unwrap(), &target, "ext4", &MountOptions::default()).await.unwrap();
        assert!(HOST.is_device_in_use(node).await.unwrap());
        HOST.unmount(&target).await.unwrap();
        assert!(!HOST.is_device_in_use(node).await.unwrap());
        assert!(
            !HOST.is_device_in_use(&dir.join("gone")).await.unwrap() && !HOST.is_device_in_use(&dir).await.unwrap()
        );
    });
}

#[test]
fn a_tree_goes_whole_however_deep_it_is_and_never_what_is_mounted_in_it_or_linked_from_it() {
    in_own_namespace(async |dir| {
        let (tree, outside) = (dir.join("tree"), dir.join("outside"));
        fs::create_dir_all(tree.join("a/mounted")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), b"data").unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        for number in 0..5000 {
            fs::write(tree.join(format!("a/{number}")), b"").unwrap();
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut at: OwnedFd = open(&tree, flags, Mode::empty()).unwrap();
        for _ in 0..1500 {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        drop(at);
        HOST.bind(&outside, &tree.join("a/mounted"), Access::ReadWrite).await.unwrap();
        assert!(HOST.remove_all(&tree).await.unwrap_err().is_busy());
        HOST.unmount(&tree.join("a/mounted")).await.unwrap();
        HOST.remove_all(&tree).await.unwrap();
        HOST.remove_all(&tree).await.unwrap();
        assert!(!tree.try_exists().unwrap());
        symlink(&outside, &tree).unwrap();
        HOST.remove_all(&tree).await.unwrap();
        assert_eq!(fs::read(outside.join("precious")).unwrap(), b"data");
    });
}

#[test]
fn what_a_directory_holds_is_counted_once_within_its_file_system() {
    in_own_namespace(async |dir| {
        let tree = dir.join("tree");
        fs::create_dir_all(tree.join("a/mounted")).unwrap();
        fs::write(tree.join("file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(tree.join("file"), tree.join("a/again")).unwrap();
        fs::File::create(tree.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        symlink("/usr", tree.join("link")).unwrap();
        HOST.mount("none", &tree.join("a/mounted"), "tmpfs", &MountOptions::default()).await.unwrap();
        fs::write(tree.join("a/mounted/file"), vec![1; 4 << 20]).unwrap();
        let usage = HOST.disk_usage(&tree, 0).await.unwrap();
        assert_eq!(usage.inodes, 5, "{usage:?}");
        assert!((1 << 20..(1 << 20) + (64 << 10)).contains(&usage.bytes), "{usage:?}");
        assert!(HOST.disk_usage(&dir.join("gone"), 0).await.unwrap_err().is_missing());
        HOST.unmount(&tree.join("a/mounted")).await.unwrap();

        for number in 0..200 {
            fs::write(tree.join(format!("a/{number}")), b"").unwrap();
        }
        let begun = std::time::Instant::now();
        HOST.disk_usage(&tree, 1000).await.unwrap();
        assert!(begun.elapsed() > Duration::from_millis(100), "{:?}", begun.elapsed());
        // At one entry in a second it would take minutes, if anybody waited.
        let slow = {
            let tree = tree.clone();
            tokio::spawn(async move { HOST.disk_usage(&tree, 1).await })
        };
        tokio::task::yield_now().await;
        slow.abort();
        assert!(slow.await.unwrap_err().is_cancelled());
    });
}

/// What is written in a folder, and what came of it.
async fn in_folder<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&dyn stowage_mount::Folder) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    HOST.in_folder(path, Box::new(move |folder| sender.send(work(folder)).unwrap())).await?;
    receiver.recv().unwrap()
}

#[test]
fn nothing_in_a_folder_leads_out_of_it() {
    in_own_namespace(async |dir| {
        let (folder, outside) = (dir.join("folder"), dir.join("outside"));
        fs::create_dir_all(folder.join("inner")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), b"secret").unwrap();
        symlink(&outside, folder.join("out")).unwrap();
        symlink(outside.join("secret"), folder.join("to-secret")).unwrap();
        nix::unistd::mkfifo(&folder.join("pipe"), Mode::S_IRUSR).unwrap();
        in_folder(&folder, |folder| {
            for way in ["out/secret", "to-secret", "pipe", "inner", "gone"] {
                assert_eq!(folder.read(way).unwrap(), None, "{way}");
            }
            assert!(folder.list("out").unwrap().is_none() && folder.list("inner").unwrap().is_some());
            for way in ["out/new", "../new", "/tmp/new", "inner/../../new", "to-secret", "out", ""] {
                assert!(folder.write_new(way, b"x", 0o644, None).is_err(), "{way}");
                assert!(folder.make_dir(way, 0o755).is_err(), "{way}");
                assert!(folder.symlink("x", way, None).is_err(), "{way}");
                assert!(folder.rename("pipe", way).is_err() || matches!(way, "to-secret" | "out"), "{way}");
            }
            assert!(folder.remove_file("out/secret").is_err());
            folder.remove_file("gone/file").unwrap();
            folder.write_new("inner/file", b"data", 0o4640, Some(12)).unwrap();
            folder.symlink("inner/file", "link", Some(13)).unwrap();
            folder.make_dir("inner/deep", 0o1777).unwrap();
            folder.rename("link", "renamed").unwrap();
            assert!(folder.rename("inner/file", "out/stolen").is_err());
            assert_eq!(folder.read_link("renamed").unwrap().unwrap(), Path::new("inner/file"));
            let names: Vec<_> = folder.list("inner").unwrap().unwrap().into_iter().map(|entry| entry.name).collect();
            assert_eq!(names, [OsStr::new("deep"), OsStr::new("file")]);
            Ok(())
        })
        .await
        .unwrap();
        let of = |name: &str| fs::symlink_metadata(folder.join(name)).unwrap();
        assert_eq!((of("inner/file").uid(), of("inner/file").mode() & 0o7777), (12, 0o4640));
        assert_eq!((of("renamed").uid(), of("inner/deep").mode() & 0o7777), (13, 0o1777));
        assert_eq!(fs::read_dir(dir.join("outside")).unwrap().count(), 1);
    });
}

#[test]
fn a_mount_that_does_not_answer_is_asked_once_and_holds_nobody_up() {
    in_own_namespace(async |dir| {
        // The server of this file system takes no questions.
        let Ok(server) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
            eprintln!("skipped: there is no /dev/fuse");
            return;
        };
        let hung = dir.join("hung");
        HOST.create_dir(&hung).await.unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&server));
        nix::mount::mount(Some("hung"), &hung, Some("fuse"), nix::mount::MsFlags::empty(), Some(options.as_str()))
            .unwrap();
        let probe = Arc::new(UsageProbe::new(Arc::new(HOST)));
        let patience = Duration::from_millis(20);
        let before = threads();
        for _ in 0..20 {
            assert!(matches!(probe.usage(&hung, patience).await.unwrap(), Probed::Hung(_)));
            assert!(matches!(probe.usage(&dir, Duration::from_secs(10)).await.unwrap(), Probed::Usage(_)));
        }
        assert!(threads() <= before + 3, "{before} became {}", threads());
        let told = probe.hung();
        assert!(told.len() == 1 && told[0].0 == hung && told[0].1 >= Duration::from_millis(300), "{told:?}");
        // The server is gone, so everybody gets an answer.
        drop(server);
        let answer = probe.usage(&hung, Duration::from_secs(10)).await;
        assert!(answer.unwrap_err().to_string().starts_with("cannot tell how full"));
        assert!(probe.hung().is_empty());
        HOST.unmount_lazily(&hung).await.unwrap();
    });
}

fn threads() -> usize {
    let named =
        |entry: &fs::DirEntry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.trim() == "apart");
    fs::read_dir("/proc/self/task").unwrap().filter(|entry| named(entry.as_ref().unwrap())).count()
}

#[test]
fn this_machine_says_whether_it_has_selinux() {
    in_own_namespace(async |_| {
        let mounted = HOST.mounts().await.unwrap().iter().any(|mount| mount.fs_type == "selinuxfs");
        assert!(mounted || !HOST.selinux().await.unwrap());
    });
}

#[test]
fn where_a_file_system_counts_for_projects_nothing_is_walked() {
    in_own_namespace(async |dir| {
        assert_eq!(HOST.project_usage(&dir).await.unwrap(), None);
        let device = attached(&dir.join("image"), &tag("project")).await;
        let node = device.0.path.to_str().unwrap();
        let pool = dir.join("pool");
        HOST.create_dir(&pool).await.unwrap();
        let features = ["-O", "quota,project", "-E", "quotatype=prjquota"].map(str::to_owned);
        HOST.make_filesystem(&device.0.path, FileSystem::Ext4, &features).await.unwrap();
        if let Err(error) = HOST.mount(node, &pool, "ext4", &MountOptions::new(["prjquota"])).await {
            eprintln!("skipped: no project quotas in this kernel: {error}");
            return;
        }
        let (own, none) = (pool.join("own"), pool.join("none"));
        for folder in [&own, &none] {
            fs::create_dir(folder).unwrap();
        }
        let set = Command::new("chattr").args(["-p", "4711", "+P"]).arg(&own).status();
        if !set.is_ok_and(|status| status.success()) {
            eprintln!("skipped: chattr sets no projects here");
        } else {
            fs::write(own.join("file"), vec![1; 1 << 20]).unwrap();
            nix::unistd::syncfs(fs::File::open(&pool).unwrap()).unwrap();
            let usage = HOST.project_usage(&own).await.unwrap().unwrap();
            assert!(usage.inodes == 2 && (1 << 20..(1 << 20) + (64 << 10)).contains(&usage.bytes), "{usage:?}");
            assert_eq!(HOST.project_usage(&none).await.unwrap(), None);
        }
        HOST.unmount(&pool).await.unwrap();
    });
}

//! The real kernel, in a mount namespace of the test's own thread. Needs root.
#![allow(clippy::unwrap_used, clippy::panic, unsafe_code)]

#[path = "kernel/enter.rs"]
mod enter;
#[path = "kernel/node.rs"]
mod node;
#[path = "kernel/orphans.rs"]
mod orphans;
#[path = "kernel/ownership.rs"]
mod ownership;
#[path = "kernel/shares.rs"]
mod shares;
#[path = "kernel/sub_paths.rs"]
mod sub_paths;

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use stowage_mount::{
    Access, Content, Error, FileSystem, Host, Images, LinuxMounter, LoopDevice, LoopOptions, MountOptions, MountTable,
    Mounter, Space, Targets, run_program,
};

const HOST: LinuxMounter = LinuxMounter;

/// Runs a test on a thread whose mounts nobody else sees; they vanish with the thread, whatever happens.
fn in_own_namespace<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: mounts need root");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(test(dir.path().canonicalize().unwrap()));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Detaches the device also when the test fails.
struct Attached(LoopDevice);

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = run_program(Command::new("umount").args(["--all-targets", "--quiet"]).arg(&self.0.path));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let device = self.0.clone();
        // A runtime cannot be entered twice on one thread.
        std::thread::spawn(move || runtime.block_on(HOST.detach_loop(&device))).join().unwrap().ok();
    }
}

async fn attached(image: &Path, tag: &str) -> Attached {
    HOST.make_image(image, 64 << 20, Space::Sparse).await.unwrap();
    Attached(HOST.attach_loop(image, tag, LoopOptions::default()).await.unwrap())
}

fn tag(name: &str) -> String {
    format!("stowage-test:{}:{name}", std::process::id())
}

#[test]
fn a_bind_mount_shows_the_source_and_a_read_only_one_refuses_writes() {
    in_own_namespace(async |dir| {
        let (source, target) = (dir.join("source"), dir.join("target"));
        HOST.create_dir(&source).await.unwrap();
        HOST.create_dir(&target).await.unwrap();
        fs::write(source.join("file"), b"data").unwrap();

        HOST.bind(&source, &target, Access::ReadOnly).await.unwrap();
        assert_eq!(fs::read(target.join("file")).unwrap(), b"data");
        assert!(HOST.mounts().await.unwrap().at(&target).unwrap().is_read_only());
        assert_eq!(fs::write(target.join("new"), b"").unwrap_err().raw_os_error(), Some(nix::libc::EROFS));
        fs::write(source.join("new"), b"").unwrap();

        HOST.unmount(&target).await.unwrap();
        HOST.bind(&source, &target, Access::ReadWrite).await.unwrap();
        fs::write(target.join("through"), b"").unwrap();
        HOST.unmount(&target).await.unwrap();
        assert_eq!(HOST.mounts().await.unwrap().at(&target), None);
        HOST.unmount(&target).await.unwrap();
    });
}

/// Whether blocks can be discarded through a device, as the kernel tells it; a device that is not there bars nobody.
fn allows_discards(device: &Path) -> bool {
    let name = device.file_name().unwrap().to_str().unwrap();
    fs::read_to_string(format!("/sys/block/{name}/queue/discard_max_bytes")).is_ok_and(|bytes| bytes.trim() != "0")
}

#[test]
fn a_device_that_allowed_no_discards_does_not_pass_that_on_to_the_next_image() {
    in_own_namespace(async |dir| {
        let image = dir.join("image");
        HOST.make_image(&image, 4 << 20, Space::Sparse).await.unwrap();
        let kept = LoopOptions { discard: false, ..LoopOptions::default() };
        for left_by_others in [false, true] {
            let first = HOST.attach_loop(&image, &tag("kept"), kept).await.unwrap();
            assert!(!allows_discards(&first.path));
            match left_by_others {
                // Another program knows nothing about what is to be done with such a device.
                true => {
                    assert!(run_program(Command::new("losetup").arg("-d").arg(&first.path)).unwrap().status.success())
                }
                false => HOST.detach_loop(&first).await.unwrap(),
            }
            let mut next = Vec::new();
            for _ in 0..4 {
                next.push(Attached(HOST.attach_loop(&image, &tag("next"), LoopOptions::default()).await.unwrap()));
            }
            let paths: Vec<_> = next.iter().map(|device| &device.0.path).collect();
            assert!(paths.iter().all(|path| allows_discards(path)), "{left_by_others} {paths:?}");
        }
    });
}

fn read_ahead(device: &Path) -> String {
    let name = device.file_name().unwrap().to_str().unwrap();
    fs::read_to_string(format!("/sys/block/{name}/queue/read_ahead_kb")).unwrap()
}

#[test]
fn a_device_reads_ahead_as_the_disk_of_its_image_and_not_as_its_last_user_wished() {
    in_own_namespace(async |dir| {
        let disk = dir.join("disk");
        let under = attached(&disk, &tag("disk")).await;
        HOST.set_read_ahead(&under.0, 512).await.unwrap();
        HOST.make_filesystem(&under.0.path, FileSystem::Ext4, &[]).await.unwrap();
        let pool = dir.join("pool");
        HOST.create_dir(&pool).await.unwrap();
        HOST.mount(under.0.path.to_str().unwrap(), &pool, "ext4", &MountOptions::default()).await.unwrap();
        for _ in 0..3 {
            let above = attached(&pool.join("image"), &tag("ahead")).await;
            assert_eq!(read_ahead(&above.0.path).trim(), "512");
            HOST.set_read_ahead(&above.0, 64).await.unwrap();
        }
        HOST.unmount(&pool).await.unwrap();
    });
}

#[test]
fn nothing_is_mounted_through_a_link() {
    in_own_namespace(async |dir| {
        let (victim, link) = (dir.join("victim"), dir.join("link"));
        HOST.create_dir(&victim).await.unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let bound = HOST.bind(&dir, &link, Access::ReadWrite).await.unwrap_err();
        assert_eq!(bound.os_error(), Some(nix::libc::ELOOP));
        let mounted = HOST.mount("none", &link, "tmpfs", &MountOptions::default()).await.unwrap_err();
        assert_eq!(mounted.os_error(), Some(nix::libc::ELOOP));
        assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 0);
    });
}

#[test]
fn a_mount_has_all_its_flags_and_data_and_what_no_kernel_could_read_is_an_invalid_argument() {
    in_own_namespace(async |dir| {
        let options = MountOptions::new(["noexec,nodiratime,lazytime", "size=1m"]);
        HOST.mount("none", &dir, "tmpfs", &options).await.unwrap();
        let table = HOST.mounts().await.unwrap();
        let mount = table.at(&dir).unwrap();
        let has = |word: &str| mount.options.iter().chain(&mount.super_options).any(|option| option == word);
        for word in ["noexec", "nodiratime", "lazytime", "size=1024k"] {
            assert!(has(word), "{word}: {mount:?}");
        }
        HOST.unmount(&dir).await.unwrap();
        for (source, fs_type, word) in [("no\0ne", "tmpfs", "ro"), ("none", "tmp\0fs", "ro"), ("none", "tmpfs", "a=\0")]
        {
            let refused = HOST.mount(source, &dir, fs_type, &MountOptions::new([word])).await.unwrap_err();
            assert_eq!(refused.os_error(), Some(nix::libc::EINVAL), "{refused}");
        }
    });
}

#[test]
fn a_mount_is_not_busy_because_a_program_is_being_started() {
    in_own_namespace(async |dir| {
        let (target, gate) = (dir.join("target"), dir.join("gate"));
        HOST.create_dir(&target).await.unwrap();
        HOST.mount("none", &target, "tmpfs", &MountOptions::new(["size=1m"])).await.unwrap();
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let open = fs::File::create(target.join("file")).unwrap();
        let at_gate = gate.clone();
        let starting = std::thread::spawn(move || {
            let mut command = Command::new("true");
            // SAFETY: between fork and exec only open, read and close are called, which are safe there.
            unsafe { command.pre_exec(move || fs::File::open(&at_gate)?.read(&mut [0]).map(drop)) };
            run_program(&mut command).unwrap()
        });
        // Opens when the program is forked, and holds it there.
        let held = fs::File::options().write(true).open(&gate).unwrap();
        drop(open);
        HOST.unmount(&target).await.unwrap();
        drop(held);
        assert!(starting.join().unwrap().status.success());
    });
}

#[test]
fn a_directory_that_is_or_holds_a_mount_is_not_removed() {
    in_own_namespace(async |dir| {
        let (outer, inner) = (dir.join("outer"), dir.join("outer/inner"));
        HOST.create_dir(&inner).await.unwrap();
        HOST.mount("none", &inner, "tmpfs", &MountOptions::new(["size=1m", "nosuid"])).await.unwrap();
        for path in [&outer, &inner] {
            let error = HOST.remove_dir(path).await.unwrap_err();
            assert!(error.is_busy() && error.to_string().contains("inner"), "{error}");
        }
        HOST.unmount(&inner).await.unwrap();
        HOST.remove_dir(&inner).await.unwrap();
        HOST.remove_dir(&outer).await.unwrap();
    });
}

#[test]
fn an_image_becomes_a_device_a_file_system_and_a_mount_of_the_promised_size() {
    in_own_namespace(async |dir| {
        let image = dir.join("image");
        let device = attached(&image, &tag("life")).await;
        let found = HOST.loops().await.unwrap().into_iter().find(|found| found.tag == tag("life")).unwrap();
        assert_eq!(found, device.0);
        assert_eq!(found.backing, image);
        assert_eq!(found.image, HOST.stat(&image).await.unwrap().unwrap().id);

        assert_eq!(HOST.probe(&found.path).await.unwrap(), Content::Blank);
        HOST.make_filesystem(&found.path, FileSystem::Ext4, &[]).await.unwrap();
        assert_eq!(HOST.probe(&found.path).await.unwrap(), Content::FileSystem(FileSystem::Ext4));
        HOST.check_filesystem(&found.path, FileSystem::Ext4).await.unwrap();

        let target = dir.join("target");
        HOST.create_dir(&target).await.unwrap();
        let source = found.path.to_str().unwrap();
        HOST.mount(source, &target, "ext4", &MountOptions::new(["noatime"])).await.unwrap();
        let table = HOST.mounts().await.unwrap();
        assert_eq!(table.at(&target).unwrap().device, found.number);
        let usage = HOST.usage(&target).await.unwrap();
        assert!(usage.total_bytes > 32 << 20 && usage.total_bytes <= 64 << 20, "{usage:?}");
        assert!(!usage.read_only && usage.available_inodes > 0, "{usage:?}");

        HOST.unmount(&target).await.unwrap();
        HOST.detach_loop(&found).await.unwrap();
        assert!(!HOST.loops().await.unwrap().iter().any(|device| device.tag == tag("life")));
        match HOST.detach_loop(&found).await {
            // Another test may have taken it by now.
            Ok(()) | Err(Error::DetachForeign { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn a_btrfs_tells_which_device_it_is_on_and_others_are_none() {
    in_own_namespace(async |dir| {
        if run_program(Command::new("mkfs.btrfs").arg("--version")).is_err() {
            return eprintln!("skipped: mkfs.btrfs is not installed");
        }
        let (image, target) = (dir.join("image"), dir.join("mounted"));
        HOST.make_image(&image, 256 << 20, Space::Sparse).await.unwrap();
        let device = Attached(HOST.attach_loop(&image, &tag("btrfs"), LoopOptions::default()).await.unwrap());
        HOST.make_filesystem(&device.0.path, FileSystem::Btrfs, &[]).await.unwrap();
        HOST.create_dir(&target).await.unwrap();
        let held = HOST.hold(&target).await.unwrap().unwrap();
        assert_eq!(HOST.btrfs_device(&held).await.unwrap(), None);
        let source = device.0.path.to_string_lossy().into_owned();
        HOST.mount(&source, &target, "btrfs", &MountOptions::default()).await.unwrap();
        assert_eq!(HOST.btrfs_device(&held).await.unwrap(), Some(device.0.number));
        HOST.unmount(&target).await.unwrap();
    });
}

#[test]
fn data_of_an_unknown_kind_is_never_called_blank() {
    in_own_namespace(async |dir| {
        let image = dir.join("image");
        let device = attached(&image, &tag("foreign")).await;
        fs::write(&device.0.path, b"somebody's data").unwrap();
        assert_eq!(HOST.probe(&device.0.path).await.unwrap(), Content::Unknown);
    });
}

#[test]
fn a_device_that_changed_hands_is_not_detached() {
    in_own_namespace(async |dir| {
        let device = attached(&dir.join("image"), &tag("mine")).await;
        let mistaken = LoopDevice { tag: tag("other"), ..device.0.clone() };
        let error = HOST.detach_loop(&mistaken).await.unwrap_err();
        assert!(error.to_string().starts_with("will not detach"), "{error}");
        assert!(HOST.loops().await.unwrap().contains(&device.0));
    });
}

#[test]
fn a_device_that_somebody_else_has_open_is_not_said_to_be_detached() {
    in_own_namespace(async |dir| {
        let device = attached(&dir.join("image"), &tag("held")).await;
        let holder = fs::File::open(&device.0.path).unwrap();
        let error = HOST.detach_loop(&device.0).await.unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("somewhere else"), "{error}");
        let leaving = HOST.loop_device(device.0.number).await.unwrap().unwrap();
        assert!(leaving.autoclear && leaving.tag == device.0.tag);
        drop(holder);
        match HOST.detach_loop(&device.0).await {
            // Another test may have taken it by now.
            Ok(()) | Err(Error::DetachForeign { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn somebody_who_only_looks_at_a_device_is_waited_for() {
    in_own_namespace(async |dir| {
        let device = attached(&dir.join("image"), &tag("looked-at")).await;
        let looker = fs::File::open(&device.0.path).unwrap();
        let name = device.0.path.file_name().unwrap().to_str().unwrap();
        let leaving = format!("/sys/block/{name}/loop/autoclear");
        let closing = std::thread::spawn(move || {
            while fs::read_to_string(&leaving).unwrap().trim() != "1" {
                std::thread::yield_now();
            }
            drop(looker);
        });
        HOST.detach_loop(&device.0).await.unwrap();
        closing.join().unwrap();
        assert!(!HOST.loops().await.unwrap().iter().any(|found| found.tag == device.0.tag));
    });
}

#[test]
fn devices_taken_at_the_same_time_are_different_ones() {
    in_own_namespace(async |dir| {
        let mut tasks = Vec::new();
        for number in 0..8 {
            let image = dir.join(number.to_string());
            HOST.make_image(&image, 1 << 20, Space::Sparse).await.unwrap();
            tasks.push(tokio::spawn(async move {
                Attached(
                    HOST.attach_loop(&image, &tag(&format!("race{number}")), LoopOptions::default()).await.unwrap(),
                )
            }));
        }
        let mut devices = Vec::new();
        for task in tasks {
            devices.push(task.await.unwrap());
        }
        let paths: std::collections::BTreeSet<_> = devices.iter().map(|device| &device.0.path).collect();
        assert_eq!(paths.len(), 8);
    });
}

#[test]
fn the_namespace_of_a_test_is_its_own() {
    in_own_namespace(async |dir| {
        HOST.mount("none", &dir, "tmpfs", &MountOptions::default()).await.unwrap();
        assert!(HOST.mounts().await.unwrap().at(&dir).is_some());
        let everybody = MountTable::parse(&fs::read("/proc/self/mountinfo").unwrap()).unwrap();
        assert_eq!(everybody.at(&dir), None);
        HOST.unmount(&dir).await.unwrap();
    });
}

#[test]
fn an_image_for_whose_growth_there_is_no_space_stays_as_it_was() {
    in_own_namespace(async |dir| {
        for kind in ["ext4", "xfs"] {
            if run_program(Command::new(format!("mkfs.{kind}")).arg("-V")).is_err() {
                eprintln!("skipped: mkfs.{kind} is not installed");
                continue;
            }
            let disk = dir.join(kind);
            fs::File::create_new(&disk).unwrap().set_len(400 << 20).unwrap();
            let under = Attached(HOST.attach_loop(&disk, &tag(kind), LoopOptions::default()).await.unwrap());
            HOST.make_filesystem(&under.0.path, kind.parse().unwrap(), &[]).await.unwrap();
            let pool = dir.join("pool");
            HOST.create_dir(&pool).await.unwrap();
            HOST.mount(under.0.path.to_str().unwrap(), &pool, kind, &MountOptions::default()).await.unwrap();
            let image = pool.join("image");
            HOST.make_image(&image, 8 << 20, Space::Allocated).await.unwrap();
            let (before, room) =
                (HOST.stat(&image).await.unwrap().unwrap(), HOST.usage(&pool).await.unwrap().available_bytes);
            let refused = HOST.grow_image(&image, 1 << 30, Space::Allocated).await.unwrap_err();
            assert!(refused.is_out_of_space(), "{kind}: {refused}");
            let after = HOST.stat(&image).await.unwrap().unwrap();
            // ext4 keeps a block in which it had begun to list the space.
            assert!(after.size == before.size && after.allocated < before.allocated + (64 << 10), "{kind}: {after:?}");
            let left = HOST.usage(&pool).await.unwrap().available_bytes;
            assert!(left + (1 << 20) > room, "{kind}: {room} became {left}");
            HOST.unmount(&pool).await.unwrap();
        }
    });
}

#[test]
fn what_is_held_is_reached_past_a_link_in_its_parents_place_and_a_way_through_a_link_is_refused() {
    in_own_namespace(async |dir| {
        let (source, parent, outside) = (dir.join("source"), dir.join("root/parent"), dir.join("outside"));
        for folder in [&source, &outside] {
            HOST.create_dir(folder).await.unwrap();
        }
        let path = parent.join("target");
        assert!(HOST.hold(&path).await.unwrap().is_none());
        let target = HOST.make_and_hold(&path).await.unwrap();
        HOST.make_dir_at(&target).await.unwrap();
        HOST.bind_at(&source, &target, &MountOptions::default()).await.unwrap();
        assert!(HOST.look_at(&target).await.unwrap().unwrap().is_mount);

        let aside = dir.join("root/aside");
        fs::rename(&parent, &aside).unwrap();
        std::os::unix::fs::symlink(&outside, &parent).unwrap();
        assert!(matches!(HOST.hold(&path).await, Err(Error::Moved { .. })));
        assert!(matches!(HOST.make_and_hold(&path).await, Err(Error::Moved { .. })));
        let seen = HOST.mounts().await.unwrap().at(&aside.join("target")).unwrap().id;
        assert_eq!(HOST.look_at(&target).await.unwrap().unwrap().mount, u64::from(seen));
        HOST.unmount_at(&target).await.unwrap();
        HOST.unmount_at(&target).await.unwrap();
        HOST.remove_dir_at(&target).await.unwrap();
        assert_eq!(HOST.look_at(&target).await.unwrap(), None);
        assert!(!aside.join("target").try_exists().unwrap());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    });
}

#[test]
fn nothing_stays_mounted_in_a_directory_that_was_moved_away() {
    in_own_namespace(async |dir| {
        let (source, parent, outside) = (dir.join("source"), dir.join("root/parent"), dir.join("outside"));
        HOST.create_dir(&source).await.unwrap();
        let target = HOST.make_and_hold(&parent.join("target")).await.unwrap();
        HOST.make_dir_at(&target).await.unwrap();
        fs::rename(&parent, &outside).unwrap();
        let plain = MountOptions::default();
        for replaced in [false, true] {
            if replaced {
                HOST.create_dir(&parent.join("target")).await.unwrap();
            }
            assert!(matches!(HOST.bind_at(&source, &target, &plain).await, Err(Error::Moved { .. })));
            let mounted = HOST.mount_at("tmpfs", &target, "tmpfs", &plain).await;
            assert!(matches!(mounted, Err(Error::Moved { .. })));
            assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 0);
        }
    });
}

#[test]
fn what_has_taken_the_place_of_what_was_seen_is_neither_shown_nor_frozen() {
    in_own_namespace(async |dir| {
        let (source, target) = (dir.join("source"), dir.join("target"));
        for folder in [&source, &target] {
            HOST.create_dir(folder).await.unwrap();
        }
        let (source, target) = (HOST.hold(&source).await.unwrap().unwrap(), HOST.hold(&target).await.unwrap().unwrap());
        let options = MountOptions::new(["ro"]);
        HOST.mount_at("tmpfs", &source, "tmpfs", &MountOptions::default()).await.unwrap();
        let seen = HOST.look_at(&source).await.unwrap().unwrap();
        HOST.bind_seen_at(&source, &seen, &target, &options).await.unwrap();
        assert!(HOST.usage_at(&target).await.unwrap().read_only && !HOST.usage_at(&source).await.unwrap().read_only);
        HOST.unmount_at(&target).await.unwrap();
        HOST.unmount_at(&source).await.unwrap();
        let shown = HOST.bind_seen_at(&source, &seen, &target, &options).await;
        assert!(matches!(shown, Err(Error::Moved { .. })));
        assert!(matches!(HOST.freeze(&source, &seen).await, Err(Error::Moved { .. })));
        assert_eq!(HOST.mounts().await.unwrap().under(&dir).count(), 0);
    });
}

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{OFlag, open, openat};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, mkdirat};
use stowage_mount::{ChangePolicy, MountOptions, Mounter, Ownership, OwnershipWalk, Progress};

use crate::{HOST, in_own_namespace};

fn walk(root: &Path) -> OwnershipWalk {
    OwnershipWalk { root: root.into(), gid: 4711, read_only: false, policy: ChangePolicy::OnRootMismatch }
}

fn seen(path: &Path) -> (u32, u32) {
    let about = fs::symlink_metadata(path).unwrap();
    (about.gid(), about.mode() & 0o7777)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn row_149_every_file_gets_the_group_and_its_bits_and_a_link_only_the_group() {
    in_own_namespace(async |dir| {
        let (root, outside) = (dir.join("volume"), dir.join("outside"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(&outside, b"").unwrap();
        mode(&outside, 0o600);
        let program = root.join("a/program");
        fs::write(&program, b"").unwrap();
        mode(&program, 0o4711);
        fs::write(root.join("a/b").join(OsStr::from_bytes(b"no\xfftext")), b"").unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRUSR).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        symlink("/", root.join("a/root")).unwrap();
        let outside_before = seen(&outside);

        let progress = Progress::default();
        let owned = HOST.own(&walk(&root), &progress).await.unwrap();
        assert_eq!((owned.entries, owned.refused, owned.skipped, progress.done()), (8, 0, false, 8), "{owned:?}");
        assert_eq!(seen(&root), (4711, 0o2775));
        assert_eq!(seen(&root.join("a/b")), (4711, 0o2775));
        assert_eq!(seen(&program), (4711, 0o4771));
        assert_eq!(seen(&root.join("pipe")), (4711, 0o660));
        assert_eq!(seen(&root.join("link")).0, 4711);
        assert_eq!(seen(&outside), outside_before);
        assert_eq!(fs::metadata("/").unwrap().gid(), 0);

        // A root that fits speaks for all below it, unless it is to be walked always.
        fs::write(root.join("new"), b"").unwrap();
        mode(&root.join("new"), 0o600);
        assert!(HOST.own(&walk(&root), &progress).await.unwrap().skipped);
        assert_eq!(seen(&root.join("new")).1, 0o600);
        let always = OwnershipWalk { policy: ChangePolicy::Always, ..walk(&root) };
        assert_eq!(HOST.own(&always, &progress).await.unwrap().entries, 9);
        assert_eq!(seen(&root.join("new")).1, 0o660);

        let reads = OwnershipWalk { read_only: true, gid: 4712, ..walk(&root.join("a")) };
        HOST.own(&reads, &progress).await.unwrap();
        assert_eq!(seen(&root.join("a")), (4712, 0o2775));
    });
}

#[test]
fn row_149_what_is_mounted_in_a_volume_is_not_the_volumes() {
    in_own_namespace(async |dir| {
        let root = dir.join("volume");
        for folder in ["inner", "file"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        HOST.mount("none", &root.join("inner"), "tmpfs", &MountOptions::default()).await.unwrap();
        fs::write(root.join("inner/file"), b"").unwrap();
        let owned = HOST.own(&walk(&root), &Progress::default()).await.unwrap();
        assert_eq!((owned.entries, owned.refused), (2, 0));
        assert_eq!((seen(&root.join("inner")).0, seen(&root.join("inner/file")).0), (0, 0));
        HOST.unmount(&root.join("inner")).await.unwrap();
    });
}

#[test]
fn row_149_a_read_only_file_system_refuses_each_entry_and_the_walk_goes_on() {
    in_own_namespace(async |dir| {
        HOST.mount("none", &dir, "tmpfs", &MountOptions::default()).await.unwrap();
        fs::write(dir.join("file"), b"").unwrap();
        let (source, target) = (dir.join("source"), dir.join("target"));
        for folder in [&source, &target] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(source.join("file"), b"").unwrap();
        HOST.bind(&source, &target, stowage_mount::Access::ReadOnly).await.unwrap();
        let owned = HOST.own(&walk(&target), &Progress::default()).await.unwrap();
        assert_eq!((owned.entries, owned.refused), (2, 2));
        assert!(owned.first_refused.unwrap().contains("file: Read-only file system"));
        assert!(HOST.own(&walk(&dir.join("gone")), &Progress::default()).await.unwrap_err().is_missing());
        HOST.unmount(&target).await.unwrap();
        HOST.unmount(&dir).await.unwrap();
    });
}

#[test]
fn row_149_however_deep_directories_are_nested_few_are_open() {
    in_own_namespace(async |dir| {
        HOST.mount("none", &dir, "tmpfs", &MountOptions::default()).await.unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut at: OwnedFd = open(&dir, flags, Mode::empty()).unwrap();
        for _ in 0..2000 {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            // On the way back there must be something left to do.
            mkdirat(&at, "z", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
        drop(at);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft.min(256), hard).unwrap();
        let owned = HOST.own(&walk(&dir), &Progress::default()).await;
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        let owned = owned.unwrap();
        assert_eq!((owned.entries, owned.refused), (4001, 0));
        assert_eq!(seen(&dir).0, 4711);
        HOST.unmount(&dir).await.unwrap();
    });
}

#[test]
fn row_149_a_directory_swapped_for_a_link_while_it_is_walked_leads_nowhere() {
    in_own_namespace(async |dir| {
        let (root, outside) = (dir.join("volume"), dir.join("outside"));
        fs::create_dir_all(outside.join("deep")).unwrap();
        fs::write(outside.join("precious"), b"").unwrap();
        mode(&outside.join("precious"), 0o600);
        for number in 0..40 {
            fs::create_dir_all(root.join(format!("d{number}/e"))).unwrap();
            fs::write(root.join(format!("d{number}/f")), b"").unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let swapper = {
            let (root, outside, stop) = (root.clone(), outside.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut swaps = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for number in 0..40 {
                        let (name, aside) = (root.join(format!("d{number}")), root.join("aside"));
                        fs::rename(&name, &aside).unwrap();
                        symlink(&outside, &name).unwrap();
                        fs::remove_file(&name).unwrap();
                        fs::rename(&aside, &name).unwrap();
                        let (file, to) = (name.join("f"), outside.join("precious"));
                        fs::remove_file(&file).unwrap();
                        symlink(&to, &file).unwrap();
                        fs::remove_file(&file).unwrap();
                        fs::write(&file, b"").unwrap();
                        swaps += 1;
                    }
                }
                swaps
            })
        };
        let always = OwnershipWalk { policy: ChangePolicy::Always, ..walk(&root) };
        for _ in 0..200 {
            // It may fail, because what is walked moves; it must not lead out.
            let _ = HOST.own(&always, &Progress::default()).await;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(swapper.join().unwrap() > 0);
        assert_eq!(
            (seen(&outside).0, seen(&outside.join("deep")).0, seen(&outside.join("precious"))),
            (0, 0, (0, 0o600))
        );
        assert_eq!(HOST.own(&always, &Progress::default()).await.unwrap().refused, 0);
    });
}

#[test]
fn row_150_a_walk_that_nobody_waits_for_ends_and_the_next_one_begins_anew() {
    in_own_namespace(async |dir| {
        HOST.mount("none", &dir, "tmpfs", &MountOptions::default()).await.unwrap();
        for number in 0..20_000 {
            fs::File::create(dir.join(number.to_string())).unwrap();
        }
        // A walk that was over before anybody looked shows nothing.
        let mut progress = Progress::default();
        for _ in 0..10 {
            let (job, told) = (walk(&dir), progress.clone());
            let waiting = tokio::spawn(async move { HOST.own(&job, &told).await });
            while progress.done() == 0 {
                tokio::task::yield_now().await;
            }
            waiting.abort();
            if waiting.await.is_err_and(|error| error.is_cancelled()) && progress.done() < 20_001 {
                break;
            }
            std::os::unix::fs::chown(&dir, None, Some(0)).unwrap();
            progress = Progress::default();
        }
        // The root is the last to change, so what is interrupted is known by it.
        assert_eq!(seen(&dir).0, 0);
        let owned = HOST.own(&walk(&dir), &Progress::default()).await.unwrap();
        assert_eq!((owned.skipped, owned.entries), (false, 20_001));
        assert!(progress.done() < 20_001, "{}", progress.done());
        assert_eq!(seen(&dir), (4711, 0o3777));
        HOST.unmount(&dir).await.unwrap();
    });
}

/// Sixty-four volumes of millions of files, or mounts of a server that is away, once took every thread there was.
#[test]
fn what_may_take_long_needs_none_of_the_threads_that_all_other_calls_share() {
    in_own_namespace(async |dir| {
        // On a thread of its own, as one runtime cannot be run within another; it sees the same mounts.
        let few = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.max_blocking_threads(1).enable_time().build().unwrap();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            runtime.spawn_blocking(move || ended.recv());
            let calls = async {
                nix::mount::mount(Some("none"), &dir, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>)
                    .unwrap();
                HOST.own(&walk(&dir), &Progress::default()).await.unwrap();
                HOST.unmount(&dir).await.unwrap();
                HOST.mount("none", &dir, "nfs4", &MountOptions::default()).await.unwrap_err();
            };
            let long =
                runtime.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(60), calls).await });
            drop(end);
            long.expect("they wait for a thread that another call has");
        });
        few.join().unwrap();
    });
}

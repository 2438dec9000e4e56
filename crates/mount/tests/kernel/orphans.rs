use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use stowage_mount::{Access, Error, Held, Hold, Host, MountOptions, Mounter, Orphans, without_open_files};

use crate::{HOST, attached, in_own_namespace, tag};

fn pod(dir: &Path) -> PathBuf {
    let pod = dir.join("pods/uid");
    for folder in
        ["volumes/kubernetes.io~csi/pvc-1/mount", "volumes/kubernetes.io~empty-dir", "plugins/a/b", "containers/c"]
    {
        fs::create_dir_all(pod.join(folder)).unwrap();
    }
    fs::write(pod.join("etc-hosts"), b"hosts").unwrap();
    fs::write(pod.join("containers/c/log"), b"log").unwrap();
    symlink("/dev/null", pod.join("plugins/a/device")).unwrap();
    pod
}

#[test]
fn section_9_3_an_orphan_without_volumes_goes_and_what_its_links_point_to_stays() {
    in_own_namespace(async |dir| {
        let pod = pod(&dir);
        let outside = dir.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), b"data").unwrap();
        symlink(&outside, pod.join("plugins/out")).unwrap();
        HOST.remove_orphan(&pod).await.unwrap();
        assert!(!pod.try_exists().unwrap() && outside.join("precious").try_exists().unwrap());
        HOST.remove_orphan(&pod).await.unwrap();
        symlink(&outside, &pod).unwrap();
        assert!(matches!(HOST.remove_orphan(&pod).await, Err(Error::RemoveOrphan { .. })));
        assert!(outside.join("precious").try_exists().unwrap());
    });
}

#[test]
fn section_9_3_an_orphan_that_is_or_holds_a_mount_stays_whole() {
    in_own_namespace(async |dir| {
        let pod = pod(&dir);
        for place in ["volumes/kubernetes.io~csi/pvc-1/mount", "containers/c", ""] {
            let place = if place.is_empty() { pod.clone() } else { pod.join(place) };
            HOST.bind(&dir, &place, Access::ReadWrite).await.unwrap();
            let error = HOST.remove_orphan(&pod).await.unwrap_err();
            assert!(error.is_busy() && error.to_string().contains(place.to_str().unwrap()), "{error}");
            HOST.unmount(&place).await.unwrap();
            assert!(pod.join("etc-hosts").try_exists().unwrap());
        }
    });
}

#[test]
fn section_9_3_nothing_in_a_volume_is_removed_and_the_files_in_the_way_are_named() {
    in_own_namespace(async |dir| {
        let pod = pod(&dir);
        let record = pod.join("volumes/kubernetes.io~csi/pvc-1/vol_data.json");
        fs::write(&record, b"{}").unwrap();
        let error = HOST.remove_orphan(&pod).await.unwrap_err().to_string();
        assert!(error.contains("volumes/kubernetes.io~csi/pvc-1/vol_data.json is a file"), "{error}");
        assert!(record.try_exists().unwrap() && pod.join("etc-hosts").try_exists().unwrap());
        fs::remove_file(&record).unwrap();

        let contents = pod.join("volumes/kubernetes.io~empty-dir/cache/users/directory/deeper");
        fs::create_dir_all(&contents).unwrap();
        assert!(HOST.remove_orphan(&pod).await.unwrap_err().to_string().contains("is a directory in a volume"));
        assert!(contents.try_exists().unwrap());
        fs::remove_dir_all(pod.join("volumes/kubernetes.io~empty-dir/cache")).unwrap();

        symlink(&dir, pod.join("volumes/link")).unwrap();
        assert!(HOST.remove_orphan(&pod).await.is_err());
        fs::remove_file(pod.join("volumes/link")).unwrap();
        HOST.remove_orphan(&pod).await.unwrap();
        assert!(dir.try_exists().unwrap());
    });
}

/// Ends its process also when the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that does nothing until it is killed.
fn idle(command: &mut Command) -> Running {
    command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null());
    Running(without_open_files(|| command.spawn()).unwrap())
}

#[test]
fn who_holds_a_mount_is_told_by_number_and_name() {
    in_own_namespace(async |dir| {
        let target = dir.join("target");
        HOST.create_dir(&target).await.unwrap();
        HOST.mount("none", &target, "tmpfs", &MountOptions::default()).await.unwrap();
        let held = Held::Mount(target.clone());
        let nobody = HOST.holders(&held).await.unwrap();
        assert!(nobody.complete && nobody.found.is_empty(), "{nobody}");

        fs::write(target.join("file"), b"").unwrap();
        let works = idle(Command::new("sleep").current_dir(&target));
        let open = fs::File::open(target.join("file")).unwrap();
        let found = HOST.holders(&held).await.unwrap().found;
        let of = |pid: u32| found.iter().find(|holder| holder.pid == pid).unwrap();
        assert_eq!((of(works.0.id()).name.as_str(), &of(works.0.id()).how), ("sleep", &Hold::WorkingDirectory));
        assert_eq!(of(std::process::id()).how, Hold::File(target.join("file")));
        let error = HOST.unmount(&target).await.unwrap_err();
        assert!(error.is_busy());
        drop((open, works));
        HOST.unmount(&target).await.unwrap();
        assert!(HOST.holders(&held).await.unwrap().found.is_empty());
        assert!(HOST.holders(&Held::Mount(dir.join("gone/x"))).await.unwrap().complete);
    });
}

#[test]
fn who_holds_a_device_is_told_also_from_another_mount_namespace() {
    in_own_namespace(async |dir| {
        let device = attached(&dir.join("image"), &tag("held")).await;
        let held = Held::Device(device.0.number);
        let open = fs::File::open(&device.0.path).unwrap();
        let found = HOST.holders(&held).await.unwrap().found;
        assert_eq!(found.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [std::process::id()]);
        assert_eq!(found[0].how, Hold::File(device.0.path.clone()));
        drop(open);

        HOST.make_filesystem(&device.0.path, stowage_mount::FileSystem::Ext4, &[]).await.unwrap();
        let target = dir.join("target");
        HOST.create_dir(&target).await.unwrap();
        HOST.mount(device.0.path.to_str().unwrap(), &target, "ext4", &MountOptions::default()).await.unwrap();
        // A process that has a copy of this namespace, and so keeps the mount after we let it go.
        let other = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
            idle(&mut Command::new("sleep"))
        });
        let other = other.join().unwrap();
        HOST.unmount(&target).await.unwrap();
        let found = HOST.holders(&held).await.unwrap();
        assert_eq!(HOST.holders(&Held::DeviceNode(device.0.path.clone())).await.unwrap(), found);
        assert!(HOST.holders(&Held::DeviceNode(dir.join("gone/x"))).await.unwrap().found.is_empty());
        let holder = found.found.iter().find(|holder| holder.pid == other.0.id()).unwrap();
        assert_eq!(holder.how, Hold::Namespace(target.clone()), "{found}");
        assert!(found.to_string().contains("sleep (process"), "{found}");
        drop(other);
    });
}

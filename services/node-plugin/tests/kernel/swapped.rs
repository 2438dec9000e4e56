//! Somebody else swaps what leads to a path while the driver works there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::mount::{MntFlags, umount2};
use stowage_csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use stowage_mount::MountTable;

use crate::world::{Client, World, request, run, test, text, unmount};

/// How often the driver is called while its paths are swapped; before they were held, one call in eight went astray.
const CALLS: usize = 300;

/// Exchanges two names until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Swapper {
    fn start(one: &Path, other: &Path) -> Self {
        let (stop, one, other) = (Arc::new(AtomicBool::new(false)), one.to_owned(), other.to_owned());
        let told = stop.clone();
        let swap = move || {
            let mut swaps = 0;
            while !told.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &one, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).unwrap();
                swaps += 1;
            }
            swaps
        };
        Swapper { stop, thread: Some(std::thread::spawn(swap)) }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let swaps = self.thread.take().unwrap().join().unwrap();
        assert!(swaps > 0);
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the way to a path is swapped for.
#[derive(Debug, Clone, Copy)]
enum Decoy {
    Link,
    Directory,
}

struct Scene {
    /// On the way to the path the driver is told; changes places with a decoy beside it.
    way: PathBuf,
    decoy: PathBuf,
    /// Where nothing may come to be.
    outside: PathBuf,
}

impl Scene {
    fn new(world: &World, client: &Client, decoy: Decoy) -> Self {
        let pods = client.kubelet.join("swapped");
        let scene = Scene { way: pods.join("pod"), decoy: pods.join("decoy"), outside: world.root.join("outside") };
        for folder in [&scene.way, &scene.outside] {
            fs::create_dir_all(folder).unwrap();
        }
        match decoy {
            Decoy::Link => symlink(&scene.outside, &scene.decoy).unwrap(),
            Decoy::Directory => fs::create_dir(&scene.decoy).unwrap(),
        }
        scene
    }

    fn assert_nothing_outside(&self) {
        let table = MountTable::read().unwrap();
        let strayed: Vec<_> = table.under(&self.outside).map(|mount| &mount.target).collect();
        assert_eq!(strayed, Vec::<&PathBuf>::new(), "mounted outside of the target root");
        assert_eq!(fs::read_dir(&self.outside).unwrap().count(), 0, "made outside of the target root");
    }

    /// What was moved aside is not the driver's to find.
    fn clear(self) {
        let folder = self.way.parent().unwrap();
        for mount in MountTable::read().unwrap().under(folder).rev() {
            umount2(&mount.target, MntFlags::MNT_DETACH).unwrap();
        }
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn no_publish_and_no_unpublish_leaves_the_target_root_while_parents_are_swapped() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let staged = world.mount_at(&client.staging()).unwrap();
        for decoy in [Decoy::Link, Decoy::Directory] {
            let scene = Scene::new(&world, &client, decoy);
            let target_path = text(&scene.way.join("mount"));
            let publish = NodePublishVolumeRequest {
                target_path: target_path.clone(),
                ..client.publish_request(&volume, &context, "pod")
            };
            let unpublish = NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path };
            let swapper = Swapper::start(&scene.way, &scene.decoy);
            let mut published = 0;
            for _ in 0..CALLS {
                published += usize::from(client.node().node_publish_volume(publish.clone()).await.is_ok());
                scene.assert_nothing_outside();
                let _ = client.node().node_unpublish_volume(unpublish.clone()).await;
                scene.assert_nothing_outside();
            }
            swapper.end();
            println!("{decoy:?}: {published} of {CALLS} publishes succeeded, none strayed");
            assert!(published > 0);
            assert_eq!(world.mount_at(&client.staging()).unwrap(), staged);
            scene.clear();
        }
        client.remove(&volume).await;
    });
}

#[test]
fn no_stage_and_no_unstage_leaves_the_target_root_while_parents_are_swapped() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        for decoy in [Decoy::Link, Decoy::Directory] {
            let scene = Scene::new(&world, &client, decoy);
            let staging_target_path = text(&scene.way.join("globalmount"));
            let stage = NodeStageVolumeRequest {
                staging_target_path: staging_target_path.clone(),
                ..client.stage_request(&volume, &context)
            };
            let unstage = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path };
            let swapper = Swapper::start(&scene.way, &scene.decoy);
            let mut staged = 0;
            for _ in 0..CALLS / 4 {
                staged += usize::from(client.node().node_stage_volume(stage.clone()).await.is_ok());
                scene.assert_nothing_outside();
                let _ = client.node().node_unstage_volume(unstage.clone()).await;
                scene.assert_nothing_outside();
            }
            swapper.end();
            println!("{decoy:?}: {staged} of {} stages succeeded, none strayed", CALLS / 4);
            // Left mounted where its path does not lead, a volume is unstaged once that is gone.
            scene.clear();
            client.unstage(&volume).await.unwrap();
        }
        client.remove(&volume).await;
    });
}

#[test]
fn a_volume_whose_old_staging_path_leads_through_a_link_after_a_reboot_is_staged_again() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let (old, new) = (client.kubelet.join("old"), client.kubelet.join("new"));
        let staging_target_path = text(&old.join("globalmount"));
        let stage = NodeStageVolumeRequest {
            staging_target_path: staging_target_path.clone(),
            ..client.stage_request(&volume, &context)
        };
        client.node().node_stage_volume(stage.clone()).await.unwrap();
        // A reboot leaves the record and nothing else; somebody has moved the folder to a larger disk meanwhile.
        unmount(&old.join("globalmount"));
        world.loops().iter().for_each(|device| run(Command::new("losetup").arg("-d").arg(device)));
        fs::rename(&old, &new).unwrap();
        symlink(&new, &old).unwrap();

        client.node().node_stage_volume(stage).await.unwrap();
        assert!(world.mount_at(&new.join("globalmount")).is_some());
        let unstage = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path };
        client.node().node_unstage_volume(unstage).await.unwrap();
        client.detach(&volume, "").await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_pod_gets_its_volume_or_nothing_while_what_leads_to_the_staging_path_is_swapped() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let scene = Scene::new(&world, &client, Decoy::Link);
        let staging_target_path = text(&scene.way.join("globalmount"));
        let stage = NodeStageVolumeRequest {
            staging_target_path: staging_target_path.clone(),
            ..client.stage_request(&volume, &context)
        };
        client.node().node_stage_volume(stage).await.unwrap();
        let device = world.mount_at(&scene.way.join("globalmount")).unwrap().device;
        fs::create_dir(scene.outside.join("globalmount")).unwrap();
        let publish = NodePublishVolumeRequest {
            staging_target_path: staging_target_path.clone(),
            ..client.publish_request(&volume, &context, "pod")
        };
        let swapper = Swapper::start(&scene.way, &scene.decoy);
        let mut published = 0;
        for _ in 0..CALLS {
            let answer = client.node().node_publish_volume(publish.clone()).await;
            let mounted = world.mount_at(&client.target("pod"));
            assert!(answer.is_err() || mounted.is_some());
            assert!(mounted.is_none_or(|mounted| mounted.device == device), "another directory is shown to the pod");
            published += usize::from(answer.is_ok());
            client.unpublish(&volume, "pod").await.unwrap();
        }
        swapper.end();
        println!("{published} of {CALLS} publishes succeeded");
        assert!(published > 0);
        if fs::symlink_metadata(&scene.way).unwrap().is_symlink() {
            renameat2(AT_FDCWD, &scene.way, AT_FDCWD, &scene.decoy, RenameFlags::RENAME_EXCHANGE).unwrap();
        }
        let unstage = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path };
        client.node().node_unstage_volume(unstage).await.unwrap();
        scene.clear();
        client.detach(&volume, "").await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

//! Killed at every change to files, devices and mounts, and started again.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_mount::{Content, Counting, FileSystem, Host, LinuxMounter, LoopOptions, Stop};

use crate::world::{Answer, Client, Staged, World, refused, request, test};

/// The life of a volume, step by step; each step is repeated until it is answered, as a cluster would.
struct Life {
    staged: Staged,
    step: usize,
}

impl Life {
    const STEPS: usize = 14;

    fn new() -> Self {
        Life { staged: Staged::default(), step: 0 }
    }

    /// Goes on until the end or the first call that fails.
    async fn go_on(&mut self, client: &Client) -> Answer<()> {
        while self.step < Self::STEPS {
            let (volume, context) = &mut self.staged;
            match self.step {
                0 => *volume = client.create(request("pvc")).await?.volume_id,
                1 => *context = client.attach(volume, "a").await?,
                2 | 7 => client.stage(volume, context).await?,
                3 => client.publish_as(&self.staged, "pod", AccessMode::SingleNodeSingleWriter).await?,
                4 => fs::write(client.target("pod").join("data"), "written").unwrap(),
                5 | 10 => client.unpublish(volume, "pod").await?,
                6 | 11 => client.unstage(volume).await?,
                8 => client.publish(volume, context, "pod").await?,
                9 => assert_eq!(fs::read_to_string(client.target("pod").join("data")).unwrap(), "written"),
                12 => client.detach(volume, "a").await?,
                _ => client.delete(volume).await?,
            }
            self.step += 1;
        }
        Ok(())
    }
}

async fn count_changes(world: &World) -> Vec<String> {
    world.node("a").await;
    let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
    Life::new().go_on(&world.node_on("a", counting.clone())).await.unwrap();
    counting.changes()
}

#[test]
fn a_driver_killed_at_any_change_finishes_the_life_after_a_restart() {
    test(async |world| {
        let changes = count_changes(&world).await;
        assert!(changes.len() > 15, "{changes:#?}");
        for at in 1..=changes.len() as u64 {
            for stop in [Stop::Before(at), Stop::After(at)] {
                let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
                let mut life = Life::new();
                let refusal = life.go_on(&world.node_on("a", dying.clone())).await.unwrap_err();
                assert!(dying.is_dead(), "{stop:?} was not reached: {refusal}");
                let until = at as usize - usize::from(matches!(stop, Stop::Before(_)));
                let same = |(did, recorded): (&String, &String)| without_device(did) == without_device(recorded);
                assert_eq!(dying.changes().len(), until, "{stop:?}");
                assert!(dying.changes().iter().zip(&changes).all(same), "{stop:?}: {:#?}", dying.changes());
                // The cluster must not take this for "nothing happened".
                assert_eq!(refusal.code(), tonic::Code::Unavailable, "{stop:?} {}", changes[at as usize - 1]);

                life.go_on(&world.node("a").await).await.unwrap_or_else(|error| panic!("{stop:?}: {error}"));
                assert_eq!(world.files(), Vec::<String>::new(), "{stop:?}");
                assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new(), "{stop:?}");
            }
        }
        println!("{} changes, killed before and after each", changes.len());
    });
}

/// Other tests take loop devices too, so their numbers differ from run to run.
fn without_device(change: &str) -> &str {
    change.split_once(" /dev/loop").map_or(change, |(verb, _)| verb)
}

#[test]
fn a_driver_killed_while_staging_can_be_told_to_unstage_and_delete_instead() {
    test(async |world| {
        let client = world.node("a").await;
        let first = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let (volume, _) = world.node_on("a", first.clone()).staged("pvc", "a").await;
        client.remove(&volume).await;
        for at in 1..=first.changes().len() as u64 {
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(at)));
            let dying_client = world.node_on("a", dying.clone());
            if let Ok(made) = dying_client.create(request("pvc")).await
                && let Ok(context) = dying_client.attach(&made.volume_id, "a").await
            {
                dying_client.stage(&made.volume_id, &context).await.unwrap_err();
            }
            assert!(dying.is_dead());
            client.remove(&volume).await;
            assert_eq!(world.files(), Vec::<String>::new(), "stopped after change {at}");
            assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new(), "stopped after change {at}");
        }
    });
}

#[test]
fn a_file_system_cut_short_in_the_making_is_made_again() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("pvc")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        // What a killed mkfs leaves: the driver's marker, and a device that is neither blank nor whole.
        let image = world.only_image();
        let device = LinuxMounter.attach_loop(&image, "stowage-test:half", LoopOptions::default()).await.unwrap();
        LinuxMounter.make_filesystem(&device.path, FileSystem::Ext4, &[]).await.unwrap();
        LinuxMounter.detach_loop(&device).await.unwrap();
        let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.write_all_at(&[0u8; 4096], 0).unwrap();
        drop(file);
        assert_eq!(LinuxMounter.probe(&image).await.unwrap(), Content::Unknown);
        fs::write(image.with_extension("formatting"), "ext4").unwrap();
        // What is neither blank nor whole is not copied either: the copy would have no marker.
        let copy = client.snapshot(&volume, "early").await;
        assert_eq!(refused(copy, &["still being made"]), tonic::Code::FailedPrecondition);

        client.stage(&volume, &context).await.unwrap();
        assert!(!image.with_extension("formatting").try_exists().unwrap());
        client.remove(&volume).await;
    });
}

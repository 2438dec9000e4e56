use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, Stop};

use crate::world::{Answer, Client, SIZE, World, of_snapshot, of_volume, request, request_from, test_on};

/// What a cluster does with one volume that is in use, call by call; each is repeated until it is answered.
#[derive(Default)]
struct Life {
    done: usize,
    snapshot: String,
    restored: String,
    clone: String,
    group: String,
    members: Vec<String>,
}

impl Life {
    async fn go_on(&mut self, client: &Client, volume: &str) -> Answer<()> {
        loop {
            match self.done {
                0 => self.snapshot = client.snapshot(volume, "snap").await?.snapshot_id,
                1 => {
                    self.restored =
                        client.create(request_from("restored", of_snapshot(&self.snapshot))).await?.volume_id
                }
                2 => self.clone = client.create(request_from("clone", of_volume(volume))).await?.volume_id,
                3 => drop(client.expand(&self.clone, 2 * SIZE).await?),
                4 => client.modify(&self.clone, &[("readAheadKb", "64")]).await?,
                5 => {
                    let source_volume_ids = vec![volume.to_owned(), self.clone.clone()];
                    let request = CreateVolumeGroupSnapshotRequest {
                        name: "group".into(),
                        source_volume_ids,
                        ..Default::default()
                    };
                    let answer = client.groups().create_volume_group_snapshot(request).await?.into_inner();
                    let group = answer.group_snapshot.unwrap();
                    self.members = group.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id).collect();
                    self.group = group.group_snapshot_id;
                }
                6 => {
                    let (group_snapshot_id, snapshot_ids) = (self.group.clone(), self.members.clone());
                    let request =
                        DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
                    client.groups().delete_volume_group_snapshot(request).await?;
                }
                7 => client.delete_snapshot(&self.snapshot).await?,
                8 => client.delete(&self.restored).await?,
                9 => client.delete(&self.clone).await?,
                _ => return Ok(()),
            }
            self.done += 1;
        }
    }
}

fn files(world: &World, folder: &str) -> Vec<PathBuf> {
    fs::read_dir(world.pool().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_driver_killed_at_any_change_of_copying_growing_and_removing_finishes_after_its_restart() {
    test_on("xfs", 1 << 30, async |world| {
        let client = world.node("a").await;
        let (volume, _) = client.staged("v", "a").await;
        fs::write(client.staging().join("file"), "precious").unwrap();
        let before = world.files();
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        Life::default().go_on(&world.node_on("a", counted.clone()), &volume).await.unwrap();
        let changes = counted.changes();
        assert!(changes.len() > 30, "{changes:#?}");
        for at in 1..=changes.len() as u64 {
            for stop in [Stop::Before(at), Stop::After(at)] {
                let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
                let mut life = Life::default();
                let refusal = life.go_on(&world.node_on("a", dying.clone()), &volume).await.unwrap_err();
                assert!(dying.is_dead(), "{stop:?} was not reached: {refusal}");
                // The cluster must not take this for "nothing happened".
                assert_eq!(refusal.code(), tonic::Code::Unavailable, "{stop:?} {}", changes[at as usize - 1]);

                let client = world.node("a").await;
                // Thawed: this would hang otherwise.
                fs::write(client.staging().join("file"), "precious").unwrap();
                life.go_on(&client, &volume).await.unwrap_or_else(|error| panic!("{stop:?}: {error}"));
                assert_eq!(world.files(), before, "{stop:?} {}", changes[at as usize - 1]);
                assert_eq!(files(&world, "snapshots"), Vec::<PathBuf>::new(), "{stop:?}");
                assert_eq!(files(&world, "groups"), Vec::<PathBuf>::new(), "{stop:?}");
            }
        }
        assert_eq!(fs::read_to_string(client.staging().join("file")).unwrap(), "precious");
        client.remove(&volume).await;
        println!("{} changes, killed before and after each", changes.len());
    });
}

#[test]
fn what_a_killed_driver_began_can_be_removed_instead_of_finished() {
    test_on("xfs", 1 << 30, async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let before = world.files();
        let begin = async |client: &Client| -> Answer<()> {
            let snapshot = client.snapshot(&volume, "snap").await?.snapshot_id;
            client.create(request_from("restored", of_snapshot(&snapshot))).await.map(drop)
        };
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let counting = world.node_on("a", counted.clone());
        let snapshot = counting.snapshot(&volume, "snap").await.unwrap().snapshot_id;
        let restored = counting.create(request_from("restored", of_snapshot(&snapshot))).await.unwrap().volume_id;
        for at in 1..=counted.changes().len() as u64 {
            for id in [&restored] {
                client.delete(id).await.unwrap();
            }
            client.delete_snapshot(&snapshot).await.unwrap();
            assert_eq!(world.files(), before, "stopped after change {}", at - 1);
            assert_eq!(files(&world, "snapshots"), Vec::<PathBuf>::new(), "stopped after change {}", at - 1);
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(at)));
            begin(&world.node_on("a", dying.clone())).await.unwrap_err();
            assert!(dying.is_dead());
            // What was begun and is not whole is not shown as a snapshot.
            let listed = client.list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
            assert!(listed.entries.iter().all(|entry| entry.snapshot.as_ref().unwrap().ready_to_use));
        }
    });
}

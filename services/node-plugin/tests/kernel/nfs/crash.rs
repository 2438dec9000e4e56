use std::fs;
use std::sync::Arc;

use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, MountTable, Stop};

use crate::nfs_world::{NfsWorld, publish, test};
use crate::world::{Answer, Client, of_snapshot, of_volume};

/// What a cluster does with volumes, call by call; each is repeated until it is answered.
#[derive(Default)]
struct Life {
    done: usize,
    volume: Volume,
    archived: String,
    snapshot: Option<Snapshot>,
    restored: String,
    clone: String,
}

impl Life {
    async fn go_on(&mut self, world: &NfsWorld, client: &Client) -> Answer<()> {
        loop {
            match self.done {
                0 => {
                    let parameters = [("subDir", "a/v"), ("mountPermissions", "0770")];
                    self.volume = client.create(world.request("pvc-1", &parameters)).await?;
                }
                1 => publish(client, world.publish_request(client, &self.volume, "pod")).await?,
                2 => fs::write(client.target("pod").join("file"), "precious").unwrap(),
                3 => {
                    let snapshot = client.snapshot(&self.volume.volume_id, "snap").await?;
                    assert_eq!(self.snapshot.get_or_insert_with(|| snapshot.clone()), &snapshot);
                }
                4 => {
                    let id = &self.snapshot.as_ref().unwrap().snapshot_id;
                    self.restored = client.create(world.request_from("r", of_snapshot(id))).await?.volume_id;
                    assert_eq!(fs::read_to_string(world.directory.join("r/file")).unwrap(), "precious");
                }
                5 => {
                    let source = of_volume(&self.volume.volume_id);
                    self.clone = client.create(world.request_from("c", source)).await?.volume_id;
                    assert_eq!(fs::read_to_string(world.directory.join("c/file")).unwrap(), "precious");
                }
                6 => client.unpublish(&self.volume.volume_id, "pod").await?,
                7 => {
                    let parameters = [("subDir", "k/l"), ("onDelete", "archive")];
                    self.archived = client.create(world.request("pvc-2", &parameters)).await?.volume_id;
                }
                8 => client.delete(&self.archived).await?,
                9 => client.delete_snapshot(&self.snapshot.as_ref().unwrap().snapshot_id).await?,
                10 => client.delete(&self.volume.volume_id).await?,
                11 => client.delete(&self.restored).await?,
                12 => client.delete(&self.clone).await?,
                _ => return Ok(()),
            }
            self.done += 1;
        }
    }
}

/// Nothing is left but what was archived, and nothing is mounted.
fn assert_end(world: &NfsWorld, why: &str) {
    assert_eq!(world.tree(), ["archived-k", "archived-k/l", "k"], "{why}");
    for name in ["archived-k/l", "archived-k", "k"] {
        fs::remove_dir(world.directory.join(name)).unwrap();
    }
    let table = MountTable::read().unwrap();
    for place in ["work", "kubelet"] {
        assert_eq!(table.under(&world.root.join(place)).count(), 0, "{why}");
    }
    let own = fs::read_dir(world.root.join("work")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(own).unwrap().count(), 0, "{why}");
}

#[test]
fn a_driver_killed_at_any_change_finishes_after_its_restart_and_leaves_nothing() {
    test(async |world| {
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let client = world.start(&world.options(), counted.clone()).await;
        Life::default().go_on(&world, &client).await.unwrap();
        let changes = counted.changes();
        assert_end(&world, "not killed");
        assert!(changes.len() > 50, "{changes:#?}");
        for at in 1..=changes.len() as u64 {
            for stop in [Stop::Before(at), Stop::After(at)] {
                let why = format!("{stop:?} {}", changes[at as usize - 1]);
                let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
                let mut life = Life::default();
                let killed = world.start(&world.options(), dying.clone()).await;
                let answer = life.go_on(&world, &killed).await;
                assert!(dying.is_dead(), "{why} was not reached");
                // The last thing a call does is to give its mount back; by then its answer is certain.
                match answer {
                    Ok(()) => assert!(changes[at as usize - 1].starts_with("discard"), "{why}"),
                    Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{why}: {status}"),
                }
                let client = world.client().await;
                life.go_on(&world, &client).await.unwrap_or_else(|error| panic!("{why}: {error}"));
                assert_end(&world, &why);
            }
        }
        println!("{} changes, killed before and after each", changes.len());
    });
}

#[test]
fn what_a_killed_driver_began_can_be_removed_instead_of_finished() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap().volume_id;
        fs::write(world.directory.join("v/file"), "precious").unwrap();
        let begin = async |client: &Client| -> Answer<()> {
            let snapshot = client.snapshot(&volume, "snap").await?.snapshot_id;
            client.create(world.request_from("r", of_snapshot(&snapshot))).await.map(drop)
        };
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        begin(&world.start(&world.options(), counted.clone()).await).await.unwrap();
        for at in 1..=counted.changes().len() as u64 {
            let client = world.client().await;
            client.delete(&world.id("r##")).await.unwrap();
            client.delete_snapshot(&world.id("snap#snap#v")).await.unwrap();
            assert_eq!(world.tree(), ["v", "v/file"], "killed after change {}", at - 1);
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(at)));
            let _ = begin(&world.start(&world.options(), dying.clone()).await).await;
            assert!(dying.is_dead());
        }
        let client = world.client().await;
        client.delete(&world.id("r##")).await.unwrap();
        client.delete_snapshot(&world.id("snap#snap#v")).await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

//! What a killed driver has begun, and a repeated call ends with a final error: a caller that gives up after it asks for no
//! removal, so nothing may be left.

use std::fs;
use std::sync::Arc;

use nix::mount::{MsFlags, mount};
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, Stop};
use tonic::Code;

use crate::world::{Answer, Client, SIZE, World, of_snapshot, refused, request, request_from, test, test_on, unmount};

/// A driver that dies after the n-th change.
fn dying(world: &World, changes: u64) -> Client {
    world.node_on("a", Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(changes))))
}

fn names(world: &World, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(world.pool().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn assert_killed<T: std::fmt::Debug>(answer: Answer<T>) {
    assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
}

#[test]
fn a_volume_whose_source_has_gone_meanwhile_leaves_nothing() {
    test(async |world| {
        let client = world.node("a").await;
        let source = client.create(request("source")).await.unwrap().volume_id;
        let snapshot = client.snapshot(&source, "snap").await.unwrap().snapshot_id;
        let before = world.files();
        let copy = request_from("copy", of_snapshot(&snapshot));
        // Its record, and its record with the marker of a copy.
        for changes in [1, 2] {
            assert_killed(dying(&world, changes).create(copy.clone()).await);
            let record =
                world.files().into_iter().find(|name| name.ends_with(".json") && !before.contains(name)).unwrap();
            let waiting = format!(".{}.img.new", record.trim_end_matches(".json"));
            fs::write(world.pool().join("volumes").join(waiting), "half an image").unwrap();
            client.delete_snapshot(&snapshot).await.unwrap();
            assert_eq!(refused(client.create(copy.clone()).await, &["snapshot_id"]), Code::NotFound);
            assert_eq!(world.files(), before);
            assert_eq!(client.snapshot(&source, "snap").await.unwrap().snapshot_id, snapshot);
        }
    });
}

#[test]
fn a_volume_for_which_there_is_no_room_any_more_leaves_nothing() {
    test(async |world| {
        mount(Some("none"), &world.pool(), Some("tmpfs"), MsFlags::empty(), Some("size=48m")).unwrap();
        let client = world.node("a").await;
        assert_killed(dying(&world, 1).create(request("late")).await);
        let other = client.create(request("other")).await.unwrap().volume_id;
        assert_eq!(refused(client.create(request("late")).await, &["--overcommit"]), Code::ResourceExhausted);
        client.delete(&other).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
        drop(client);
        unmount(&world.pool());
    });
}

#[test]
fn a_snapshot_whose_volume_has_gone_meanwhile_leaves_nothing() {
    test(async |world| {
        let client = world.node("a").await;
        let source = client.create(request("source")).await.unwrap().volume_id;
        assert_killed(dying(&world, 1).snapshot(&source, "snap").await);
        assert_eq!(names(&world, "snapshots").len(), 1);
        client.delete(&source).await.unwrap();
        assert_eq!(refused(client.snapshot(&source, "snap").await, &[&source]), Code::NotFound);
        assert_eq!(names(&world, "snapshots"), Vec::<String>::new());
    });
}

#[test]
fn a_group_of_which_a_volume_has_gone_meanwhile_leaves_nothing() {
    test_on("xfs", 16 * SIZE, async |world| {
        let client = world.node("a").await;
        let mut volumes = Vec::new();
        for name in ["one", "two"] {
            volumes.push(client.create(request(name)).await.unwrap().volume_id);
        }
        let cut = async |client: &Client| {
            let (name, source_volume_ids) = ("group".into(), volumes.clone());
            let request = CreateVolumeGroupSnapshotRequest { name, source_volume_ids, ..Default::default() };
            client.groups().create_volume_group_snapshot(request).await
        };
        // The group's record, both members' and one image.
        assert_killed(cut(&dying(&world, 4)).await);
        assert_eq!((names(&world, "groups").len(), names(&world, "snapshots").len()), (1, 3));
        client.delete(&volumes[1]).await.unwrap();
        assert_eq!(refused(cut(&client).await, &[&volumes[1]]), Code::NotFound);
        assert_eq!(names(&world, "groups"), Vec::<String>::new());
        assert_eq!(names(&world, "snapshots"), Vec::<String>::new());
        client.delete(&volumes[0]).await.unwrap();
    });
}

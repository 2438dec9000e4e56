use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stowage_csi::v1::*;
use tonic::Code;

use crate::world::{Answer, Client, block, of_snapshot, refused, request, request_from, test, test_on};

const DISK: i64 = 1 << 30;

async fn group(client: &Client, name: &str, volumes: &[String]) -> Answer<VolumeGroupSnapshot> {
    let (name, source_volume_ids) = (name.into(), volumes.to_vec());
    let request = CreateVolumeGroupSnapshotRequest { name, source_volume_ids, ..Default::default() };
    Ok(client.groups().create_volume_group_snapshot(request).await?.into_inner().group_snapshot.unwrap())
}

async fn delete(client: &Client, id: &str, snapshots: &[String]) -> Answer<()> {
    let (group_snapshot_id, snapshot_ids) = (id.into(), snapshots.to_vec());
    let request = DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
    client.groups().delete_volume_group_snapshot(request).await.map(drop)
}

async fn get(client: &Client, id: &str, snapshots: &[String]) -> Answer<VolumeGroupSnapshot> {
    let (group_snapshot_id, snapshot_ids) = (id.into(), snapshots.to_vec());
    let request = GetVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
    Ok(client.groups().get_volume_group_snapshot(request).await?.into_inner().group_snapshot.unwrap())
}

fn members(group: &VolumeGroupSnapshot) -> Vec<String> {
    group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect()
}

/// Writes one sequence over all paths in turn, each number durable before the next.
fn write_sequence(paths: &[PathBuf], stop: &AtomicBool, written: &AtomicU64) {
    let open = |path: &PathBuf| fs::OpenOptions::new().create(true).append(true).open(path.join("log")).unwrap();
    let mut files: Vec<_> = paths.iter().map(open).collect();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let file = &mut files[number as usize % paths.len()];
        writeln!(file, "{number}").unwrap();
        file.sync_data().unwrap();
        number += 1;
        written.store(number, Ordering::Release);
    }
}

fn read_sequence(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path.join("log")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn snapshots_of_a_group_under_writing_hold_a_prefix_of_what_was_written() {
    test_on("xfs", DISK, async |world| {
        let client = world.node("a").await;
        let (mut volumes, mut paths) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let volume = client.create(request(&format!("v{number}"))).await.unwrap().volume_id;
            paths.push(client.stage_beside(&volume, "a").await);
            volumes.push(volume);
        }
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        // A thread has the mount namespace of the one that starts it.
        let writer = std::thread::spawn({
            let (paths, stop, written) = (paths.clone(), stop.clone(), written.clone());
            move || write_sequence(&paths, &stop, &written)
        });
        let mut groups = Vec::new();
        for round in 0..5u64 {
            while written.load(Ordering::Acquire) < 20 * (round + 1) {
                tokio::task::yield_now().await;
            }
            let before = written.load(Ordering::Acquire);
            groups.push((before, group(&client, &format!("g{round}"), &volumes).await.unwrap()));
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();

        for (round, (before, group)) in groups.iter().enumerate() {
            let mut numbers = Vec::new();
            for (index, snapshot) in group.snapshots.iter().enumerate() {
                let name = format!("r{round}-{index}");
                let volume = client.create(request_from(&name, of_snapshot(&snapshot.snapshot_id))).await.unwrap();
                let path = client.stage_beside(&volume.volume_id, "a").await;
                numbers.extend(read_sequence(&path));
                client.unstage_beside(&volume.volume_id).await;
                client.delete(&volume.volume_id).await.unwrap();
            }
            numbers.sort();
            let prefix: Vec<_> = (0..numbers.len() as u64).collect();
            assert_eq!(numbers, prefix, "round {round} is no prefix");
            assert!(numbers.len() as u64 >= *before, "round {round} lost what was durable before it began");
            delete(&client, &group.group_snapshot_id, &members(group)).await.unwrap();
        }
        for volume in &volumes {
            client.unstage_beside(volume).await;
            client.delete(volume).await.unwrap();
        }
        assert_eq!(fs::read_dir(world.pool().join("snapshots")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(world.pool().join("groups")).unwrap().count(), 0);
    });
}

#[test]
fn a_group_is_made_found_and_removed_as_one() {
    test(async |world| {
        let client = world.node("a").await;
        let mut volumes = Vec::new();
        for name in ["one", "two", "three"] {
            volumes.push(client.create(request(name)).await.unwrap().volume_id);
        }
        let first = group(&client, "g", &volumes[..2]).await.unwrap();
        assert!(first.ready_to_use && first.snapshots.len() == 2);
        assert!(first.snapshots.iter().all(|snapshot| snapshot.group_snapshot_id == first.group_snapshot_id));
        let reversed = [volumes[1].clone(), volumes[0].clone()];
        assert_eq!(group(&client, "g", &reversed).await.unwrap(), first);
        assert_eq!(refused(group(&client, "g", &volumes).await, &["exists"]), Code::AlreadyExists);
        assert_eq!(get(&client, &first.group_snapshot_id, &members(&first)).await.unwrap(), first);

        let alone = client.delete_snapshot(&first.snapshots[0].snapshot_id).await;
        assert_eq!(refused(alone, &["DeleteVolumeGroupSnapshot"]), Code::InvalidArgument);
        for none in [
            get(&client, &first.group_snapshot_id, &[]).await.map(drop),
            delete(&client, &first.group_snapshot_id, &[]).await,
        ] {
            assert_eq!(refused(none, &["snapshot_ids"]), Code::InvalidArgument);
        }
        let half = &members(&first)[..1];
        assert_eq!(refused(get(&client, &first.group_snapshot_id, half).await, &[]), Code::InvalidArgument);
        assert_eq!(refused(delete(&client, &first.group_snapshot_id, half).await, &[]), Code::InvalidArgument);
        let unknown = format!("main.{}", "0".repeat(32));
        assert_eq!(refused(get(&client, &unknown, half).await, &[&unknown]), Code::NotFound);
        assert_eq!(refused(get(&client, "", half).await, &["group_snapshot_id"]), Code::InvalidArgument);
        assert_eq!(refused(delete(&client, "", half).await, &["group_snapshot_id"]), Code::InvalidArgument);
        assert_eq!(refused(group(&client, "", &volumes).await, &["name"]), Code::InvalidArgument);
        assert_eq!(refused(group(&client, "h", &[]).await, &["source_volume_ids"]), Code::InvalidArgument);
        assert_eq!(refused(group(&client, "h", std::slice::from_ref(&unknown)).await, &[&unknown]), Code::NotFound);
        delete(&client, &unknown, half).await.unwrap();
        delete(&client, &first.group_snapshot_id, &members(&first)).await.unwrap();
        delete(&client, &first.group_snapshot_id, &members(&first)).await.unwrap();
        assert_eq!(fs::read_dir(world.pool().join("snapshots")).unwrap().count(), 0);
    });
}

#[test]
fn what_cannot_stand_still_is_not_cut_together_with_others() {
    test_on("xfs", DISK, async |world| {
        let client = world.node("a").await;
        let raw = CreateVolumeRequest { volume_capabilities: vec![block()], ..request("raw") };
        let raw = client.create(raw).await.unwrap().volume_id;
        let context = client.attach_as(&raw, "a", block()).await.unwrap();
        let stage = NodeStageVolumeRequest { volume_capability: Some(block()), ..client.stage_request(&raw, &context) };
        client.node().node_stage_volume(stage).await.unwrap();
        let other = client.create(request("other")).await.unwrap().volume_id;
        let refusal = group(&client, "g", &[raw.clone(), other.clone()]).await;
        assert_eq!(refused(refusal, &[&raw, "block device in use"]), Code::FailedPrecondition);
        assert_eq!(fs::read_dir(world.pool().join("groups")).unwrap().count(), 0);
        client.unstage(&raw).await.unwrap();
        let made = group(&client, "g", &[raw.clone(), other.clone()]).await;
        // Attached here and staged nowhere: nobody writes.
        made.unwrap();
    });
}

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use node_plugin::Driver;
use stowage_csi::Channel;
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, Stop};
use tonic::Code;

use crate::world::{
    Client, MIB, SIZE, World, block, freeze, of_snapshot, of_volume, refused, request, request_from, request_with,
    test, test_on,
};

const DISK: i64 = 1 << 30;

/// The parameters with which a volume of 32 MiB can have this file system.
fn on(kind: &'static str) -> (i64, [(&'static str, &'static str); 1]) {
    let bytes = match kind {
        "xfs" => 300 * MIB,
        "btrfs" => 128 * MIB,
        _ => SIZE,
    };
    (bytes, [("fsType", kind)])
}

async fn volume(client: &Client, name: &str, kind: &'static str) -> String {
    let (required_bytes, parameters) = on(kind);
    let capacity_range = Some(CapacityRange { required_bytes, limit_bytes: 0 });
    client.create(CreateVolumeRequest { capacity_range, ..request_with(name, &parameters) }).await.unwrap().volume_id
}

/// A snapshot and a clone of a volume that is being used hold what it held then, beside it and after it.
async fn copies_hold_their_moment(world: World, kind: &'static str, parameters: &[(&str, &str)]) {
    let client = world.node("a").await;
    let source = volume(&client, "source", kind).await;
    let path = client.stage_beside(&source, "a").await;
    fs::write(path.join("file"), "before").unwrap();
    let snapshot = client.snapshot_with(&source, "snap", parameters).await.unwrap();
    assert!(snapshot.ready_to_use && snapshot.creation_time.is_some());
    fs::write(path.join("file"), "after").unwrap();
    let again = client.snapshot_with(&source, "snap", parameters).await.unwrap();
    assert_eq!(again, snapshot, "the same name is the same snapshot");

    let with = |mut request: CreateVolumeRequest| {
        request.parameters =
            parameters.iter().chain(&on(kind).1).map(|(k, v)| (k.to_string(), v.to_string())).collect();
        request
    };
    let restored = client.create(with(request_from("restored", of_snapshot(&snapshot.snapshot_id)))).await.unwrap();
    assert!(restored.content_source.is_some());
    assert_eq!(
        client.create(with(request_from("restored", of_snapshot(&snapshot.snapshot_id)))).await.unwrap(),
        restored
    );
    let clone = client.create(with(request_from("clone", of_volume(&source)))).await.unwrap();

    // All three at once: each has an identity of its own.
    let restored_at = client.stage_beside(&restored.volume_id, "a").await;
    let clone_at = client.stage_beside(&clone.volume_id, "a").await;
    assert_eq!(fs::read_to_string(restored_at.join("file")).unwrap(), "before");
    assert_eq!(fs::read_to_string(clone_at.join("file")).unwrap(), "after");
    fs::write(restored_at.join("file"), "elsewhere").unwrap();
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "after");

    // The source goes; what was taken of it stays (S1).
    client.unstage_beside(&source).await;
    client.delete(&source).await.unwrap();
    let late = client.create(with(request_from("late", of_snapshot(&snapshot.snapshot_id)))).await.unwrap();
    let late_at = client.stage_beside(&late.volume_id, "a").await;
    assert_eq!(fs::read_to_string(late_at.join("file")).unwrap(), "before");

    for volume in [&restored.volume_id, &clone.volume_id, &late.volume_id] {
        client.unstage_beside(volume).await;
        client.delete(volume).await.unwrap();
    }
    client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    assert_eq!(world.files(), Vec::<String>::new());
    assert_eq!(fs::read_dir(world.pool().join("snapshots")).unwrap().count(), 0);
}

#[test]
fn ext4_in_use_is_copied_at_one_moment_on_an_xfs_pool() {
    test_on("xfs", DISK, async |world| copies_hold_their_moment(world, "ext4", &[]).await);
}

#[test]
fn xfs_in_use_is_copied_at_one_moment_on_an_xfs_pool() {
    test_on("xfs", 2 * DISK, async |world| copies_hold_their_moment(world, "xfs", &[]).await);
}

#[test]
fn btrfs_in_use_is_copied_at_one_moment_on_a_btrfs_pool() {
    test_on("btrfs", 2 * DISK, async |world| copies_hold_their_moment(world, "btrfs", &[]).await);
}

#[test]
fn a_volume_in_use_is_copied_without_reflink_if_the_class_asks_to_freeze() {
    test(async |world| copies_hold_their_moment(world, "ext4", &[("freezeForCopy", "true")]).await);
}

#[test]
fn without_reflink_a_volume_in_use_is_refused_with_the_way_out_and_an_idle_one_is_copied_sparsely() {
    test(async |world| {
        let client = world.node("a").await;
        let (source, _) = client.staged("source", "a").await;
        fs::write(client.staging().join("file"), "data").unwrap();
        let refusal = client.snapshot(&source, "snap").await;
        assert_eq!(
            refused(refusal, &["freezeForCopy=true", "xfs or btrfs", "stop its pods"]),
            Code::FailedPrecondition
        );
        let clone = client.create(request_from("clone", of_volume(&source))).await;
        assert_eq!(refused(clone, &["freezeForCopy=true"]), Code::FailedPrecondition);
        assert_eq!(fs::read_dir(world.pool().join("snapshots")).unwrap().count(), 0);

        client.unstage(&source).await.unwrap();
        let snapshot = client.snapshot(&source, "snap").await.unwrap();
        let image = fs::read_dir(world.pool().join("snapshots")).unwrap().map(|entry| entry.unwrap().path());
        let image = image.into_iter().find(|path| path.extension().unwrap() == "img").unwrap();
        let about = fs::metadata(&image).unwrap();
        assert_eq!(about.len() as i64, SIZE);
        assert!(about.blocks() * 512 < 4 << 20, "{} bytes are not sparse", about.blocks() * 512);
        let larger = CreateVolumeRequest {
            capacity_range: Some(CapacityRange { required_bytes: 2 * SIZE, limit_bytes: 0 }),
            ..request_from("larger", of_snapshot(&snapshot.snapshot_id))
        };
        let larger = client.create(larger).await.unwrap();
        assert_eq!(larger.capacity_bytes, 2 * SIZE);
        let path = client.stage_beside(&larger.volume_id, "a").await;
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data");
        client.unstage_beside(&larger.volume_id).await;
    });
}

#[test]
fn the_file_system_of_a_copy_grows_with_a_larger_volume() {
    test(async |world| {
        let client = world.node("a").await;
        for kind in ["xfs", "ext4"] {
            let source = volume(&client, &format!("source-{kind}"), kind).await;
            let path = client.stage_beside(&source, "a").await;
            fs::write(path.join("file"), "data").unwrap();
            client.unstage_beside(&source).await;
            let larger = CreateVolumeRequest {
                capacity_range: Some(CapacityRange { required_bytes: 500 * MIB, limit_bytes: 0 }),
                parameters: request_with("", &on(kind).1).parameters,
                ..request_from(&format!("larger-{kind}"), of_volume(&source))
            };
            let larger = client.create(larger).await.unwrap();
            assert_eq!(larger.capacity_bytes, 500 * MIB);
            let path = client.stage_beside(&larger.volume_id, "a").await;
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data");
            let usage = nix::sys::statvfs::statvfs(&path).unwrap();
            let bytes = (usage.blocks() * usage.fragment_size()) as i64;
            assert!(bytes > 300 * MIB, "the {kind} file system has {bytes} bytes: it did not grow with its volume");
            client.unstage_beside(&larger.volume_id).await;
        }
    });
}

#[test]
fn a_copy_of_a_volume_whose_growth_was_cut_short_holds_all_that_its_file_system_has_become() {
    test_on("xfs", 2 * DISK, async |world| {
        let client = world.node("a").await;
        let source = volume(&client, "source", "xfs").await;
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let probe = volume(&client, "probe", "xfs").await;
        world.node_on("a", counted.clone()).expand(&probe, 310 * MIB).await.unwrap();
        let growing = counted.changes().iter().position(|change| change.starts_with("grow_image")).unwrap() as u64 + 1;
        client.delete(&probe).await.unwrap();
        let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(growing)));
        let killed = world.node_on("a", dying).expand(&source, 500 * MIB).await;
        assert_eq!(killed.unwrap_err().code(), Code::Unavailable);

        // The caller gives up growing; staging lets the file system take all of its device.
        let path = client.stage_beside(&source, "a").await;
        fs::write(path.join("file"), "data").unwrap();
        let usage = nix::sys::statvfs::statvfs(&path).unwrap();
        assert!((usage.blocks() * usage.fragment_size()) as i64 > 400 * MIB, "it did not grow");
        let snapshot = client.snapshot(&source, "snap").await.unwrap();
        assert_eq!(snapshot.size_bytes, 500 * MIB);
        for (name, origin) in [("restored", of_snapshot(&snapshot.snapshot_id)), ("clone", of_volume(&source))] {
            let parameters = request_with("", &on("xfs").1).parameters;
            let copy = client.create(CreateVolumeRequest { parameters, ..request_from(name, origin) }).await.unwrap();
            assert_eq!(copy.capacity_bytes, 500 * MIB);
            let path = client.stage_beside(&copy.volume_id, "a").await;
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data", "{name}");
            client.unstage_beside(&copy.volume_id).await;
        }
        assert_eq!(client.expand(&source, 400 * MIB).await.unwrap().capacity_bytes, 500 * MIB);
        client.unstage_beside(&source).await;
    });
}

#[test]
fn a_bad_request_for_a_snapshot_or_a_copy_is_refused_by_field() {
    test(async |world| {
        let client = world.node("a").await;
        let source = client.create(request("source")).await.unwrap().volume_id;
        let other = client.create(request("other")).await.unwrap().volume_id;
        let unknown = format!("main.{}", "0".repeat(32));
        assert_eq!(refused(client.snapshot(&source, "").await, &["name"]), Code::InvalidArgument);
        assert_eq!(refused(client.snapshot("", "s").await, &["source_volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(client.snapshot(&unknown, "s").await, &[&unknown]), Code::NotFound);
        let odd = client.snapshot_with(&source, "s", &[("colour", "blue")]).await;
        assert_eq!(refused(odd, &["\"colour\"", "freezeForCopy"]), Code::InvalidArgument);
        let snapshot = client.snapshot(&source, "s").await.unwrap().snapshot_id;
        assert_eq!(refused(client.snapshot(&other, "s").await, &[&source]), Code::AlreadyExists);

        let missing = client.create(request_from("v", of_snapshot("non-existing-snapshot-id"))).await;
        assert_eq!(refused(missing, &["snapshot_id"]), Code::NotFound);
        let nothing = client.create(request_from("v", of_volume(""))).await;
        assert_eq!(refused(nothing, &["volume_id"]), Code::InvalidArgument);
        let smaller = CreateVolumeRequest {
            capacity_range: Some(CapacityRange { required_bytes: 0, limit_bytes: 8 * MIB }),
            ..request_from("v", of_snapshot(&snapshot))
        };
        assert_eq!(refused(client.create(smaller).await, &["from 33554432"]), Code::OutOfRange);
        let as_block =
            CreateVolumeRequest { volume_capabilities: vec![block()], ..request_from("v", of_snapshot(&snapshot)) };
        assert_eq!(refused(client.create(as_block).await, &["ext4", "a block device"]), Code::InvalidArgument);
        let directory = client.create(request_with("dir", &[("backend", "directory")])).await.unwrap();
        assert_eq!(directory.capacity_bytes, 0, "a directory promises no size");
        let of_directory = client.snapshot(&directory.volume_id, "d").await;
        assert_eq!(refused(of_directory, &["backend=image"]), Code::InvalidArgument);
        client.create(request_from("v", of_snapshot(&snapshot))).await.unwrap();
        let other_source = client.create(request_from("v", of_volume(&source))).await;
        assert_eq!(refused(other_source, &["exists"]), Code::AlreadyExists);
        assert_eq!(refused(client.delete_snapshot("").await, &["snapshot_id"]), Code::InvalidArgument);
        client.delete_snapshot("never-made").await.unwrap();
    });
}

#[test]
fn snapshots_are_listed_in_pages_by_id_and_by_source() {
    test(async |world| {
        let client = world.node("a").await;
        let one = client.create(request("one")).await.unwrap().volume_id;
        let two = client.create(request("two")).await.unwrap().volume_id;
        let mut ids = Vec::new();
        for number in 0..5 {
            let source = if number % 2 == 0 { &one } else { &two };
            ids.push(client.snapshot(source, &format!("s{number}")).await.unwrap().snapshot_id);
        }
        let first_of_two = ids[1].clone();
        ids.sort();
        let list = async |request| client.list_snapshots(request).await;
        let ids_of = |answer: ListSnapshotsResponse| {
            answer.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect::<Vec<_>>()
        };
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let request = ListSnapshotsRequest { max_entries: 2, starting_token: token, ..Default::default() };
            let page = list(request).await.unwrap();
            assert!(page.entries.len() <= 2);
            token = page.next_token.clone();
            seen.extend(ids_of(page));
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, ids);
        let of_one = ListSnapshotsRequest { source_volume_id: one.clone(), ..Default::default() };
        assert_eq!(ids_of(list(of_one).await.unwrap()).len(), 3);
        let by_id = ListSnapshotsRequest { snapshot_id: first_of_two.clone(), ..Default::default() };
        assert_eq!(ids_of(list(by_id).await.unwrap()), [first_of_two]);
        let unknown = ListSnapshotsRequest { snapshot_id: "unknown".into(), ..Default::default() };
        assert_eq!(ids_of(list(unknown).await.unwrap()), Vec::<String>::new());
        let bad = ListSnapshotsRequest { starting_token: "invalid-token".into(), ..Default::default() };
        assert_eq!(refused(list(bad).await, &["invalid-token"]), Code::Aborted);
    });
}

#[test]
fn a_volume_that_a_killed_driver_left_frozen_is_thawed_at_the_next_start() {
    test_on("xfs", DISK, async |world| {
        let client = world.node("a").await;
        let (volume, _) = client.staged("v", "a").await;
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let snapshot = world.node_on("a", counted.clone()).snapshot(&volume, "count").await.unwrap();
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        let freezing = counted.changes().iter().position(|change| change.starts_with("freeze")).unwrap() as u64 + 1;

        let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(freezing)));
        let killed = world.node_on("a", dying).snapshot(&volume, "snap").await;
        assert_eq!(killed.unwrap_err().code(), Code::Unavailable);
        let frozen = freeze(&client.staging()).await.unwrap_err();
        assert!(frozen.is_busy(), "it is not frozen: {frozen}");

        let client = world.node("a").await;
        fs::write(client.staging().join("file"), "written after the thaw").unwrap();
        assert!(world.files().iter().all(|name| !name.contains("frozen")), "{:?}", world.files());
        let snapshot = client.snapshot(&volume, "snap").await.unwrap();
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        client.remove(&volume).await;
    });
}

#[test]
fn what_was_left_frozen_in_a_pool_that_comes_late_is_thawed_before_the_first_change() {
    test_on("xfs", DISK, async |world| {
        let client = world.node("a").await;
        let (one, two) = (volume(&client, "one", "ext4").await, volume(&client, "two", "ext4").await);
        let paths = [client.stage_beside(&one, "a").await, client.stage_beside(&two, "a").await];
        // As a driver that was killed leaves them.
        for (volume, path) in [&one, &two].into_iter().zip(&paths) {
            let mark = world.pool().join("volumes").join(volume.split('.').nth(1).unwrap()).with_extension("frozen.a");
            let record = serde_json::json!({ "version": 3, "path": path });
            fs::write(&mark, record.to_string()).unwrap();
            freeze(path).await.unwrap();
        }
        // One that cannot be thawed comes first and keeps no other from it.
        let obstacle = world.pool().join("volumes").join("0".repeat(32)).with_extension("frozen.a");
        fs::create_dir(&obstacle).unwrap();
        let (here, away) = (world.pool().join("volumes"), world.pool().join("away"));
        fs::rename(&here, &away).unwrap();
        fs::write(&here, "in the way of the pool").unwrap();
        let late = Driver::new(&world.options("a"), Arc::new(LinuxMounter));
        late.recover().await;
        fs::remove_file(&here).unwrap();
        fs::rename(&away, &here).unwrap();
        assert!(freeze(&paths[0]).await.unwrap_err().is_busy(), "it is not frozen");

        let late = Client { channel: Channel::in_process(late.routes()), kubelet: client.kubelet.clone() };
        late.info().await.unwrap();
        for path in &paths {
            // This would hang on a frozen file system.
            fs::write(path.join("file"), "thawed").unwrap();
        }
        fs::remove_dir(&obstacle).unwrap();
        assert!(world.files().iter().all(|name| !name.contains("frozen")), "{:?}", world.files());
        for volume in [&one, &two] {
            late.unstage_beside(volume).await;
        }
    });
}

#[test]
fn a_snapshot_is_not_deleted_while_a_volume_is_made_from_it() {
    test(async |world| {
        let client = world.node("a").await;
        let capacity_range = Some(CapacityRange { required_bytes: 300 * MIB, limit_bytes: 0 });
        let source = client.create(CreateVolumeRequest { capacity_range, ..request("source") }).await.unwrap();
        fs::write(world.only_image(), vec![7; 300 << 20]).unwrap();
        let snapshot = client.snapshot(&source.volume_id, "snap").await.unwrap().snapshot_id;
        let restoring = client.create(request_from("restored", of_snapshot(&snapshot)));
        let deleting = async {
            // Without shared blocks it takes a while, during which the image waits under another name.
            copying(&world, "volumes").await;
            client.delete_snapshot(&snapshot).await
        };
        let (restored, deleted) = tokio::join!(restoring, deleting);
        assert_eq!(refused(deleted, &["is being made from snapshot"]), Code::FailedPrecondition);
        restored.unwrap();
        client.delete_snapshot(&snapshot).await.unwrap();
    });
}

/// Waits for an image that is being filled somewhere in the pool.
async fn copying(world: &World, folder: &str) {
    let is_waiting =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().ends_with(".img.new");
    while !fs::read_dir(world.pool().join(folder)).unwrap().any(is_waiting) {
        tokio::task::yield_now().await;
    }
}

#[test]
fn every_call_for_a_volume_that_another_call_is_about_is_aborted() {
    test(async |world| {
        let client = world.node("a").await;
        let capacity_range = Some(CapacityRange { required_bytes: 500 * MIB, limit_bytes: 0 });
        let volume = CreateVolumeRequest { capacity_range, ..request("v") };
        let id = client.create(volume.clone()).await.unwrap().volume_id;
        let context = client.attach(&id, "a").await.unwrap();
        fs::write(world.only_image(), vec![7; 500 << 20]).unwrap();
        client.detach(&id, "a").await.unwrap();
        let snapshot = client.snapshot(&id, "snap").await.unwrap().snapshot_id;
        client.delete_snapshot(&snapshot).await.unwrap();

        // Without shared blocks this takes a while.
        let cutting = client.snapshot(&id, "snap");
        let others = async {
            copying(&world, "snapshots").await;
            let node = async |path: &str| {
                let request =
                    NodeExpandVolumeRequest { volume_id: id.clone(), volume_path: path.into(), ..Default::default() };
                client.node().node_expand_volume(request).await.map(drop)
            };
            [
                ("CreateVolume", client.create(volume.clone()).await.map(drop)),
                ("DeleteVolume", client.delete(&id).await),
                ("ControllerPublishVolume", client.attach(&id, "a").await.map(drop)),
                ("ControllerUnpublishVolume", client.detach(&id, "a").await),
                ("ControllerExpandVolume", client.expand(&id, 600 * MIB).await.map(drop)),
                ("ControllerModifyVolume", client.modify(&id, &[("readAheadKb", "64")]).await),
                ("CreateSnapshot", client.snapshot(&id, "snap").await.map(drop)),
                ("CreateSnapshot of another name", client.snapshot(&id, "other").await.map(drop)),
                ("DeleteSnapshot", client.delete_snapshot(&snapshot).await),
                ("CreateVolume from it", client.create(request_from("copy", of_volume(&id))).await.map(drop)),
                ("NodeStageVolume", client.stage(&id, &context).await),
                ("NodePublishVolume", client.publish(&id, &context, "pod").await),
                ("NodeUnpublishVolume", client.unpublish(&id, "pod").await),
                ("NodeUnstageVolume", client.unstage(&id).await),
                ("NodeExpandVolume", node(&crate::world::text(&client.staging())).await),
            ]
        };
        let (cut, answers) = tokio::join!(cutting, others);
        for (call, answer) in answers {
            assert_eq!(refused(answer, &["in progress"]), Code::Aborted, "{call}");
        }
        assert!(cut.unwrap().ready_to_use);
        client.delete_snapshot(&snapshot).await.unwrap();
        client.delete(&id).await.unwrap();
    });
}

#[test]
fn a_copy_that_fails_leaves_the_volume_thawed_and_nothing_of_itself() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, _) = client.staged("v", "a").await;
        // In the way of the copy: its waiting name is taken by a directory.
        let snapshots = world.pool().join("snapshots");
        let id = client.snapshot(&volume, "probe").await.unwrap_err();
        assert_eq!(id.code(), Code::FailedPrecondition);
        client.unstage(&volume).await.unwrap();
        let probe = client.snapshot(&volume, "snap").await.unwrap().snapshot_id;
        client.delete_snapshot(&probe).await.unwrap();
        let key = probe.split('.').nth(1).unwrap();
        let obstacle = snapshots.join(format!(".{key}.img.new"));
        fs::create_dir(&obstacle).unwrap();
        let path = client.stage_beside(&volume, "a").await;
        let refusal = client.snapshot_with(&volume, "snap", &[("freezeForCopy", "true")]).await;
        assert_eq!(refusal.unwrap_err().code(), Code::Unavailable);
        fs::write(path.join("file"), "not frozen").unwrap();
        fs::remove_dir(&obstacle).unwrap();
        client.delete_snapshot(&probe).await.unwrap();
        assert_eq!(fs::read_dir(&snapshots).unwrap().count(), 0);
        client.unstage_beside(&volume).await;
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_block_volume_in_use_is_copied_with_reflink_and_refused_without() {
    test_on("xfs", DISK, async |world| {
        let client = world.node("a").await;
        let raw = CreateVolumeRequest { volume_capabilities: vec![block()], ..request("raw") };
        let volume = client.create(raw.clone()).await.unwrap().volume_id;
        let context = client.attach_as(&volume, "a", block()).await.unwrap();
        let mut stage = client.stage_request(&volume, &context);
        stage.volume_capability = Some(block());
        client.node().node_stage_volume(stage).await.unwrap();
        let device = world.loops().remove(0);
        fs::OpenOptions::new()
            .write(true)
            .open(&device)
            .map(|mut file| std::io::Write::write_all(&mut file, b"raw data"))
            .unwrap()
            .unwrap();
        let snapshot = client.snapshot(&volume, "snap").await.unwrap();
        let restored = CreateVolumeRequest {
            volume_capabilities: vec![block()],
            ..request_from("restored", of_snapshot(&snapshot.snapshot_id))
        };
        let restored = client.create(restored).await.unwrap().volume_id;
        let key = restored.split('.').nth(1).unwrap();
        let image = world.pool().join("volumes").join(format!("{key}.img"));
        assert!(fs::read(image).unwrap().starts_with(b"raw data"));
        client.remove(&volume).await;
        client.delete(&restored).await.unwrap();
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    });
}

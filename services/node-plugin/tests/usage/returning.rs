//! A driver that finds the machine otherwise than it left it: rebooted, or with a pool that cannot be written.

use std::fs;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, MountTable, Stop};
use tonic::Code;

use crate::killed::Process;
use crate::volumes::{FREE, Made, ROOM, file_systems};
use crate::world::{Answer, Client, World, capability, freeze, make_read_only, refused, request, run, test, unmount};

fn all_kinds() -> impl Iterator<Item = Made> {
    file_systems().into_iter().map(Made::Of).chain([Made::Block, Made::Directory])
}

fn write(made: Made, client: &Client, text: &str) {
    match made {
        Made::Block => {
            let device = fs::OpenOptions::new().write(true).open(client.target("pod")).unwrap();
            device.write_all_at(text.as_bytes(), 8192).unwrap();
            device.sync_all().unwrap();
        }
        _ => fs::write(client.target("pod").join("data"), text).unwrap(),
    }
}

fn read(made: Made, client: &Client, length: usize) -> String {
    let mut found = vec![0; length];
    match made {
        Made::Block => fs::File::open(client.target("pod")).unwrap().read_exact_at(&mut found, 8192).unwrap(),
        _ => found = fs::read(client.target("pod").join("data")).unwrap(),
    }
    String::from_utf8(found).unwrap()
}

/// What a reboot leaves: files, and nothing that the kernel knew.
fn reboot(world: &World) {
    let mounts: Vec<_> = MountTable::read().unwrap().under(&world.root).map(|mount| mount.target.clone()).collect();
    mounts.iter().rev().for_each(|target| unmount(target));
    for device in world.loops() {
        run(Command::new("losetup").arg("-d").arg(device));
    }
}

#[test]
fn after_a_reboot_volumes_are_staged_and_published_as_before_and_keep_their_data() {
    test(async |world| {
        for made in all_kinds() {
            let client = world.local("a").await;
            let volume = made.used(&client, &format!("{made:?}")).await;
            write(made, &client, "kept");
            drop(client);
            reboot(&world);

            let client = world.local("a").await;
            let early = made.publish(&client, &volume, "pod", false).await;
            assert_eq!(refused(early, &["not staged"]), Code::FailedPrecondition, "{made:?}");
            made.stage(&client, &volume).await.unwrap();
            made.publish(&client, &volume, "pod", false).await.unwrap();
            assert_eq!(read(made, &client, 4), "kept", "{made:?}");
            client.give_back(&volume).await;
            assert_eq!(world.files(), Vec::<String>::new(), "{made:?}");
        }
    });
}

#[test]
fn after_a_reboot_a_pod_that_does_not_come_back_is_cleared_away() {
    test(async |world| {
        for made in all_kinds() {
            let client = world.local("a").await;
            let volume = made.used(&client, &format!("{made:?}")).await;
            drop(client);
            reboot(&world);
            world.local("a").await.give_back(&volume).await;
            assert_eq!(world.files(), Vec::<String>::new(), "{made:?}");
            assert!(!world.root.join("kubelet/a/pods/pod").try_exists().unwrap(), "{made:?}");
        }
    });
}

#[test]
fn a_volume_of_a_read_only_pool_is_taken_from_its_pod_and_its_node() {
    test(async |world| {
        for made in all_kinds() {
            let client = world.local("a").await;
            let volume = made.used(&client, &format!("{made:?}")).await;
            write(made, &client, "kept");
            make_read_only(&world.pool());
            client.unpublish(&volume, "pod").await.unwrap();
            for _ in 0..2 {
                client.unstage(&volume).await.unwrap();
            }
            assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new(), "{made:?}");
            unmount(&world.pool());
            made.stage(&client, &volume).await.unwrap();
            made.publish(&client, &volume, "pod", false).await.unwrap();
            assert_eq!(read(made, &client, 4), "kept", "{made:?}");
            client.give_back(&volume).await;
        }
    });
}

#[test]
fn a_node_that_loses_a_volume_while_it_makes_it_ready_does_not_mount_it() {
    test(async |world| {
        // A mkfs that takes as long as the test wants.
        let (programs, begun, go) = (world.root.join("programs"), world.root.join("begun"), world.root.join("go"));
        fs::create_dir(&programs).unwrap();
        let (begun_at, go_at) = (begun.display(), go.display());
        let script = format!(
            "#!/bin/sh\ntouch {begun_at}\nwhile [ ! -e {go_at} ]; do sleep 0.01; done\nPATH=${{PATH#*:}}\nexec mkfs.ext4 \"$@\"\n"
        );
        // Written by a child: what this process has open for writing, the child of another test may still hold when it is
        // to be executed.
        let write = r#"printf %s "$1" > "$2" && chmod 755 "$2""#;
        run(Command::new("sh").args(["-c", write, "sh", &script]).arg(programs.join("mkfs.ext4")));
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Process::command(&world);
        let (_process, a) = Process::spawn(&world, command.env("PATH", path), None).await;
        a.info().await.unwrap();
        let b = world.node("b").await;
        let volume = a.create(request("v")).await.unwrap().volume_id;
        let old = a.attach(&volume, "a").await.unwrap();
        let mut staging = pin!(a.stage(&volume, &old));
        let begins = async {
            while !begun.try_exists().unwrap() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            answer = &mut staging => panic!("answered before it made a file system: {answer:?}"),
            () = begins => {}
        }
        let losing = async {
            b.detach(&volume, "a").await.unwrap();
            let new = b.attach(&volume, "b").await.unwrap();
            fs::write(&go, "").unwrap();
            new
        };
        let (staged, new) = tokio::join!(staging, losing);
        assert_eq!(refused(staged, &["not the current one"]), Code::FailedPrecondition);
        assert_eq!(world.loops(), Vec::<std::path::PathBuf>::new());
        b.stage(&volume, &new).await.unwrap();
        b.remove(&volume).await;
    });
}

async fn publish_as(made: Made, client: &Client, volume: &str, pod: &str, mode: AccessMode) -> Answer<()> {
    let access_mode = capability(mode).access_mode;
    let volume_capability = Some(VolumeCapability { access_mode, ..made.capability() });
    let request = NodePublishVolumeRequest { volume_capability, ..client.publish_request(volume, FREE, pod) };
    client.node().node_publish_volume(request).await.map(drop)
}

#[test]
fn whatever_a_volume_is_made_of_one_pod_can_have_it_alone() {
    test(async |world| {
        let (alone, several) = (AccessMode::SingleNodeSingleWriter, AccessMode::SingleNodeMultiWriter);
        for made in all_kinds() {
            let client = world.local("a").await;
            let volume = made.create(&client, &format!("{made:?}"), ROOM).await.unwrap();
            made.stage(&client, &volume).await.unwrap();
            for _ in 0..2 {
                publish_as(made, &client, &volume, "one", alone).await.unwrap();
            }
            // Also after a restart, and also for somebody who would only read.
            let client = world.local("a").await;
            let modes = [several, alone, AccessMode::SingleNodeReaderOnly, AccessMode::MultiNodeReaderOnly];
            for mode in modes {
                let second = publish_as(made, &client, &volume, "two", mode).await;
                assert_eq!(refused(second, &["single writer"]), Code::FailedPrecondition, "{made:?} {mode:?}");
            }
            client.unpublish(&volume, "one").await.unwrap();
            publish_as(made, &client, &volume, "two", several).await.unwrap();
            publish_as(made, &client, &volume, "three", AccessMode::MultiNodeReaderOnly).await.unwrap();
            assert_eq!(
                publish_as(made, &client, &volume, "one", alone).await.unwrap_err().code(),
                Code::FailedPrecondition
            );
            for pod in ["two", "three"] {
                client.unpublish(&volume, pod).await.unwrap();
            }
            client.unstage(&volume).await.unwrap();
            client.delete(&volume).await.unwrap();
        }
    });
}

#[test]
fn a_node_is_known_to_its_kubelet_whatever_has_become_of_its_pool() {
    test(async |world| {
        world.node("b").await;
        world.local("a").await.info().await.unwrap();
        make_read_only(&world.pool());
        // It has written its name before; without that, and where attachments need it, it is refused.
        world.node_on("b", Arc::new(LinuxMounter)).info().await.unwrap();
        assert_eq!(refused(world.node_on("c", Arc::new(LinuxMounter)).info().await, &["read-only"]), Code::Unavailable);
        world.local("a").await.info().await.unwrap();
        world.local("d").await.info().await.unwrap();
        unmount(&world.pool());
        let away = world.root.join("away");
        fs::rename(world.pool(), &away).unwrap();
        world.local("a").await.info().await.unwrap();
        fs::rename(away, world.pool()).unwrap();
    });
}

#[test]
fn what_could_not_be_thawed_at_the_start_is_thawed_by_a_later_call() {
    test(async |world| {
        let client = world.local("a").await;
        let volume = Made::Of("ext4").used(&client, "v").await;
        let image = world.files().into_iter().find(|name| name.ends_with(".img")).unwrap();
        let marker = world.pool().join("volumes").join(format!("{}.frozen.a", image.trim_end_matches(".img")));
        let path = client.staging();
        fs::write(&marker, format!("{{\"version\": 3, \"path\": {path:?}}}")).unwrap();
        freeze(&path).await.unwrap();
        // The mark cannot be removed, so nothing says that the volume was let go.
        make_read_only(&world.pool());
        let client = world.local("a").await;
        client.info().await.unwrap();
        assert!(marker.try_exists().unwrap());
        unmount(&world.pool());
        client.info().await.unwrap();
        assert!(!marker.try_exists().unwrap());
        fs::write(client.target("pod").join("after"), "x").unwrap();
        client.give_back(&volume).await;
    });
}

#[test]
fn a_tuning_that_the_machine_refuses_is_not_kept() {
    test(async |world| {
        let programs = world.root.join("programs");
        fs::create_dir(&programs).unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Process::command(&world);
        let (process, client) = Process::spawn(&world, command.arg("--driver=local").env("PATH", path), None).await;
        let volume = Made::Of("ext4").used(&client, "v").await;
        // From now on tune2fs fails.
        std::os::unix::fs::symlink("/bin/false", programs.join("tune2fs")).unwrap();
        let read_ahead = || {
            let device = world.loops().remove(0);
            let name = device.file_name().unwrap().to_string_lossy().into_owned();
            fs::read_to_string(format!("/sys/block/{name}/queue/read_ahead_kb")).unwrap()
        };
        let before = read_ahead();
        let tuned = client.modify(&volume, &[("readAheadKb", "64"), ("reservedPercent", "5")]).await;
        assert_eq!(refused(tuned, &["tune2fs"]), Code::Unavailable);
        assert_eq!(read_ahead(), before);
        client.unpublish(&volume, "pod").await.unwrap();
        client.unstage(&volume).await.unwrap();
        Made::Of("ext4").stage(&client, &volume).await.unwrap();
        fs::remove_file(programs.join("tune2fs")).unwrap();
        client.modify(&volume, &[("reservedPercent", "5")]).await.unwrap();
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();
        drop(process);
    });
}

#[test]
fn what_a_killed_driver_had_begun_and_nobody_asks_for_again_goes_at_the_next_start() {
    test(async |world| {
        let client = world.local("a").await;
        let mut volumes = Vec::new();
        for name in ["one", "two"] {
            volumes.push(Made::Of("ext4").create(&client, name, ROOM).await.unwrap());
        }
        let group = CreateVolumeGroupSnapshotRequest {
            name: "g".into(),
            source_volume_ids: volumes.clone(),
            ..Default::default()
        };
        let left = |folder: &str| fs::read_dir(world.pool().join(folder)).unwrap().count();
        for together in [false, true] {
            for changes in 1.. {
                let host = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(changes)));
                let dying = world.local_on("a", host.clone());
                let answer = match together {
                    true => dying.groups().create_volume_group_snapshot(group.clone()).await.map(drop),
                    false => dying.snapshot(&volumes[0], "s").await.map(drop),
                };
                let before = left("snapshots") + left("groups");
                let restarted = world.local("a").await;
                restarted.info().await.unwrap();
                let after = left("snapshots") + left("groups");
                let whole = match together {
                    true => group_is_cut(&world),
                    false => {
                        !restarted.list_snapshots(ListSnapshotsRequest::default()).await.unwrap().entries.is_empty()
                    }
                };
                assert_eq!(after, if whole { before } else { 0 }, "{together} {changes}");
                if answer.is_ok() || whole {
                    break;
                }
            }
            if !together {
                let listed = client.list_snapshots(ListSnapshotsRequest::default()).await.unwrap().entries;
                client.delete_snapshot(&listed[0].snapshot.as_ref().unwrap().snapshot_id).await.unwrap();
            }
        }
    });
}

fn group_is_cut(world: &World) -> bool {
    let records = fs::read_dir(world.pool().join("groups")).unwrap();
    records.into_iter().any(|record| !fs::read_to_string(record.unwrap().path()).unwrap().contains("\"cut\": null"))
}

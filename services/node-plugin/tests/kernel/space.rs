use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::Arc;

use nix::mount::{MsFlags, mount};
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::*;
use stowage_mount::{LinuxMounter, run_program};
use tonic::Code;

use crate::world::{
    MIB, MOST_LOOKS, SIZE, World, block, capability, map, of_snapshot, of_volume, refused, request, request_from,
    request_with, run, test, test_on, test_on_made, unmount,
};

fn mount_tmpfs(world: &World, options: &str) {
    mount(Some("none"), &world.pool(), Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
}

fn fill(path: &std::path::Path) -> std::io::Error {
    let mut file = fs::File::create(path).unwrap();
    let chunk = vec![7u8; 256 << 10];
    loop {
        if let Err(error) = file.write_all(&chunk) {
            return error;
        }
        // So that it is the volume that is full, not the page cache that takes it all.
        if let Err(error) = file.sync_data() {
            return error;
        }
    }
}

#[test]
fn a_writer_gets_enospc_at_its_promised_size_and_its_neighbours_do_not_suffer() {
    test_on("ext4", 256 * MIB, async |world| {
        let client = world.node("a").await;
        let greedy = client.create(request("greedy")).await.unwrap().volume_id;
        let modest = client.create(request("modest")).await.unwrap().volume_id;
        let (greedy_at, modest_at) = (client.stage_beside(&greedy, "a").await, client.stage_beside(&modest, "a").await);
        fs::write(modest_at.join("before"), "here").unwrap();
        assert_eq!(fill(&greedy_at.join("everything")).raw_os_error(), Some(nix::libc::ENOSPC));
        let written = fs::metadata(greedy_at.join("everything")).unwrap().len() as i64;
        assert!(written <= SIZE && written > SIZE / 2, "{written}");
        fs::write(modest_at.join("after"), vec![1; MIB as usize]).unwrap();
        assert_eq!(fs::read_to_string(modest_at.join("before")).unwrap(), "here");
        client.create(request("another")).await.unwrap();
        for volume in [&greedy, &modest] {
            client.unstage_beside(volume).await;
            client.delete(volume).await.unwrap();
        }
    });
}

#[test]
fn a_volume_is_deleted_with_no_free_block_and_no_free_inode() {
    test(async |world| {
        mount_tmpfs(&world, "size=80m,nr_inodes=64");
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let snapshot = client.snapshot(&volume, "s").await.unwrap().snapshot_id;
        let directory = client.create(request_with("dir", &[("backend", "directory")])).await.unwrap().volume_id;
        assert_eq!(fill(&world.pool().join("filler")).raw_os_error(), Some(nix::libc::ENOSPC));
        let full = (0..).find_map(|n| fs::create_dir(world.pool().join(format!("inode{n}"))).err()).unwrap();
        assert_eq!(full.raw_os_error(), Some(nix::libc::ENOSPC));
        let probe = client.identity().probe(ProbeRequest {}).await;
        assert_eq!(refused(probe, &["\"main\" is full", "delete volumes or add space"]), Code::FailedPrecondition);
        assert_eq!(client.create(request("w")).await.unwrap_err().code(), Code::ResourceExhausted);
        client.delete_snapshot(&snapshot).await.unwrap();
        client.delete(&directory).await.unwrap();
        client.delete(&volume).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
        drop(client);
        unmount(&world.pool());
    });
}

/// Leaves the pool without a block, and without an inode where those are counted or need blocks.
fn fill_up(pool: &std::path::Path) {
    assert_eq!(fill(&pool.join("filler")).raw_os_error(), Some(nix::libc::ENOSPC));
    let full = |error: std::io::Error| assert_eq!(error.raw_os_error(), Some(nix::libc::ENOSPC), "{error}");
    // What is left between the large pieces, and what only small files can still take.
    let mut last = fs::File::create(pool.join("last"))
        .or_else(|_| fs::File::options().append(true).open(pool.join("filler")))
        .unwrap();
    full((0..).find_map(|_| last.write_all(&[7; 512]).and_then(|()| last.sync_data()).err()).unwrap());
    full(
        (0..)
            .find_map(|n| {
                fs::File::create(pool.join(format!("inode{n}")))
                    .and_then(|mut file| {
                        file.write_all(&[7; 64])?;
                        file.sync_all()
                    })
                    .err()
            })
            .unwrap(),
    );
}

async fn a_full_pool_lets_go(world: World) {
    let client = world.node("a").await;
    world.node("b").await;
    let volume = client.create(request("v")).await.unwrap().volume_id;
    let directory = client.create(request_with("dir", &[("backend", "directory")])).await.unwrap().volume_id;
    let snapshot = client.snapshot(&volume, "s").await.unwrap().snapshot_id;
    let context = client.attach(&volume, "a").await.unwrap();
    client.stage(&volume, &context).await.unwrap();
    client.publish(&volume, &context, "pod").await.unwrap();
    for node in ["a", "b"] {
        let request = ControllerPublishVolumeRequest {
            volume_id: directory.clone(),
            node_id: node.into(),
            volume_capability: Some(capability(AccessMode::MultiNodeMultiWriter)),
            ..Default::default()
        };
        client.controller().controller_publish_volume(request).await.unwrap();
    }
    fill_up(&world.pool());
    assert_eq!(client.create(request("w")).await.unwrap_err().code(), Code::ResourceExhausted);
    // Whether blocks can be shared was not asked by this one while there was room to find out.
    assert_eq!(world.node_on("c", Arc::new(LinuxMounter)).capacity(&[]).await, 0);

    client.unpublish(&volume, "pod").await.unwrap();
    client.unstage(&volume).await.unwrap();
    client.detach(&volume, "a").await.unwrap();
    for node in ["b", "a"] {
        client.detach(&directory, node).await.unwrap();
    }
    client.delete(&directory).await.unwrap();
    client.delete(&volume).await.unwrap();
    client.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(world.files(), Vec::<String>::new());
    drop(client);
    fs::remove_file(world.pool().join("filler")).unwrap();
    // xfs frees what was deleted in its own time.
    let client = world.node("a").await;
    for _ in 0..MOST_LOOKS {
        if client.capacity(&[]).await >= SIZE {
            break;
        }
        tokio::task::yield_now().await;
    }
    client.create(request("again")).await.unwrap();
}

#[test]
fn a_volume_in_use_is_taken_all_the_way_back_on_a_full_ext4_without_inodes() {
    test_on_made("ext4", &["-N", "96"], 128 * MIB, async |world| a_full_pool_lets_go(world).await);
}

#[test]
fn a_volume_in_use_is_taken_all_the_way_back_on_a_full_xfs() {
    test_on("xfs", 320 * MIB, async |world| a_full_pool_lets_go(world).await);
}

#[test]
fn a_volume_in_use_is_taken_all_the_way_back_on_a_full_btrfs() {
    test_on("btrfs", 256 * MIB, async |world| a_full_pool_lets_go(world).await);
}

#[test]
fn a_volume_in_use_is_taken_all_the_way_back_on_a_full_tmpfs() {
    test(async |world| {
        mount_tmpfs(&world, "size=80m,nr_inodes=64");
        a_full_pool_lets_go(World { root: world.root.clone() }).await;
        unmount(&world.pool());
    });
}

#[test]
fn thin_volumes_are_promised_up_to_the_overcommit_and_no_further() {
    test(async |world| {
        mount_tmpfs(&world, "size=100m");
        let client = world.introduced(node_plugin::Options { overcommit: 2.0, ..world.options("a") }).await;
        for number in 0..5 {
            client.create(request(&format!("v{number}"))).await.unwrap();
        }
        let sixth = client.create(request("v5")).await.unwrap();
        let refusal = client.create(request("v6")).await;
        assert_eq!(refused(refusal, &["--overcommit", "33554432"]), Code::ResourceExhausted);
        assert_eq!(
            refused(client.expand(&sixth.volume_id, 2 * SIZE).await, &["--overcommit"]),
            Code::ResourceExhausted
        );
        assert!(client.capacity(&[]).await < SIZE);
        client.delete(&sixth.volume_id).await.unwrap();
        assert!(client.capacity(&[]).await >= SIZE);
        drop(client);
        unmount(&world.pool());
    });
}

#[test]
fn a_thick_volume_has_its_space_from_the_start_and_cannot_be_promised_what_is_not_there() {
    test_on("ext4", 200 * MIB, async |world| {
        let client = world.introduced(node_plugin::Options { overcommit: 10.0, ..world.options("a") }).await;
        let thick = [("thin", "false")];
        assert!(client.capacity(&thick).await < 200 * MIB && client.capacity(&[]).await > 1000 * MIB);
        let volume = client.create(request_with("thick", &thick)).await.unwrap();
        assert!(fs::metadata(world.only_image()).unwrap().blocks() as i64 * 512 >= SIZE);
        let capacity_range = Some(CapacityRange { required_bytes: 500 * MIB, limit_bytes: 0 });
        let huge = CreateVolumeRequest { capacity_range, ..request_with("huge", &thick) };
        assert_eq!(refused(client.create(huge.clone()).await, &["524288000"]), Code::ResourceExhausted);
        client.create(CreateVolumeRequest { parameters: Default::default(), ..huge }).await.unwrap();
        let other = client.create(request("thick")).await;
        assert_eq!(refused(other, &["thin"]), Code::AlreadyExists);
        client.expand(&volume.volume_id, SIZE + MIB).await.unwrap();
        let image = world.pool().join("volumes").join(format!("{}.img", volume.volume_id.split('.').nth(1).unwrap()));
        assert!(fs::metadata(image).unwrap().blocks() as i64 * 512 >= SIZE + MIB);
    });
}

#[test]
fn a_thick_volume_keeps_its_space_whatever_is_done_with_it() {
    test_on("ext4", 1400 * MIB, async |world| {
        let client = world.node("a").await;
        for (kind, bytes) in [("ext4", 64 * MIB), ("xfs", 300 * MIB), ("btrfs", 128 * MIB)] {
            let capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
            let request = request_with(kind, &[("thin", "false"), ("fsType", kind)]);
            let volume = client.create(CreateVolumeRequest { capacity_range, ..request }).await.unwrap().volume_id;
            let image = world.only_image();
            let held = || fs::metadata(&image).unwrap().blocks() as i64 * 512;
            for round in 0..2 {
                let path = client.stage_beside(&volume, "a").await;
                let file = path.join("file");
                fs::write(&file, vec![7; 20 << 20]).unwrap();
                fs::File::open(&file).unwrap().sync_all().unwrap();
                fs::remove_file(&file).unwrap();
                let _ = run_program(Command::new("fstrim").arg(&path)).unwrap();
                run(Command::new("sync").arg("-f").arg(&path));
                client.unstage_beside(&volume).await;
                fs::File::open(&image).unwrap().sync_all().unwrap();
                assert!(held() >= bytes, "{kind}, round {round}: {} of {bytes} bytes", held());
                // As a kernel that lets discards or zeroing through to the image; nothing is in these blocks.
                let unused = (bytes - 8 * MIB).to_string();
                run(Command::new("fallocate").args(["-p", "-o", &unused, "-l", "4194304"]).arg(&image));
                assert!(held() < bytes);
            }
            client.delete(&volume).await.unwrap();
        }
    });
}

#[test]
fn a_thick_copy_has_blocks_of_its_own() {
    test_on("xfs", 400 * MIB, async |world| {
        let client = world.node("a").await;
        let source = client.create(request("source")).await.unwrap().volume_id;
        let path = client.stage_beside(&source, "a").await;
        fs::write(path.join("file"), vec![7; 8 << 20]).unwrap();
        let snapshot = client.snapshot(&source, "snap").await.unwrap().snapshot_id;
        let thick = |name: &str, origin, more: &[(&str, &str)]| CreateVolumeRequest {
            parameters: map(&[&[("thin", "false")], more].concat()),
            ..request_from(name, origin)
        };
        let busy = client.create(thick("clone", of_volume(&source), &[])).await;
        assert_eq!(refused(busy, &["take a snapshot", "freezeForCopy=true"]), Code::FailedPrecondition);
        let clone = client.create(thick("clone", of_volume(&source), &[("freezeForCopy", "true")])).await.unwrap();
        let restored = client.create(thick("restored", of_snapshot(&snapshot), &[])).await.unwrap();
        let image =
            |volume: &str| world.pool().join("volumes").join(volume.split('.').nth(1).unwrap()).with_extension("img");
        for copy in [&clone.volume_id, &restored.volume_id] {
            assert!(fs::metadata(image(copy)).unwrap().blocks() as i64 * 512 >= SIZE);
            let map = run_program(Command::new("filefrag").arg("-v").arg(image(copy))).unwrap();
            let map = String::from_utf8(map.stdout).unwrap();
            assert!(map.contains(" found") && !map.contains("shared"), "{map}");
            let copied = client.stage_beside(copy, "a").await;
            assert_eq!(fs::read(copied.join("file")).unwrap(), vec![7; 8 << 20]);
            client.unstage_beside(copy).await;
        }
        client.unstage_beside(&source).await;
    });
}

#[test]
fn shared_blocks_are_not_counted_as_space_twice() {
    test_on("xfs", 400 * MIB, async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let image = fs::OpenOptions::new().write(true).open(world.only_image()).unwrap();
        for index in 0..30 {
            std::os::unix::fs::FileExt::write_all_at(&image, &vec![1; MIB as usize], index * MIB as u64).unwrap();
        }
        image.sync_all().unwrap();
        let before = client.capacity(&[]).await;
        // Each may come to need 30 MiB of its own.
        for number in 0..3 {
            client.snapshot(&volume, &format!("s{number}")).await.unwrap();
        }
        let promised = before - client.capacity(&[]).await;
        assert!((90 * MIB..100 * MIB).contains(&promised), "{promised} bytes are promised to three snapshots");
        let free = nix::sys::statvfs::statvfs(&world.pool()).unwrap();
        let free = (free.blocks_available() * free.fragment_size()) as i64;
        assert!(client.capacity(&[]).await < free, "more is promised than is there");
    });
}

#[test]
fn a_pool_on_a_file_system_that_clones_is_found_to_be_one() {
    test_on("xfs", 400 * MIB, async |world| {
        use stowage_mount::Images;
        assert!(LinuxMounter.can_clone(&world.pool()).await.unwrap());
        assert!(!LinuxMounter.can_clone(&world.root).await.unwrap(), "the test's own directory");
        assert_eq!(fs::read_dir(world.pool()).unwrap().count(), 0, "nothing is left of the attempt");
    });
}

#[test]
fn a_snapshot_that_the_pool_has_no_room_for_is_refused_and_leaves_nothing() {
    test(async |world| {
        mount_tmpfs(&world, "size=48m");
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        fs::write(world.only_image(), vec![7; SIZE as usize]).unwrap();
        let before = world.files();
        let answer = client.snapshot(&volume, "s").await;
        assert_eq!(refused(answer, &["can promise", "delete volumes"]), Code::ResourceExhausted);
        assert_eq!(world.files(), before);
        assert_eq!(fs::read_dir(world.pool().join("snapshots")).unwrap().count(), 0);
        client.delete(&volume).await.unwrap();
        drop(client);
        unmount(&world.pool());
    });
}

#[test]
fn a_volume_that_was_promised_all_there_is_takes_every_block_however_they_are_scattered() {
    for kind in ["xfs", "btrfs", "ext4"] {
        test_on(kind, 512 * MIB, async |world| {
            let client = world.node("a").await;
            let room = client.capacity(&[]).await / MIB * MIB;
            let capacity_range = Some(CapacityRange { required_bytes: room, limit_bytes: 0 });
            let made = CreateVolumeRequest { volume_capabilities: vec![block()], capacity_range, ..request("v") };
            client.create(made).await.unwrap();
            // Every third block each time: no two that are written together lie together.
            let image = fs::OpenOptions::new().write(true).open(world.only_image()).unwrap();
            for first in 0..3 {
                for block in (first..room as u64 / 4096).step_by(3) {
                    image.write_all_at(&[7; 4096], block * 4096).unwrap();
                }
                image.sync_all().unwrap();
            }
        });
    }
}

/// What could not be told once is not held to be so for ever, which would promise space that is not there.
#[test]
fn an_image_whose_record_could_not_be_read_is_counted_with_its_family_again_when_it_can() {
    test_on("xfs", 400 * MIB, async |world| {
        let client = world.node("a").await;
        let source = client.create(request("source")).await.unwrap().volume_id;
        let staged = client.stage_beside(&source, "a").await;
        fs::write(staged.join("data"), vec![7; 4 * MIB as usize]).unwrap();
        client.unstage_beside(&source).await;
        let clone = client.create(request_from("clone", of_volume(&source))).await.unwrap().volume_id;
        let key = clone.split('.').nth(1).unwrap();
        let record = world.pool().join(format!("volumes/{key}.json"));
        let aside = world.pool().join("aside");

        let other = world.node("b").await;
        fs::rename(&record, &aside).unwrap();
        let unread = other.capacity(&[]).await;
        fs::rename(&aside, &record).unwrap();
        let read = other.capacity(&[]).await;
        assert!(unread >= read + 4 * MIB, "blocks that are shared count twice while nobody knows it: {unread} {read}");
        for volume in [&clone, &source] {
            client.delete(volume).await.unwrap();
        }
    });
}

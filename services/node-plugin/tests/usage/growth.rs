//! Growth of an ext4 before it is mounted, and what keeps it from that.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use node_plugin::Options;
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, Stop, run_program};
use tonic::Code;

use crate::expand::{GROWN, expand_controller, expand_node};
use crate::killed::Process;
use crate::volumes::{Made, ROOM, may_grow};
use crate::world::{Client, MIB, World, of_snapshot, of_volume, refused, request_from, run, test, test_on, unmount};

const EXT4: Made = Made::Of("ext4");

/// Runs a test where ext4 grows before it is mounted.
fn unmounted<F: Future<Output = ()>>(body: impl FnOnce(World) -> F + Send + 'static) {
    if may_grow("ext4") {
        eprintln!("skipped: with CAP_SYS_RESOURCE ext4 grows when it is mounted");
        return;
    }
    test(body);
}

/// A volume with a file in it that is not staged.
async fn away(client: &Client, name: &str, mkfs_options: &str) -> String {
    let mut request = EXT4.request(name, ROOM);
    if !mkfs_options.is_empty() {
        request.parameters.insert("mkfsOptions".into(), mkfs_options.into());
    }
    let volume = client.create(request).await.unwrap().volume_id;
    EXT4.stage(client, &volume).await.unwrap();
    fs::write(client.staging().join("data"), "kept").unwrap();
    client.unstage(&volume).await.unwrap();
    volume
}

/// A copy that is larger than its source.
async fn larger(client: &Client, name: &str, source: &str) -> String {
    let copy = request_from(name, of_volume(source));
    let volume_content_source = copy.volume_content_source;
    client.create(CreateVolumeRequest { volume_content_source, ..EXT4.request(name, GROWN) }).await.unwrap().volume_id
}

/// What the staged file system has, after a look at its file.
async fn total(client: &Client, volume: &str) -> i64 {
    assert_eq!(fs::read_to_string(client.staging().join("data")).unwrap(), "kept");
    client.stats_of(volume, &client.staging()).await.unwrap().usage[0].total
}

/// The mark of this kind beside the only volume that has one.
fn mark(world: &World, kind: &str) -> Option<PathBuf> {
    let name = world.files().into_iter().find(|name| name.ends_with(kind))?;
    Some(world.pool().join("volumes").join(name))
}

/// A volume of which a driver was killed when half of its growth was on the device.
async fn half_grown(world: &World, client: &Client) -> String {
    let counted = away(client, "counted", "").await;
    expand_controller(client, &counted, GROWN).await.unwrap();
    let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
    EXT4.stage(&world.local_on("a", counting.clone()), &counted).await.unwrap();
    let stop = Stop::Before(at(&counting.changes(), "carry_out_growth"));
    client.unstage(&counted).await.unwrap();
    client.delete(&counted).await.unwrap();

    let volume = away(client, "v", "").await;
    expand_controller(client, &volume, GROWN).await.unwrap();
    let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
    assert_eq!(EXT4.stage(&world.local_on("a", dying), &volume).await.unwrap_err().code(), Code::Unavailable);
    // A plan is its mark, the superblock it was made for, and pieces with their places.
    let plan = fs::read(mark(world, ".growing").unwrap()).unwrap();
    let device = fs::OpenOptions::new().write(true).open(world.loops().remove(0)).unwrap();
    let pieces: Vec<_> = plan[16 + 1024..].chunks(8 + 1024).collect();
    for piece in &pieces[..pieces.len() / 2] {
        let (place, bytes) = piece.split_at(8);
        device.write_all_at(bytes, u64::from_le_bytes(place.try_into().unwrap())).unwrap();
    }
    device.sync_all().unwrap();
    volume
}

fn at(changes: &[String], verb: &str) -> u64 {
    changes.iter().position(|change| change.starts_with(verb)).unwrap() as u64 + 1
}

#[test]
fn a_file_system_that_its_growth_finds_damaged_is_given_to_nobody() {
    unmounted(async |world| {
        let client = world.local("a").await;
        let volume = away(&client, "v", "-O ^extents,^64bit").await;
        EXT4.stage(&client, &volume).await.unwrap();
        fs::write(client.staging().join("other"), "elsewhere").unwrap();
        client.unstage(&volume).await.unwrap();
        // Two files have one block, which only a person can mend, and the file system is marked clean.
        let image = world.only_image();
        let block = run_program(Command::new("debugfs").args(["-R", "bmap data 0"]).arg(&image)).unwrap().stdout;
        let words = format!("sif other block[0] {}", String::from_utf8(block).unwrap().trim());
        run(Command::new("debugfs").args(["-w", "-R", &words]).arg(&image));
        run(Command::new("fsck.ext4").arg("-p").arg(&image));
        expand_controller(&client, &volume, GROWN).await.unwrap();
        for _ in 0..2 {
            let answer = EXT4.stage(&client, &volume).await;
            assert_eq!(refused(answer, &["fsck.ext4", "Multiply-claimed"]), Code::Internal);
            assert!(world.loops().is_empty() && world.mount_at(&client.staging()).is_none());
        }
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_check_that_is_killed_says_nothing_of_a_file_system_which_keeps_its_size() {
    unmounted(async |world| {
        let programs = world.root.join("programs");
        fs::create_dir(&programs).unwrap();
        let (check, path) = (programs.join("fsck.ext4"), std::env::var("PATH").unwrap());
        // As where its memory is not enough: the whole check, and not the one that believes a mark.
        let script = format!("#!/bin/sh\n[ $1 = -fp ] && kill -9 $$\nPATH='{path}' exec fsck.ext4 \"$@\"\n");
        fs::write(&check, script).unwrap();
        fs::set_permissions(&check, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Process::command(&world);
        let path = format!("{}:{path}", programs.display());
        let (process, client) = Process::spawn(&world, command.arg("--driver=local").env("PATH", path), None).await;
        let volume = away(&client, "v", "").await;
        expand_controller(&client, &volume, GROWN).await.unwrap();
        EXT4.stage(&client, &volume).await.unwrap();
        assert!(total(&client, &volume).await < ROOM);
        client.unstage(&volume).await.unwrap();
        fs::remove_file(check).unwrap();
        EXT4.stage(&client, &volume).await.unwrap();
        assert!(total(&client, &volume).await > ROOM);
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();
        drop(process);
    });
}

#[test]
fn a_file_system_grows_also_where_it_is_the_first_that_needs_the_module_of_ext4() {
    use nix::mount::{MsFlags, mount};
    unmounted(async |world| {
        let client = world.local("a").await;
        let source = away(&client, "source", "").await;
        let copy = larger(&client, "copy", &source).await;
        // As before the module is loaded; nobody else sees this.
        let features = Path::new("/sys/fs/ext4");
        mount(None::<&str>, features, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        EXT4.stage(&client, &copy).await.unwrap();
        assert!(total(&client, &copy).await > ROOM);
        client.unstage(&copy).await.unwrap();
        unmount(features);
        for volume in [&copy, &source] {
            client.delete(volume).await.unwrap();
        }
    });
}

#[test]
fn what_cannot_grow_is_staged_as_it_is_and_its_copies_are_refused() {
    unmounted(async |world| {
        let client = world.local("a").await;
        // Many small groups, and nothing is kept for the descriptors of more.
        let volume = away(&client, "v", "-O ^resize_inode -g 256").await;
        let copy = larger(&client, "copy", &volume).await;
        for _ in 0..2 {
            let answer = EXT4.stage(&client, &copy).await;
            let says = ["made from a smaller one", "table of groups", "SYS_RESOURCE"];
            assert_eq!(refused(answer, &says), Code::FailedPrecondition);
            assert!(world.loops().is_empty() && world.mount_at(&client.staging()).is_none());
        }
        client.delete(&copy).await.unwrap();

        expand_controller(&client, &volume, GROWN).await.unwrap();
        EXT4.stage(&client, &volume).await.unwrap();
        assert!(total(&client, &volume).await < ROOM);
        let answer = expand_node(&client, &volume, &client.staging(), GROWN).await;
        assert_eq!(
            refused(answer, &["SYS_RESOURCE", "table of groups", "to stop its pods does not help"]),
            Code::FailedPrecondition
        );
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();

        // Two groups, and a rest that is less than the inodes of a third: there is nothing to do.
        let mut request = EXT4.request("rest", 256 * MIB);
        request.parameters.insert("mkfsOptions".into(), "-b 4096 -i 4096".into());
        let volume = client.create(request).await.unwrap().volume_id;
        EXT4.stage(&client, &volume).await.unwrap();
        expand_controller(&client, &volume, 257 * MIB).await.unwrap();
        assert_eq!(expand_node(&client, &volume, &client.staging(), 257 * MIB).await.unwrap(), 257 * MIB);
        expand_controller(&client, &volume, GROWN).await.unwrap();
        let answer = expand_node(&client, &volume, &client.staging(), GROWN).await;
        assert_eq!(refused(answer, &["stop all its pods"]), Code::FailedPrecondition);
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_growth_whose_plan_is_lost_is_no_growth_and_the_next_stage_does_it() {
    unmounted(async |world| {
        let client = world.local("a").await;
        let source = away(&client, "source", "").await;
        let copy = larger(&client, "counted", &source).await;
        let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        EXT4.stage(&world.local_on("a", counting.clone()), &copy).await.unwrap();
        let planned = at(&counting.changes(), "plan_growth");
        client.unstage(&copy).await.unwrap();
        client.delete(&copy).await.unwrap();

        let gone: fn(PathBuf) = |plan| fs::remove_file(plan).unwrap();
        let spoiled: fn(PathBuf) = |plan| fs::write(plan, "of somebody else").unwrap();
        for (name, meddle) in [("gone", gone), ("spoiled", spoiled)] {
            let copy = larger(&client, name, &source).await;
            let pool = World { root: world.root.clone() };
            let meddle = move || meddle(mark(&pool, ".growing").unwrap());
            let port = Arc::new(Counting::meddling(Arc::new(LinuxMounter), planned, meddle));
            let answer = EXT4.stage(&world.local_on("a", port), &copy).await;
            assert_eq!(refused(answer, &["plan", "repeat"]), Code::Unavailable, "{name}");
            assert!(mark(&world, ".fresh").is_some() && world.loops().is_empty(), "{name}");
            EXT4.stage(&client, &copy).await.unwrap();
            let total = total(&client, &copy).await;
            assert!(total > ROOM, "{name}: {total}");
            client.unstage(&copy).await.unwrap();
            client.delete(&copy).await.unwrap();
        }
        client.delete(&source).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_plan_is_carried_out_after_a_kill_and_never_again_once_the_volume_was_used() {
    unmounted(async |world| {
        let client = world.local("a").await;
        let mut stop = None;
        for name in ["counted", "killed"] {
            let volume = away(&client, name, "").await;
            expand_controller(&client, &volume, GROWN).await.unwrap();
            let Some(stop) = stop else {
                let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
                EXT4.stage(&world.local_on("a", counting.clone()), &volume).await.unwrap();
                stop = Some(Stop::Before(at(&counting.changes(), "carry_out_growth")));
                client.unstage(&volume).await.unwrap();
                client.delete(&volume).await.unwrap();
                continue;
            };
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
            let answer = EXT4.stage(&world.local_on("a", dying), &volume).await;
            assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
            let plan = mark(&world, ".growing").unwrap();
            let planned = fs::read(&plan).unwrap();
            EXT4.stage(&client, &volume).await.unwrap();
            assert!(total(&client, &volume).await > ROOM && !plan.try_exists().unwrap());
            fs::write(client.staging().join("after"), "used").unwrap();
            client.unstage(&volume).await.unwrap();

            // As a node leaves it that stood still while it planned, and has lost the volume since.
            fs::write(&plan, planned).unwrap();
            EXT4.stage(&client, &volume).await.unwrap();
            assert!(total(&client, &volume).await > ROOM && !plan.try_exists().unwrap());
            assert_eq!(fs::read_to_string(client.staging().join("after")).unwrap(), "used");
            client.unstage(&volume).await.unwrap();
            run(Command::new("fsck.ext4").arg("-fn").arg(world.only_image()));
            client.delete(&volume).await.unwrap();
        }
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_growth_that_was_cut_short_is_not_copied_and_a_late_plan_beside_a_mounted_volume_keeps_nobody_from_it() {
    test(async |world| {
        let client = world.local("a").await;
        let volume = away(&client, "v", "").await;
        let plan = world.only_image().with_extension("growing");
        fs::write(&plan, "half of two sizes").unwrap();
        let answer = client.snapshot(&volume, "snap").await;
        assert_eq!(refused(answer, &["cut short", "stage it"]), Code::FailedPrecondition);
        let clone = CreateVolumeRequest {
            volume_capabilities: vec![EXT4.capability()],
            ..request_from("clone", of_volume(&volume))
        };
        assert_eq!(refused(client.create(clone).await, &["cut short"]), Code::FailedPrecondition);

        EXT4.stage(&client, &volume).await.unwrap();
        assert!(total(&client, &volume).await > ROOM - 64 * MIB && !plan.try_exists().unwrap());
        fs::write(&plan, "too late").unwrap();
        let snapshot = client.snapshot_with(&volume, "snap", &[("freezeForCopy", "true")]).await.unwrap();
        let mut request = EXT4.request("restored", ROOM);
        let restored = request_from("restored", of_snapshot(&snapshot.snapshot_id));
        request.volume_content_source = restored.volume_content_source;
        let restored = client.create(request).await.unwrap().volume_id;
        client.unstage(&volume).await.unwrap();
        EXT4.stage(&client, &restored).await.unwrap();
        total(&client, &restored).await;
        client.unstage(&restored).await.unwrap();
        EXT4.stage(&client, &volume).await.unwrap();
        client.unstage(&volume).await.unwrap();
        for volume in [&volume, &restored] {
            client.delete(volume).await.unwrap();
        }
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_volume_that_is_tuned_in_the_middle_of_its_growth_grows_and_is_tuned_when_it_is_staged() {
    unmounted(async |world| {
        let client = world.local("a").await;
        let volume = half_grown(&world, &client).await;
        client.modify(&volume, &[("reservedPercent", "5")]).await.unwrap();
        EXT4.stage(&client, &volume).await.unwrap();
        assert!(total(&client, &volume).await > ROOM);
        let stats = nix::sys::statvfs::statvfs(&client.staging()).unwrap();
        assert!(stats.blocks_available() + stats.blocks() / 25 < stats.blocks_free(), "nothing was reserved");
        client.unstage(&volume).await.unwrap();
        run(Command::new("fsck.ext4").arg("-fn").arg(world.only_image()));
        client.delete(&volume).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn what_somebody_else_has_written_to_in_the_middle_of_its_growth_is_given_to_nobody() {
    unmounted(async |world| {
        let client = world.local("a").await;
        let volume = half_grown(&world, &client).await;
        run(Command::new("tune2fs").args(["-m", "7"]).arg(world.loops().remove(0)));
        for _ in 0..2 {
            assert_eq!(refused(EXT4.stage(&client, &volume).await, &["fsck.ext4"]), Code::Internal);
            assert!(world.loops().is_empty() && world.mount_at(&client.staging()).is_none());
            assert!(mark(&world, ".growing").is_some(), "what tells that it is half of one size is gone");
        }
        // Once a person has mended it, it is a volume again.
        let _ = run_program(Command::new("fsck.ext4").arg("-fy").arg(world.only_image())).unwrap();
        EXT4.stage(&client, &volume).await.unwrap();
        assert!(total(&client, &volume).await > ROOM && mark(&world, ".growing").is_none());
        client.unstage(&volume).await.unwrap();
        client.delete(&volume).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn what_grows_while_it_is_copied_is_copied_anew_or_not_at_all() {
    test(async |world| {
        let client = world.local("a").await;
        let volume = away(&client, "v", "").await;
        let image = world.only_image();
        let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let snapshot = world.local_on("a", counting.clone()).snapshot(&volume, "counted").await.unwrap();
        let copied = at(&counting.changes(), "copy_image");
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        let meddling = |meddle: Box<dyn FnOnce() + Send>| {
            let port = Arc::new(Counting::meddling(Arc::new(LinuxMounter), copied, meddle));
            (world.local_on("a", port.clone()), port)
        };

        let plan = image.with_extension("growing");
        let planned = plan.clone();
        let (busy, port) = meddling(Box::new(move || fs::write(planned, "of another node").unwrap()));
        let answer = busy.snapshot(&volume, "snap").await;
        assert_eq!(refused(answer, &["growing", "repeat"]), Code::Unavailable);
        assert!(port.changes().iter().filter(|change| change.starts_with("copy_image")).count() > 1);
        assert_eq!(fs::read_dir(world.pool().join("snapshots")).unwrap().count(), 0);
        fs::remove_file(plan).unwrap();

        // Its size is another one than at the beginning.
        let resize = move || {
            run(Command::new("fsck.ext4").arg("-fp").arg(&image));
            run(Command::new("resize2fs").arg(&image).arg("200M"));
        };
        let (changing, port) = meddling(Box::new(resize));
        let snapshot = changing.snapshot(&volume, "snap").await.unwrap().snapshot_id;
        assert_eq!(port.changes().iter().filter(|change| change.starts_with("copy_image")).count(), 2);
        client.delete(&volume).await.unwrap();
        let volume_content_source = request_from("restored", of_snapshot(&snapshot)).volume_content_source;
        let restored = CreateVolumeRequest { volume_content_source, ..EXT4.request("restored", ROOM) };
        let restored = client.create(restored).await.unwrap().volume_id;
        EXT4.stage(&client, &restored).await.unwrap();
        total(&client, &restored).await;
        client.unstage(&restored).await.unwrap();
        client.delete(&restored).await.unwrap();
        client.delete_snapshot(&snapshot).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_copy_as_large_as_its_source_is_staged_with_the_file_system_that_it_has() {
    unmounted(async |world| {
        let client = world.local("a").await;
        for (name, mkfs_options, bytes) in [
            // What is left of the device is smaller than what is given away at once.
            ("clusters", "-O bigalloc -C 65536", ROOM + 8192),
            // It could not grow into the image that has been made larger for it, and no smaller copy may be asked for.
            ("grown", "-O ^resize_inode -g 256", GROWN),
        ] {
            let mut request = EXT4.request(name, if bytes < GROWN { bytes } else { ROOM });
            request.parameters.insert("mkfsOptions".into(), mkfs_options.into());
            let volume = client.create(request).await.unwrap().volume_id;
            EXT4.stage(&client, &volume).await.unwrap();
            fs::write(client.staging().join("data"), "kept").unwrap();
            client.unstage(&volume).await.unwrap();
            expand_controller(&client, &volume, bytes).await.unwrap();
            let snapshot = client.snapshot(&volume, name).await.unwrap();
            assert_eq!(snapshot.size_bytes, bytes);
            let clone = of_volume(&volume);
            for (copy, source) in [("restored", of_snapshot(&snapshot.snapshot_id)), ("clone", clone)] {
                let volume_content_source = request_from(copy, source).volume_content_source;
                let copy = EXT4.request(&format!("{name}-{copy}"), bytes);
                let copy =
                    client.create(CreateVolumeRequest { volume_content_source, ..copy }).await.unwrap().volume_id;
                for _ in 0..2 {
                    EXT4.stage(&client, &copy).await.unwrap();
                    assert!(total(&client, &copy).await < bytes && mark(&world, ".fresh").is_none());
                    client.unstage(&copy).await.unwrap();
                }
                client.delete(&copy).await.unwrap();
            }
            client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
            client.delete(&volume).await.unwrap();
        }
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_plan_is_not_made_of_the_space_that_others_were_promised() {
    if may_grow("ext4") {
        return;
    }
    for pool in ["ext4", "xfs"] {
        test_on(pool, 1200 * MIB, async |world| {
            let options = Options { overcommit: 1.0, ..world.local_options("a") };
            let client = world.start(options, Arc::new(LinuxMounter));
            // All that is promised to it is written already.
            let mut request = EXT4.request("thick", 64 * MIB);
            request.parameters.insert("thin".into(), "false".into());
            let volume = client.create(request).await.unwrap().volume_id;
            EXT4.stage(&client, &volume).await.unwrap();
            fs::write(client.staging().join("data"), "kept").unwrap();
            client.unstage(&volume).await.unwrap();
            expand_controller(&client, &volume, 192 * MIB).await.unwrap();
            let others = EXT4.create(&client, "others", client.capacity(&[]).await).await.unwrap();
            EXT4.stage(&client, &volume).await.unwrap();
            assert!(total(&client, &volume).await < 64 * MIB);
            client.unstage(&volume).await.unwrap();
            client.delete(&others).await.unwrap();
            EXT4.stage(&client, &volume).await.unwrap();
            assert!(total(&client, &volume).await > 64 * MIB);
            client.unstage(&volume).await.unwrap();
            client.delete(&volume).await.unwrap();

            // And this one writes nothing of what it was promised before it has grown.
            let volume = EXT4.create(&client, "thin", 64 * MIB).await.unwrap();
            EXT4.stage(&client, &volume).await.unwrap();
            fs::write(client.staging().join("data"), "kept").unwrap();
            client.unstage(&volume).await.unwrap();
            expand_controller(&client, &volume, 192 * MIB).await.unwrap();
            let others = EXT4.create(&client, "others", client.capacity(&[]).await).await.unwrap();
            EXT4.stage(&client, &volume).await.unwrap();
            assert!(total(&client, &volume).await > 64 * MIB);
            client.unstage(&volume).await.unwrap();
            for volume in [&volume, &others] {
                client.delete(volume).await.unwrap();
            }
            assert_eq!(world.files(), Vec::<String>::new());
        });
    }
}

//! A driver process killed with SIGKILL in the middle of what takes long, and started again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stowage_csi::v1::*;
use stowage_csi::{Channel, Endpoint};
use stowage_mount::without_open_files;
use tonic::Code;

use crate::expand::{expand_controller, expand_node};
use crate::interrupted::Life;
use crate::volumes::{Made, ROOM, file_systems, may_grow};
use crate::world::{Client, MIB, World, test};

/// A driver of the local kind in a process of its own, which has the mounts of the test.
pub struct Process(Child);

impl Process {
    async fn start(world: &World) -> (Self, Client) {
        Self::spawn(world, Self::command(world).arg("--driver=local"), None).await
    }

    pub fn command(world: &World) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-plugin"));
        command.arg(format!("--endpoint=unix://{}", world.root.join("csi.sock").display())).arg("--nodeid=a");
        command.arg(format!("--state-dir={}", world.state("a").display()));
        command.arg(format!("--pool=main={}", world.pool().display())).arg("--overcommit=100");
        command.arg(format!("--target-root={}", world.root.join("kubelet").display()));
        command
    }

    pub async fn spawn(world: &World, command: &mut Command, log: Option<&Path>) -> (Self, Client) {
        let socket = world.root.join("csi.sock");
        let process = Process(without_open_files(|| {
            let log = log.map_or_else(Stdio::null, |path| fs::File::create(path).unwrap().into());
            let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
            // Closed where it was opened.
            command.stderr(Stdio::null());
            child
        }));
        let client = Client {
            channel: Channel::unix(&Endpoint::at(&socket).unwrap()),
            kubelet: world.root.join("kubelet").join("a"),
        };
        // A socket that a killed driver left refuses connections until the new one serves.
        while client.identity().probe(ProbeRequest {}).await.is_err() {
            tokio::task::yield_now().await;
        }
        (process, client)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the pool holds a mark whose name contains this.
fn has_mark(world: &World, part: &str) -> bool {
    world.files().iter().any(|name| name.contains(part) && !name.starts_with('.'))
}

/// Whether the image of a snapshot is being filled.
fn is_copying(world: &World) -> bool {
    let entries = fs::read_dir(world.pool().join("snapshots")).unwrap();
    entries.into_iter().any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".img.new"))
}

/// Runs a call and kills the driver when what takes long is seen to be under way; tells whether it was.
async fn kill_when<T>(seen: impl Fn() -> bool, process: Process, call: impl Future<Output = T>) -> bool {
    tokio::pin!(call);
    loop {
        if seen() {
            process.kill();
            // The answer is lost with the driver.
            drop(call.await);
            return true;
        }
        tokio::select! {
            biased;
            _ = &mut call => return false,
            () = tokio::task::yield_now() => {}
        }
    }
}

#[test]
fn a_driver_killed_in_the_middle_of_mkfs_makes_the_file_system_when_it_is_back() {
    test(async |world| {
        for kind in file_systems() {
            let made = Made::Of(kind);
            let mut killed = 0;
            for round in 0..30 {
                if round >= 3 && killed > 0 {
                    break;
                }
                let (process, client) = Process::start(&world).await;
                let volume = made.create(&client, &format!("{kind}-{round}"), 2048 * MIB).await.unwrap();
                let staging = made.stage(&client, &volume);
                killed += usize::from(kill_when(|| has_mark(&world, ".formatting"), process, staging).await);
                let (_process, client) = Process::start(&world).await;
                // A mkfs is killed with its driver, but a write that it is in ends first.
                let mut staged = made.stage(&client, &volume).await;
                for _ in 0..10_000 {
                    match &staged {
                        Err(status) if status.code() == Code::Unavailable => tokio::task::yield_now().await,
                        _ => break,
                    }
                    staged = made.stage(&client, &volume).await;
                }
                staged.unwrap();
                made.publish(&client, &volume, "pod", false).await.unwrap();
                fs::write(client.target("pod").join("data"), "x").unwrap();
                client.give_back(&volume).await;
                assert_eq!(world.files(), Vec::<String>::new(), "{kind}");
            }
            assert!(killed > 0, "{kind}: mkfs was never caught");
        }
    });
}

/// Whether a process has started another one, such as the program that resizes a file system.
fn has_child(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.into_iter().any(|task| fs::read(task.path().join("children")).is_ok_and(|children| !children.is_empty()))
}

#[test]
fn a_driver_killed_in_the_middle_of_a_resize_goes_on_with_it_when_it_is_back_and_no_data_is_lost() {
    test(async |world| {
        for kind in file_systems().into_iter().filter(|kind| may_grow(kind)) {
            let made = Made::Of(kind);
            let (mut process, mut client) = Process::start(&world).await;
            let volume = made.used(&client, kind).await;
            let target = client.target("pod");
            let data = vec![0x5A; 8 << 20];
            fs::write(target.join("data"), &data).unwrap();
            let mut killed = 0;
            for step in 1..=30 {
                if step > 6 && killed > 0 {
                    break;
                }
                let bytes = ROOM + step * 64 * MIB;
                expand_controller(&client, &volume, bytes).await.unwrap();
                let driver = process.0.id();
                let growing = expand_node(&client, &volume, &target, bytes);
                if kill_when(|| has_child(driver), process, growing).await {
                    killed += 1;
                }
                (process, client) = Process::start(&world).await;
                // The program is killed with its driver, but the kernel finishes what it was asked for.
                let grown = loop {
                    match expand_node(&client, &volume, &target, bytes).await {
                        Err(status) if status.code() == Code::Unavailable => tokio::task::yield_now().await,
                        answer => break answer.unwrap(),
                    }
                };
                assert_eq!(grown, bytes);
                let total = client.stats_of(&volume, &target).await.unwrap().usage[0].total;
                assert!(total > bytes - 96 * MIB, "{kind}: {total} of {bytes}");
                assert!(fs::read(target.join("data")).unwrap() == data, "{kind}: the data differ");
            }
            assert!(killed > 0, "{kind}: the resize was never caught");
            client.give_back(&volume).await;
            drop(process);
            assert_eq!(world.files(), Vec::<String>::new(), "{kind}");
        }
    });
}

#[test]
fn a_volume_frozen_by_a_driver_that_was_killed_is_written_again_when_it_is_back() {
    test(async |world| {
        let made = Made::Of("ext4");
        let (process, client) = Process::start(&world).await;
        let volume = made.create(&client, "v", 512 * MIB).await.unwrap();
        made.stage(&client, &volume).await.unwrap();
        made.publish(&client, &volume, "pod", false).await.unwrap();
        let file = client.target("pod").join("data");
        fs::write(&file, vec![7u8; 300 << 20]).unwrap();
        // The pool shares no blocks, so the volume stands still for as long as this is copied.
        let request = CreateSnapshotRequest {
            source_volume_id: volume.clone(),
            name: "s".into(),
            parameters: BTreeMap::from([("freezeForCopy".to_owned(), "true".to_owned())]),
            ..Default::default()
        };
        let mut controller = client.controller();
        let cutting = controller.create_snapshot(request.clone());
        assert!(kill_when(|| is_copying(&world), process, cutting).await, "the copy was never caught");
        assert!(has_mark(&world, ".frozen."), "it was copied without standing still");

        let (_process, client) = Process::start(&world).await;
        // This would hang on a frozen file system.
        fs::write(client.target("pod").join("after"), "x").unwrap();
        assert!(!has_mark(&world, ".frozen."));
        let snapshot = client.controller().create_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
        assert!(snapshot.ready_to_use);
        made.stage(&client, &volume).await.unwrap();
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        client.give_back(&volume).await;
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

/// Kills the driver when the files of the pool have changed so many times.
async fn kill_after(world: &World, changes: usize, process: Process) {
    let (mut seen, mut last) = (0, world.files());
    while seen < changes {
        tokio::task::yield_now().await;
        let now = world.files();
        seen += usize::from(now != last);
        last = now;
    }
    process.kill();
}

#[test]
fn volumes_that_live_at_the_same_time_all_get_through_a_driver_that_is_killed_again_and_again() {
    test(async |world| {
        if !file_systems().contains(&"xfs") {
            return;
        }
        // Each has places of its own, as in a kubelet.
        let made = [Made::Of("ext4"), Made::Of("xfs"), Made::Block, Made::Directory];
        let [mut one, mut two, mut three, mut four] = made.map(Life::new);
        let mut kills = 0;
        loop {
            let (process, client) = Process::start(&world).await;
            let beside = |name: &str| Client { channel: client.channel.clone(), kubelet: client.kubelet.join(name) };
            let clients = ["one", "two", "three", "four"].map(beside);
            let ended = {
                let lives = async {
                    tokio::join!(
                        one.go_on(&clients[0]),
                        two.go_on(&clients[1]),
                        three.go_on(&clients[2]),
                        four.go_on(&clients[3])
                    )
                };
                // Later and later, so that an end is reached.
                let killed = kill_after(&world, 3 + 2 * kills, process);
                tokio::pin!(lives, killed);
                tokio::select! {
                    biased;
                    ended = &mut lives => ended,
                    () = &mut killed => lives.await,
                }
            };
            kills += 1;
            for answer in [ended.0, ended.1, ended.2, ended.3] {
                // A driver that is gone answers nothing; one that is there refuses nothing.
                let code = answer.as_ref().err().map(tonic::Status::code);
                assert!(matches!(code, None | Some(Code::Unavailable | Code::Unknown | Code::Cancelled)), "{answer:?}");
            }
            if [&one, &two, &three, &four].iter().all(|life| life.is_over()) {
                break;
            }
        }
        println!("killed {} times", kills - 1);
        assert!(kills > 3, "they got through too easily");
        assert_eq!(world.files(), Vec::<String>::new());
        assert_eq!(world.loops(), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_driver_killed_in_the_middle_of_a_growth_before_the_mount_goes_on_with_it_and_no_data_is_lost() {
    test(async |world| {
        if may_grow("ext4") {
            eprintln!("skipped: with CAP_SYS_RESOURCE ext4 grows when it is mounted");
            return;
        }
        let made = Made::Of("ext4");
        let (mut process, mut client) = Process::start(&world).await;
        let volume = made.used(&client, "ext4").await;
        let data = vec![0x5A; 8 << 20];
        fs::write(client.target("pod").join("data"), &data).unwrap();
        client.unpublish(&volume, "pod").await.unwrap();
        client.unstage(&volume).await.unwrap();
        let (mut planning, mut carrying_out) = (0, 0);
        for step in 1..=30 {
            if step > 8 && carrying_out > 0 {
                break;
            }
            let bytes = ROOM + step * 64 * MIB;
            expand_controller(&client, &volume, bytes).await.unwrap();
            let driver = process.0.id();
            // By turns before the plan is there, while the check, the copy and resize2fs run, and from then on, when the
            // device changes; each time a little later.
            let is_planned = step % 2 == 0;
            let looks = Cell::new(0);
            let caught = || {
                let seen = if is_planned { has_mark(&world, ".growing") } else { has_child(driver) };
                looks.set(looks.get() + i64::from(seen));
                looks.get() > if is_planned { (step / 2 - 1) % 4 } else { 3 * (step - 1) }
            };
            let killed = u32::from(kill_when(caught, process, made.stage(&client, &volume)).await);
            *(if is_planned { &mut carrying_out } else { &mut planning }) += killed;
            (process, client) = Process::start(&world).await;
            loop {
                match made.stage(&client, &volume).await {
                    Err(status) if status.code() == Code::Unavailable => tokio::task::yield_now().await,
                    answer => break answer.unwrap(),
                }
            }
            let total = client.stats_of(&volume, &client.staging()).await.unwrap().usage[0].total;
            assert!(total > bytes - 96 * MIB, "{total} of {bytes}");
            assert!(fs::read(client.staging().join("data")).unwrap() == data, "the data differ");
            client.unstage(&volume).await.unwrap();
        }
        println!("killed {planning} times while planning, {carrying_out} times when there was a plan");
        assert!(planning > 0 && carrying_out > 0, "the growth was never caught: {planning}, {carrying_out}");
        client.delete(&volume).await.unwrap();
        drop(process);
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

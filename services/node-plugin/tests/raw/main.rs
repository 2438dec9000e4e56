//! Bytes of any kind sent to every method: each call is answered, nothing falls over, and every change that is made is
//! to the pool, below the target root, or to a loop device. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bytes_of;
#[allow(dead_code)]
#[path = "../kernel/world.rs"]
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::{Buf, BufMut};
use nix::mount::{MntFlags, umount2};
use node_plugin::{Driver, Kind, Options};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use stowage_csi::Channel;
use stowage_csi::v1::{CreateVolumeGroupSnapshotRequest, VolumeGroupSnapshot};
use stowage_mount::{Counting, LinuxMounter, MountTable, run_program};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

use crate::bytes_of::METHODS;
use crate::world::{Client, World, request, test};

/// Calls per driver; `STOWAGE_FUZZ_CALLS` for a longer storm.
fn calls() -> usize {
    std::env::var("STOWAGE_FUZZ_CALLS").ok().and_then(|text| text.parse().ok()).unwrap_or(2500)
}

/// The same bytes each time, but for a longer storm.
fn runner() -> TestRunner {
    match std::env::var("STOWAGE_FUZZ_CALLS") {
        Ok(_) => TestRunner::default(),
        Err(_) => TestRunner::deterministic(),
    }
}

/// Sends and receives bytes as they are.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining()).to_vec()))
    }
}

async fn call(channel: &Channel, method: &'static str, body: Vec<u8>) -> Result<(), Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unknown(format!("{error:?}")))?;
    let path = PathAndQuery::from_static(method);
    if !method.contains("SnapshotMetadata") {
        return client.unary(Request::new(body), path, Raw).await.map(drop);
    }
    let mut answers = client.server_streaming(Request::new(body), path, Raw).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

/// Whether an answer is one the contract knows: no fallen task, no missing sentence.
fn is_known(answer: &Result<(), Status>) -> bool {
    let Err(status) = answer else { return true };
    let message = status.message();
    match status.code() {
        Code::Internal => message.contains("decode"),
        Code::Unavailable => false,
        Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::DataLoss => false,
        _ => !message.is_empty() && message.len() < 4096,
    }
}

fn is_inside(change: &str, world: &World) -> bool {
    let path = Path::new(change.split_once(' ').map_or("", |(_, path)| path));
    // The last is where the driver notes that it has seen its pool.
    let free = [world.pool(), world.root.join("kubelet"), world.state("a")];
    let loops = path.parent() == Some(Path::new("/dev"))
        && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("loop"));
    loops || free.iter().any(|root| path.starts_with(root) && path.components().all(|part| part.as_os_str() != ".."))
}

fn outside(world: &World) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let entries = fs::read_dir(world.root.join("outside")).unwrap();
    let mut found: Vec<_> =
        entries.map(|entry| entry.unwrap().path()).map(|path| (path.clone(), fs::read(&path).ok())).collect();
    found.sort();
    found
}

async fn storm(world: &World, kind: Kind) {
    let options = Options { kind, driver_name: kind.driver_name().into(), overcommit: 1000.0, ..world.options("a") };
    let host = Arc::new(Counting::new(Arc::new(LinuxMounter)));
    let client: Client = world.start(options, host.clone());
    client.info().await.unwrap();
    fs::create_dir_all(client.target("")).unwrap();
    std::os::unix::fs::symlink(world.root.join("outside"), client.kubelet.join("link")).unwrap();
    let volume = client.create(request("v")).await.unwrap().volume_id;
    let snapshot = client.snapshot(&volume, "s").await.unwrap().snapshot_id;
    let group = cut_group(&client, &volume).await;
    let context = client.attach(&volume, "a").await.unwrap_or_default();
    let good = bytes_of::good_requests(&client, &volume, &snapshot, &group, &context);

    let mut runner = runner();
    let any = bytes_of::any_call(good);
    let (mut answered, before, calls) = (0, outside(world), calls());
    for number in 0..calls {
        let (method, body) = any.new_tree(&mut runner).unwrap().current();
        let method = METHODS[method];
        let answer = call(&client.channel, method, body.clone()).await;
        assert!(is_known(&answer), "call {number}, {method} with {body:?}: {answer:?}");
        answered += usize::from(answer.is_ok());
    }
    let changes = host.changes();
    let wrong: Vec<_> = changes.iter().filter(|change| !is_inside(change, world)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(outside(world), before);
    println!("{kind:?}: {calls} calls, {answered} answered with success, {} changes", changes.len());
    assert!(answered > calls / 20 && changes.len() > 50, "these bytes test nothing");
}

async fn cut_group(client: &Client, volume: &str) -> VolumeGroupSnapshot {
    let request = CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: vec![volume.to_owned()],
        parameters: [("freezeForCopy".to_owned(), "true".to_owned())].into(),
        ..Default::default()
    };
    client.groups().create_volume_group_snapshot(request).await.unwrap().into_inner().group_snapshot.unwrap()
}

/// What lucky bytes have mounted.
fn clean(world: &World, mounts: &MountTable) {
    let now = MountTable::read().unwrap();
    for mount in now.under(&world.root.join("kubelet")).rev() {
        umount2(&mount.target, MntFlags::MNT_DETACH).unwrap();
    }
    for device in world.loops() {
        run_program(Command::new("losetup").arg("-d").arg(device)).unwrap();
    }
    let now = MountTable::read().unwrap();
    let new: Vec<_> = now.iter().filter(|mount| !mounts.iter().any(|old| old == *mount)).collect();
    // Others may have gone: their mount points are removed by those who made them.
    assert!(new.is_empty(), "{new:?}");
}

#[test]
fn whatever_is_sent_is_answered_and_changes_nothing_outside() {
    test(async |world| {
        fs::create_dir(world.root.join("outside")).unwrap();
        fs::write(world.root.join("outside/file"), "precious").unwrap();
        let mounts = MountTable::read().unwrap();
        for kind in [Kind::Shared, Kind::Local] {
            storm(&world, kind).await;
            clean(&world, &mounts);
            fs::remove_dir_all(world.root.join("kubelet")).unwrap();
            fs::remove_dir_all(world.pool()).unwrap();
            // Else the pool would be taken for lost.
            fs::remove_file(world.state("a").join("main.pool")).unwrap();
            for name in ["pool", "kubelet"] {
                fs::create_dir(world.root.join(name)).unwrap();
            }
        }
    });
}

/// The records in a pool: volumes, snapshots, groups, stagings, nodes.
fn records(world: &World) -> Vec<PathBuf> {
    let folders = ["volumes", "snapshots", "groups", "nodes"].map(|name| world.pool().join(name));
    let entries = folders.into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect();
    found.sort();
    found
}

#[test]
fn records_of_any_bytes_are_refused_by_name_and_other_volumes_do_not_suffer() {
    test(async |world| {
        fs::create_dir(world.root.join("outside")).unwrap();
        let options = Options { overcommit: 1000.0, ..world.options("a") };
        let host = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let client = world.start(options, host.clone());
        client.info().await.unwrap();
        let (volume, context) = client.staged("v", "a").await;
        let snapshot = client.snapshot_with(&volume, "s", &[("freezeForCopy", "true")]).await.unwrap().snapshot_id;
        let bystander = client.create(request("bystander")).await.unwrap().volume_id;
        let theirs = world.pool().join("volumes").join(bystander.split_once('.').unwrap().1).with_extension("json");
        let group = cut_group(&client, &volume).await;
        // Only looking, so that each round finds the same.
        let looks = [
            "Validate",
            "List",
            "GetSnapshot",
            "GetVolume",
            "GetMetadata",
            "GetVolumeStats",
            "NodeGetInfo",
            "GetCapacity",
        ];
        let good = bytes_of::good_requests(&client, &volume, &snapshot, &group, &context);
        let good: Vec<_> =
            good.iter().filter(|(method, _)| looks.iter().any(|look| METHODS[*method].contains(look))).collect();
        let targets: Vec<_> = records(&world).into_iter().filter(|path| *path != theirs).collect();
        assert!(targets.len() >= 5, "{targets:?}");
        let mut runner = runner();
        let mut refusals = 0;
        for round in 0..120 {
            let path = &targets[round % targets.len()];
            let whole = fs::read(path).unwrap();
            let bytes = bytes_of::spoiled(whole.clone()).new_tree(&mut runner).unwrap().current();
            fs::write(path, &bytes).unwrap();
            for (method, body) in &good {
                let answer = call(&client.channel, METHODS[*method], body.clone()).await;
                refusals += usize::from(answer.is_err());
                let known = match &answer {
                    Err(status) if status.code() == Code::DataLoss => status.message().contains("damaged"),
                    other => is_known(other),
                };
                assert!(known, "{}, {path:?} with {:?}: {answer:?}", METHODS[*method], String::from_utf8_lossy(&bytes));
            }
            let about = stowage_csi::v1::ControllerGetVolumeRequest { volume_id: bystander.clone() };
            client.controller().controller_get_volume(about).await.unwrap();
            fs::write(path, whole).unwrap();
        }
        assert!(refusals > 100, "these bytes damage nothing: {refusals}");
        // What a killed driver left frozen is told by a file as well, which the next one reads when it starts.
        let mark = world.pool().join("volumes").join(volume.split('.').nth(1).unwrap()).with_extension("frozen.a");
        let whole = format!(r#"{{"version":3,"path":{:?}}}"#, client.staging());
        for _ in 0..60 {
            let bytes = bytes_of::spoiled(whole.clone().into_bytes()).new_tree(&mut runner).unwrap().current();
            fs::write(&mark, &bytes).unwrap();
            Driver::new(&world.options("a"), host.clone()).recover().await;
            assert!(!mark.try_exists().unwrap(), "{:?}", String::from_utf8_lossy(&bytes));
        }
        let wrong: Vec<_> = host.changes().into_iter().filter(|change| !is_inside(change, &world)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        client.unstage(&volume).await.unwrap();
    });
}

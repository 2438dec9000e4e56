//! Snapshots through real processes and the kernel: of volumes that are being written, restored in every order.

use std::path::Path;

use anyhow::{Context as _, ensure};
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};
use stowage_model::Kind;
use stowage_model::object::kinds;

use local_suite::api::Api;
use local_suite::disk::Disk;
use local_suite::life::{Life, all_over};
use local_suite::objects::{self, IMMEDIATE, LOCAL_IMMEDIATE, LOCAL_SNAPSHOTS, LOCAL_WAITING, SNAPSHOTS, XFS};
use local_suite::records::{self, Writer};
use local_suite::stack::{NODES, Place, Service, Stack};
use local_suite::{leftovers, machine};

/// Everything of snapshots that a user can see.
const SNAPSHOT_KINDS: [Kind; 4] = [
    kinds::VOLUME_GROUP_SNAPSHOT,
    kinds::VOLUME_GROUP_SNAPSHOT_CONTENT,
    kinds::VOLUME_SNAPSHOT,
    kinds::VOLUME_SNAPSHOT_CONTENT,
];

async fn ready(api: &Api, kind: Kind, name: &str) -> anyhow::Result<()> {
    let is_ready = |object: Option<&Value>| (object?["status"]["readyToUse"] == true).then_some(());
    api.until(kind, name, is_ready, "to be ready").await
}

/// `kill -9` in the middle of whatever they do, and a new start.
fn kill_and_start(stack: &mut Stack, services: &[Service]) -> anyhow::Result<()> {
    services.iter().try_for_each(|service| stack.kill(*service))?;
    services.iter().try_for_each(|service| stack.launch(*service))
}

/// How large the file system is by its own word.
fn file_system_bytes(path: &Path) -> anyhow::Result<u64> {
    let told = statvfs(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(told.blocks() * told.fragment_size())
}

/// Nothing is left in the API or on the machine, and all services end well.
async fn nothing_left(mut stack: Stack, disks: Vec<Disk>) -> anyhow::Result<()> {
    all_over(&stack.api).await?;
    for kind in SNAPSHOT_KINDS {
        stack.api.none_left(kind).await?;
    }
    leftovers::none(&stack.place.root).await?;
    stack.all_run()?;
    stack.stop().await?;
    for disk in disks {
        disk.unmount().await?;
    }
    Ok(())
}

/// What is asked of every copy of a volume that was written meanwhile: everything synced before, nothing begun after.
fn is_of_its_time(found: u64, before: u64, after: u64) -> anyhow::Result<()> {
    ensure!(found >= before, "{found} records are in the copy, but {before} were synced before it was asked for");
    ensure!(found <= after + 1, "{found} records are in the copy, but {after} were synced when it was ready");
    Ok(())
}

#[test]
fn a_volume_that_is_being_written_is_snapshotted_restored_and_cloned() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let place = Place::prepare(&root)?;
        let disk = Disk::mount(&root, "shared", &place.pool())?;
        let mut stack = Stack::start(place, &Service::all()).await?;
        let (api, place) = (stack.api.clone(), stack.place.clone());
        let life = |claim: &str| Life { api: &api, place: &place, claim: claim.to_owned() };
        let makers = [Service::SnapshotController, Service::Snapshotter];
        let [here, there] = NODES;

        let data = life("data");
        data.begin(IMMEDIATE, "64Mi").await?;
        data.start("writer", here).await?;
        let source = data.mounted("writer", here).await?;
        let writer = Writer::start(std::slice::from_ref(&source))?;
        writer.goes_on().await?;

        let before = writer.synced();
        api.create(kinds::VOLUME_SNAPSHOT, objects::snapshot("monday", SNAPSHOTS, "data")).await?;
        kill_and_start(&mut stack, &makers)?;
        ready(&api, kinds::VOLUME_SNAPSHOT, "monday").await?;
        let after = writer.synced();
        let (snapshot, clone) = ((kinds::VOLUME_SNAPSHOT, "monday"), (kinds::CLAIM, "data"));
        api.create(kinds::CLAIM, objects::copy("cloned", IMMEDIATE, "64Mi", clone)).await?;
        life("cloned").start("clone-reader", there).await?;
        let cloned = life("cloned").mounted("clone-reader", there).await?;
        is_of_its_time(records::read(&cloned, 0, 1)?, after, writer.synced())?;
        writer.goes_on().await?;
        let all = writer.stop()?;

        api.create(kinds::CLAIM, objects::copy("restored", IMMEDIATE, "64Mi", snapshot)).await?;
        life("restored").start("reader", there).await?;
        let restored = life("restored").mounted("reader", there).await?;
        let count = records::read(&restored, 0, 1)?;
        is_of_its_time(count, before, after)?;

        // What was restored does not need its snapshot.
        api.delete(kinds::VOLUME_SNAPSHOT, "monday").await?;
        api.gone(kinds::VOLUME_SNAPSHOT, "monday").await?;
        api.none_left(kinds::VOLUME_SNAPSHOT_CONTENT).await?;
        ensure!(records::read(&restored, 0, 1)? == count, "the restored volume lost data with its snapshot");

        // Nor does a snapshot need its claim.
        api.create(kinds::VOLUME_SNAPSHOT, objects::snapshot("tuesday", SNAPSHOTS, "data")).await?;
        ready(&api, kinds::VOLUME_SNAPSHOT, "tuesday").await?;
        data.stop("writer").await?;
        data.end().await?;
        let tuesday = (kinds::VOLUME_SNAPSHOT, "tuesday");
        api.create(kinds::CLAIM, objects::copy("late", IMMEDIATE, "64Mi", tuesday)).await?;
        life("late").start("late-reader", here).await?;
        let late = records::read(&life("late").mounted("late-reader", here).await?, 0, 1)?;
        ensure!(late == all, "{late} of {all} records outlived their claim");

        api.delete(kinds::VOLUME_SNAPSHOT, "tuesday").await?;
        kill_and_start(&mut stack, &makers)?;
        for (claim, pod) in [("cloned", "clone-reader"), ("restored", "reader"), ("late", "late-reader")] {
            life(claim).stop(pod).await?;
            life(claim).end().await?;
        }
        nothing_left(stack, vec![disk]).await
    })
}

#[test]
fn what_is_restored_to_a_larger_claim_has_a_larger_file_system() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let place = Place::prepare(&root)?;
        let disk = Disk::mount(&root, "shared", &place.pool())?;
        let stack = Stack::start(place, &Service::all()).await?;
        let life = |claim: &str| Life { api: &stack.api, place: &stack.place, claim: claim.to_owned() };
        // ext4 grows before its first mount where the machine does not let a mounted one grow.
        for (class, size, larger) in [(XFS, 300, 500), (IMMEDIATE, 64, 300)] {
            let (small, large) = (life(&format!("small-{class}")), life(&format!("large-{class}")));
            let (writer_pod, reader_pod) = (format!("writer-{class}"), format!("reader-{class}"));
            small.begin(class, &format!("{size}Mi")).await?;
            small.start(&writer_pod, NODES[0]).await?;
            let source = small.mounted(&writer_pod, NODES[0]).await?;
            let writer = Writer::start(std::slice::from_ref(&source))?;
            writer.goes_on().await?;
            let all = writer.stop()?;
            let monday = format!("monday-{class}");
            let snapshot = objects::snapshot(&monday, SNAPSHOTS, &small.claim);
            stack.api.create(kinds::VOLUME_SNAPSHOT, snapshot).await?;
            ready(&stack.api, kinds::VOLUME_SNAPSHOT, &monday).await?;
            let of_monday = (kinds::VOLUME_SNAPSHOT, monday.as_str());
            let copy = objects::copy(&large.claim, class, &format!("{larger}Mi"), of_monday);
            stack.api.create(kinds::CLAIM, copy).await?;
            large.start(&reader_pod, NODES[1]).await?;
            let restored = large.mounted(&reader_pod, NODES[1]).await?;
            ensure!(records::read(&restored, 0, 1)? == all, "not all {all} records were restored");
            let (was, is) = (file_system_bytes(&source)?, file_system_bytes(&restored)?);
            ensure!(was < size << 20 && is > (larger - 100) << 20, "{class}: {was} bytes were to grow, and are {is}");
            stack.api.delete(kinds::VOLUME_SNAPSHOT, &monday).await?;
            for (life, pod) in [(small, &writer_pod), (large, &reader_pod)] {
                life.stop(pod).await?;
                life.end().await?;
            }
        }
        nothing_left(stack, vec![disk]).await
    })
}

/// The snapshots of a group, by the claims they are of.
async fn members(api: &Api, group: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut members = Vec::new();
    for snapshot in api.list(kinds::VOLUME_SNAPSHOT).await? {
        let owner = &snapshot["metadata"]["ownerReferences"][0];
        if owner["kind"] == kinds::VOLUME_GROUP_SNAPSHOT.kind && owner["name"] == group {
            let name = snapshot["metadata"]["name"].as_str().context("a snapshot without a name")?;
            let claim = snapshot["spec"]["source"]["persistentVolumeClaimName"].as_str();
            members.push((claim.context("a member without its claim")?.to_owned(), name.to_owned()));
        }
    }
    members.sort();
    Ok(members)
}

#[test]
fn a_group_is_of_one_moment_and_restored_on_the_node_that_holds_it() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let place = Place::prepare(&root)?;
        let disks = NODES.map(|node| Disk::mount(&root, node, &place.node_pool(node)));
        let disks = disks.into_iter().collect::<anyhow::Result<Vec<Disk>>>()?;
        let mut stack = Stack::start(place, &Service::local_snapshots()).await?;
        let (api, place) = (stack.api.clone(), stack.place.clone());
        let life = |claim: &str| Life { api: &api, place: &place, claim: claim.to_owned() };
        // The second, so that the first is not right by being first.
        let home = NODES[1];
        let makers = [Service::DistributedSnapshotController, Service::LocalSnapshotter(home)];

        let mut folders = Vec::new();
        for claim in ["left", "right"] {
            let mut body = objects::claim(claim, LOCAL_WAITING, "64Mi");
            body["metadata"]["labels"] = json!({ "of": "pair" });
            api.create(kinds::CLAIM, body).await?;
            life(claim).start(&format!("{claim}-writer"), home).await?;
        }
        for claim in ["left", "right"] {
            folders.push(life(claim).mounted(&format!("{claim}-writer"), home).await?);
        }
        let writer = Writer::start(&folders)?;
        writer.goes_on().await?;

        let before = writer.synced();
        let group = objects::group_snapshot("both", LOCAL_SNAPSHOTS, ("of", "pair"));
        api.create(kinds::VOLUME_GROUP_SNAPSHOT, group).await?;
        kill_and_start(&mut stack, &makers)?;
        ready(&api, kinds::VOLUME_GROUP_SNAPSHOT, "both").await?;
        let after = writer.synced();
        api.create(kinds::VOLUME_SNAPSHOT, objects::snapshot("alone", LOCAL_SNAPSHOTS, "left")).await?;
        ready(&api, kinds::VOLUME_SNAPSHOT, "alone").await?;
        let later = writer.synced();
        writer.goes_on().await?;
        writer.stop()?;

        let members = members(&api, "both").await?;
        let [(left, left_member), (right, right_member)] = &members[..] else { anyhow::bail!("members: {members:?}") };
        ensure!(left == "left" && right == "right", "members of other claims: {members:?}");
        // Any node may try to make these two; their pods say nothing either.
        let copies = [
            ("left-copy", LOCAL_IMMEDIATE, left_member.as_str()),
            ("right-copy", LOCAL_WAITING, right_member.as_str()),
            ("alone-copy", LOCAL_WAITING, "alone"),
        ];
        for (claim, class, snapshot) in copies {
            ready(&api, kinds::VOLUME_SNAPSHOT, snapshot).await?;
            let source = (kinds::VOLUME_SNAPSHOT, snapshot);
            api.create(kinds::CLAIM, objects::copy(claim, class, "64Mi", source)).await?;
            let mut pod = objects::pod(&format!("{claim}-reader"), claim, "any");
            pod["spec"]["nodeSelector"] = json!({});
            api.create(kinds::POD, pod).await?;
        }
        let left = records::read(&life("left-copy").mounted("left-copy-reader", home).await?, 0, 2)?;
        let right = records::read(&life("right-copy").mounted("right-copy-reader", home).await?, 1, 2)?;
        is_of_its_time(left + right, before, after)?;
        ensure!(left == right || left == right + 1, "no one moment: {left} records here, {right} there");
        let alone = records::read(&life("alone-copy").mounted("alone-copy-reader", home).await?, 0, 2)?;
        is_of_its_time(alone, after.div_ceil(2), later.div_ceil(2))?;

        api.delete(kinds::VOLUME_GROUP_SNAPSHOT, "both").await?;
        api.delete(kinds::VOLUME_SNAPSHOT, "alone").await?;
        kill_and_start(&mut stack, &makers)?;
        for kind in SNAPSHOT_KINDS {
            api.none_left(kind).await?;
        }
        for (claim, at, count) in [("left-copy", 0, left), ("right-copy", 1, right)] {
            let folder = life(claim).mounted(&format!("{claim}-reader"), home).await?;
            ensure!(records::read(&folder, at, 2)? == count, "{claim} lost data with its snapshot");
        }
        for claim in ["left-copy", "right-copy", "alone-copy"] {
            life(claim).stop(&format!("{claim}-reader")).await?;
            life(claim).end().await?;
        }
        for claim in ["left", "right"] {
            life(claim).stop(&format!("{claim}-writer")).await?;
            life(claim).end().await?;
        }
        nothing_left(stack, disks).await
    })
}

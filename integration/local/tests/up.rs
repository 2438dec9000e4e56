//! `stowage up`, one process with everything in it: devices, inline volumes, groups and growth on a real kernel, with
//! every byte looked at.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use serde_json::{Value, json};
use stowage_model::names;
use stowage_model::object::kinds;
use tokio::time::sleep;

use local_suite::api::Api;
use local_suite::life::{DATA_BYTES, Life, all_over, running};
use local_suite::objects::{self, DRIVER, XFS};
use local_suite::process::Process;
use local_suite::stack::{NODES, Place};
use local_suite::{leftovers, machine};

const NODE: &str = NODES[0];
/// The class that `stowage up` makes; its file system is ext4.
const CLASS: &str = "stowage";
const GROUP: u32 = 4321;
const START: Duration = Duration::from_secs(60);
const DRAIN: Duration = Duration::from_secs(90);
/// How many commands are killed, each a little later than the one before.
const KILLED_RUNS: u64 = 6;

fn data(seed: u64) -> Vec<u8> {
    let mut data = vec![0; DATA_BYTES];
    StdRng::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

fn larger(size: &str) -> Value {
    json!({ "spec": { "resources": { "requests": { "storage": size } } } })
}

async fn grown(api: &Api, claim: &str, size: &str) -> anyhow::Result<()> {
    let says = |claim: Option<&Value>| (claim?["status"]["capacity"]["storage"] == size).then_some(());
    api.until(kinds::CLAIM, claim, says, format!("to have {size}")).await
}

fn bytes_of(file_system: &Path) -> anyhow::Result<u64> {
    let told = statvfs(file_system).with_context(|| format!("cannot look at {}", file_system.display()))?;
    Ok(told.blocks() * told.fragment_size())
}

/// A raw device keeps its bytes from pod to pod, and grows while a pod has it.
async fn a_device(life: &Life<'_>) -> anyhow::Result<()> {
    let (api, data) = (life.api, data(1));
    api.create(kinds::CLAIM, objects::device_claim(&life.claim, CLASS, "32Mi")).await?;
    api.create(kinds::POD, objects::device_pod("device-writer", &life.claim, NODE)).await?;
    life.write_device("device-writer", NODE, &data).await?;
    let before = life.check_device("device-writer", NODE, &data).await?;
    ensure!(before == 32 << 20, "a device of 32Mi has {before} bytes");
    ensure!(life.locks(NODE).await?.len() == 1, "the device is not locked once");
    api.patch(kinds::CLAIM, &life.claim, larger("48Mi")).await?;
    grown(api, &life.claim, "48Mi").await?;
    let after = life.check_device("device-writer", NODE, &data).await?;
    ensure!(after == 48 << 20, "a device that grew to 48Mi while in use has {after} bytes");
    life.stop("device-writer").await?;
    api.create(kinds::POD, objects::device_pod("device-reader", &life.claim, NODE)).await?;
    life.check_device("device-reader", NODE, &data).await?;
    life.stop("device-reader").await?;
    life.end().await
}

/// An inline volume is there for one pod, with its size, and goes with it.
async fn an_inline_volume(api: &Api, place: &Place) -> anyhow::Result<()> {
    let mut pod = objects::pod("inline", "none", NODE);
    pod["spec"]["volumes"] =
        json!([{ "name": "data", "csi": { "driver": DRIVER, "volumeAttributes": { "size": "24Mi" } } }]);
    pod["spec"]["securityContext"] = json!({ "fsGroup": GROUP });
    api.create(kinds::POD, pod).await?;
    let uid = api.until(kinds::POD, "inline", |pod| running(pod?), "to run").await?;
    let root = place.node(NODE).join(names::pod_mount(&uid, "data"));
    let has = bytes_of(&root)?;
    ensure!((12 << 20..=24 << 20).contains(&has), "an inline volume of 24Mi has {has} bytes");
    ensure!(fs::metadata(&root)?.gid() == GROUP, "an inline volume is not its pod's group's");
    let data = data(2);
    fs::write(root.join("data"), &data)?;
    ensure!(fs::read(root.join("data"))? == data, "an inline volume has other data than were written");
    api.delete(kinds::POD, "inline").await?;
    api.gone(kinds::POD, "inline").await?;
    ensure!(!root.try_exists()?, "an inline volume is left after its pod");
    Ok(())
}

async fn with_group(life: &Life<'_>, pod: &str, policy: &str) -> anyhow::Result<PathBuf> {
    let mut body = objects::pod(pod, &life.claim, NODE);
    body["spec"]["securityContext"] = json!({ "fsGroup": GROUP, "fsGroupChangePolicy": policy });
    life.api.create(kinds::POD, body).await?;
    life.mounted(pod, NODE).await
}

/// Every file goes to the pod's group, links are not followed, and a root that fits spares the walk where it may.
async fn files_for_a_group(life: &Life<'_>) -> anyhow::Result<()> {
    let data = data(3);
    life.begin(CLASS, "32Mi").await?;
    life.start("group-writer", NODE).await?;
    life.write("group-writer", NODE, &data).await?;
    let root = life.mounted("group-writer", NODE).await?;
    let outside = life.place.root.join("outside");
    File::create(&outside).context("cannot create a file outside")?;
    fs::create_dir_all(root.join("a/b"))?;
    fs::write(root.join("a/b/secret"), "x")?;
    fs::set_permissions(root.join("a/b/secret"), fs::Permissions::from_mode(0o600))?;
    std::os::unix::fs::symlink(&outside, root.join("a/link"))?;
    life.stop("group-writer").await?;

    let root = with_group(life, "group-always", "Always").await?;
    for path in ["", "data", "a", "a/b", "a/b/secret", "a/link"] {
        let gid = fs::symlink_metadata(root.join(path))?.gid();
        ensure!(gid == GROUP, "{path:?} belongs to group {gid}");
    }
    let mode = |path: &str| anyhow::Ok(fs::metadata(root.join(path))?.mode() & 0o7777);
    ensure!(mode("a/b/secret")? == 0o660, "a file of the group has mode {:o}", mode("a/b/secret")?);
    ensure!(mode("a/b")? & 0o2070 == 0o2070, "a directory of the group has mode {:o}", mode("a/b")?);
    ensure!(fs::metadata(&outside)?.gid() != GROUP, "a link was followed out of the volume");
    // Somebody takes one file back: a walk would mend that, and is not made where the root fits.
    std::os::unix::fs::chown(root.join("a/b/secret"), None, Some(0))?;
    life.stop("group-always").await?;
    let root = with_group(life, "group-mismatch", "OnRootMismatch").await?;
    ensure!(fs::metadata(root.join("a/b/secret"))?.gid() == 0, "a volume whose root fits was walked");
    life.stop("group-mismatch").await?;
    let root = with_group(life, "group-again", "Always").await?;
    ensure!(fs::metadata(root.join("a/b/secret"))?.gid() == GROUP, "a volume that is always walked was not");
    life.check("group-again", NODE, &data).await?;
    life.stop("group-again").await?;
    life.end().await
}

/// xfs grows under its pod.
async fn growth_in_use(life: &Life<'_>) -> anyhow::Result<()> {
    let data = data(4);
    life.begin(XFS, "320Mi").await?;
    life.start("grower", NODE).await?;
    life.write("grower", NODE, &data).await?;
    let root = life.mounted("grower", NODE).await?;
    let before = bytes_of(&root)?;
    life.api.patch(kinds::CLAIM, &life.claim, larger("400Mi")).await?;
    grown(life.api, &life.claim, "400Mi").await?;
    let gained = bytes_of(&root)? - before;
    ensure!(gained == 80 << 20, "a file system that grew by 80Mi under its pod gained {gained} bytes");
    life.check("grower", NODE, &data).await?;
    life.stop("grower").await?;
    life.end().await
}

/// What has grown while no pod had it is larger for the next one.
async fn growth_at_the_next_mount(life: &Life<'_>) -> anyhow::Result<()> {
    let data = data(5);
    life.begin(XFS, "320Mi").await?;
    life.start("small", NODE).await?;
    life.write("small", NODE, &data).await?;
    let before = bytes_of(&life.mounted("small", NODE).await?)?;
    life.stop("small").await?;
    wait_for_a_node(life, "400Mi").await?;
    life.start("large", NODE).await?;
    life.check("large", NODE, &data).await?;
    grown(life.api, &life.claim, "400Mi").await?;
    let gained = bytes_of(&life.mounted("large", NODE).await?)? - before;
    ensure!(gained == 80 << 20, "a file system that grew by 80Mi between two pods gained {gained} bytes");
    life.stop("large").await?;
    life.end().await
}

/// A mounted ext4 grows only for who has the capability SYS_RESOURCE; without that it grows between two pods, before it is
/// mounted.
async fn growth_that_needs_a_right(life: &Life<'_>) -> anyhow::Result<()> {
    let data = data(6);
    life.begin(CLASS, "32Mi").await?;
    life.start("ext4", NODE).await?;
    life.write("ext4", NODE, &data).await?;
    let before = bytes_of(&life.mounted("ext4", NODE).await?)?;
    life.stop("ext4").await?;
    wait_for_a_node(life, "64Mi").await?;
    life.start("ext4-larger", NODE).await?;
    life.check("ext4-larger", NODE, &data).await?;
    grown(life.api, &life.claim, "64Mi").await?;
    let after = bytes_of(&life.mounted("ext4-larger", NODE).await?)?;
    ensure!(after > before, "a file system of {before} bytes has {after} now");
    life.stop("ext4-larger").await?;
    life.end().await
}

async fn wait_for_a_node(life: &Life<'_>, size: &str) -> anyhow::Result<()> {
    life.api.patch(kinds::CLAIM, &life.claim, larger(size)).await?;
    let pending = |claim: Option<&Value>| {
        let conditions = claim?["status"]["conditions"].as_array()?;
        conditions.iter().any(|one| one["type"] == "FileSystemResizePending").then_some(())
    };
    life.api.until(kinds::CLAIM, &life.claim, pending, "to wait for a node").await
}

/// `stowage run` is killed sooner and later, when its pod is there and when it is only about to be: none stays.
async fn killed_runs(claim: &Life<'_>, logs: &Path) -> anyhow::Result<()> {
    claim.begin(CLASS, "32Mi").await?;
    let (api, root) = (claim.api, claim.place.root.to_string_lossy());
    let args = ["run", "--root", &root, "--claim", &claim.claim, "--", "sleep", "600"].map(str::to_owned);
    let pod = async || {
        let pods = api.list(kinds::POD).await?;
        anyhow::Ok(pods.into_iter().find(|pod| pod["metadata"]["labels"]["stowage.dev/run"] == "true"))
    };
    for milliseconds in (0..KILLED_RUNS).map(|number| number * 15) {
        let run = Process::start("run", "stowage", &args, logs)?;
        let begin = Instant::now();
        // Counted from the moment when it is about to make its pod.
        while begin.elapsed() < Duration::from_secs(30) && pod().await?.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(milliseconds)).await;
        let name = pod().await?.context("the command has no pod")?["metadata"]["name"].clone();
        drop(run);
        api.gone(kinds::POD, name.as_str().unwrap_or_default()).await?;
    }
    claim.end().await
}

#[test]
fn devices_inline_volumes_groups_and_growth_work_through_stowage_up() -> anyhow::Result<()> {
    machine::with_mounts(async |folder| {
        // A root of its own: the folder's lock is the test's.
        let root = folder.join("up");
        for made in [&root, &folder.join("logs")] {
            fs::create_dir(made)?;
        }
        let place = Place::prepare(&root)?;
        let args = ["up", "--listen", &format!("127.0.0.1:{}", place.port), "--root", &root.to_string_lossy()];
        let mut up = Process::start("stowage", "stowage", &args.map(str::to_owned), &folder.join("logs"))?;
        up.says("Ctrl-C drains and stops", START).await?;
        let api = Api::connect(&place.kubeconfig()).await?;
        let mut xfs = objects::class(XFS, DRIVER, "Immediate");
        xfs["parameters"] = json!({ "csi.storage.k8s.io/fstype": "xfs" });
        api.create(kinds::STORAGE_CLASS, xfs).await?;
        let life = |claim: &str| Life { api: &api, place: &place, claim: claim.to_owned() };
        let lives = ["device", "group", "grown-in-use", "grown-later", "grown-with-right", "of-runs"].map(life);
        let ([device, group, in_use, later, with_right, of_runs], logs) = (&lives, folder.join("logs"));
        tokio::try_join!(
            a_device(device),
            files_for_a_group(group),
            growth_in_use(in_use),
            growth_at_the_next_mount(later),
            growth_that_needs_a_right(with_right),
            an_inline_volume(&api, &place),
            killed_runs(of_runs, &logs),
        )?;
        all_over(&api).await?;
        leftovers::none(&root).await?;
        up.signal(Signal::SIGTERM)?;
        let status = up.ended(DRAIN).await?;
        ensure!(status.success(), "stowage up ended with {status}");
        Ok(())
    })
}

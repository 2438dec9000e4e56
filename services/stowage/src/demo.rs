//! `stowage demo`: the life of a claim on this machine's own block devices, with proof at every step.

mod copies;
mod growth;
mod observer;
mod show;
mod timeline;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use stowage_model::object::{Key, kinds};
use stowage_model::{Pod, names};
use stowage_mount::{LinuxMounter, Mounter as _};
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::tasks::Tasks;

use crate::args::Demo;
use crate::root::Root;
use crate::stack::{self, Stack};
use crate::{check, clean, objects};
use observer::{Observer, Step};
use show::Show;
use timeline::Timeline;

const CLASS: &str = "demo";
const CLAIM: &str = "data";
const NODES: [&str; 2] = ["node-1", "node-2"];
/// Enough to need more than one extent and to show that data really moved.
const DATA_BYTES: usize = 16 << 20;

/// Runs the demo; anything that is not as it should be is a failure.
pub async fn run(options: Demo) -> anyhow::Result<ExitCode> {
    let obstacles = check::obstacles();
    if !obstacles.is_empty() {
        eprintln!("stowage demo mounts real volumes, and this machine is not ready for that:");
        for obstacle in obstacles {
            eprintln!("  {obstacle}");
        }
        return Ok(ExitCode::FAILURE);
    }
    if options.logs {
        stowage_runtime::log::init(&options.log)?;
    }
    // Sockets have short names: the directory does too.
    let temporary =
        tempfile::Builder::new().prefix("stowage-").tempdir().context("cannot make a temporary directory")?;
    let path = options.root.clone().unwrap_or_else(|| temporary.path().to_owned());
    let show = Show::new(Instant::now());
    let result = tell(&path, &show).await;
    show.end();
    result.map(|()| ExitCode::SUCCESS)
}

async fn tell(path: &Path, show: &Show) -> anyhow::Result<()> {
    let mut timeline = Timeline::start(Instant::now());
    show.wait("starting the API server and all services");
    let root = Root::take(path)?;
    let stack = Stack::start(
        root,
        stack::Options {
            listen: ([127, 0, 0, 1], 0).into(),
            kubeconfig_out: None,
            nodes: NODES.map(str::to_owned).to_vec(),
            csi_endpoint: None,
            durable: false,
            remembers_calls: true,
        },
    )
    .await?;
    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        outcome = live(&stack, show, &mut timeline) => outcome,
    };
    show.wait("stopping");
    let calls = stack.calls.all();
    let root_path = stack.root().path().to_owned();
    let stopped = stack.stop().await;
    outcome?;
    stopped?;
    clean::nothing_left(&root_path).await?;
    timeline.mark("stack stopped, nothing left", Instant::now());
    show.say("the stack has stopped; no mount, loop device or socket is left");
    show.end();
    let phases = timeline.phases(&calls);
    println!("\n{}", timeline::table(&phases));
    let sum: Duration = phases.iter().map(|phase| phase.took).sum();
    ensure!(sum == timeline.wall(), "the phases add up to {sum:?}, not to the wall time {:?}", timeline.wall());
    let published = calls.iter().find(|call| call.method == "NodePublishVolume");
    if let Some(published) = published {
        let first = timeline::millis(published.to - timeline.began());
        println!("\nfrom start to the first published volume: {first:.1} ms; {} driver calls in all", calls.len());
    }
    Ok(())
}

/// The story itself, between start and stop of the stack.
async fn live(stack: &Stack, show: &Show, timeline: &mut Timeline) -> anyhow::Result<()> {
    let tasks = Tasks::new();
    let observer = Observer::start(&stack.api, &tasks);
    let mut tasks = tasks;
    tokio::select! {
        biased;
        panicked = tasks.supervise() => Err(panicked.into()),
        told = story(stack, &observer, show, timeline) => told,
    }
}

async fn story(stack: &Stack, observer: &Observer, show: &Show, timeline: &mut Timeline) -> anyhow::Result<()> {
    let api = &stack.api;
    observer.until("both nodes to be ready", |seen| NODES.iter().all(|node| is_ready(seen, node))).await?;
    timeline.mark("stack up, two nodes ready", Instant::now());
    show.say(format!("the stack is up: KUBECONFIG={} kubectl get nodes", stack.kubeconfig.display()));

    first_life(stack, observer, show, timeline).await?;
    let (pod, mount) = mounted(stack, observer, "writer", CLAIM, NODES[0]).await?;
    let sum = write_data(&mount.join("data"))?;
    timeline.mark("data written and synced", Instant::now());
    show.say(format!("wrote {} MiB through {}", DATA_BYTES >> 20, mount.display()));

    show.wait("waiting for the pod to go");
    delete(api, &observer.pods, &pod).await?;
    observer.until("the first pod to go", |seen| seen.pods.get(&pod).is_none()).await?;
    timeline.mark("first pod deleted, volume unpublished", Instant::now());
    show.say("deleted the pod; its volume is unpublished");

    observer.until("the volume to be detached", |seen| seen.attachments.is_empty()).await?;
    copies::snapshot(stack, observer, show, timeline).await?;
    copies::restore_and_clone(stack, observer, show, timeline, &sum).await?;

    show.wait("waiting for the second pod");
    api.create_raw(kinds::POD, objects::pod("reader", CLAIM, NODES[1])).await.context("create the second pod")?;
    observer.until("the second pod to run", |seen| seen.running("reader").is_some()).await?;
    timeline.mark("moved: second pod runs on the other node", Instant::now());
    let (pod, mount) = mounted(stack, observer, "reader", CLAIM, NODES[1]).await?;
    let found = checksum(&mount.join("data"))?;
    ensure!(found == sum, "the data read on {} differs from what was written on {}", NODES[1], NODES[0]);
    timeline.mark("data checked", Instant::now());
    show.say(format!("{} reads the same data: sha256 {}", NODES[1], short(&found)));

    growth::grow(stack, observer, show, timeline).await?;

    show.wait("deleting everything");
    delete(api, &observer.pods, &pod).await?;
    let claim = Key::namespaced("default", CLAIM);
    delete(api, &observer.claims, &claim).await?;
    copies::remove(stack, observer).await?;
    growth::remove(stack, observer).await?;
    observer.until("pods, claims, volumes, snapshots and attachments to go", Observer::is_empty).await?;
    timeline.mark("pods, claims, volumes and snapshot deleted", Instant::now());
    ensure!(images(&stack.root().pool())?.is_empty(), "the driver still has an image in its pool");
    show.say("deleted pods, claims and snapshot; their images are gone");
    Ok(())
}

/// From the claim to the first mounted volume, step by step.
async fn first_life(stack: &Stack, observer: &Observer, show: &Show, timeline: &mut Timeline) -> anyhow::Result<()> {
    let api = &stack.api;
    let class = objects::class(CLASS, &stack.driver, false, "WaitForFirstConsumer", true);
    api.create_raw(kinds::STORAGE_CLASS, class).await.context("create the class")?;
    observer.begin();
    api.create_raw(kinds::CLAIM, objects::claim(CLAIM, CLASS, "64Mi")).await.context("create the claim")?;
    api.create_raw(kinds::POD, objects::pod("writer", CLAIM, NODES[0])).await.context("create the pod")?;
    timeline.mark("class, claim and pod created", Instant::now());
    show.say("created a class, a claim of 64 Mi and a pod that uses it");
    show.wait("waiting for the pod to run");
    observer.until("the first pod to run", |seen| seen.running("writer").is_some()).await?;
    let steps = observer.steps();
    let call = |method: &str| stack.calls.all().iter().find(|call| call.method == method).map(|call| call.to);
    let story: [(&str, Option<Instant>); 11] = [
        ("scheduler chose a node", steps.get(&Step::NodeChosen).copied()),
        ("pv-controller asked the provisioner", steps.get(&Step::ProvisionerAsked).copied()),
        ("provisioner made the volume", steps.get(&Step::VolumeMade).copied()),
        ("pv-controller bound the claim", steps.get(&Step::Bound).copied()),
        ("scheduler placed the pod", steps.get(&Step::Placed).copied()),
        ("attach-detach wants it attached", steps.get(&Step::AttachmentWanted).copied()),
        ("attacher attached it", steps.get(&Step::Attached).copied()),
        ("attach-detach reported it", steps.get(&Step::AttachmentReported).copied()),
        ("volume-manager staged it (mkfs, mount)", call("NodeStageVolume")),
        ("volume-manager published it", call("NodePublishVolume")),
        ("pod runs", steps.get(&Step::Running).copied()),
    ];
    for (name, at) in story {
        let at = at.with_context(|| format!("the step {name:?} was never seen"))?;
        timeline.mark(name, at);
        show.say_at(at, name);
    }
    Ok(())
}

fn is_ready(observer: &Observer, node: &str) -> bool {
    observer.nodes.get(&Key::cluster(node)).is_some_and(|node| node.is_ready())
}

/// Where the pod's volume is mounted, after the kernel has confirmed it.
async fn mounted(
    stack: &Stack,
    observer: &Observer,
    pod: &str,
    claim: &str,
    node: &str,
) -> anyhow::Result<(Key, PathBuf)> {
    let key = Key::namespaced("default", pod);
    let pod = observer.pods.get(&key).context("the pod is gone")?;
    let claim = observer.claims.get(&Key::namespaced("default", claim)).context("the claim is gone")?;
    let path = publish_path(stack, node, &pod, &claim.spec.volume_name);
    let table = LinuxMounter.mounts().await.context("read the mount table")?;
    let mount = table.at(&path).with_context(|| format!("the kernel knows no mount at {}", path.display()))?;
    ensure!(mount.fs_type == "ext4", "{} is {} in the mount table, not ext4", path.display(), mount.fs_type);
    Ok((key, path))
}

fn publish_path(stack: &Stack, node: &str, pod: &Pod, volume: &str) -> PathBuf {
    stack.root().node(node).join(names::pod_mount(&pod.meta.uid, volume))
}

async fn delete<T: stowage_model::object::Projection>(api: &Api, cache: &Cache<T>, key: &Key) -> anyhow::Result<()> {
    let object = cache.get(key).with_context(|| format!("{} {key} is gone already", T::KIND.kind))?;
    api.delete(cache, &Target::any_version(object.meta()), Deletion::default())
        .await
        .with_context(|| format!("delete {} {key}", T::KIND.kind))
}

fn write_data(path: &Path) -> anyhow::Result<Vec<u8>> {
    let random = Random::from_os();
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut hash = Sha256::new();
    for _ in 0..DATA_BYTES / 4096 {
        let word = random.number().to_le_bytes();
        let block = word.repeat(512);
        hash.update(&block);
        file.write_all(&block).with_context(|| format!("write {}", path.display()))?;
    }
    file.sync_all().with_context(|| format!("sync {}", path.display()))?;
    Ok(hash.finalize().to_vec())
}

fn checksum(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block).with_context(|| format!("read {}", path.display()))? {
            0 => return Ok(hash.finalize().to_vec()),
            read => hash.update(&block[..read]),
        }
    }
}

fn short(sum: &[u8]) -> String {
    sum.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Images below the pool, whatever the driver calls them: every regular file that is not a small record.
fn images(pool: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![pool.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let entry = entry.context("list the pool")?;
            let info = entry.metadata().context("look into the pool")?;
            if info.is_dir() {
                folders.push(entry.path());
            } else if info.len() >= 1 << 20 {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

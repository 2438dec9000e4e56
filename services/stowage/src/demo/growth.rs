//! The part of the story in which a volume grows while it is in use: a raw device, which needs no right that a container lacks.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::Instant;

use stowage_model::names;
use stowage_model::object::{Key, kinds};
use stowage_model::quantity::Quantity;
use stowage_runtime::api::{Part, Patch, Target};

use super::observer::Observer;
use super::show::Show;
use super::timeline::Timeline;
use super::{CLASS, NODES, delete};
use crate::objects;
use crate::stack::Stack;

const NAME: &str = "device";
const BEFORE: &str = "32Mi";
const AFTER: &str = "64Mi";
const WORDS: &[u8] = b"written before the device grew";

/// Maps a device into a pod, writes to it, grows its claim and reads the device again.
pub async fn grow(stack: &Stack, observer: &Observer, show: &Show, timeline: &mut Timeline) -> anyhow::Result<()> {
    show.wait("waiting for a pod with a raw device");
    let mut claim = objects::claim(NAME, CLASS, BEFORE);
    claim["spec"]["volumeMode"] = "Block".into();
    let mut pod = objects::pod(NAME, NAME, NODES[1]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeDevices"] = json!([{ "name": "data", "devicePath": "/dev/data" }]);
    container["volumeMounts"] = json!([]);
    stack.api.create_raw(kinds::CLAIM, claim).await.context("create the claim of a device")?;
    stack.api.create_raw(kinds::POD, pod).await.context("create the pod with a device")?;
    observer.until("the pod with a device to run", |seen| seen.running(NAME).is_some()).await?;
    timeline.mark("pod runs with a raw device", Instant::now());
    let device = device(stack, observer)?;
    write(&device).with_context(|| format!("write to {}", device.display()))?;
    let before = size(&device)?;

    show.wait("waiting for the device to grow");
    let key = Key::namespaced("default", NAME);
    let known = observer.claims.get(&key).context("the claim of the device is gone")?;
    let wanted = json!({ "spec": { "resources": { "requests": { "storage": AFTER } } } });
    let target = Target::any_version(&known.meta);
    let patched = stack.api.patch(&observer.claims, &target, Part::Main, Patch::Merge(wanted));
    patched.await.context("ask for a larger device")?;
    let wanted: Quantity = AFTER.parse().context("read the larger size")?;
    let has_grown = |seen: &Observer| {
        let claim = seen.claims.get(&key);
        claim.is_some_and(|claim| claim.status.capacity.storage.is_some_and(|capacity| capacity >= wanted))
    };
    observer.until("the device to have grown", has_grown).await?;
    timeline.mark("device grown in use", Instant::now());
    let (after, kept) = (size(&device)?, read(&device)?);
    ensure!(after >= 2 * before, "the device has {after} bytes after it grew, and had {before}");
    ensure!(kept == WORDS, "the device lost what was written before it grew");
    show.say(format!(
        "a device grew from {} to {} MiB while a pod had it; its data is there",
        before >> 20,
        after >> 20
    ));
    Ok(())
}

/// Asks for the end of it.
pub async fn remove(stack: &Stack, observer: &Observer) -> anyhow::Result<()> {
    let key = Key::namespaced("default", NAME);
    delete(&stack.api, &observer.pods, &key).await?;
    delete(&stack.api, &observer.claims, &key).await
}

fn device(stack: &Stack, observer: &Observer) -> anyhow::Result<PathBuf> {
    let key = Key::namespaced("default", NAME);
    let pod = observer.pods.get(&key).context("the pod with a device is gone")?;
    let claim = observer.claims.get(&key).context("the claim of the device is gone")?;
    let link = stack.root().node(NODES[1]).join(names::pod_device(&pod.meta.uid, &claim.spec.volume_name));
    link.canonicalize().with_context(|| format!("find the device behind {}", link.display()))
}

fn write(device: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(device)?;
    file.write_all(WORDS)?;
    file.sync_all()
}

fn read(device: &Path) -> anyhow::Result<Vec<u8>> {
    let mut found = vec![0; WORDS.len()];
    let mut file = OpenOptions::new().read(true).open(device).with_context(|| format!("open {}", device.display()))?;
    file.read_exact(&mut found).with_context(|| format!("read {}", device.display()))?;
    Ok(found)
}

fn size(device: &Path) -> anyhow::Result<u64> {
    let mut file = OpenOptions::new().read(true).open(device).with_context(|| format!("open {}", device.display()))?;
    file.seek(SeekFrom::End(0)).with_context(|| format!("measure {}", device.display()))
}

//! The design's invariants, checked from the API objects, the driver's list, the nodes' mount tables and the kernel's
//! loop devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use local_suite::objects::DRIVER;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stowage_csi::v1::ListVolumesRequest;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::{Connector as _, Deadline, UnixConnector};
use stowage_model::object::kinds;
use stowage_model::{Kind, Volume, names};
use stowage_mount::{FileId, Host as _, LinuxMounter, LoopDevice, Mount};
use stowage_testing::driver::{Made, State};
use stowage_testing::invariants::{Observed, Violation};
use tokio::time::{Instant, sleep, timeout};

use crate::node::ROOT;
use crate::stack::{NODES, Stack};

/// How long what is going on may take to be over: longer than a volume manager's longest pause between two tries.
const SETTLE: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_millis(200);
/// An observation that takes longer has met somebody who is stopped.
const SAMPLE: Duration = Duration::from_secs(3);
/// The kernel's unit for sizes of block devices, whatever the device's own is.
const SECTOR: u64 = 512;
/// A driver that does not answer by then is one that hangs.
const CALL: Duration = Duration::from_secs(10);
/// How images of the pool are called by the kernel: as in the container that opened them, or that had while it ran.
const POOL_IN_CONTAINERS: [&str; 2] = ["/pool/volumes/", "/volumes/"];

/// Everything there is to see, at one moment.
pub struct Observation {
    observed: Observed,
    mounts: BTreeMap<&'static str, Vec<Mount>>,
    loops: Vec<LoopDevice>,
    /// The bytes of the devices of volumes that are staged, by the volumes' handles.
    devices: BTreeMap<String, u64>,
    files: Vec<String>,
    /// Nodes that an operator has declared dead.
    dead: BTreeSet<String>,
}

impl Observation {
    pub async fn of(stack: &Stack) -> anyhow::Result<Self> {
        let volumes: Vec<Volume> = all(stack, kinds::VOLUME).await?;
        let handles: BTreeMap<String, String> = volumes
            .iter()
            .filter_map(|volume| Some((volume.meta.name.clone(), volume.spec.csi.as_ref()?.volume_handle.clone())))
            .collect();
        let mut driver = listed(stack).await?;
        let (mut mounts, mut files) = (BTreeMap::new(), Vec::new());
        for name in NODES {
            let node = stack.node(name);
            let found = node.mounts_now().await?;
            let known: BTreeSet<&String> = handles.values().chain(driver.volumes.keys()).collect();
            for handle in known.into_iter().cloned().collect::<Vec<_>>() {
                let staged = Path::new(ROOT).join(names::global_mount(DRIVER, &handle));
                if found.iter().any(|mount| mount.target == staged) {
                    driver.staged.insert((name.to_owned(), handle), staged.display().to_string());
                }
            }
            for mount in &found {
                if let Some(handle) = volume_of_pod_mount(&mount.target).and_then(|volume| handles.get(volume)) {
                    let targets = driver.published.entry((name.to_owned(), handle.clone())).or_default();
                    targets.insert(mount.target.display().to_string());
                }
            }
            files.extend(node.files()?.iter().map(|file| format!("{} on {name}", file.display())));
            mounts.insert(name, found);
        }
        let nodes: Vec<stowage_model::Node> = all(stack, kinds::NODE).await?;
        let dead = nodes.iter().filter(|node| node.is_out_of_service()).map(|node| node.meta.name.clone()).collect();
        let observed = Observed {
            claims: all(stack, kinds::CLAIM).await?,
            volumes,
            pods: all(stack, kinds::POD).await?,
            nodes,
            attachments: all(stack, kinds::VOLUME_ATTACHMENT).await?,
            // The driver's list has no snapshots either: those have tests of their own.
            snapshots: Vec::new(),
            contents: Vec::new(),
            group_snapshots: Vec::new(),
            group_contents: Vec::new(),
            intents: stack.api.list(kinds::LEASE).await?.iter().map(Value::to_string).collect(),
            driver_name: DRIVER.to_owned(),
            driver,
            trees: BTreeMap::new(),
        };
        let loops = loops(stack).await?;
        let devices = devices(stack, &loops, observed.driver.volumes.keys())?;
        Ok(Self { observed, mounts, loops, devices, files, dead })
    }

    /// What must never be.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = self.observed.violations();
        found.extend(self.detached_too_early());
        found
    }

    /// What must not be when nothing is going on.
    pub fn violations_at_rest(&self) -> Vec<Violation> {
        let mut found = self.observed.violations_at_rest();
        found.extend(self.detached_too_early());
        found.extend(self.misfits());
        for device in self.loops.iter().filter(|device| !self.mounts.values().flatten().any(|one| is_on(one, device))) {
            found.push(left(format!("loop device {} of {}", device.path.display(), device.backing.display())));
        }
        for (node, mounts) in &self.mounts {
            let known: BTreeSet<&String> = self
                .observed
                .driver
                .staged
                .iter()
                .filter(|((on, _), _)| on == node)
                .map(|(_, path)| path)
                .chain(self.observed.driver.published.iter().filter(|((on, _), _)| on == node).flat_map(|(_, all)| all))
                .collect();
            for mount in mounts.iter().filter(|mount| !known.contains(&mount.target.display().to_string())) {
                found.push(left(format!("mount {} on {node}", mount.target.display())));
            }
        }
        found
    }

    /// What must not be when everything was deleted.
    pub fn leftovers(&self) -> Vec<Violation> {
        let mut found = self.violations_at_rest();
        found.extend(self.observed.leftovers());
        found.extend(self.files.iter().map(|file| left(file.clone())));
        found
    }

    /// B2 and R1: a claim's volume is what it asked for, and has a device at least as big as the claim says.
    fn misfits(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for claim in self.observed.claims.iter().filter(|claim| claim.is_fully_bound()) {
            let bound = |volume: &&Volume| volume.meta.name == claim.spec.volume_name;
            let Some(volume) = self.observed.volumes.iter().find(bound) else { continue };
            let (key, name) = (claim.meta.key(), &volume.meta.name);
            let fits = volume.spec.capacity >= claim.spec.requested
                && volume.class_name() == claim.class_name()
                && volume.spec.volume_mode == claim.spec.volume_mode
                && volume.spec.access_modes.contains_all(claim.spec.access_modes);
            if !fits {
                found.push(Violation { id: "B2", text: format!("claim {key} is bound to {name}, which does not fit") });
            }
            let said = claim.status.capacity.storage.and_then(|size| size.size().ok()).unwrap_or_default();
            let handle = volume.spec.csi.as_ref().map(|csi| &csi.volume_handle);
            if let Some(bytes) = handle.and_then(|handle| self.devices.get(handle))
                && i128::from(said) > i128::from(*bytes)
            {
                let text = format!("claim {key} has {said} bytes by its status, but the device of {name} has {bytes}");
                found.push(Violation { id: "R1", text });
            }
        }
        found
    }

    /// A2, by the kernel's word: mounted where the driver says that nobody has it.
    fn detached_too_early(&self) -> Vec<Violation> {
        let driver = &self.observed.driver;
        let early = driver.staged.keys().filter(|(node, handle)| {
            let attached = driver.attached.get(handle).is_some_and(|nodes| nodes.contains(node));
            !attached && !self.dead.contains(node)
        });
        let text =
            |(node, handle): &(String, String)| format!("volume {handle} is mounted on {node}, but detached from it");
        early.map(|place| Violation { id: "A2", text: text(place) }).collect()
    }
}

/// By name too: btrfs shows a device number of its own in the mount table.
pub fn is_on(mount: &Mount, device: &LoopDevice) -> bool {
    mount.device == device.number || Path::new(&mount.source) == device.path
}

fn left(what: String) -> Violation {
    Violation { id: "L1", text: format!("{what} is left") }
}

/// Nothing may be wrong once what is going on is over.
pub async fn at_rest(stack: &Stack) -> anyhow::Result<()> {
    settled(stack, SETTLE, Observation::violations_at_rest).await
}

/// Nothing may be left once everything was deleted.
pub async fn nothing_left(stack: &Stack) -> anyhow::Result<()> {
    nothing_left_after(stack, SETTLE).await
}

/// The same, for a test that knows how long it takes.
pub async fn nothing_left_after(stack: &Stack, patience: Duration) -> anyhow::Result<()> {
    settled(stack, patience, Observation::leftovers).await
}

/// Looks at everything while something happens: what must never be ends it.
pub async fn watched<T>(stack: &Stack, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let watch = async {
        let mut never = Never::default();
        loop {
            // Who is stopped or away cannot be asked, so nothing is known meanwhile.
            if let Ok(Ok(seen)) = timeout(SAMPLE, Observation::of(stack)).await {
                never.check(&seen)?;
            }
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        biased;
        outcome = work => outcome,
        broken = watch => broken,
    }
}

/// What must never be, seen twice in a row: once may be an observation that took longer than a change.
#[derive(Default)]
struct Never(BTreeSet<Violation>);

impl Never {
    fn check(&mut self, seen: &Observation) -> anyhow::Result<()> {
        let now: BTreeSet<Violation> = seen.violations().into_iter().collect();
        let still: Vec<String> = now.intersection(&self.0).map(ToString::to_string).collect();
        ensure!(still.is_empty(), "what must never be:\n  {}", still.join("\n  "));
        self.0 = now;
        Ok(())
    }
}

async fn settled(stack: &Stack, patience: Duration, look: fn(&Observation) -> Vec<Violation>) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    let mut never = Never::default();
    loop {
        // Whoever is to be asked may be on its way back.
        let found = match Observation::of(stack).await {
            Ok(seen) => {
                never.check(&seen)?;
                look(&seen).iter().map(ToString::to_string).collect()
            }
            Err(error) => vec![format!("{error:#}")],
        };
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("after {} s:\n  {}", patience.as_secs(), found.join("\n  "));
        }
        sleep(LOOK).await;
    }
}

/// How big the loop devices of these volumes are, by the kernel.
fn devices<'a>(
    stack: &Stack,
    loops: &[LoopDevice],
    handles: impl Iterator<Item = &'a String>,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for handle in handles {
        let key = handle.split('.').nth(1).with_context(|| format!("{handle} is not a handle of our driver"))?;
        let image = fs::metadata(stack.volume("pool").join("volumes").join(format!("{key}.img")));
        let Ok(image) = image else { continue };
        let is_its = |one: &&LoopDevice| (one.image.device, one.image.inode) == (image.dev(), image.ino());
        let Some(device) = loops.iter().find(is_its) else { continue };
        let name = device.path.file_name().unwrap_or_default();
        // One that goes meanwhile has no size any more.
        if let Ok(sectors) = fs::read_to_string(Path::new("/sys/block").join(name).join("size")) {
            let sectors: u64 = sectors.trim().parse().with_context(|| format!("size of {}", device.path.display()))?;
            found.insert(handle.clone(), sectors * SECTOR);
        }
    }
    Ok(found)
}

/// What the driver has, by its own list; the names are in the pool's records.
async fn listed(stack: &Stack) -> anyhow::Result<State> {
    let channel = UnixConnector.connect(&stack.driver_socket().display().to_string())?;
    let mut client = ControllerClient::new(channel);
    let listed = Deadline(CALL).call(ListVolumesRequest::default(), |request| client.list_volumes(request)).await;
    let mut state = State::default();
    for entry in listed.context("cannot list the driver's volumes")?.entries {
        let volume = entry.volume.unwrap_or_default();
        let nodes: BTreeSet<String> = entry.status.unwrap_or_default().published_node_ids.into_iter().collect();
        if !nodes.is_empty() {
            state.attached.insert(volume.volume_id.clone(), nodes);
        }
        let name = recorded_name(stack, &volume.volume_id)?;
        let bytes = volume.capacity_bytes;
        let made = Made { name, bytes, single_node: true, content: 0, source: None, by_hand: false, node: None };
        state.volumes.insert(volume.volume_id, made);
    }
    Ok(state)
}

/// The name a volume was made under; one that went meanwhile has none any more.
fn recorded_name(stack: &Stack, handle: &str) -> anyhow::Result<String> {
    let key = handle.split('.').nth(1).with_context(|| format!("{handle} is not a handle of our driver"))?;
    let file = stack.volume("pool").join("volumes").join(format!("{key}.json"));
    let record = match fs::read(&file) {
        Ok(record) => record,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let record: Value = serde_json::from_slice(&record).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(record["name"].as_str().unwrap_or_default().to_owned())
}

/// The loop devices of the pool's files, also of those that are deleted.
pub async fn loops(stack: &Stack) -> anyhow::Result<Vec<LoopDevice>> {
    let mut images = BTreeSet::new();
    for folder in ["volumes", "snapshots"] {
        let folder = stack.volume("pool").join(folder);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            // A file that goes meanwhile is nobody's image.
            if let Ok(data) = entry.and_then(|entry| entry.metadata()) {
                images.insert((data.dev(), data.ino()));
            }
        }
    }
    let here = stack.volume("pool").display().to_string();
    let mut loops = LinuxMounter.loops().await.context("cannot list loop devices")?;
    loops.retain(|device| {
        let FileId { device: number, inode } = device.image;
        let backing = device.backing.to_string_lossy();
        let of_pool = backing.starts_with(&here) || POOL_IN_CONTAINERS.iter().any(|pool| backing.starts_with(pool));
        images.contains(&(number, inode)) || of_pool && backing.ends_with(" (deleted)")
    });
    Ok(loops)
}

/// The PersistentVolume in `pods/UID/volumes/kubernetes.io~csi/NAME/mount`.
fn volume_of_pod_mount(target: &Path) -> Option<&str> {
    let mut parts = target.strip_prefix(ROOT).ok()?.iter().map(|part| part.to_str());
    match (parts.next()??, parts.nth(1)??, parts.next()??, parts.next()??, parts.next()??) {
        ("pods", "volumes", names::CSI_PLUGIN_DIR, volume, "mount") => Some(volume),
        _ => None,
    }
}

async fn all<T: DeserializeOwned>(stack: &Stack, kind: Kind) -> anyhow::Result<Vec<T>> {
    let objects = stack.api.list(kind).await?;
    let read = |object| serde_json::from_value(object).with_context(|| format!("cannot read a {}", kind.kind));
    objects.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_of_a_pods_mount_is_in_its_path() {
        let target = Path::new("/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(volume_of_pod_mount(target), Some("pvc-1"));
        assert_eq!(volume_of_pod_mount(Path::new("/var/lib/kubelet/plugins/x")), None);
    }
}

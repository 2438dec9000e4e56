//! What must hold on a node at every moment, looked at again and again while a test does its worst: M1, M2 and R1 of the
//! design.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::statvfs::statvfs;
use serde_json::Value;
use stowage_model::Quantity;
use stowage_model::names;
use stowage_model::object::kinds;
use stowage_mount::{Host as _, LinuxMounter, Mount, MountTable, Mounter as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::api::Api;
use crate::stack::Place;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Somebody who looks until this is dropped.
pub struct Looks {
    seen: Arc<Seen>,
    _looking: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    count: Mutex<Count>,
    wrong: Mutex<BTreeSet<String>>,
}

/// How often somebody has looked, and what there was to see: looks at nothing prove nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub looks: usize,
    /// Mounts of volumes that a Node had to tell of.
    pub mounts: usize,
    /// File systems whose size was compared with their claims'.
    pub sizes: usize,
}

impl Looks {
    /// Begins to look at a node.
    pub fn begin(api: &Api, place: &Place, node: &'static str) -> Self {
        let seen = Arc::new(Seen::default());
        let mut looking = JoinSet::new();
        let (api, root, noted) = (api.clone(), place.node(node), Arc::clone(&seen));
        looking.spawn(async move {
            loop {
                let mut count = Count { looks: 1, ..Count::default() };
                let wrong = match look(&api, &root, node, &mut count).await {
                    Ok(wrong) => wrong,
                    Err(error) => vec![format!("cannot look: {error:#}")],
                };
                noted.wrong.lock().unwrap_or_else(PoisonError::into_inner).extend(wrong);
                noted.add(count);
                sleep(PAUSE).await;
            }
        });
        Self { seen, _looking: looking }
    }

    /// How much was looked at; fails with everything that was wrong.
    pub fn so_far(&self) -> anyhow::Result<Count> {
        let wrong = self.seen.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if !wrong.is_empty() {
            bail!("{}", wrong.iter().cloned().collect::<Vec<_>>().join("; "));
        }
        Ok(*self.seen.count.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Seen {
    fn add(&self, more: Count) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        count.looks += more.looks;
        count.mounts += more.mounts;
        count.sizes += more.sizes;
    }
}

async fn look(api: &Api, root: &Path, node: &str, count: &mut Count) -> anyhow::Result<Vec<String>> {
    let mut wrong = written_under_unmounted(root);
    // Sizes only grow, so what a claim says now must be there a moment later.
    let claims = api.list(kinds::CLAIM).await?;
    let volumes = api.list(kinds::VOLUME).await?;
    let before = table().await?;
    let node = api.get(kinds::NODE, node).await?;
    let after = table().await?;
    for volume in &volumes {
        let Some(of) = Volume::read(volume, root) else { continue };
        let stays: Vec<&Mount> =
            of.mounts(&before).filter(|mount| after.at(&mount.target).is_some_and(|now| now.id == mount.id)).collect();
        count.mounts += stays.len();
        // Mounted before and after the Node was read, so also meanwhile.
        let in_use = node.as_ref().is_some_and(|node| lists(&node["status"]["volumesInUse"], &of.unique_name));
        if let (Some(mount), false) = (stays.first(), in_use) {
            let at = mount.target.display();
            wrong.push(format!("M2: {} is mounted at {at} and the Node does not say so", of.unique_name));
        }
        let says = claims.iter().find(|claim| claim["spec"]["volumeName"] == *of.name).and_then(capacity);
        if let (Some(says), Some(mount)) = (says, stays.first())
            && let Some(has) = size(mount).await
        {
            count.sizes += 1;
            if says > i128::from(has) {
                wrong.push(format!("R1: the claim of {} says {says} bytes, there are {has}", of.name));
            }
        }
    }
    Ok(wrong)
}

async fn table() -> anyhow::Result<MountTable> {
    LinuxMounter.mounts().await.context("cannot read the mount table")
}

fn lists(list: &Value, name: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

fn capacity(claim: &Value) -> Option<i128> {
    let text = claim["status"]["capacity"]["storage"].as_str()?;
    text.parse::<Quantity>().ok().map(|quantity| quantity.bytes())
}

/// A volume, and where a node has it.
struct Volume<'a> {
    name: &'a str,
    unique_name: String,
    /// Directories of which all below are this volume's.
    places: [PathBuf; 4],
    pods: PathBuf,
}

impl<'a> Volume<'a> {
    fn read(volume: &'a Value, root: &Path) -> Option<Self> {
        let name = volume["metadata"]["name"].as_str()?;
        let (driver, handle) =
            (volume["spec"]["csi"]["driver"].as_str()?, volume["spec"]["csi"]["volumeHandle"].as_str()?);
        let devices = root.join("plugins/kubernetes.io/csi/volumeDevices");
        Some(Self {
            name,
            unique_name: names::csi_volume(driver, handle),
            places: [
                root.join(names::staging_dir(driver, handle)),
                root.join(names::block_staging_dir(name)),
                devices.join("publish").join(name),
                devices.join(name),
            ],
            pods: root.join("pods"),
        })
    }

    fn mounts<'b>(&'b self, table: &'b MountTable) -> impl Iterator<Item = &'b Mount> {
        table.iter().filter(|mount| {
            let target = &mount.target;
            let of_pod =
                target.starts_with(&self.pods) && target.components().any(|part| part.as_os_str() == self.name);
            of_pod || self.places.iter().any(|place| target.starts_with(place))
        })
    }
}

/// The size of what is mounted: the file system's by its own word, or the device's.
async fn size(mount: &Mount) -> Option<u64> {
    let device = Path::new(&mount.source);
    match mount.fs_type.as_str() {
        // Its superblock reaches the disk late. The kernel tells the size without the log, which never changes.
        "xfs" => {
            let told = statvfs(&mount.target).ok()?;
            let mut log = [0; 4];
            File::open(device).ok()?.read_exact_at(&mut log, 96).ok()?;
            Some((told.blocks() + u64::from(u32::from_be_bytes(log))) * told.fragment_size())
        }
        "ext4" | "btrfs" => LinuxMounter.filesystem_size(device).await.ok().flatten(),
        _ => None,
    }
}

/// Files in the directories on which volumes are mounted, while nothing is mounted there.
fn written_under_unmounted(root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let staged = folders(&root.join("plugins/kubernetes.io/csi"), 2).into_iter().map(|dir| dir.join("globalmount"));
    let pods = folders(&root.join("pods"), 1);
    let of_pods = pods.iter().flat_map(|pod| folders(&pod.join("volumes"), 2)).map(|dir| dir.join("mount"));
    for target in staged.chain(of_pods) {
        if let Some(entry) = entry_below(&target) {
            wrong.push(format!("M1: {} was written while nothing is mounted there", entry.display()));
        }
    }
    wrong
}

/// Something in a directory that is no mount point. A volume is never opened for this: that would keep it busy.
fn entry_below(target: &Path) -> Option<PathBuf> {
    let is_mounted =
        || Some(fs::symlink_metadata(target).ok()?.dev() != fs::symlink_metadata(target.parent()?).ok()?.dev());
    if is_mounted()? {
        return None;
    }
    let entry = fs::read_dir(target).ok()?.next()?.ok()?;
    (!is_mounted()?).then(|| entry.path())
}

/// Directories this deep below another; what is gone meanwhile is none.
fn folders(at: &Path, depth: usize) -> Vec<PathBuf> {
    if depth == 0 {
        return vec![at.to_owned()];
    }
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.flat_map(|dir| folders(&dir.path(), depth - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_under_a_target_that_is_not_mounted_is_seen_for_pods_and_for_the_node() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join(names::pod_mount("uid", "pv"));
        let staged = root.path().join(names::global_mount("driver", "handle"));
        for target in [&pod, &staged] {
            fs::create_dir_all(target).unwrap();
        }
        assert_eq!(written_under_unmounted(root.path()), Vec::<String>::new());
        for target in [&pod, &staged] {
            fs::write(target.join("file"), "").unwrap();
        }
        assert_eq!(written_under_unmounted(root.path()).len(), 2);
    }
}

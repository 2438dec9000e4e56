//! What a life must not leave behind, and how to remove it when it did.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::mount::{MntFlags, umount2};
use stowage_mount::{Host as _, LinuxMounter, LoopDevice, Mounter as _};
use tokio::time::{Instant, sleep};

use crate::disk;

/// The kernel lets go of a loop device when the last program that looks at it closes it, and a volume manager that met one
/// in use tries again after up to 122 s.
const SETTLE: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_millis(50);

/// Waits until nothing of any volume or snapshot is left below the root: no mount, loop device, image, record or pod
/// directory.
pub async fn none(root: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let found = of_volumes(root).await?;
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("left behind after {} s: {}", SETTLE.as_secs(), found.join(", "));
        }
        sleep(LOOK).await;
    }
}

/// The sockets below the root.
pub fn sockets(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    walk(root, &mut |path, kind| {
        if kind.is_socket() {
            found.push(path.to_owned());
        }
    })?;
    Ok(found)
}

/// What is there of volumes and snapshots: mounts, loop devices, images, records and pod directories. The disks of pools
/// are not theirs.
pub async fn of_volumes(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut pools = vec![root.join("pool")];
    pools.extend(entries(&root.join("nodes"))?.iter().map(|node| node.join("pool")));
    let table = LinuxMounter.mounts().await.context("cannot read the mount table")?;
    for mount in table.under(root).filter(|mount| !pools.contains(&mount.target)) {
        found.push(format!("mount {}", mount.target.display()));
    }
    let disks = disk::folder(root);
    for device in loops(root).await?.into_iter().filter(|device| !device.backing.starts_with(&disks)) {
        found.push(format!("loop device {} of {}", device.path.display(), device.backing.display()));
    }
    let mut folders: Vec<PathBuf> =
        pools.iter().flat_map(|pool| ["volumes", "snapshots", "groups"].map(|folder| pool.join(folder))).collect();
    for node in entries(&root.join("nodes"))? {
        folders.push(node.join("plugins"));
        let pods = entries(&node.join("pods"))?;
        found.extend(pods.iter().map(|pod| format!("pod directory {}", pod.display())));
    }
    for folder in folders {
        walk(&folder, &mut |path, kind| {
            if !kind.is_dir() {
                found.push(format!("file {}", path.display()));
            }
        })?;
    }
    Ok(found)
}

async fn loops(root: &Path) -> anyhow::Result<Vec<LoopDevice>> {
    let mut loops = LinuxMounter.loops().await.context("cannot list loop devices")?;
    loops.retain(|device| device.backing.starts_with(root));
    Ok(loops)
}

/// Removes every mount and loop device below the root, for a test that may have failed half-way.
pub async fn sweep(root: &Path) -> anyhow::Result<()> {
    // Found before: without its pool's disk mounted an image has no path that would tell whose it is.
    let mut devices = loops(root).await.unwrap_or_default();
    let disks = disk::folder(root);
    // These go with their mounts.
    devices.retain(|device| !device.backing.starts_with(&disks));
    let table = LinuxMounter.mounts().await.context("cannot read the mount table")?;
    let mut mounts: Vec<_> = table.under(root).map(|mount| (mount.id, mount.target.clone())).collect();
    // Later mounts lie on top of earlier ones.
    mounts.sort_by(|a, b| b.cmp(a));
    for (_, target) in mounts {
        umount2(&target, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", target.display()))?;
    }
    for device in devices {
        LinuxMounter.detach_loop(&device).await.context("cannot detach a loop device")?;
    }
    Ok(())
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path, fs::FileType)) -> anyhow::Result<()> {
    for path in entries(folder)? {
        match fs::symlink_metadata(&path) {
            Ok(info) => {
                visit(&path, info.file_type());
                if info.is_dir() {
                    walk(&path, visit)?;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| Ok(entry.with_context(|| format!("cannot list {}", folder.display()))?.path()))
            .collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("cannot list {}", folder.display())),
    }
}

//! `stowage clean`: removes what a killed run left of mounts, loop devices and sockets. Volumes and objects stay.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use stowage_mount::{Host as _, LinuxMounter, Mounter as _};

use crate::root::Root;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Mount points, in the order they were unmounted.
    pub mounts: Vec<PathBuf>,
    /// Loop devices.
    pub loops: Vec<PathBuf>,
    /// Sockets.
    pub sockets: Vec<PathBuf>,
}

/// Cleans the root and tells what was removed.
pub async fn run(root: &Path) -> anyhow::Result<()> {
    let root = Root::take(root)?;
    let removed = sweep(&root).await?;
    for path in removed.mounts.iter().chain(&removed.loops).chain(&removed.sockets) {
        println!("removed {}", path.display());
    }
    println!(
        "{} mounts, {} loop devices and {} sockets removed; volumes and objects in {} are kept",
        removed.mounts.len(),
        removed.loops.len(),
        removed.sockets.len(),
        root.path().display()
    );
    Ok(())
}

/// Removes what no process of ours can be using: the root's lock is ours.
pub async fn sweep(root: &Root) -> anyhow::Result<Removed> {
    let host = LinuxMounter;
    let mut removed = Removed::default();
    let table = host.mounts().await.context("cannot read the mount table")?;
    let mut mounts: Vec<(u32, PathBuf)> =
        table.under(root.path()).map(|mount| (mount.id, mount.target.clone())).collect();
    // Later mounts lie on top of earlier ones.
    mounts.sort_by(|a, b| b.cmp(a));
    for (_, target) in mounts {
        host.unmount(&target)
            .await
            .with_context(|| format!("cannot unmount {}; see who uses it with `fuser -m`", target.display()))?;
        removed.mounts.push(target);
    }
    let files = files_below(root.path())?;
    for device in host.loops().await.context("cannot list loop devices")? {
        if device.backing.starts_with(root.path()) {
            host.detach_loop(&device)
                .await
                .with_context(|| format!("cannot detach {}", device.path.display()))?;
            removed.loops.push(device.path);
        }
    }
    for file in files {
        let is_socket = fs::symlink_metadata(&file).is_ok_and(|info| info.file_type().is_socket());
        if is_socket {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
            removed.sockets.push(file);
        }
    }
    Ok(removed)
}

fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let kind = entry.file_type().with_context(|| format!("cannot look at {}", entry.path().display()))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

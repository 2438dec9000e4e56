//! `stowage clean`: removes what a killed run left of mounts, loop devices and sockets. Volumes and objects stay.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

use stowage_mount::{Host as _, LinuxMounter, LoopDevice, Mounter as _};

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
    let mut removed = Removed { mounts: unmount_below(root.path()).await?, ..Removed::default() };
    let files = files_below(root.path())?;
    for device in LinuxMounter.loops().await.context("cannot list loop devices")? {
        if device.backing.starts_with(root.path()) {
            removed.loops.push(detach(&device).await?);
        }
    }
    removed.sockets = remove_sockets(files)?;
    Ok(removed)
}

/// The same for the directories of nodes that are not among `nodes`. What those have mounted stays, for they take it over.
pub async fn sweep_other_nodes(root: &Root, nodes: &[String]) -> anyhow::Result<(Vec<String>, Removed)> {
    let mut removed = Removed::default();
    let mut others = root.nodes()?;
    others.retain(|node| !nodes.contains(node));
    for node in &others {
        let folder = root.node(node);
        removed.mounts.extend(unmount_below(&folder).await?);
        removed.sockets.extend(remove_sockets(files_below(&folder)?)?);
    }
    if !others.is_empty() {
        // Images are in the pool that all nodes share, so whose a device is shows only in what is mounted.
        let table = LinuxMounter.mounts().await.context("cannot read the mount table")?;
        for device in LinuxMounter.loops().await.context("cannot list loop devices")? {
            let mut mounts = table.under(Path::new("/"));
            let used = mounts.any(|mount| mount.device == device.number || Path::new(&mount.source) == device.path);
            if device.backing.starts_with(root.path()) && !used {
                removed.loops.push(detach(&device).await?);
            }
        }
    }
    Ok((others, removed))
}

/// Fails, naming it, if anything is mounted below the path or a loop device serves a file there.
pub async fn nothing_left(root: &Path) -> anyhow::Result<()> {
    let way_out = || format!("`stowage clean --root {}` removes it", root.display());
    let table = LinuxMounter.mounts().await.context("cannot read the mount table")?;
    if let Some(mount) = table.under(root).next() {
        bail!("{} is still mounted; {}", mount.target.display(), way_out());
    }
    for device in LinuxMounter.loops().await.context("cannot list loop devices")? {
        ensure!(!device.backing.starts_with(root), "{} is still attached; {}", device.path.display(), way_out());
    }
    Ok(())
}

async fn unmount_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let table = LinuxMounter.mounts().await.context("cannot read the mount table")?;
    let mut mounts: Vec<(u32, PathBuf)> = table.under(folder).map(|mount| (mount.id, mount.target.clone())).collect();
    // Later mounts lie on top of earlier ones.
    mounts.sort_by(|a, b| b.cmp(a));
    for (_, target) in &mounts {
        let unmounted = LinuxMounter.unmount(target).await;
        unmounted.with_context(|| format!("cannot unmount {}; see who uses it with `fuser -m`", target.display()))?;
    }
    Ok(mounts.into_iter().map(|(_, target)| target).collect())
}

async fn detach(device: &LoopDevice) -> anyhow::Result<PathBuf> {
    let detached = LinuxMounter.detach_loop(device).await;
    detached.with_context(|| format!("cannot detach {}", device.path.display()))?;
    Ok(device.path.clone())
}

fn remove_sockets(files: Vec<PathBuf>) -> anyhow::Result<Vec<PathBuf>> {
    let is_socket = |file: &PathBuf| fs::symlink_metadata(file).is_ok_and(|info| info.file_type().is_socket());
    let sockets: Vec<PathBuf> = files.into_iter().filter(is_socket).collect();
    for socket in &sockets {
        fs::remove_file(socket).with_context(|| format!("cannot remove {}", socket.display()))?;
    }
    Ok(sockets)
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

#[cfg(test)]
mod tests {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Runs a test on a thread whose mounts nobody else sees; they vanish with the thread, whatever happens.
    fn in_own_namespace<F: Future<Output = ()>>(test: impl FnOnce(Root) -> F + Send + 'static) {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: mounts need root");
            return;
        }
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            let folder = tempfile::tempdir_in("/tmp").unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(test(Root::take(folder.path()).unwrap()));
            // What is mounted here must not be searched when the folder is removed.
            runtime.block_on(unmount_below(folder.path())).unwrap();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn mounted(root: &Root, node: &str) -> PathBuf {
        let target = root.node(node).join("pods/uid/mount");
        fs::create_dir_all(&target).unwrap();
        mount(Some("none"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        target
    }

    /// `up --nodes 2`, killed, then `up --nodes 1`: nobody looked after the second node, and the end said all was gone.
    #[test]
    fn what_a_node_of_an_earlier_run_left_is_removed_and_the_others_keep_theirs() {
        in_own_namespace(async |root| {
            let (kept, gone) = (mounted(&root, "node-1"), mounted(&root, "node-2"));
            let (others, removed) = sweep_other_nodes(&root, &["node-1".to_owned()]).await.unwrap();
            assert_eq!(others, ["node-2"]);
            assert_eq!(removed.mounts, [gone]);
            let error = nothing_left(root.path()).await.unwrap_err().to_string();
            assert!(error.contains(kept.to_str().unwrap()) && error.contains("stowage clean"), "{error}");
            assert_eq!(sweep(&root).await.unwrap().mounts, [kept]);
            nothing_left(root.path()).await.unwrap();
        });
    }

    #[tokio::test]
    async fn a_new_root_has_no_nodes_of_an_earlier_run() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let root = Root::take(folder.path()).unwrap();
        let swept = sweep_other_nodes(&root, &[]).await.unwrap();
        assert_eq!(swept, (Vec::new(), Removed::default()));
    }
}

//! Where a run takes place: one at a time, on a machine that is clean before and after it.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};
use stowage_mount::{Host as _, LinuxMounter, MountTable};

use crate::compose::Compose;
use crate::engine::Engine;
use crate::stack::Stack;

const LOCK: &str = "/tmp/stowage-containers.lock";

/// Runs a test on a stack of its own, if there is an engine with our images; else says in one line what is missing.
pub fn with_stack(test: impl AsyncFnOnce(&Stack) -> anyhow::Result<()>) -> anyhow::Result<()> {
    with_stack_of(Compose::shipped()?, test)
}

/// The same with another description of the services than the shipped one.
pub fn with_stack_of(compose: Compose, test: impl AsyncFnOnce(&Stack) -> anyhow::Result<()>) -> anyhow::Result<()> {
    with_engine(async |engine| {
        let stack = Stack::start(&engine, compose).await?;
        let outcome = test(&stack).await;
        if outcome.is_err() {
            stack.print_logs().await;
        }
        let removed = stack.remove().await;
        outcome.and(removed)
    })
}

/// Runs a test that makes its own containers.
pub fn with_engine(test: impl AsyncFnOnce(Engine) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start tokio")?;
    runtime.block_on(async {
        let mut images: Vec<String> = Compose::shipped()?.services.into_values().map(|spec| spec.image).collect();
        images.sort();
        images.dedup();
        let Some(engine) = Engine::find(&images).await? else { return Ok(()) };
        let file = File::create(LOCK).with_context(|| format!("cannot create {LOCK}"))?;
        // The names of nodes and the loop devices of one kernel: two runs would see each other's.
        let _turn = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).context("cannot lock")?;
        clean(&engine).await.context("cannot remove what an earlier run left")?;
        let outcome = test(engine.clone()).await;
        let cleaned = clean(&engine).await;
        outcome.and(cleaned)
    })
}

/// Removes everything that runs have left, in the order in which it lets go: processes, mounts, devices, directories.
async fn clean(engine: &Engine) -> anyhow::Result<()> {
    engine.remove_containers().await?;
    for volume in engine.volumes().await? {
        let path = engine.volume_path(&volume);
        unmount_below(Path::new(&path))?;
        detach_below(Path::new(&path)).await?;
    }
    engine.remove_all().await
}

/// Unmounts everything at or below a directory.
pub fn unmount_below(folder: &Path) -> anyhow::Result<()> {
    let table = MountTable::read().context("cannot read the mount table")?;
    let mut mounts: Vec<_> = table.under(folder).map(|mount| (mount.id, mount.target.clone())).collect();
    // Later mounts lie on top of earlier ones.
    mounts.sort_by(|a, b| b.cmp(a));
    for (_, target) in mounts {
        umount2(&target, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", target.display()))?;
    }
    Ok(())
}

async fn detach_below(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let volumes = folder.join("volumes");
    let Ok(entries) = std::fs::read_dir(&volumes) else { return Ok(()) };
    let images: Vec<(u64, u64)> =
        entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|data| (data.dev(), data.ino())).collect();
    for device in LinuxMounter.loops().await.context("cannot list loop devices")? {
        if images.contains(&(device.image.device, device.image.inode)) {
            LinuxMounter.detach_loop(&device).await.context("cannot detach a loop device")?;
        }
    }
    Ok(())
}

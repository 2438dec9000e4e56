//! A pool's own disk: a file system that shares blocks, without which no volume in use can be copied.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tokio::time::{Instant, sleep};

/// Sparse, and enough for what all copies of a test are promised.
pub const LARGE: u64 = 4 << 30;
/// Below the root, beside the pools.
const FOLDER: &str = "disks";
/// A process that another test starts has a copy of all open files until it executes its program.
const BUSY: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// A mounted disk.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Makes a file system and mounts it; its loop device goes with the mount.
    pub fn mount(root: &Path, name: &str, at: &Path) -> anyhow::Result<Self> {
        Self::mount_of(LARGE, root, name, at)
    }

    /// The same with so many bytes.
    pub fn mount_of(bytes: u64, root: &Path, name: &str, at: &Path) -> anyhow::Result<Self> {
        let folder = folder(root);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let image = folder.join(name);
        let file = File::create_new(&image).with_context(|| format!("cannot create {}", image.display()))?;
        file.set_len(bytes).with_context(|| format!("cannot size {}", image.display()))?;
        run(Command::new("mkfs.xfs").arg("-q").arg(&image)).context("xfsprogs is needed")?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }

    /// Unmounts it, which fails while anything in it is used.
    pub async fn unmount(self) -> anyhow::Result<()> {
        let deadline = Instant::now() + BUSY;
        loop {
            match umount2(&self.at, MntFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(Errno::EBUSY) if Instant::now() < deadline => sleep(LOOK).await,
                Err(error) => bail!("cannot unmount {}: {error}", self.at.display()),
            }
        }
    }
}

/// Where the images of disks are.
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join(FOLDER)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

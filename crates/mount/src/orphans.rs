//! What pods that are gone left behind, and who keeps it from going.

mod holders;
mod remove;

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::linux::blocking;
use crate::{Counting, DeviceNumber, LinuxMounter, Result};

/// What somebody may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// The topmost mount at a path.
    Mount(PathBuf),
    /// A device: its node, or any mount of it.
    Device(DeviceNumber),
    /// The same, by the path of its node.
    DeviceNode(PathBuf),
}

/// How a process holds something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// It has a file open, which it calls so.
    File(PathBuf),
    /// Its working directory is there.
    WorkingDirectory,
    /// Its root directory is there.
    Root,
    /// It runs a program from there, or has mapped a file.
    Mapping(PathBuf),
    /// It has the same mounted in a mount namespace of its own.
    Namespace(PathBuf),
}

/// A process that holds something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name, as the kernel knows it.
    pub name: String,
    /// How it holds it.
    pub how: Hold,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {}) ", self.name, self.pid)?;
        match &self.how {
            Hold::File(path) => write!(f, "has {} open", path.display()),
            Hold::WorkingDirectory => f.write_str("works there"),
            Hold::Root => f.write_str("has its root there"),
            Hold::Mapping(path) => write!(f, "has {} in its memory", path.display()),
            Hold::Namespace(path) => write!(f, "has it mounted at {} in its own mount namespace", path.display()),
        }
    }
}

/// Who holds something; one entry for each process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// Those that were found, by their numbers.
    pub found: Vec<Holder>,
    /// Whether all processes were looked at: not if there are very many of them or of their files.
    pub complete: bool,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, holder) in self.found.iter().enumerate() {
            write!(f, "{}{holder}", if index == 0 { "" } else { ", " })?;
        }
        match (self.found.is_empty(), self.complete) {
            (true, true) => f.write_str("no process that can be seen from here"),
            (true, false) => f.write_str("nobody among the processes that were looked at"),
            (false, true) => Ok(()),
            (false, false) => f.write_str(" and maybe others"),
        }
    }
}

/// The part of the port that cleans up after pods that nobody knows any more.
#[async_trait]
pub trait Orphans: Send + Sync {
    /// Removes the directory of a pod that has no volumes any more. Refuses one that is or holds a mount, and one in whose
    /// `volumes` there is anything but empty directories of volumes; contents of volumes are never removed and no
    /// link is followed.
    async fn remove_orphan(&self, pod: &Path) -> Result<()>;

    /// Who holds a mount or device that does not go; bounded in time and in what it tells.
    async fn holders(&self, held: &Held) -> Result<Holders>;
}

#[async_trait]
impl Orphans for LinuxMounter {
    async fn remove_orphan(&self, pod: &Path) -> Result<()> {
        let pod = pod.to_owned();
        blocking(move || remove::remove(&pod)).await
    }

    async fn holders(&self, held: &Held) -> Result<Holders> {
        let held = held.clone();
        blocking(move || holders::find(&held)).await
    }
}

#[async_trait]
impl Orphans for Counting {
    async fn remove_orphan(&self, pod: &Path) -> Result<()> {
        self.change("remove_orphan", pod, self.inner().remove_orphan(pod)).await
    }

    async fn holders(&self, held: &Held) -> Result<Holders> {
        self.look()?.holders(held).await
    }
}

//! How much a plain directory holds, counted at a pace that leaves the disk to others.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;

use crate::files::failed;
use crate::linux::blocking;
use crate::patience::{Waiter, Waiting};
use crate::walk::{self, About, Visitor, about_open};
use crate::{Counting, LinuxMounter, Result, quota};

/// What a directory holds, itself included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    /// The bytes its files occupy on the disk; a file of several names counts once.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// The part of the port that counts files.
#[async_trait]
pub trait Measures: Send + Sync {
    /// What a directory holds; no link is followed and nothing that is mounted in it counts. Looks at no more than
    /// `entries_per_second`, if that is not 0. Ends when the answer is no longer waited for.
    async fn disk_usage(&self, path: &Path, entries_per_second: u32) -> Result<DiskUsage>;

    /// The same without looking at any file, where the file system counts for the project of a directory (xfs and ext4 with
    /// project quotas); `None` where it does not.
    async fn project_usage(&self, path: &Path) -> Result<Option<DiskUsage>>;
}

#[async_trait]
impl Measures for LinuxMounter {
    async fn disk_usage(&self, path: &Path, entries_per_second: u32) -> Result<DiskUsage> {
        let (_waiter, waiting) = Waiter::new();
        let path = path.to_owned();
        blocking(move || measure(&path, entries_per_second, &waiting)).await
    }

    async fn project_usage(&self, path: &Path) -> Result<Option<DiskUsage>> {
        let path = path.to_owned();
        blocking(move || quota::project_usage(&path)).await
    }
}

#[async_trait]
impl Measures for Counting {
    async fn disk_usage(&self, path: &Path, entries_per_second: u32) -> Result<DiskUsage> {
        self.look()?.disk_usage(path, entries_per_second).await
    }

    async fn project_usage(&self, path: &Path) -> Result<Option<DiskUsage>> {
        self.look()?.project_usage(path).await
    }
}

fn measure(path: &Path, entries_per_second: u32, waiting: &Waiting) -> Result<DiskUsage> {
    let open = || -> io::Result<_> {
        let top = openat(AT_FDCWD, path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let seen = about_open(top.as_fd())?;
        Ok((top, seen))
    };
    let (top, seen) = open().map_err(failed("look at", path))?;
    let mut counter = Counter {
        total: DiskUsage::default(),
        several_names: HashSet::new(),
        pace: Pace { entries_per_second, looked_at: 0, begun: Instant::now() },
        waiting,
    };
    match seen.is_dir() {
        true => walk::walk(path, top.as_fd(), &mut counter)?,
        false => counter.add(&seen),
    }
    Ok(counter.total)
}

struct Counter<'a> {
    total: DiskUsage,
    several_names: HashSet<(u64, (u32, u32))>,
    pace: Pace,
    waiting: &'a Waiting,
}

impl Counter<'_> {
    fn add(&mut self, about: &About) {
        if about.links > 1 && !about.is_dir() && !self.several_names.insert((about.inode, about.device)) {
            return;
        }
        self.total.bytes += about.blocks * 512;
        self.total.inodes += 1;
    }
}

impl Visitor for Counter<'_> {
    fn proceed(&mut self) -> Result<()> {
        self.waiting.check()?;
        match self.pace.ahead() {
            Some(time) => self.waiting.rest(time),
            None => Ok(()),
        }
    }

    fn entry(&mut self, _: BorrowedFd<'_>, _: &OsStr, about: &About) -> io::Result<()> {
        self.add(about);
        Ok(())
    }

    fn directory(&mut self, directory: BorrowedFd<'_>) -> io::Result<()> {
        self.add(&about_open(directory)?);
        Ok(())
    }
}

struct Pace {
    entries_per_second: u32,
    looked_at: u64,
    begun: Instant,
}

impl Pace {
    /// Some entries at once cost less than a rest after each.
    const AT_ONCE: u64 = 128;

    /// How long to rest before the next entry.
    fn ahead(&mut self) -> Option<Duration> {
        self.looked_at += 1;
        if self.entries_per_second == 0
            || !self.looked_at.is_multiple_of(Self::AT_ONCE.min(self.entries_per_second.into()))
        {
            return None;
        }
        let due = Duration::from_secs_f64(self.looked_at as f64 / f64::from(self.entries_per_second));
        Some(due.saturating_sub(self.begun.elapsed())).filter(|time| !time.is_zero())
    }
}

//! Block devices that pods have: who has them open, and the loop devices that keep them open.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use async_trait::async_trait;
use nix::libc;

use crate::files::{self, failed, unless_missing};
use crate::linux::blocking;
use crate::{Counting, LinuxMounter, LoopDevice, LoopOptions, MAX_TAG, Result, loopback};

/// The part of the port that is about devices as pods have them.
///
/// A lock is a loop device on the file to which a device is bound (`dev/<pod uid>`), as the kubelet makes one with losetup:
/// it keeps the device open, so that its name cannot come to stand for another one. Either finds the other's.
#[async_trait]
pub trait Devices: Send + Sync {
    /// Locks a file to which a device is bound; the lock that it has, if it has one.
    async fn lock_device(&self, file: &Path) -> Result<LoopDevice>;

    /// The lock of such a file.
    async fn device_lock(&self, file: &Path) -> Result<Option<LoopDevice>>;

    /// Takes the lock of such a file away; succeeds if it has none.
    async fn unlock_device(&self, file: &Path) -> Result<()>;

    /// Whether somebody has a block device for himself: it is mounted, or a part of something else. What is missing or no
    /// block device is not.
    async fn is_device_in_use(&self, device: &Path) -> Result<bool>;
}

#[async_trait]
impl Devices for LinuxMounter {
    async fn lock_device(&self, file: &Path) -> Result<LoopDevice> {
        let file = file.to_owned();
        blocking(move || lock(&file)).await
    }

    async fn device_lock(&self, file: &Path) -> Result<Option<LoopDevice>> {
        let file = file.to_owned();
        blocking(move || find(&file)).await
    }

    async fn unlock_device(&self, file: &Path) -> Result<()> {
        let file = file.to_owned();
        blocking(move || find(&file)?.map_or(Ok(()), |lock| loopback::detach(&lock))).await
    }

    async fn is_device_in_use(&self, device: &Path) -> Result<bool> {
        let device = device.to_owned();
        blocking(move || is_in_use(&device)).await
    }
}

#[async_trait]
impl Devices for Counting {
    async fn lock_device(&self, file: &Path) -> Result<LoopDevice> {
        self.change("lock_device", file, self.inner().lock_device(file)).await
    }

    async fn device_lock(&self, file: &Path) -> Result<Option<LoopDevice>> {
        self.look()?.device_lock(file).await
    }

    async fn unlock_device(&self, file: &Path) -> Result<()> {
        self.change("unlock_device", file, self.inner().unlock_device(file)).await
    }

    async fn is_device_in_use(&self, device: &Path) -> Result<bool> {
        self.look()?.is_device_in_use(device).await
    }
}

fn lock(file: &Path) -> Result<LoopDevice> {
    if let Some(found) = find(file)? {
        return Ok(found);
    }
    // The sector size of what is locked, and read-only: nobody is to write through it.
    let options = LoopOptions { read_only: true, direct_io: false, discard: true, sector_bytes: 0 };
    // Where losetup has the file's name, cut to what fits.
    let name = file.to_string_lossy();
    let end = (0..=MAX_TAG.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
    loopback::attach(file, &name[..end], options)
}

fn find(file: &Path) -> Result<Option<LoopDevice>> {
    let Some(file) = files::resolve(file)? else { return Ok(None) };
    Ok(loopback::list()?.into_iter().find(|device| device.backing == file))
}

fn is_in_use(device: &Path) -> Result<bool> {
    let open = |flags: i32| OpenOptions::new().read(true).custom_flags(flags | libc::O_NONBLOCK).open(device);
    let about = unless_missing(std::fs::metadata(device)).map_err(failed("look at", device))?;
    if !about.is_some_and(|about| about.file_type().is_block_device()) {
        return Ok(false);
    }
    match open(libc::O_EXCL) {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM)) => Ok(false),
        Err(error) => Err(failed("open", device)(error)),
    }
}

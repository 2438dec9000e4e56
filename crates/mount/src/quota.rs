//! What a file system with project quotas has counted already.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::{ioctl_read, libc};

use crate::files::{self, failed};
use crate::{DiskUsage, MountTable, Result};

/// The third sort of quota, after users' and groups'.
const PROJECT: libc::c_int = 2;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    reserved: [u8; 8],
}

ioctl_read!(get_attributes, b'X', 31, Attributes);

// The kernel's size on every architecture; a wrong layout does not compile.
const _: () = assert!(size_of::<Attributes>() == 28);

/// What belongs to the project of a directory; `None` if it has none, or nobody counts.
pub(crate) fn project_usage(path: &Path) -> Result<Option<DiskUsage>> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed("open", path))?;
    let Some(project) = project_of(&directory).map_err(failed("ask for the project of", path))? else {
        return Ok(None);
    };
    let Some(path) = files::resolve(path)? else { return Ok(None) };
    let table = MountTable::read()?;
    let Some(mount) = table.holding(&path) else { return Ok(None) };
    usage_of(&mount.source, project).map_err(failed("ask for the quota of", &path))
}

fn project_of(directory: &File) -> io::Result<Option<u32>> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes one `fsxattr`, which is exactly what `attributes` is; the descriptor is open.
    match unsafe { get_attributes(directory.as_raw_fd(), &mut attributes) } {
        Ok(_) => Ok(Some(attributes.project).filter(|project| *project != 0)),
        // Not every file system has such a thing.
        Err(nix::errno::Errno::ENOTTY | nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::EINVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn usage_of(device: &str, project: u32) -> io::Result<Option<DiskUsage>> {
    let device = CString::new(device)?;
    let command = libc::QCMD(libc::Q_GETQUOTA, PROJECT);
    let mut quota = MaybeUninit::<libc::dqblk>::zeroed();
    // SAFETY: the name is NUL-terminated and outlives the call, which writes one `dqblk` at most.
    let code = unsafe { libc::quotactl(command, device.as_ptr(), project as libc::c_int, quota.as_mut_ptr().cast()) };
    if code == 0 {
        // SAFETY: all-zero is a valid `dqblk`, and the call has filled it.
        let quota = unsafe { quota.assume_init() };
        return Ok(Some(DiskUsage { bytes: quota.dqb_curspace, inodes: quota.dqb_curinodes }));
    }
    let error = io::Error::last_os_error();
    // No quotas in this kernel, not on this file system, or not on a device.
    let none = [libc::ENOSYS, libc::ESRCH, libc::ENOTBLK, libc::ENOENT, libc::EINVAL, libc::ENODEV, libc::EOPNOTSUPP];
    match error.raw_os_error() {
        Some(code) if none.contains(&code) => Ok(None),
        _ => Err(error),
    }
}

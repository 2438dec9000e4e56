//! Which device a btrfs is on: its files have numbers of their own instead of the device's.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::{ioctl_read, ioctl_readwrite, libc};

use crate::files::failed;
use crate::{DeviceNumber, Result, Target};

/// `struct btrfs_ioctl_dev_info_args` of the kernel's `linux/btrfs.h`.
#[repr(C)]
struct DeviceInfo {
    id: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    total_bytes: u64,
    unused: [u64; 379],
    path: [u8; 1024],
}

const _: () = assert!(size_of::<DeviceInfo>() == 4096);

ioctl_readwrite!(btrfs_ioc_dev_info, 0x94, 30, DeviceInfo);

/// `struct btrfs_ioctl_fs_info_args` of the same.
#[repr(C)]
struct FileSystemInfo {
    max_id: u64,
    devices: u64,
    id: [u8; 16],
    rest: [u64; 124],
}

const _: () = assert!(size_of::<FileSystemInfo>() == 1024);

ioctl_read!(btrfs_ioc_fs_info, 0x94, 31, FileSystemInfo);

/// The first device has this number; a volume has no other.
const FIRST: u64 = 1;

pub(crate) fn device(mounted: &Target) -> Result<Option<DeviceNumber>> {
    let ask = || -> io::Result<Option<DeviceNumber>> {
        let directory = mounted.open_directory()?;
        let (uuid, unused, path) = ([0; 16], [0; 379], [0; 1024]);
        let mut info = DeviceInfo { id: FIRST, uuid, bytes_used: 0, total_bytes: 0, unused, path };
        // SAFETY: the descriptor is open, and `info` has the kernel's layout, for the length of the call.
        match unsafe { btrfs_ioc_dev_info(directory.as_raw_fd(), &raw mut info) } {
            Ok(_) => {}
            Err(Errno::ENOTTY | Errno::ENODEV | Errno::EINVAL) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let name = info.path.split(|byte| *byte == 0).next().unwrap_or_default();
        // As whoever mounted it called it: there may be no such name here.
        Ok(fs::metadata(OsStr::from_bytes(name))
            .ok()
            .filter(|node| node.file_type().is_block_device())
            .map(|node| DeviceNumber { major: libc::major(node.rdev()), minor: libc::minor(node.rdev()) }))
    };
    ask().map_err(failed("ask for the device of", mounted.path()))
}

/// Whatever else a file system answers to a question it does not know, it is no btrfs.
pub(crate) fn id(directory: &Path) -> Result<Option<[u8; 16]>> {
    let open = File::open(directory).map_err(failed("ask for the file system of", directory))?;
    let mut info = FileSystemInfo { max_id: 0, devices: 0, id: [0; 16], rest: [0; 124] };
    // SAFETY: the descriptor is open, and `info` has the kernel's layout, for the length of the call.
    let answer = unsafe { btrfs_ioc_fs_info(open.as_raw_fd(), &raw mut info) };
    Ok(answer.ok().map(|_| info.id))
}

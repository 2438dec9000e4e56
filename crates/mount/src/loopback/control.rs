//! The loop driver's ioctl calls, as in the kernel's `linux/loop.h`.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::{Result, ioctl_none_bad, ioctl_read_bad, ioctl_write_int_bad, ioctl_write_ptr_bad, libc};

use super::LoopOptions;

pub(super) const NAME: usize = 64;
pub(super) const READ_ONLY: u32 = 1;
pub(super) const AUTOCLEAR: u32 = 4;
pub(super) const DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Status {
    pub device: u64,
    pub inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub flags: u32,
    file_name: [u8; NAME],
    crypt_name: [u8; NAME],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Status,
    reserved: [u64; 8],
}

impl Status {
    const ZERO: Status = Status {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; NAME],
        crypt_name: [0; NAME],
        encrypt_key: [0; 32],
        init: [0; 2],
    };

    pub(super) fn tag(&self) -> String {
        let end = self.file_name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        String::from_utf8_lossy(&self.file_name[..end]).into_owned()
    }
}

ioctl_write_int_bad!(loop_ctl_add, 0x4C80);
ioctl_write_int_bad!(loop_ctl_remove, 0x4C81);
ioctl_none_bad!(loop_ctl_get_free, 0x4C82);
ioctl_none_bad!(loop_clr_fd, 0x4C01);
ioctl_none_bad!(loop_set_capacity, 0x4C07);
ioctl_read_bad!(loop_get_status64, 0x4C05, Status);
ioctl_write_ptr_bad!(loop_configure, 0x4C0A, Config);

pub(super) fn find_free(control: &File) -> Result<u32> {
    // SAFETY: the call takes no argument; the descriptor is open.
    unsafe { loop_ctl_get_free(control.as_raw_fd()) }.map(|index| index as u32)
}

/// A device that was not there before.
pub(super) fn add(control: &File) -> Result<u32> {
    const ANY: libc::c_int = -1;
    // SAFETY: the argument is a number; the descriptor is open.
    unsafe { loop_ctl_add(control.as_raw_fd(), ANY) }.map(|index| index as u32)
}

/// Removes a device that serves nothing and that nobody has open.
pub(super) fn remove(control: &File, index: u32) -> Result<()> {
    // SAFETY: the argument is a number; the descriptor is open.
    unsafe { loop_ctl_remove(control.as_raw_fd(), index as libc::c_int) }.map(drop)
}

/// With direct I/O the kernel falls back to cached I/O where the image's file system cannot.
/// Without the autoclear flag: the device stays until it is detached, so a crash of ours never cuts a mount off.
pub(super) fn configure(device: &File, image: &File, tag: &str, options: LoopOptions) -> Result<()> {
    let flag = |wanted: bool, flag: u32| if wanted { flag } else { 0 };
    let flags = flag(options.direct_io, DIRECT_IO) | flag(options.read_only, READ_ONLY);
    let mut info = Status { flags, ..Status::ZERO };
    info.file_name[..tag.len()].copy_from_slice(tag.as_bytes());
    let config = Config { fd: image.as_raw_fd() as u32, block_size: options.sector_bytes, info, reserved: [0; 8] };
    // SAFETY: `config` has the layout the kernel reads and outlives the call; both descriptors are open.
    unsafe { loop_configure(device.as_raw_fd(), &config) }.map(drop)
}

pub(super) fn status(device: &File) -> Result<Status> {
    let mut status = Status::ZERO;
    // SAFETY: the kernel writes one `loop_info64`, which is exactly what `status` is.
    unsafe { loop_get_status64(device.as_raw_fd(), &mut status) }?;
    Ok(status)
}

pub(super) fn clear(device: &File) -> Result<()> {
    // SAFETY: the call takes no argument; the descriptor is open.
    unsafe { loop_clr_fd(device.as_raw_fd()) }.map(drop)
}

pub(super) fn set_capacity(device: &File) -> Result<()> {
    // SAFETY: the call takes no argument; the descriptor is open.
    unsafe { loop_set_capacity(device.as_raw_fd()) }.map(drop)
}

// The kernel's sizes on every architecture; a wrong layout does not compile.
const _: () = assert!(size_of::<Status>() == 232 && size_of::<Config>() == 304);

//! What can be changed about a loop device while it is in use.
#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use nix::{ioctl_write_int_bad, libc};

use crate::files::failed;
use crate::{Error, LoopDevice, Result};

// `LOOP_SET_DIRECT_IO` of the kernel's `linux/loop.h`.
ioctl_write_int_bad!(loop_set_direct_io, 0x4C08);

pub(crate) fn read_ahead(device: &LoopDevice, kilobytes: u32) -> Result<()> {
    let path = PathBuf::from(format!("/sys/block/loop{}/queue/read_ahead_kb", device.number.minor));
    match fs::write(&path, kilobytes.to_string()) {
        // Where /sys is read-only (in a container that is not privileged) it stays as it is: slower, and no less right.
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => {
            Err(failed("write", &path)(error))
        }
        _ => Ok(()),
    }
}

pub(crate) fn direct_io(device: &LoopDevice, direct: bool) -> Result<()> {
    let set = || -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(&device.path)?;
        // SAFETY: the descriptor is open; the argument is a number.
        unsafe { loop_set_direct_io(file.as_raw_fd(), libc::c_int::from(direct)) }?;
        Ok(())
    };
    let failed = |source| Error::AccessLoop { action: "set direct I/O of", device: device.path.clone(), source };
    set().map_err(failed)
}

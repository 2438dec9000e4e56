//! Making a mounted file system stand still.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::{ioctl_readwrite, libc};

use crate::files::failed;
use crate::{Error, Place, Result, Target, place};

// `FIFREEZE` and `FITHAW` of the kernel's `linux/fs.h`; the argument is not used.
ioctl_readwrite!(fifreeze, b'X', 119, libc::c_int);
ioctl_readwrite!(fithaw, b'X', 120, libc::c_int);

/// Freezing another file system than the one that was seen could stop the whole machine.
fn open(target: &Target, seen: &Place) -> Result<File> {
    let file = target.open_directory().map_err(failed("open", target.path()))?;
    match place::of(file.as_fd()).map_err(failed("look at", target.path()))?.shows_the_same(seen) {
        true => Ok(file),
        false => Err(Error::Moved { path: target.path().into() }),
    }
}

pub(crate) fn freeze(target: &Target, seen: &Place) -> Result<()> {
    let file = open(target, seen)?;
    let mut unused = 0;
    // SAFETY: the descriptor is open, and the argument outlives the call.
    match unsafe { fifreeze(file.as_raw_fd(), &mut unused) } {
        Ok(_) => Ok(()),
        Err(errno) => Err(failed("freeze the file system at", target.path())(errno.into())),
    }
}

pub(crate) fn thaw(target: &Target, seen: &Place) -> Result<()> {
    let file = open(target, seen)?;
    let mut unused = 0;
    // SAFETY: the descriptor is open, and the argument outlives the call.
    match unsafe { fithaw(file.as_raw_fd(), &mut unused) } {
        // EINVAL: it was not frozen.
        Ok(_) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(failed("thaw the file system at", target.path())(errno.into())),
    }
}

pub(crate) fn flush(device: &Path) -> Result<()> {
    File::open(device).and_then(|file| file.sync_all()).map_err(failed("flush", device))
}

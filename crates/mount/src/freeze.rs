//! Making a mounted file system stand still.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::{ioctl_readwrite, libc};

use crate::Result;
use crate::files::failed;

// `FIFREEZE` and `FITHAW` of the kernel's `linux/fs.h`; the argument is not used.
ioctl_readwrite!(fifreeze, b'X', 119, libc::c_int);
ioctl_readwrite!(fithaw, b'X', 120, libc::c_int);

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)
}

pub(crate) fn freeze(mounted_at: &Path) -> Result<()> {
    let call = || -> io::Result<()> {
        let file = open(mounted_at)?;
        let mut unused = 0;
        // SAFETY: the descriptor is open, and the argument outlives the call.
        match unsafe { fifreeze(file.as_raw_fd(), &mut unused) } {
            Ok(_) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    };
    call().map_err(failed("freeze the file system at", mounted_at))
}

pub(crate) fn thaw(mounted_at: &Path) -> Result<()> {
    let call = || -> io::Result<()> {
        let file = open(mounted_at)?;
        let mut unused = 0;
        // SAFETY: the descriptor is open, and the argument outlives the call.
        match unsafe { fithaw(file.as_raw_fd(), &mut unused) } {
            // EINVAL: it was not frozen.
            Ok(_) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    };
    call().map_err(failed("thaw the file system at", mounted_at))
}

pub(crate) fn flush(device: &Path) -> Result<()> {
    File::open(device).and_then(|file| file.sync_all()).map_err(failed("flush", device))
}

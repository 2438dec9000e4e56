//! What a copied file keeps of the one it was copied from: owner, mode and times.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, Mode, UtimensatFlags, fchmod, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};

/// Bits that let a program run as its owner or group.
const BORROWED_RIGHTS: u32 = 0o6000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    pub(crate) accessed: TimeSpec,
    pub(crate) modified: TimeSpec,
}

impl From<&FileStat> for Attributes {
    fn from(about: &FileStat) -> Self {
        Attributes {
            mode: about.st_mode & 0o7777,
            owner: about.st_uid,
            group: about.st_gid,
            accessed: TimeSpec::new(about.st_atime, about.st_atime_nsec),
            modified: TimeSpec::new(about.st_mtime, about.st_mtime_nsec),
        }
    }
}

impl Attributes {
    /// A server that squashes root refuses to give files away; what would then run with another's rights does not.
    pub(crate) fn give(&self, file: impl AsFd) -> io::Result<()> {
        let (owner, group) = (Uid::from_raw(self.owner), Gid::from_raw(self.group));
        let given = is_given(fchown(&file, Some(owner), Some(group)))?;
        let mode = if given { self.mode } else { self.mode & !BORROWED_RIGHTS };
        fchmod(&file, Mode::from_bits_truncate(mode))?;
        Ok(futimens(&file, &self.accessed, &self.modified)?)
    }

    /// The same for what cannot be opened: a link, a pipe, a device.
    pub(crate) fn give_name(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        let (owner, group) = (Uid::from_raw(self.owner), Gid::from_raw(self.group));
        is_given(fchownat(directory, name, Some(owner), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW))?;
        let (accessed, modified) = (&self.accessed, &self.modified);
        Ok(utimensat(directory, name, accessed, modified, UtimensatFlags::NoFollowSymlink)?)
    }
}

fn is_given(answer: nix::Result<()>) -> io::Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(Errno::EPERM | Errno::EINVAL) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

//! What is seen at one place, without reading the whole mount table.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use nix::libc;

use crate::{DeviceNumber, FileId, FileKind};

/// A place and what is mounted there; costs the same however many mounts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whether it is the root of a mount.
    pub is_mount: bool,
    /// What kind of file is seen there; links are not followed.
    pub kind: FileKind,
    /// How long it is, in bytes.
    pub size: u64,
    /// Which mount it is seen in, by the number the mount table has.
    pub mount: u64,
    /// The device of the file system seen there; for ext4 and xfs that is their block device.
    pub device: DeviceNumber,
    /// Which block device this is, if it is the node of one.
    pub block: Option<DeviceNumber>,
    /// The identity of the file or directory seen there.
    pub id: FileId,
}

impl Place {
    /// Whether both show the same file or directory, maybe in two mounts.
    pub fn shows_the_same(&self, other: &Place) -> bool {
        (self.id, self.device, self.block) == (other.id, other.device, other.block)
    }
}

/// What a name in an open directory stands for; `None` if it is not there.
pub(crate) fn at(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Place>> {
    match ask(directory, name, 0) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        other => other.map(Some),
    }
}

/// What an open file is.
pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Place> {
    ask(file, OsStr::new(""), libc::AT_EMPTY_PATH)
}

fn ask(directory: BorrowedFd<'_>, name: &OsStr, flags: libc::c_int) -> io::Result<Place> {
    statx(directory, name, flags).map(|answer| place(&answer))
}

/// All that the kernel tells of a name in an open directory, or of the open file itself; links are not followed.
pub(crate) fn statx(directory: BorrowedFd<'_>, name: &OsStr, flags: libc::c_int) -> io::Result<libc::statx> {
    let text = CString::new(name.as_bytes())?;
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    let wanted = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
    // SAFETY: the name is NUL-terminated and outlives the call, which writes one `statx` at most.
    let code = unsafe { libc::statx(directory.as_raw_fd(), text.as_ptr(), flags, wanted, answer.as_mut_ptr()) };
    match code {
        // SAFETY: all-zero is a valid `statx`, and the call has filled it.
        0 => Ok(unsafe { answer.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn place(answer: &libc::statx) -> Place {
    let format = libc::mode_t::from(answer.stx_mode) & libc::S_IFMT;
    let kind = match format {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    };
    let block = DeviceNumber { major: answer.stx_rdev_major, minor: answer.stx_rdev_minor };
    Place {
        is_mount: answer.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0,
        kind,
        size: answer.stx_size,
        mount: answer.stx_mnt_id,
        device: DeviceNumber { major: answer.stx_dev_major, minor: answer.stx_dev_minor },
        block: (format == libc::S_IFBLK).then_some(block),
        id: FileId { device: libc::makedev(answer.stx_dev_major, answer.stx_dev_minor), inode: answer.stx_ino },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_mount_is_told_from_a_directory_and_a_missing_name_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let open = File::open(dir.path()).unwrap();
        assert!(of(File::open("/").unwrap().as_fd()).unwrap().is_mount);
        let plain = of(open.as_fd()).unwrap();
        assert!(!plain.is_mount && plain.kind == FileKind::Directory && plain.block.is_none());
        assert_eq!(plain.id, crate::files::stat(dir.path()).unwrap().unwrap().id);
        assert_eq!(at(open.as_fd(), OsStr::new("gone")).unwrap(), None);
    }
}

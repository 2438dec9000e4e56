//! What is seen at one path, without reading the whole mount table.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

use crate::{DeviceNumber, Error, FileId, FileKind, Result};

/// A path and what is mounted there; costs the same however many mounts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whether the path is the root of a mount.
    pub is_mount: bool,
    /// What kind of file is seen there; links are not followed.
    pub kind: FileKind,
    /// The device of the file system seen there; for ext4 and xfs that is their block device.
    pub device: DeviceNumber,
    /// Which block device this is, if it is the node of one.
    pub block: Option<DeviceNumber>,
    /// The identity of the file or directory seen there.
    pub id: FileId,
}

pub(crate) fn look(path: &Path) -> Result<Option<Place>> {
    let call = || -> io::Result<Option<Place>> {
        let text = CString::new(path.as_os_str().as_bytes())?;
        let mut answer = MaybeUninit::<libc::statx>::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
        // SAFETY: the path is NUL-terminated and outlives the call, which writes one `statx` at most.
        let code =
            unsafe { libc::statx(libc::AT_FDCWD, text.as_ptr(), flags, libc::STATX_BASIC_STATS, answer.as_mut_ptr()) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: all-zero is a valid `statx`, and the call has filled it.
        Ok(Some(place(&unsafe { answer.assume_init() })))
    };
    call().map_err(|source| Error::AccessFile { action: "look at", path: path.into(), source })
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
        device: DeviceNumber { major: answer.stx_dev_major, minor: answer.stx_dev_minor },
        block: (format == libc::S_IFBLK).then_some(block),
        id: FileId { device: libc::makedev(answer.stx_dev_major, answer.stx_dev_minor), inode: answer.stx_ino },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_a_mount_a_new_directory_is_not_and_a_missing_path_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(look(Path::new("/")).unwrap().unwrap().is_mount);
        let plain = look(dir.path()).unwrap().unwrap();
        assert!(!plain.is_mount && plain.kind == FileKind::Directory && plain.block.is_none());
        assert_eq!(plain.id, crate::files::stat(dir.path()).unwrap().unwrap().id);
        assert_eq!(look(&dir.path().join("gone")).unwrap(), None);
    }
}

//! Images come into being under a waiting name and get their own when they are whole.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::{ioctl_write_int, libc};

use crate::files::{failed, parent, sync_dir, waiting_name};
use crate::{Result, Space, extents};

/// Copied at once: large enough to be quick, small enough to find holes in.
const CHUNK: usize = 1 << 20;
/// The grain at which zeros are left out of a copy.
const GRAIN: usize = 4096;

// `FICLONE` of the kernel's `linux/fs.h`.
ioctl_write_int!(ficlone, 0x94, 9);

fn clone_blocks(source: &File, target: &File) -> nix::Result<()> {
    // SAFETY: both descriptors are open for the length of the call, which takes no pointer.
    unsafe { ficlone(target.as_raw_fd(), source.as_raw_fd() as libc::c_ulong) }.map(drop)
}

/// Fills an empty file with what another holds; they share their blocks where files can here.
pub(crate) fn share_or_copy(source: &File, target: &File) -> io::Result<()> {
    match clone_blocks(source, target) {
        Err(errno) if is_unsupported(errno) => copy_data(source, target),
        shared => Ok(shared?),
    }
}

fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EINVAL | Errno::EXDEV | Errno::ENOSYS)
}

pub(crate) fn make(path: &Path, bytes: u64, space: Space) -> Result<()> {
    create(path, bytes, space, |_| Ok(())).map_err(failed("make image", path))
}

pub(crate) fn share(source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()> {
    let fill = |target: &File| Ok(clone_blocks(&open_source(source, bytes)?, target)?);
    create(path, bytes, space, fill).map_err(failed("clone an image to", path))
}

pub(crate) fn copy(source: &Path, path: &Path, bytes: u64, space: Space) -> Result<()> {
    let fill = |target: &File| copy_data(&open_source(source, bytes)?, target);
    create(path, bytes, space, fill).map_err(failed("copy an image to", path))
}

pub(crate) fn grow(path: &Path, bytes: u64, space: Space) -> Result<()> {
    let grow = || -> io::Result<()> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = regular(OpenOptions::new().write(true).custom_flags(flags).open(path)?)?;
        let has = file.metadata()?.len();
        if has < bytes || space == Space::Allocated {
            give_size(&file, bytes.max(has), space)?;
        }
        file.sync_all()
    };
    grow().map_err(failed("grow image", path))
}

/// Tried rather than guessed from the kind of file system, whose features differ; nothing with a name is made.
pub(crate) fn is_possible_in(directory: &Path) -> Result<bool> {
    let attempt = || -> io::Result<bool> {
        let unnamed =
            || OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(directory);
        let (source, target) = match (unnamed(), unnamed()) {
            (Ok(source), Ok(target)) => (source, target),
            // A file system without nameless files (NFS) has no cloning that we could rely on either.
            (Err(error), _) | (_, Err(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(false),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        source.write_all_at(&[1; GRAIN], 0)?;
        match clone_blocks(&source, &target) {
            Ok(()) => Ok(true),
            Err(errno) if is_unsupported(errno) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    };
    attempt().map_err(failed("try to clone in", directory))
}

fn create(path: &Path, bytes: u64, space: Space, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let waiting = waiting_name(path);
    let made = || -> io::Result<()> {
        // A new file each time: the blocks of a half-made one are not worth keeping.
        match fs::remove_file(&waiting) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&waiting)?;
        keep_owner(path, &file)?;
        fill(&file)?;
        give_size(&file, bytes, space)?;
        file.sync_all()?;
        fs::rename(&waiting, path)?;
        sync_dir(parent(path)).map_err(|error| match error.os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::other(error),
        })
    };
    made().inspect_err(|_| {
        // Best effort, so that a full disk gets its space back; the next attempt removes it anyway.
        let _ = fs::remove_file(&waiting);
    })
}

/// What is made again belongs to whom it belonged: a pool's controller may be another user than its nodes. Without the
/// right to give files away it stays ours.
fn keep_owner(path: &Path, file: &File) -> io::Result<()> {
    let before = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        before => before?,
    };
    let ours = file.metadata()?;
    if (before.uid(), before.gid()) == (ours.uid(), ours.gid()) {
        return Ok(());
    }
    match fchown(file, Some(before.uid()), Some(before.gid())) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

fn give_size(file: &File, bytes: u64, space: Space) -> io::Result<()> {
    if space == Space::Allocated {
        let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
        // The size changes only if all the space is there; what there was of it goes back.
        if let Err(errno) = fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
            let size = file.metadata()?.len();
            if size < bytes {
                file.set_len(size)?;
            }
            return Err(errno.into());
        }
    }
    // Another process may have let it grow further meanwhile.
    if file.metadata()?.len() < bytes { file.set_len(bytes) } else { Ok(()) }
}

/// A copy is never cut: what is at the end of an image may be somebody's data.
fn open_source(path: &Path, bytes: u64) -> io::Result<File> {
    let file = regular(OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?)?;
    match file.metadata()?.len() <= bytes {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "its source is larger than the copy may be")),
    }
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

fn copy_data(source: &File, target: &File) -> io::Result<()> {
    let mut buffer = vec![0u8; CHUNK];
    for range in extents::data_of(source)? {
        let mut at = range.start;
        while at < range.end {
            let length = CHUNK.min((range.end - at) as usize);
            let read = source.read_at(&mut buffer[..length], at)?;
            if read == 0 {
                break;
            }
            for (index, grain) in buffer[..read].chunks(GRAIN).enumerate() {
                if grain.iter().any(|byte| *byte != 0) {
                    target.write_all_at(grain, at + (index * GRAIN) as u64)?;
                }
            }
            at += read as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocated_image_has_its_space_and_a_sparse_one_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let (sparse, allocated) = (dir.path().join("sparse"), dir.path().join("allocated"));
        make(&sparse, 8 << 20, Space::Sparse).unwrap();
        make(&allocated, 8 << 20, Space::Allocated).unwrap();
        let about = |path: &Path| fs::metadata(path).unwrap();
        assert!(about(&sparse).len() == 8 << 20 && about(&sparse).blocks() * 512 < 1 << 20);
        assert!(about(&allocated).len() == 8 << 20 && about(&allocated).blocks() * 512 >= 8 << 20);
        grow(&allocated, 9 << 20, Space::Allocated).unwrap();
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(OpenOptions::new().write(true).open(&allocated).unwrap(), hole, 0, 4 << 20).unwrap();
        assert!(about(&allocated).blocks() * 512 < 6 << 20);
        grow(&allocated, 1 << 20, Space::Allocated).unwrap();
        assert!(about(&allocated).len() == 9 << 20 && about(&allocated).blocks() * 512 >= 9 << 20);
    }

    #[test]
    fn an_image_that_is_made_again_belongs_to_whom_it_belonged() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: giving files away needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        make(&image, 4096, Space::Sparse).unwrap();
        std::os::unix::fs::chown(&image, Some(12), Some(34)).unwrap();
        make(&image, 8192, Space::Sparse).unwrap();
        let about = fs::metadata(&image).unwrap();
        assert_eq!((about.uid(), about.gid(), about.len()), (12, 34, 8192));
    }

    #[test]
    fn a_copy_holds_the_same_bytes_and_the_same_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (source, copied) = (dir.path().join("source"), dir.path().join("copy"));
        make(&source, 16 << 20, Space::Sparse).unwrap();
        let file = OpenOptions::new().write(true).open(&source).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"end", (16 << 20) - 3).unwrap();
        file.write_all_at(&[0; 1 << 20], 4 << 20).unwrap();
        copy(&source, &copied, 20 << 20, Space::Sparse).unwrap();
        let bytes = fs::read(&copied).unwrap();
        assert_eq!(bytes.len(), 20 << 20);
        assert_eq!(bytes[..16 << 20], fs::read(&source).unwrap());
        assert!(fs::metadata(&copied).unwrap().blocks() * 512 < 1 << 20, "zeros were written");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_an_interrupted_copy_left_does_not_get_into_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (source, copied) = (dir.path().join("source"), dir.path().join("copy"));
        make(&source, 1 << 20, Space::Sparse).unwrap();
        fs::write(waiting_name(&copied), vec![7; 1 << 20]).unwrap();
        copy(&source, &copied, 1 << 20, Space::Sparse).unwrap();
        assert!(fs::read(&copied).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_copy_smaller_than_its_source_is_refused_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        make(&source, 1 << 20, Space::Sparse).unwrap();
        let refusal = copy(&source, &dir.path().join("copy"), 4096, Space::Sparse).unwrap_err();
        assert!(refusal.to_string().contains("larger"), "{refusal}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_are_not_copied_through() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("link"));
        fs::write(&victim, b"secret").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(copy(&link, &dir.path().join("x"), 4096, Space::Sparse).unwrap_err().os_error(), Some(libc::ELOOP));
        assert_eq!(grow(&link, 4096, Space::Sparse).unwrap_err().os_error(), Some(libc::ELOOP));
        assert_eq!(fs::read(&victim).unwrap(), b"secret");
    }
}

//! Files below the root of a mounted share, which its other users change at the same time. Every way is gone by openat2 from
//! the root that is held, past no link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, syncfs, unlinkat};

use crate::files::failed;
use crate::share_walk::{Step, Walk, names_in};
use crate::{FileKind, Result, Target};

/// Somebody may remove a directory that we made for another in it; more often than this it is not chance.
const MOST_ATTEMPTS: usize = 16;

/// The root of a mounted share, held open: nothing that is done with it reaches outside of it.
#[derive(Debug, Clone)]
pub struct Share {
    root: Arc<OwnedFd>,
    path: PathBuf,
}

/// What is known of a file in a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareEntry {
    /// What it is.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// When its contents last changed, by the server's clock.
    pub modified: SystemTime,
    /// Its permission bits, set-user-id and the like included.
    pub mode: u32,
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl Share {
    /// Where a way from its root leads, for messages.
    pub fn path(&self, way: &Path) -> PathBuf {
        self.path.join(way)
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory; the root itself if the way is empty.
    pub(crate) fn open_dir(&self, way: &Path) -> io::Result<OwnedFd> {
        beneath(self.root(), way, DIRECTORY)
    }

    /// Opens a regular file to be read; a pipe that somebody put there does not hang it.
    pub(crate) fn open_file(&self, way: &Path) -> io::Result<File> {
        let file = File::from(beneath(self.root(), way, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }

    /// The directory that a way leads to all but its last name, and that name.
    pub(crate) fn enter<'a>(&self, way: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = way.file_name().ok_or_else(strange)?;
        Ok((self.open_dir(way.parent().unwrap_or_else(|| Path::new("")))?, name))
    }
}

fn strange() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "it is no way of plain names")
}

/// Opens below a directory, past no link.
pub(crate) fn beneath(directory: BorrowedFd<'_>, way: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    if !way.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(strange());
    }
    let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    openat2(directory, way, OpenHow::new().flags(flags).resolve(resolve)).map_err(|errno| match errno {
        Errno::ELOOP | Errno::EXDEV => io::Error::other("a link is on the way, and none is followed in a share"),
        other => other.into(),
    })
}

pub(crate) fn open(target: &Target) -> Result<Share> {
    let root = target.open_directory().map_err(failed("open the share at", target.path()))?;
    Ok(Share { root: Arc::new(root.into()), path: target.path().into() })
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

fn unless_missing<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if is_missing(&error) => Ok(None),
        other => other.map(Some),
    }
}

pub(crate) fn look(share: &Share, way: &Path) -> Result<Option<ShareEntry>> {
    let look = || -> io::Result<ShareEntry> {
        let (directory, name) = share.enter(way)?;
        Ok(entry(&fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?))
    };
    unless_missing(look()).map_err(failed("look at", &share.path(way)))
}

fn entry(about: &FileStat) -> ShareEntry {
    let kind = match about.st_mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::File,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    };
    let seconds = u64::try_from(about.st_mtime).unwrap_or_default();
    let modified = SystemTime::UNIX_EPOCH + Duration::new(seconds, u32::try_from(about.st_mtime_nsec).unwrap_or(0));
    ShareEntry { kind, size: u64::try_from(about.st_size).unwrap_or(0), modified, mode: about.st_mode & 0o7777 }
}

pub(crate) fn list(share: &Share, way: &Path) -> Result<Option<Vec<OsString>>> {
    let list = || names_in(share.open_dir(way)?.as_fd());
    unless_missing(list()).map_err(failed("list", &share.path(way)))
}

/// With all bits that the umask leaves, as the original makes them.
pub(crate) fn make_dirs(share: &Share, way: &Path) -> Result<()> {
    let make = || -> io::Result<()> {
        let mut directory = share.open_dir(Path::new(""))?;
        for part in way {
            match mkdirat(&directory, part, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            directory = beneath(directory.as_fd(), Path::new(part), DIRECTORY)?;
        }
        Ok(())
    };
    // Whoever removes the last volume in a directory removes the directory too.
    let attempt = |_| match make() {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        other => Some(other),
    };
    let made = (0..MOST_ATTEMPTS).find_map(attempt).unwrap_or_else(|| Err(Errno::ENOENT.into()));
    made.map_err(failed("make directory", &share.path(way)))
}

/// Only where it differs: a server may refuse what it would not have to do.
pub(crate) fn set_mode(share: &Share, way: &Path, mode: u32) -> Result<()> {
    let set = || -> io::Result<()> {
        let directory = share.open_dir(way)?;
        if fstat(&directory)?.st_mode & 0o7777 != mode {
            fchmod(&directory, Mode::from_bits_truncate(mode))?;
        }
        Ok(())
    };
    set().map_err(failed("set the mode of", &share.path(way)))
}

pub(crate) fn remove(share: &Share, way: &Path) -> Result<()> {
    let remove = || -> io::Result<()> {
        let (directory, name) = share.enter(way)?;
        let about = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if about.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Ok(unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir)?);
        }
        let mut walk = Walk::new(beneath(directory.as_fd(), Path::new(name), DIRECTORY)?)?;
        while let Some(step) = walk.next()? {
            match step {
                Step::File { name, .. } => {
                    gone(unlinkat(walk.directory(), name.as_os_str(), UnlinkatFlags::NoRemoveDir))?
                }
                Step::Leave { name, .. } => {
                    gone(unlinkat(walk.directory(), name.as_os_str(), UnlinkatFlags::RemoveDir))?
                }
                Step::Enter { .. } => {}
            }
        }
        Ok(gone(unlinkat(&directory, name, UnlinkatFlags::RemoveDir))?)
    };
    unless_missing(remove()).map(drop).map_err(failed("remove", &share.path(way)))
}

fn gone(answer: nix::Result<()>) -> nix::Result<()> {
    match answer {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

/// Whether it is gone: one that holds something stays, and is no error.
pub(crate) fn remove_empty(share: &Share, way: &Path) -> Result<bool> {
    let remove = || -> io::Result<bool> {
        let (directory, name) = share.enter(way)?;
        match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(true),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    };
    let removed = unless_missing(remove()).map_err(failed("remove directory", &share.path(way)))?;
    Ok(removed.unwrap_or(true))
}

pub(crate) fn rename(share: &Share, from: &Path, to: &Path) -> Result<()> {
    let rename = || -> io::Result<()> {
        let (old, old_name) = share.enter(from)?;
        let (new, new_name) = share.enter(to)?;
        Ok(renameat(&old, old_name, &new, new_name)?)
    };
    rename().map_err(failed("rename to", &share.path(to)))
}

/// Brings all that was written to a share to its server.
pub(crate) fn flush(share: &Share) -> Result<()> {
    syncfs(share.root()).map_err(|errno| failed("sync", &share.path)(errno.into()))
}

#[cfg(test)]
pub(crate) fn example(directory: &Path) -> Share {
    Share { root: Arc::new(File::open(directory).unwrap().into()), path: directory.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_way_leads_out_of_a_share() {
        let dir = tempfile::tempdir().unwrap();
        let (root, victim) = (dir.path().join("share"), dir.path().join("victim"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(victim.join("precious")).unwrap();
        symlink("../victim", root.join("link")).unwrap();
        symlink(&victim, root.join("absolute")).unwrap();
        let share = example(&root);
        for way in ["link/precious", "absolute/precious", "../victim/precious", "a/../../victim", "/etc", "."] {
            let way = Path::new(way);
            assert!(look(&share, way).is_err(), "{}", way.display());
            assert!(make_dirs(&share, way).is_err(), "{}", way.display());
            assert!(set_mode(&share, way, 0o777).is_err(), "{}", way.display());
            assert!(remove(&share, way).is_err(), "{}", way.display());
            assert!(remove_empty(&share, way).is_err(), "{}", way.display());
            assert!(rename(&share, way, Path::new("mine")).is_err(), "{}", way.display());
            assert!(list(&share, way).is_err() || way == Path::new("."), "{}", way.display());
        }
        assert!(victim.join("precious").is_dir());
        remove(&share, Path::new("link")).unwrap();
        assert!(victim.join("precious").is_dir() && !root.join("link").is_symlink());
    }

    #[test]
    fn a_tree_is_made_moved_and_removed_however_deep_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let share = example(dir.path());
        make_dirs(&share, Path::new("a/b/c")).unwrap();
        make_dirs(&share, Path::new("a/b/c")).unwrap();
        set_mode(&share, Path::new("a/b"), 0o2770).unwrap();
        assert_eq!(look(&share, Path::new("a/b")).unwrap().unwrap().mode, 0o2770);
        fs::write(dir.path().join("a/b/c/file"), "12345").unwrap();
        assert_eq!(look(&share, Path::new("a/b/c/file")).unwrap().unwrap().size, 5);
        rename(&share, Path::new("a/b"), Path::new("moved")).unwrap();
        assert_eq!(list(&share, Path::new("moved")).unwrap().unwrap(), ["c"]);
        assert_eq!(list(&share, Path::new("nowhere")).unwrap(), None);
        assert!(!remove_empty(&share, Path::new("moved")).unwrap() && remove_empty(&share, Path::new("a")).unwrap());
        // Deeper than a path can be long.
        let mut way = share.open_dir(Path::new("moved")).unwrap();
        for _ in 0..3000 {
            mkdirat(&way, "deep", Mode::S_IRWXU).unwrap();
            way = beneath(way.as_fd(), Path::new("deep"), DIRECTORY).unwrap();
        }
        remove(&share, Path::new("moved")).unwrap();
        remove(&share, Path::new("moved")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

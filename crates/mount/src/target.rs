//! A name in a directory that is held open.
//!
//! Whoever can write in a directory on the way to a path can put a link or another directory in its place between two
//! calls. So the way is gone once, past no link, and everything else starts at the directory it led to.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::files::{self, failed};
use crate::{Error, MountTable, Place, Result, Usage, place};

/// A path whose directory is held open: every call with it reaches the same directory, whatever becomes of the names that
/// led there.
#[derive(Debug, Clone)]
pub struct Target {
    directory: Arc<OwnedFd>,
    name: OsString,
    path: PathBuf,
}

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// The target itself, and not where it points to.
const ITSELF: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC);

impl Target {
    /// The path as it was when it was gone.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// A path that leads through the held directory, for calls that take no descriptor.
    pub(crate) fn through_directory(&self) -> PathBuf {
        Path::new("/proc/thread-self/fd").join(self.directory.as_raw_fd().to_string()).join(&self.name)
    }

    /// What stands there now; a link is refused.
    pub(crate) fn open(&self) -> io::Result<File> {
        let file = File::from(openat(&self.directory, self.name.as_os_str(), OFlag::O_PATH | ITSELF, Mode::empty())?);
        match file.metadata()?.file_type().is_symlink() {
            true => Err(Errno::ELOOP.into()),
            false => Ok(file),
        }
    }

    /// The directory that stands there, for questions to its file system.
    pub(crate) fn open_directory(&self) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | ITSELF;
        Ok(File::from(openat(&self.directory, self.name.as_os_str(), flags, Mode::empty())?))
    }

    /// Whether its path still leads to the directory that is held.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        let again = match hold(&self.path) {
            Ok(Some(again)) => again,
            Ok(None) | Err(Error::Moved { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let same = || -> io::Result<bool> {
            let (now, held) = (place::of(again.directory())?, place::of(self.directory())?);
            Ok((now.mount, now.id) == (held.mount, held.id))
        };
        same().map_err(failed("look at", &self.path))
    }
}

/// Goes the way to the directory a path is in.
pub(crate) fn hold(path: &Path) -> Result<Option<Target>> {
    let (parent, name) = split(path)?;
    match enter(&root(path)?, parent) {
        Ok(directory) => Ok(Some(Target { directory: Arc::new(directory), name, path: path.into() })),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(astray(path, errno)),
    }
}

/// The same, and makes what is missing of it.
pub(crate) fn make_and_hold(path: &Path) -> Result<Target> {
    let (parent, name) = split(path)?;
    let mut directory = root(path)?;
    for part in parent {
        let part = Path::new(part);
        let made = match enter(&directory, part) {
            Err(Errno::ENOENT) => {
                make_dir_in(&directory, part).map_err(failed("make the parents of", path))?;
                enter(&directory, part)
            }
            other => other,
        };
        directory = made.map_err(|errno| astray(path, errno))?;
    }
    Ok(Target { directory: Arc::new(directory), name, path: path.into() })
}

/// A name in the directory that stands at a target.
pub(crate) fn enter_target(target: &Target, name: &OsStr) -> Result<Option<Target>> {
    let path = target.path.join(name);
    match enter(&target.directory, Path::new(&target.name)) {
        Ok(directory) => Ok(Some(Target { directory: Arc::new(directory), name: name.into(), path })),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(astray(&path, errno)),
    }
}

/// The way from the root to a path's parent, and its last name.
fn split(path: &Path) -> Result<(&Path, OsString)> {
    let strange =
        || failed("hold", path)(io::Error::new(ErrorKind::InvalidInput, "it is no absolute path of plain names"));
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let below = path.strip_prefix("/").ok().filter(|_| plain).ok_or_else(strange)?;
    let name = below.file_name().ok_or_else(strange)?;
    Ok((below.parent().unwrap_or_else(|| Path::new("")), name.to_owned()))
}

fn root(path: &Path) -> Result<OwnedFd> {
    let open = openat2(nix::fcntl::AT_FDCWD, Path::new("/"), OpenHow::new().flags(DIRECTORY));
    open.map_err(|errno| astray(path, errno))
}

/// From the root of all: a way without links leads below what it begins with, whatever that is.
fn enter(directory: &OwnedFd, way: &Path) -> nix::Result<OwnedFd> {
    let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    openat2(directory, way, OpenHow::new().flags(DIRECTORY).resolve(resolve))
}

fn astray(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::ELOOP | Errno::ENOTDIR | Errno::ENOENT | Errno::EXDEV | Errno::EAGAIN => {
            Error::Moved { path: path.into() }
        }
        Errno::ENOSYS => Error::HoldPath { path: path.into() },
        other => failed("hold", path)(other.into()),
    }
}

pub(crate) fn look(target: &Target) -> Result<Option<Place>> {
    place::at(target.directory(), target.name()).map_err(failed("look at", &target.path))
}

pub(crate) fn usage(target: &Target) -> Result<Usage> {
    let ask = || -> io::Result<Usage> { Ok(files::usage_of(&nix::sys::statvfs::fstatvfs(target.open()?)?)) };
    ask().map_err(failed("ask the usage of", &target.path))
}

pub(crate) fn make_dir(target: &Target) -> Result<()> {
    make_dir_in(&target.directory, Path::new(&target.name)).map_err(failed("make directory", &target.path))
}

fn make_dir_in(directory: &OwnedFd, name: &Path) -> io::Result<()> {
    match mkdirat(directory, name, Mode::from_bits_truncate(0o750)) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn make_file(target: &Target) -> Result<()> {
    let make = || -> io::Result<()> {
        // O_NONBLOCK: opening a pipe that somebody put here must not hang.
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NONBLOCK | ITSELF;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = File::from(openat(&target.directory, target.name.as_os_str(), flags, mode)?);
        match file.metadata()?.is_file() {
            true => Ok(()),
            false => Err(io::Error::new(ErrorKind::InvalidInput, "it is there and not a file")),
        }
    };
    make().map_err(failed("make", &target.path))
}

/// rmdir(2) itself refuses a mount point and what holds one, so the table is only read to say which it is.
pub(crate) fn remove_dir(target: &Target) -> Result<()> {
    match unlinkat(&target.directory, target.name.as_os_str(), UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => match MountTable::read()?.under(&target.path).next() {
            Some(mount) => Err(Error::RemoveMounted { path: target.path.clone(), mounted: mount.target.clone() }),
            None => Err(failed("remove directory", &target.path)(errno.into())),
        },
    }
}

pub(crate) fn remove_file(target: &Target) -> Result<()> {
    match unlinkat(&target.directory, target.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(failed("remove", &target.path)(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_absolute_path_of_plain_names_is_held() {
        for strange in ["/", "relative/name", "/a/../b", "", ".."] {
            assert!(hold(Path::new(strange)).is_err(), "{strange:?}");
        }
        assert!(hold(Path::new("/name")).unwrap().is_some());
        assert!(hold(Path::new("/never/there")).unwrap().is_none());
    }

    #[test]
    fn neither_a_link_nor_a_file_is_gone_through_and_what_is_missing_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/", real.join("link")).unwrap();
        std::fs::write(real.join("file"), b"").unwrap();
        for way in ["link/a", "link/tmp/a", "file/a"] {
            assert!(matches!(hold(&real.join(way)), Err(Error::Moved { .. })), "{way}");
            assert!(matches!(make_and_hold(&real.join(way)), Err(Error::Moved { .. })), "{way}");
        }
        let target = make_and_hold(&real.join("a/b/c")).unwrap();
        make_file(&target).unwrap();
        assert!(real.join("a/b/c").is_file() && target.is_in_place().unwrap());
        assert!(enter_target(&target, OsStr::new("d")).is_err());
        remove_file(&target).unwrap();
        remove_file(&target).unwrap();
        assert!(enter_target(&target, OsStr::new("d")).unwrap().is_none());
    }

    #[test]
    fn a_target_that_is_a_link_or_a_pipe_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(real.join("victim"), real.join("link")).unwrap();
        nix::unistd::mkfifo(&real.join("pipe"), Mode::S_IRUSR).unwrap();
        for name in ["link", "pipe"] {
            assert!(make_file(&hold(&real.join(name)).unwrap().unwrap()).is_err(), "{name}");
        }
        assert!(hold(&real.join("link")).unwrap().unwrap().open().is_err());
        assert!(!real.join("victim").try_exists().unwrap());
    }
}

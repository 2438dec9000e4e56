//! Goes through a directory tree that others change at the same time, and never leaves it.
//!
//! Directories are entered by descriptor, past no link and into no other mount. However deep they are nested, few of them
//! are open: the way back up is taken by `..`, and only into the very directory that one came from.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{Whence, lseek64};

use crate::files::failed;
use crate::listing::{Batch, Hint};
use crate::{Error, Result, place};

/// Directories that are open at a time.
const OPEN_AT_ONCE: usize = 32;

const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NOATIME);

/// What is known of an entry, links not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct About {
    /// Permissions and the three bits before them.
    pub mode: u32,
    pub kind: u32,
    pub gid: u32,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub links: u32,
    pub inode: u64,
    pub device: (u32, u32),
    pub mount: u64,
}

impl About {
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    pub(crate) fn is_link(&self) -> bool {
        self.kind == libc::S_IFLNK
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }

    pub(crate) fn is_empty_file(&self) -> bool {
        self.is_file() && self.size == 0
    }

    fn same_place(&self, other: &About) -> bool {
        (self.mount, self.device, self.inode) == (other.mount, other.device, other.inode)
    }
}

pub(crate) fn about(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<About> {
    place::statx(directory, name, 0).map(|answer| from(&answer))
}

pub(crate) fn about_open(file: BorrowedFd<'_>) -> io::Result<About> {
    place::statx(file, OsStr::new(""), libc::AT_EMPTY_PATH).map(|answer| from(&answer))
}

fn from(answer: &libc::statx) -> About {
    let mode = libc::mode_t::from(answer.stx_mode);
    About {
        mode: mode & 0o7777,
        kind: mode & libc::S_IFMT,
        gid: answer.stx_gid,
        size: answer.stx_size,
        blocks: answer.stx_blocks,
        links: answer.stx_nlink,
        inode: answer.stx_ino,
        device: (answer.stx_dev_major, answer.stx_dev_minor),
        mount: answer.stx_mnt_id,
    }
}

/// What is done on the way. An error ends the walk.
pub(crate) trait Visitor {
    /// Before each entry: whether to go on.
    fn proceed(&mut self) -> Result<()>;

    /// Something that is no directory.
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &OsStr, about: &About) -> io::Result<()>;

    /// A directory, after all that is in it.
    fn directory(&mut self, directory: BorrowedFd<'_>) -> io::Result<()>;

    /// The same, by its name in its parent, after it was closed; not said of the first directory, which has no name here.
    fn left(&mut self, _parent: BorrowedFd<'_>, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    /// Something is mounted here.
    fn mounted(&mut self, _parent: BorrowedFd<'_>, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }
}

struct Frame {
    name: OsString,
    about: About,
    /// `None` while too many below it are open.
    directory: Option<OwnedFd>,
    /// Where its listing goes on.
    offset: i64,
    listed: bool,
    waiting: Vec<OsString>,
}

/// Visits everything in an open directory, and the directory itself last of all; `root` is its path, for messages.
pub(crate) fn walk(root: &Path, top: BorrowedFd<'_>, visitor: &mut dyn Visitor) -> Result<()> {
    let directory = openat(top, ".", DIRECTORY, Mode::empty()).or_else(|errno| match errno {
        // Only a file's owner and root may ask for that.
        Errno::EPERM => openat(top, ".", DIRECTORY - OFlag::O_NOATIME, Mode::empty()),
        other => Err(other),
    });
    let directory = directory.map_err(|errno| failed("list", root)(errno.into()))?;
    let mut walk = Walk { root, stack: Vec::new(), batch: Batch::new() };
    walk.push(OsString::new(), directory)?;
    while !walk.stack.is_empty() {
        walk.step(visitor)?;
    }
    Ok(())
}

struct Walk<'a> {
    root: &'a Path,
    stack: Vec<Frame>,
    batch: Batch,
}

impl Walk<'_> {
    fn step(&mut self, visitor: &mut dyn Visitor) -> Result<()> {
        let path = |stack: &[Frame]| path_of(self.root, stack);
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        // Only the last directories of the way are open, and the last one always is.
        let Some(directory) = &frame.directory else { return Err(Error::Moved { path: path(&self.stack) }) };
        if let Some(name) = frame.waiting.pop() {
            visitor.proceed()?;
            return match enter(directory, &name) {
                Ok(inner) => self.push(name, inner),
                // It has gone, or something else has its name by now.
                Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR) => Ok(()),
                Err(Errno::EXDEV) => {
                    visitor.mounted(directory.as_fd(), &name).map_err(failed("visit", &path(&self.stack).join(&name)))
                }
                Err(errno) => Err(failed("enter", &path(&self.stack).join(name))(errno.into())),
            };
        }
        if frame.listed {
            let visited = visitor.directory(directory.as_fd());
            visited.map_err(|source| failed("visit", &path(&self.stack))(source))?;
            let left = self.stack.pop();
            return self.return_from(left, visitor);
        }
        let (names, offset) = match self.batch.read(directory.as_fd()) {
            Ok(Some(read)) => read,
            Ok(None) => {
                frame.listed = true;
                return Ok(());
            }
            Err(source) => return Err(failed("list", &path(&self.stack))(source)),
        };
        frame.offset = offset;
        for (name, hint) in names {
            if hint == Hint::Directory {
                frame.waiting.push(name);
                continue;
            }
            visitor.proceed()?;
            let seen = match about(directory.as_fd(), &name) {
                Ok(seen) => seen,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(failed("look at", &path(&self.stack).join(name))(source)),
            };
            if seen.is_dir() {
                frame.waiting.push(name);
                continue;
            }
            let visited = match seen.mount == frame.about.mount {
                true => visitor.entry(directory.as_fd(), &name, &seen),
                false => visitor.mounted(directory.as_fd(), &name),
            };
            if let Err(source) = visited {
                return Err(failed("visit", &path(&self.stack).join(name))(source));
            }
        }
        Ok(())
    }

    fn push(&mut self, name: OsString, directory: OwnedFd) -> Result<()> {
        let seen = about_open(directory.as_fd()).map_err(failed("look at", &self.path().join(&name)))?;
        let waiting = Vec::new();
        self.stack.push(Frame { name, about: seen, directory: Some(directory), offset: 0, listed: false, waiting });
        if let Some(far) = self.stack.len().checked_sub(OPEN_AT_ONCE + 1) {
            self.stack[far].directory = None;
        }
        Ok(())
    }

    /// Goes on in the parent of a directory that was left, which is opened again if it was closed.
    fn return_from(&mut self, left: Option<Frame>, visitor: &mut dyn Visitor) -> Result<()> {
        let Some(Frame { directory: Some(left), name, .. }) = left else { return Ok(()) };
        if self.stack.last().is_some_and(|parent| parent.directory.is_none()) {
            self.reopen_parent(&left)?;
        }
        // Where a directory goes with its last user, it is to be gone when its parent's turn comes.
        drop(left);
        let Some(Frame { directory: Some(parent), .. }) = self.stack.last() else { return Ok(()) };
        visitor.left(parent.as_fd(), &name).map_err(failed("visit", &self.path().join(&name)))
    }

    fn reopen_parent(&mut self, left: &OwnedFd) -> Result<()> {
        let Some(parent) = self.stack.last() else { return Ok(()) };
        let reopen = || -> io::Result<Option<OwnedFd>> {
            let found = openat(left, "..", DIRECTORY - OFlag::O_NOATIME, Mode::empty())?;
            if !about_open(found.as_fd())?.same_place(&parent.about) {
                return Ok(None);
            }
            lseek64(&found, parent.offset, Whence::SeekSet)?;
            Ok(Some(found))
        };
        let found = reopen().map_err(failed("return to", &self.path()))?;
        let found = found.ok_or_else(|| Error::Moved { path: self.path() })?;
        if let Some(parent) = self.stack.last_mut() {
            parent.directory = Some(found);
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        path_of(self.root, &self.stack)
    }
}

fn path_of(root: &Path, stack: &[Frame]) -> PathBuf {
    // Of a way that is very long the end says enough.
    const TOLD: usize = 64;
    let skipped = stack.len().saturating_sub(TOLD).max(1).min(stack.len());
    let start = if skipped > 1 { root.join("...") } else { root.to_owned() };
    stack[skipped..].iter().fold(start, |path, frame| path.join(&frame.name))
}

/// A name in a directory, if it is itself a directory of the same mount.
pub(crate) fn enter(directory: impl AsFd, name: &OsStr) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    let open = |flags: OFlag| openat2(directory.as_fd(), name, OpenHow::new().flags(flags).resolve(resolve));
    match open(DIRECTORY) {
        Err(Errno::EPERM) => open(DIRECTORY - OFlag::O_NOATIME),
        other => other,
    }
}

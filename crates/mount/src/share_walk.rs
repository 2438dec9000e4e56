//! A walk through a tree that others may change meanwhile. One directory is open at a time, however deep it is, no link is
//! gone through and no other mount is entered: the way up is by `..`, and what is found there must be the directory that was left.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};

const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// What a walk comes to next.
pub(crate) enum Step {
    /// Anything but a directory, in the open directory.
    File { name: OsString, about: FileStat },
    /// A directory, which is the open one from now on.
    Enter { name: OsString, about: FileStat },
    /// All of a directory was seen; the open one is that which holds it.
    Leave { name: OsString, about: FileStat },
}

struct Level {
    name: OsString,
    about: FileStat,
    names: std::vec::IntoIter<OsString>,
}

pub(crate) struct Walk {
    current: OwnedFd,
    levels: Vec<Level>,
}

impl Walk {
    /// A walk through all that is in a directory, by name.
    pub(crate) fn new(root: OwnedFd) -> io::Result<Self> {
        let about = fstat(&root)?;
        let names = names_in(root.as_fd())?.into_iter();
        Ok(Walk { current: root, levels: vec![Level { name: OsString::new(), about, names }] })
    }

    /// The directory that is open now.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    /// The way from the root of the walk to a name in the open directory.
    pub(crate) fn way(&self, name: &OsStr) -> PathBuf {
        self.levels.iter().skip(1).map(|level| level.name.as_os_str()).chain([name]).collect()
    }

    /// What is gone meanwhile is passed over.
    pub(crate) fn next(&mut self) -> io::Result<Option<Step>> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            let Some(name) = level.names.next() else { return self.leave() };
            let about = match fstatat(&self.current, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Err(Errno::ENOENT) => continue,
                other => other?,
            };
            if about.st_mode & libc::S_IFMT != libc::S_IFDIR {
                return Ok(Some(Step::File { name, about }));
            }
            return self.enter(name).map(Some);
        }
    }

    fn enter(&mut self, name: OsString) -> io::Result<Step> {
        let inner = open_directory(self.current.as_fd(), &name)?;
        let about = fstat(&inner)?;
        let names = names_in(inner.as_fd())?.into_iter();
        self.levels.push(Level { name: name.clone(), about, names });
        self.current = inner;
        Ok(Step::Enter { name, about })
    }

    fn leave(&mut self) -> io::Result<Option<Step>> {
        let Some(Level { name, about, .. }) = self.levels.pop() else { return Ok(None) };
        let Some(parent) = self.levels.last() else { return Ok(None) };
        self.current = up(self.current.as_fd(), &parent.about)?;
        Ok(Some(Step::Leave { name, about }))
    }
}

/// A directory by its name in another; a link is refused, and so is what is mounted there: it is not the tree's own, as a
/// share within a share is not.
pub(crate) fn open_directory(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    match openat2(directory, name, OpenHow::new().flags(DIRECTORY).resolve(resolve)) {
        Err(Errno::EXDEV) => {
            let name = name.display();
            Err(io::Error::other(format!(
                "{name:?} in it is a mount of its own, which is not gone into; unmount it there"
            )))
        }
        other => Ok(other?),
    }
}

/// The directory above, if it is still the one that was come from.
pub(crate) fn up(directory: BorrowedFd<'_>, parent: &FileStat) -> io::Result<OwnedFd> {
    let above = openat(directory, "..", DIRECTORY, Mode::empty())?;
    let about = fstat(&above)?;
    match (about.st_dev, about.st_ino) == (parent.st_dev, parent.st_ino) {
        true => Ok(above),
        false => Err(io::Error::other("a directory was moved while it was gone through; repeat the call")),
    }
}

/// The names in a directory, in order.
pub(crate) fn names_in(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_tree_is_seen_in_order_without_what_its_links_point_to() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        fs::write(dir.path().join("a"), "").unwrap();
        fs::write(dir.path().join("b/c/d"), "").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("z")).unwrap();
        let mut walk = Walk::new(File::open(dir.path()).unwrap().into()).unwrap();
        let mut seen = Vec::new();
        while let Some(step) = walk.next().unwrap() {
            seen.push(match step {
                Step::File { name, .. } => format!("file {}", walk.way(&name).display()),
                Step::Enter { name, .. } => format!("enter {}", name.display()),
                Step::Leave { name, .. } => format!("leave {}", walk.way(&name).display()),
            });
        }
        assert_eq!(seen, ["file a", "enter b", "enter c", "file b/c/d", "leave b/c", "leave b", "file z"]);
    }

    #[test]
    fn a_directory_that_is_moved_away_while_it_is_walked_through_ends_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/inner")).unwrap();
        let mut walk = Walk::new(File::open(dir.path().join("root")).unwrap().into()).unwrap();
        assert!(matches!(walk.next().unwrap(), Some(Step::Enter { .. })));
        fs::rename(dir.path().join("root/inner"), dir.path().join("elsewhere")).unwrap();
        assert!(walk.next().err().unwrap().to_string().contains("was moved"));
    }
}

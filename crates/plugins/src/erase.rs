//! Removes what is in a directory, entry by entry.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::permit::Permit;

/// Removes everything in the directory. Links are removed, never followed, also if a directory becomes one meanwhile.
/// Begun again after a crash it removes what is left.
pub(crate) fn erase(directory: &Path, permit: &Permit) -> io::Result<()> {
    is_plain_directory(directory)?;
    Eraser { permit, changes: 0, moved: 0 }.empty(&Dir::open(directory, FLAGS, Mode::empty())?)?;
    match fs::read_dir(directory)?.next() {
        None => Ok(()),
        Some(_) => Err(refuse(directory, "something was put in while it was erased")),
    }
}

const FLAGS: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Directories listed at once: enough that a listing is not read again for each.
const AT_ONCE: usize = 10_000;

/// However deep a tenant has nested his directories, few are open at a time: those within one are moved up to the top.
struct Eraser<'a> {
    permit: &'a Permit,
    /// What was removed or moved so far.
    changes: u64,
    moved: u64,
}

impl Eraser<'_> {
    fn empty(&mut self, top: &Dir) -> io::Result<()> {
        loop {
            let (before, names) = (self.changes, self.directories(top)?);
            if names.is_empty() {
                return Ok(());
            }
            for name in &names {
                self.remove(top, name)?;
            }
            if self.changes == before {
                return Err(io::Error::other("directories in it fill again as they are emptied"));
            }
        }
    }

    fn remove(&mut self, top: &Dir, name: &CStr) -> io::Result<()> {
        if self.remove_if_empty(top, name)? {
            return Ok(());
        }
        let inner = Dir::openat(top, name, FLAGS, Mode::empty())?;
        for nested in self.directories(&inner)? {
            if !self.remove_if_empty(&inner, &nested)? {
                self.move_up(&inner, &nested, top)?;
            }
        }
        // What is still in it is met again.
        self.remove_if_empty(top, name).map(drop)
    }

    /// Removes what is no directory, and tells the names of some that are.
    fn directories(&mut self, directory: &Dir) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        // Opened anew, so that it is read from its beginning.
        for entry in Dir::openat(directory, c".", FLAGS, Mode::empty())?.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.permit.check()?;
            match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) => self.changes += 1,
                Err(Errno::ENOENT) => {}
                Err(Errno::EISDIR) => names.push(name.to_owned()),
                Err(error) => return Err(error.into()),
            }
            if names.len() == AT_ONCE {
                break;
            }
        }
        Ok(names)
    }

    fn remove_if_empty(&mut self, parent: &Dir, name: &CStr) -> io::Result<bool> {
        self.permit.check()?;
        match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => {
                self.changes += 1;
                Ok(true)
            }
            Err(Errno::ENOENT) => Ok(true),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Without asking that the new name be free, which network file systems cannot: an empty directory of that name is
    /// replaced, and it is to go as well.
    fn move_up(&mut self, from: &Dir, name: &CStr, top: &Dir) -> io::Result<()> {
        loop {
            self.permit.check()?;
            self.moved += 1;
            let free = format!("erased-{}", self.moved);
            match renameat(from, name, top, free.as_str()) {
                Ok(()) => {
                    self.changes += 1;
                    return Ok(());
                }
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                // A subvolume of its own, which nothing leaves.
                Err(Errno::EXDEV) => {
                    self.empty(&Dir::openat(from, name, FLAGS, Mode::empty())?)?;
                    return self.remove_if_empty(from, name).map(drop);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_plain_directory(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) => return Err(io::Error::new(error.kind(), format!("{} on this machine: {error}", path.display()))),
    };
    if kind.is_dir() { Ok(()) } else { Err(refuse(path, "not a directory, or a link to one")) }
}

pub(crate) fn refuse(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use nix::fcntl::{open, openat};
    use nix::sys::stat::mkdirat;

    use super::*;

    #[test]
    fn however_deep_directories_are_nested_they_are_erased() {
        let folder = tempfile::tempdir().unwrap();
        // Named as what is moved up would be.
        fs::create_dir_all(folder.path().join("erased-1/erased-2")).unwrap();
        let mut at: OwnedFd = open(folder.path(), FLAGS, Mode::empty()).unwrap();
        for _ in 0..3000 {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", FLAGS, Mode::empty()).unwrap();
        }
        let bottom = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        drop(openat(&at, "file", bottom, Mode::S_IRWXU).unwrap());
        erase(folder.path(), &Permit::always()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

//! Removes what is in a directory, entry by entry.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The right to remove files, asked for before each: it ends with the lease and with the service, and what is in the
/// directory then may be a new tenant's.
#[derive(Clone)]
pub struct Permit(Arc<dyn Fn() -> bool + Send + Sync>);

impl Permit {
    pub fn new(lasts: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(lasts))
    }

    #[cfg(test)]
    pub fn always() -> Self {
        Self::new(|| true)
    }

    pub fn lasts(&self) -> bool {
        (self.0)()
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        if self.lasts() { Ok(()) } else { Err(io::Error::other("this process may not remove files any more")) }
    }

    /// The same right, until the guard is dropped.
    pub(crate) fn while_waited_for(&self) -> (Self, DropGuard) {
        let (given_up, outer) = (CancellationToken::new(), self.clone());
        let guard = given_up.clone().drop_guard();
        (Self::new(move || !given_up.is_cancelled() && outer.lasts()), guard)
    }
}

/// Removes everything in the directory. Links are removed, never followed, also if a directory becomes one meanwhile.
/// Begun again after a crash it removes what is left.
///
/// However deep a tenant has nested his directories, two are open at a time: those within one are moved up to the top.
pub(crate) fn erase(directory: &Path, permit: &Permit) -> io::Result<()> {
    is_plain_directory(directory)?;
    let top = Dir::open(directory, FLAGS, Mode::empty())?;
    let mut moved = 0;
    while let Some(name) = first_directory(&top, permit)? {
        let inner = Dir::openat(&top, name.as_c_str(), FLAGS, Mode::empty())?;
        while let Some(nested) = first_directory(&inner, permit)? {
            permit.check()?;
            move_up(&inner, &nested, &top, &mut moved)?;
        }
        permit.check()?;
        unlinkat(&top, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
    }
    match fs::read_dir(directory)?.next() {
        None => Ok(()),
        Some(_) => Err(refuse(directory, "something was put in while it was erased")),
    }
}

const FLAGS: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Removes what is no directory, up to the first that is one.
fn first_directory(directory: &Dir, permit: &Permit) -> io::Result<Option<CString>> {
    // Opened anew, so that it is read from its beginning.
    for entry in Dir::openat(directory, c".", FLAGS, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        permit.check()?;
        match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::EISDIR) => return Ok(Some(name.to_owned())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn move_up(from: &Dir, name: &CStr, top: &Dir, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        let free = format!("erased-{moved}");
        match renameat2(from, name, top, free.as_str(), RenameFlags::RENAME_NOREPLACE) {
            // The tenant's, or left by an attempt before.
            Err(Errno::EEXIST) => {}
            answer => return Ok(answer?),
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

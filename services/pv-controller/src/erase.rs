//! Removes what is in a directory, entry by entry.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
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
pub(crate) fn erase(directory: &Path, permit: &Permit) -> io::Result<()> {
    is_plain_directory(directory)?;
    empty(Dir::open(directory, FLAGS, Mode::empty())?, permit)?;
    match fs::read_dir(directory)?.next() {
        None => Ok(()),
        Some(_) => Err(refuse(directory, "something was put in while it was erased")),
    }
}

const FLAGS: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn empty(mut directory: Dir, permit: &Permit) -> io::Result<()> {
    let parent = directory.as_fd().try_clone_to_owned()?;
    for entry in directory.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        permit.check()?;
        match unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::EISDIR) => {
                empty(Dir::openat(&parent, name, FLAGS, Mode::empty())?, permit)?;
                permit.check()?;
                unlinkat(&parent, name, UnlinkatFlags::RemoveDir)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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

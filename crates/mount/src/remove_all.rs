use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::files::{failed, locate};
use crate::patience::Waiting;
use crate::walk::{self, About, Visitor, enter};
use crate::{Error, MountTable, Result, target};

pub(crate) fn remove(path: &Path, waiting: &Waiting) -> Result<()> {
    let path = locate(path)?;
    if let Some(mount) = MountTable::read()?.under(&path).next() {
        return Err(Error::RemoveMounted { path: path.clone(), mounted: mount.target.clone() });
    }
    let Some(held) = target::hold(&path)? else { return Ok(()) };
    match enter(held.directory(), held.name()) {
        Ok(top) => walk::walk(&path, top.as_fd(), &mut Remover { waiting })?,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ELOOP | Errno::ENOTDIR) => return target::remove_file(&held),
        Err(errno) => return Err(failed("enter", &path)(errno.into())),
    }
    target::remove_dir(&held)
}

/// Removes what has a name in an open directory, if anything has; `root` is for messages.
pub(crate) fn remove_in(directory: BorrowedFd<'_>, name: &OsStr, root: &Path, waiting: &Waiting) -> Result<()> {
    let told = |errno: Errno| failed("remove", &root.join(name))(errno.into());
    match enter(directory, name) {
        Ok(top) => walk::walk(&root.join(name), top.as_fd(), &mut Remover { waiting })?,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ELOOP | Errno::ENOTDIR) => {
            return unless_gone(unlinkat(directory, name, UnlinkatFlags::NoRemoveDir))
                .map_err(failed("remove", &root.join(name)));
        }
        Err(errno) => return Err(told(errno)),
    }
    unlinkat(directory, name, UnlinkatFlags::RemoveDir).map_err(told)
}

struct Remover<'a> {
    waiting: &'a Waiting,
}

impl Visitor for Remover<'_> {
    fn proceed(&mut self) -> Result<()> {
        self.waiting.check()
    }

    fn entry(&mut self, directory: BorrowedFd<'_>, name: &OsStr, _: &About) -> io::Result<()> {
        unless_gone(unlinkat(directory, name, UnlinkatFlags::NoRemoveDir))
    }

    fn directory(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn left(&mut self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        unless_gone(unlinkat(parent, name, UnlinkatFlags::RemoveDir))
    }

    fn mounted(&mut self, _: BorrowedFd<'_>, _: &OsStr) -> io::Result<()> {
        Err(Errno::EBUSY.into())
    }
}

fn unless_gone(removed: nix::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

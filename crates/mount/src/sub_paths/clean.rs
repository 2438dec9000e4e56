use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::files::{self, failed};
use crate::listing::names;
use crate::walk::{about, enter};
use crate::{MountTable, Result, bind, target};

/// Volume, container and index are three.
const DEEPEST: usize = 8;

pub(super) fn clean(directory: &Path) -> Result<()> {
    let Some(directory) = files::resolve(directory)? else { return Ok(()) };
    // The newest first: it may lie above or below another.
    for mount in MountTable::read()?.under(&directory).rev() {
        bind::unmount(&mount.target)?;
    }
    let Some(held) = target::hold(&directory)? else { return Ok(()) };
    remove(held.directory(), held.name(), &directory, 0)
}

fn remove(parent: impl AsFd, name: &OsStr, path: &Path, depth: usize) -> Result<()> {
    let refuse = |why: &'static str| failed("remove", path)(io::Error::new(io::ErrorKind::InvalidInput, why));
    let seen = match about(parent.as_fd(), name) {
        Ok(seen) => seen,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed("look at", path)(source)),
    };
    let removed = if seen.is_dir() {
        if depth == DEEPEST {
            return Err(refuse("it is nested deeper than targets of sub paths are"));
        }
        let inner = enter(parent.as_fd(), name).map_err(|errno| failed("enter", path)(errno.into()))?;
        for name in &names(inner.as_fd()).map_err(failed("list", path))? {
            remove(&inner, name, &path.join(name), depth + 1)?;
        }
        unlinkat(parent.as_fd(), name, UnlinkatFlags::RemoveDir)
    } else if seen.is_empty_file() {
        unlinkat(parent.as_fd(), name, UnlinkatFlags::NoRemoveDir)
    } else {
        return Err(refuse("it is neither an empty directory nor an empty file, so it is no target of a sub path"));
    };
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(failed("remove", path)(errno.into())),
    }
}

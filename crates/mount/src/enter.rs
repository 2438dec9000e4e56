//! A mount namespace of its own, in which volumes are where a program wants them.

use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{Error, MountOptions, Result, bind};

/// A directory, file or device of this machine, shown somewhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Where it is.
    pub from: PathBuf,
    /// Where it is to be seen: something of its kind that exists.
    pub at: PathBuf,
    /// Whether it may only be read there.
    pub read_only: bool,
}

/// Moves the calling thread into a mount namespace of its own and shows these there; nobody else sees them, and they are
/// gone with the last process in it. Meant to be followed by exec(3), which takes the whole process along.
pub fn enter(shown: &[Shown]) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| bind_failed(Path::new("/"), Path::new("/"), errno))?;
    // What is unmounted outside goes here too: a copy that stayed would keep other volumes in use. Nothing goes out.
    change(Path::new("/"), MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    for Shown { from, at, read_only } in shown {
        let options = MountOptions::new(read_only.then_some("ro".to_owned()));
        bind::bind(from, at, &options)?;
    }
    Ok(())
}

fn change(at: &Path, flags: MsFlags) -> Result<()> {
    let none = None::<&str>;
    mount(none, at, none, flags, none).map_err(|errno| bind_failed(at, at, errno))
}

fn bind_failed(from: &Path, target: &Path, errno: nix::errno::Errno) -> Error {
    Error::Bind { from: from.to_owned(), target: target.to_owned(), source: errno.into() }
}

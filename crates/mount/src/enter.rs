//! A mount namespace of its own, in which volumes are where a program wants them.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{Error, Result, Target, bind, target};

/// A directory, file or device of this machine, shown somewhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Where it is; links are followed.
    pub from: PathBuf,
    /// Where it is to be seen: a path that leads through no link. What is missing of it is made.
    pub at: PathBuf,
    /// Whether it, and what is mounted in it, may only be read there.
    pub read_only: bool,
}

/// Moves the calling thread into a mount namespace of its own and shows these there in their order, each with all that is
/// mounted in it, and the processes of the thread's own namespace in `/proc`; nobody else sees them, and they are gone with the
/// last process in it. Programs that the thread starts are there too; other threads are not.
pub fn enter(shown: &[Shown]) -> Result<()> {
    let failed = |errno: Errno| Error::Bind { from: "/".into(), target: "/".into(), source: errno.into() };
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed)?;
    // What is unmounted outside goes here too: a copy that stayed would keep other volumes in use. Nothing goes out.
    let none = None::<&str>;
    mount(none, Path::new("/"), none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(failed)?;
    // All are taken hold of before one is shown, which may hide where another is.
    let trees: Vec<OwnedFd> = shown.iter().map(hold).collect::<Result<_>>()?;
    show_processes()?;
    shown.iter().zip(&trees).try_for_each(|(one, tree)| show(one, tree))
}

/// In some containers the kernel lets nobody mount it; then the one that is there tells of more processes, and works.
fn show_processes() -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>) {
        Ok(()) | Err(Errno::EPERM) => Ok(()),
        Err(errno) => {
            let (from, target, fs_type) = ("proc".into(), "/proc".into(), "proc".into());
            Err(Error::Mount { from, target, fs_type, source: errno.into() })
        }
    }
}

fn hold(one: &Shown) -> Result<OwnedFd> {
    let held = fs::canonicalize(&one.from).and_then(|from| bind::clone_whole(&from, one.read_only));
    held.map_err(|source| Error::Bind { from: one.from.clone(), target: one.at.clone(), source })
}

/// The way there may lead into a volume that was shown before: whoever writes in that leads us nowhere else by a link.
fn show(one: &Shown, tree: &OwnedFd) -> Result<()> {
    let failed = |source| Error::Bind { from: one.from.clone(), target: one.at.clone(), source };
    let target = target::make_and_hold(&one.at)?;
    let is_directory = |file: &OwnedFd| -> io::Result<bool> { Ok(File::from(file.try_clone()?).metadata()?.is_dir()) };
    let wants_directory = is_directory(tree).map_err(failed)?;
    make(&target, wants_directory)?;
    let place = target.open().map_err(failed)?;
    match (wants_directory, is_directory(&place.into()).map_err(failed)?) {
        (true, false) => Err(failed(unlike("the volume is a directory, and something else is there"))),
        (false, true) => Err(failed(unlike("the volume is a file or device, and a directory is there"))),
        _ => bind::show_at(tree, &target).map_err(failed),
    }
}

fn make(target: &Target, directory: bool) -> Result<()> {
    match target::look(target)? {
        Some(_) => Ok(()),
        None if directory => target::make_dir(target),
        None => target::make_file(target),
    }
}

fn unlike(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what)
}

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{Gid, fchownat};

use super::{ChangePolicy, Owned, OwnershipWalk};
use crate::files::failed;
use crate::patience::Waiting;
use crate::walk::{self, About, Visitor, about_open};
use crate::{Progress, Result};

/// The thing itself, whatever it is: a link is not followed, a pipe does not block, a device is not woken.
const ITSELF: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

pub(super) fn own(walk: &OwnershipWalk, progress: &Progress, waiting: &Waiting) -> Result<Owned> {
    let root = walk.root.as_path();
    let top = openat(AT_FDCWD, root, ITSELF, Mode::empty()).map_err(|errno| failed("look at", root)(errno.into()))?;
    own_open(walk, top.as_fd(), progress, waiting)
}

/// The same with a root that is open.
pub(crate) fn own_open(
    walk: &OwnershipWalk,
    top: BorrowedFd<'_>,
    progress: &Progress,
    waiting: &Waiting,
) -> Result<Owned> {
    let root = walk.root.as_path();
    let seen = about_open(top).map_err(failed("look at", root))?;
    if walk.policy == ChangePolicy::OnRootMismatch && walk.fits(seen.gid, seen.mode, seen.is_dir()) {
        return Ok(Owned { skipped: true, ..Owned::default() });
    }
    let mut owner = Owner { walk, progress, waiting, owned: Owned::default() };
    match seen.is_dir() {
        true => walk::walk(root, top, &mut owner)?,
        false => owner.attempt(root, || give(walk, top)),
    }
    Ok(owner.owned)
}

struct Owner<'a> {
    walk: &'a OwnershipWalk,
    progress: &'a Progress,
    waiting: &'a Waiting,
    owned: Owned,
}

impl Owner<'_> {
    fn attempt(&mut self, name: &Path, change: impl FnOnce() -> io::Result<()>) {
        self.owned.entries += 1;
        self.progress.add(1);
        match change() {
            Ok(()) => {}
            // Removed while we looked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                self.owned.refused += 1;
                self.owned.first_refused.get_or_insert_with(|| format!("{}: {error}", name.display()));
            }
        }
    }
}

impl Visitor for Owner<'_> {
    fn proceed(&mut self) -> Result<()> {
        self.waiting.check()
    }

    fn entry(&mut self, directory: BorrowedFd<'_>, name: &OsStr, about: &About) -> io::Result<()> {
        let walk = self.walk;
        self.attempt(Path::new(name), || match needs(walk, about) {
            // By descriptor, so that what is changed is what was looked at, whatever has its name by then.
            true => give(walk, openat(directory, name, ITSELF, Mode::empty())?.as_fd()),
            false => Ok(()),
        });
        Ok(())
    }

    fn directory(&mut self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let walk = self.walk;
        self.attempt(Path::new("a directory"), || give(walk, directory));
        Ok(())
    }
}

fn needs(walk: &OwnershipWalk, about: &About) -> bool {
    let mode_fits = about.is_link() || walk.wanted_mode(about.mode, about.is_dir()) == about.mode;
    about.gid != walk.gid || !mode_fits
}

fn give(walk: &OwnershipWalk, file: BorrowedFd<'_>) -> io::Result<()> {
    let about = about_open(file)?;
    if !needs(walk, &about) {
        return Ok(());
    }
    let mut refused = Ok(());
    if about.gid != walk.gid {
        let itself = AtFlags::AT_EMPTY_PATH | AtFlags::AT_SYMLINK_NOFOLLOW;
        refused = fchownat(file, "", None, Some(Gid::from_raw(walk.gid)), itself);
    }
    if !about.is_link() {
        // Also where it has all of this: to change an owner takes the set-user and set-group bits of a program away.
        let mode = Mode::from_bits_truncate(walk.wanted_mode(about.mode, about.is_dir()));
        let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        let changed = fchmodat(AT_FDCWD, path.as_str(), mode, FchmodatFlags::FollowSymlink);
        refused = refused.and(changed);
    }
    refused.map_err(io::Error::from)
}

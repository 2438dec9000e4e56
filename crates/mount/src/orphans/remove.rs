use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::files::{self, failed};
use crate::listing::names;
use crate::walk::{about, enter};
use crate::{Error, MountTable, Result, target};

/// In `volumes`: a plugin, a volume, and the `mount` of a volume that has its record beside it.
const VOLUME_DEPTH: usize = 3;
/// What else is in a pod's directory is made by us, and is not nested deeply.
const OTHER_DEPTH: usize = 32;
/// How many of the things in the way are told.
const TOLD: usize = 8;

pub(super) fn remove(pod: &Path) -> Result<()> {
    let Some(pod) = files::resolve(pod)? else { return Ok(()) };
    if let Some(mount) = MountTable::read()?.under(&pod).next() {
        return Err(Error::RemoveMounted { path: pod.clone(), mounted: mount.target.clone() });
    }
    let Some(held) = target::hold(&pod)? else { return Ok(()) };
    let top = match enter(held.directory(), held.name()) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ELOOP | Errno::ENOTDIR) => return Err(keep(&pod, "it is no directory".into())),
        Err(errno) => return Err(failed("enter", &pod)(errno.into())),
    };
    let mut left = Vec::new();
    let volumes = OsStr::new("volumes");
    Remover { only_directories: true, deepest: VOLUME_DEPTH, left: &mut left }.remove(
        top.as_fd(),
        volumes,
        Path::new(volumes),
        0,
    )?;
    // As long as there may be a volume, what belongs to it stays.
    if left.is_empty() {
        for name in names(top.as_fd()).map_err(failed("list", &pod))? {
            let mut remover = Remover { only_directories: false, deepest: OTHER_DEPTH, left: &mut left };
            remover.remove(top.as_fd(), &name, Path::new(&name), 0)?;
        }
    }
    if !left.is_empty() {
        let more = left.len().saturating_sub(TOLD);
        let told = left.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("; ");
        return Err(keep(&pod, if more == 0 { told } else { format!("{told}; and {more} more") }));
    }
    match unlinkat(held.directory(), held.name(), UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(failed("remove directory", &pod)(errno.into())),
    }
}

fn keep(pod: &Path, reason: String) -> Error {
    Error::RemoveOrphan { path: pod.into(), reason }
}

struct Remover<'a> {
    only_directories: bool,
    deepest: usize,
    /// What is in the way, and why.
    left: &'a mut Vec<String>,
}

impl Remover<'_> {
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &Path, depth: usize) -> Result<()> {
        let seen = match about(parent, name) {
            Ok(seen) => seen,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return self.leave(path, &error.to_string()),
        };
        let removed = match (seen.is_dir(), self.only_directories) {
            (false, true) => return self.leave(path, "is a file where only directories of volumes are expected"),
            (false, false) => unlinkat(parent, name, UnlinkatFlags::NoRemoveDir),
            (true, _) if depth > self.deepest => {
                return self.leave(path, "is a directory in a volume, which is not ours");
            }
            (true, _) => {
                let inner = match enter(parent, name) {
                    Ok(inner) => inner,
                    Err(Errno::EXDEV) => return self.leave(path, "is mounted"),
                    Err(errno) => return self.leave(path, errno.desc()),
                };
                for name in names(inner.as_fd()).map_err(failed("list", path))? {
                    self.remove(inner.as_fd(), &name, &path.join(&name), depth + 1)?;
                }
                drop(inner);
                // Refused by the kernel if anything was left in it or has come meanwhile.
                unlinkat(parent, name, UnlinkatFlags::RemoveDir)
            }
        };
        match removed {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::ENOTEMPTY) if !self.left.is_empty() => Ok(()),
            Err(errno) => self.leave(path, errno.desc()),
        }
    }

    fn leave(&mut self, path: &Path, why: &str) -> Result<()> {
        self.left.push(format!("{} {why}", path.display()));
        Ok(())
    }
}

//! A directory copied with all that is in it, as `cp -a` does.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use crate::Result;
use crate::archive::open_way;
use crate::attributes::Attributes;
use crate::files::failed;
use crate::share::Share;
use crate::share_walk::{Step, Walk, open_directory, up};

/// Copies what is in one directory into another, over what is there.
pub(crate) fn copy(from: &Share, source: &Path, to: &Share, target: &Path) -> Result<()> {
    let copy = || -> io::Result<()> {
        let source = from.open_dir(source)?;
        let attributes = Attributes::from(&fstat(&source)?);
        let root = to.open_dir(target)?;
        let mut copying = Copying { current: to.open_dir(target)?, above: Vec::new(), root, links: BTreeMap::new() };
        let mut walk = Walk::new(source)?;
        while let Some(step) = walk.next()? {
            copying.step(&walk, step)?;
        }
        attributes.give(&copying.root)
    };
    copy().map_err(failed("copy a directory to", &to.path(target)))
}

struct Copying {
    root: OwnedFd,
    current: OwnedFd,
    above: Vec<FileStat>,
    /// Where files with several names were copied to.
    links: BTreeMap<(u64, u64), PathBuf>,
}

impl Copying {
    fn step(&mut self, walk: &Walk, step: Step) -> io::Result<()> {
        match step {
            Step::Enter { name, .. } => {
                make_directory(self.current.as_fd(), &name)?;
                self.above.push(fstat(&self.current)?);
                self.current = open_directory(self.current.as_fd(), &name)?;
                Ok(())
            }
            Step::Leave { about, .. } => {
                Attributes::from(&about).give(&self.current)?;
                let parent = self.above.pop().ok_or(Errno::EINVAL)?;
                self.current = up(self.current.as_fd(), &parent)?;
                Ok(())
            }
            Step::File { name, about } => self.file(walk, &name, &about),
        }
    }

    fn file(&mut self, walk: &Walk, name: &OsStr, about: &FileStat) -> io::Result<()> {
        clear(self.current.as_fd(), name)?;
        let key = (about.st_dev, about.st_ino);
        if let Some(other) = self.links.get(&key) {
            let parent = open_way(&self.root, other.parent().unwrap_or_else(|| Path::new("")))?;
            let first = other.file_name().ok_or(Errno::EINVAL)?;
            return Ok(linkat(parent, first, &self.current, name, AtFlags::empty())?);
        }
        let attributes = Attributes::from(about);
        match about.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
                let mut source = match openat(walk.directory(), name, flags, Mode::empty()) {
                    // Gone since it was seen.
                    Err(Errno::ENOENT) => return Ok(()),
                    other => File::from(other?),
                };
                let mut target = create(self.current.as_fd(), name)?;
                io::copy(&mut source, &mut target)?;
                attributes.give(&target)?;
            }
            libc::S_IFLNK => {
                let leads = readlinkat(walk.directory(), name)?;
                symlinkat(leads.as_os_str(), &self.current, name)?;
                attributes.give_name(self.current.as_fd(), name)?;
            }
            kind => {
                let mode = Mode::from_bits_truncate(attributes.mode);
                mknodat(&self.current, name, SFlag::from_bits_truncate(kind), mode, about.st_rdev)?;
                attributes.give_name(self.current.as_fd(), name)?;
            }
        }
        if about.st_nlink > 1 {
            self.links.insert(key, walk.way(name));
        }
        Ok(())
    }
}

/// A new file, which nobody else has open.
pub(crate) fn create(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(File::from(openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
}

/// A directory, in place of whatever else has its name.
pub(crate) fn make_directory(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match mkdirat(directory, name, Mode::S_IRWXU) {
        Err(Errno::EEXIST) if open_directory(directory, name).is_err() => {
            clear(directory, name)?;
            Ok(mkdirat(directory, name, Mode::S_IRWXU)?)
        }
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes room for a file. A directory there is left, and makes what follows fail.
pub(crate) fn clear(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT | Errno::EISDIR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::share::example;

    #[test]
    fn a_copy_has_the_contents_links_modes_and_times_of_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("a/b/file"), "contents").unwrap();
        fs::set_permissions(from.join("a/b/file"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        fs::hard_link(from.join("a/b/file"), from.join("again")).unwrap();
        symlink("/etc/passwd", from.join("link")).unwrap();
        nix::unistd::mkfifo(&from.join("pipe"), Mode::S_IRUSR).unwrap();
        // What was copied before, and what is not what it was.
        fs::create_dir(to.join("a")).unwrap();
        symlink("/", to.join("again")).unwrap();
        copy(&example(&from), Path::new(""), &example(&to), Path::new("")).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/b/file")).unwrap(), "contents");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/passwd"));
        let about = |path: PathBuf| fs::symlink_metadata(path).unwrap();
        assert_eq!(about(to.join("again")).ino(), about(to.join("a/b/file")).ino());
        for way in ["", "a", "a/b", "a/b/file", "link", "pipe"] {
            let (source, copy) = (about(from.join(way)), about(to.join(way)));
            assert_eq!((source.mode(), source.modified().unwrap()), (copy.mode(), copy.modified().unwrap()), "{way}");
        }
        copy(&example(&from), Path::new(""), &example(&to), Path::new("")).unwrap();
        assert_eq!(fs::read_to_string(to.join("again")).unwrap(), "contents");
    }

    #[test]
    fn a_link_planted_where_a_directory_is_to_be_copied_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["from/sub", "to", "victim"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("from/sub/file"), "x").unwrap();
        symlink("../victim", dir.path().join("to/sub")).unwrap();
        let share = example(dir.path());
        copy(&share, Path::new("from"), &share, Path::new("to")).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("victim")).unwrap().count(), 0);
        assert!(dir.path().join("to/sub/file").is_file());
    }
}

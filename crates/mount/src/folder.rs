//! One directory of a volume that is written to by us and may be tampered with by others.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::libc;
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Uid, UnlinkatFlags, fchown, fchownat, symlinkat, unlinkat};

use crate::files::failed;
use crate::linux::blocking;
use crate::patience::Waiter;
use crate::walk::about;
use crate::{Counting, DirEntry, FileKind, LinuxMounter, Owned, OwnershipWalk, Progress, Result, listing, ownership};

/// A directory that is held open. Names are relative ways of plain names in it; none of them leads through a link, so
/// nothing outside is ever read or changed. Calls block.
pub trait Folder {
    /// Where a link points to; `None` if nothing has that name, or something that is no link.
    fn read_link(&self, name: &str) -> Result<Option<PathBuf>>;

    /// The contents of a file; `None` if nothing has that name, or something that is no file.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// The entries of a directory in it, by name, or of itself if the name is empty; `None` if there is no such directory.
    fn list(&self, name: &str) -> Result<Option<Vec<DirEntry>>>;

    /// Makes a directory of exactly this mode; fails if there is something of that name.
    fn make_dir(&self, name: &str, mode: u32) -> Result<()>;

    /// Makes a file with contents, exactly this mode, and an owner; fails if there is something of that name.
    fn write_new(&self, name: &str, contents: &[u8], mode: u32, uid: Option<u32>) -> Result<()>;

    /// Makes a link with an owner; fails if there is something of that name.
    fn symlink(&self, to: &str, name: &str, uid: Option<u32>) -> Result<()>;

    /// Gives an entry another name, in place of what has that.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes what is no directory; succeeds if there is nothing.
    fn remove_file(&self, name: &str) -> Result<()>;

    /// Removes an empty directory; succeeds if there is nothing.
    fn remove_dir(&self, name: &str) -> Result<()>;

    /// Gives everything in it to a group; the walk's root is this folder, whatever its path says.
    fn own(&self, walk: &OwnershipWalk) -> Result<Owned>;
}

/// What is to be done with a folder, on a thread that may block.
pub type FolderWork = Box<dyn FnOnce(&dyn Folder) + Send>;

/// The part of the port that opens folders.
#[async_trait]
pub trait Folders: Send + Sync {
    /// Holds a directory and works in it; the work is done before this returns, and is not done if it fails.
    async fn in_folder(&self, path: &Path, work: FolderWork) -> Result<()>;
}

#[async_trait]
impl Folders for LinuxMounter {
    async fn in_folder(&self, path: &Path, work: FolderWork) -> Result<()> {
        let path = path.to_owned();
        blocking(move || {
            work(&LinuxFolder::open(&path)?);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Folders for Counting {
    async fn in_folder(&self, path: &Path, work: FolderWork) -> Result<()> {
        self.change("in_folder", path, self.inner().in_folder(path, work)).await
    }
}

struct LinuxFolder {
    directory: OwnedFd,
    path: PathBuf,
}

impl LinuxFolder {
    fn open(path: &Path) -> Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(AT_FDCWD, path, flags, Mode::empty());
        let directory = opened.map_err(|errno| failed("open", path)(errno.into()))?;
        Ok(LinuxFolder { directory, path: path.to_owned() })
    }

    fn enter(&self, way: &Path, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
        let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
        openat2(&self.directory, way, how)
    }

    /// Works on the last name of a way, from the directory that it is in.
    fn at<T>(
        &self,
        action: &'static str,
        way: &str,
        work: impl FnOnce(&OwnedFd, &OsStr) -> io::Result<T>,
    ) -> Result<T> {
        let go = || -> io::Result<T> {
            let way = Path::new(way);
            let name = way.file_name().filter(|_| way.components().all(|part| matches!(part, Component::Normal(_))));
            let name = name.ok_or(Errno::EINVAL)?;
            match way.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                None => work(&self.directory, name),
                Some(parent) => work(&self.enter(parent, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?, name),
            }
        };
        go().map_err(failed(action, &self.path.join(way)))
    }
}

/// What stands for "there is no such thing here": missing, a link, or of another kind.
fn unless_other<T>(answer: nix::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::EINVAL | Errno::ENAMETOOLONG) => {
            Ok(None)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn unless_missing(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

impl Folder for LinuxFolder {
    fn read_link(&self, name: &str) -> Result<Option<PathBuf>> {
        self.at("read the link", name, |directory, name| {
            Ok(unless_other(readlinkat(directory, name))?.map(PathBuf::from))
        })
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let read = || -> io::Result<Option<Vec<u8>>> {
            // O_NONBLOCK: opening a pipe that somebody put here must not hang.
            let opened = self.enter(Path::new(name), OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty());
            let Some(mut file) = unless_other(opened)?.map(File::from) else { return Ok(None) };
            if !file.metadata()?.is_file() {
                return Ok(None);
            }
            let mut contents = Vec::new();
            file.read_to_end(&mut contents)?;
            Ok(Some(contents))
        };
        read().map_err(failed("read", &self.path.join(name)))
    }

    fn list(&self, name: &str) -> Result<Option<Vec<DirEntry>>> {
        let list = || -> io::Result<Option<Vec<DirEntry>>> {
            let opened = self.enter(Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty());
            let Some(directory) = unless_other(opened)? else { return Ok(None) };
            let mut found = Vec::new();
            for name in listing::names(directory.as_fd())? {
                let kind = match about(directory.as_fd(), &name) {
                    Ok(about) if about.is_dir() => FileKind::Directory,
                    Ok(about) if about.is_link() => FileKind::Link,
                    Ok(about) if about.is_file() => FileKind::File,
                    Ok(_) => FileKind::Other,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                found.push(DirEntry { name, kind });
            }
            found.sort();
            Ok(Some(found))
        };
        list().map_err(failed("list", &self.path.join(name)))
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<()> {
        self.at("make directory", name, |directory, name| {
            mkdirat(directory, name, Mode::S_IRWXU)?;
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            // Not by mkdir's own mode, which the umask cuts.
            Ok(fchmod(openat(directory, name, flags, Mode::empty())?, Mode::from_bits_truncate(mode))?)
        })
    }

    fn write_new(&self, name: &str, contents: &[u8], mode: u32, uid: Option<u32>) -> Result<()> {
        self.at("write", name, |directory, name| {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut file = File::from(openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
            file.write_all(contents)?;
            if let Some(uid) = uid {
                fchown(&file, Some(Uid::from_raw(uid)), None)?;
            }
            Ok(fchmod(&file, Mode::from_bits_truncate(mode))?)
        })
    }

    fn symlink(&self, to: &str, name: &str, uid: Option<u32>) -> Result<()> {
        self.at("link", name, |directory, name| {
            symlinkat(to, directory, name)?;
            if let Some(uid) = uid {
                fchownat(directory, name, Some(Uid::from_raw(uid)), None, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            }
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.at("rename", from, |source, from| {
            let plain = Path::new(to).components().eq([Component::Normal(OsStr::new(to))]);
            match plain {
                true => Ok(renameat(source, from, &self.directory, to)?),
                false => Err(Errno::EINVAL.into()),
            }
        })
    }

    fn remove_file(&self, name: &str) -> Result<()> {
        let removed =
            self.at("remove", name, |directory, name| Ok(unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?));
        unless_missing(removed)
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        let removed = self
            .at("remove directory", name, |directory, name| Ok(unlinkat(directory, name, UnlinkatFlags::RemoveDir)?));
        unless_missing(removed)
    }

    fn own(&self, walk: &OwnershipWalk) -> Result<Owned> {
        let (_waiter, waiting) = Waiter::new();
        ownership::own_open(walk, self.directory.as_fd(), &Progress::default(), &waiting)
    }
}

//! The layers of an image, unpacked one over the other into a directory.
//!
//! Ways lead through links as they would for a program whose root the directory is (RESOLVE_IN_ROOT): images rely on it, and
//! nothing outside is ever reached. No devices are made.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{linkat, syncfs};

use crate::archive::{CHUNK, place};
use crate::attributes::Attributes;
use crate::copy_tree::{clear, make_directory};
use crate::digest::Hashing;
use crate::files::failed;
use crate::listing;
use crate::oci::{Layer, OciLayout};
use crate::patience::Waiting;
use crate::remove_all::remove_in;
use crate::share_walk::open_directory;
use crate::tar::{Entries, Entry, Kind, os};
use crate::{Result, target};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

/// What begins the name of a file that takes another away.
const WHITEOUT: &[u8] = b".wh.";
/// In a directory: nothing of it comes from below.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Notes that aufs left to itself.
const NOTE: &[u8] = b".wh..wh.";

/// Unpacks beside the target, which appears when all of it is on the disk.
pub(crate) fn unpack(layout: &OciLayout, layers: &[Layer], target: &Path, waiting: &Waiting) -> Result<()> {
    let Some(held) = target::hold(target)? else {
        return Err(failed("unpack an image to", target)(Errno::ENOENT.into()));
    };
    let told = |error| failed("unpack an image to", target)(error);
    let name = held.name();
    let mut aside = OsStr::new(".").to_owned();
    aside.push(name);
    aside.push(".unpacking");
    let open = || -> io::Result<_> {
        let store = openat2(held.directory(), ".", OpenHow::new().flags(DIRECTORY))?;
        // One at a time: two pods may want the same image, and what a killed process left is removed below.
        Flock::lock(File::from(store), FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
    };
    let store = open().map_err(told)?;
    if is_there(store.as_fd(), name).map_err(told)? {
        return Ok(());
    }
    remove_in(store.as_fd(), &aside, target, waiting)?;
    let unpacked = apply_all(layout, layers, store.as_fd(), &aside, target, waiting);
    let finished = unpacked.and_then(|root| {
        let finish = || -> io::Result<()> {
            syncfs(&root)?;
            renameat(store.as_fd(), aside.as_os_str(), store.as_fd(), name)?;
            store.sync_all()
        };
        finish().map_err(told)
    });
    if finished.is_err() {
        // Best effort: the next attempt removes it as well.
        let _ = remove_in(store.as_fd(), &aside, target, waiting);
    }
    finished
}

fn is_there(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn apply_all(
    layout: &OciLayout,
    layers: &[Layer],
    store: BorrowedFd<'_>,
    aside: &OsStr,
    target: &Path,
    waiting: &Waiting,
) -> Result<OwnedFd> {
    let make = || -> io::Result<OwnedFd> {
        mkdirat(store, aside, Mode::from_bits_truncate(0o755))?;
        open_directory(store, aside)
    };
    let root = make().map_err(failed("make the directory to unpack to", target))?;
    let tree = Tree { root, target, waiting };
    for layer in layers {
        tree.apply(layout, layer)?;
    }
    Ok(tree.root)
}

struct Tree<'a> {
    root: OwnedFd,
    target: &'a Path,
    waiting: &'a Waiting,
}

impl Tree<'_> {
    /// First what the layer takes away, then what it brings: in its own order it could take away what it has brought.
    fn apply(&self, layout: &OciLayout, layer: &Layer) -> Result<()> {
        let path = layout.path().join(layer.digest.blob());
        let mut whiteouts = Vec::new();
        self.read(layout, layer, |entry, _| {
            whiteouts.extend(whiteout(&way_of(&entry.name)?)?);
            Ok(())
        })?;
        for gone in whiteouts {
            self.take_away(&gone)?;
        }
        let mut directories = Vec::new();
        self.read(layout, layer, |entry, contents| {
            let way = way_of(&entry.name)?;
            let is_mark = way.file_name().is_some_and(|name| name.as_bytes().starts_with(WHITEOUT));
            match entry.kind {
                Kind::Other => {}
                _ if is_mark => {}
                Kind::Directory => {
                    self.make_dir(&way)?;
                    directories.push((way, entry.attributes));
                }
                _ => self.file(&way, entry, contents)?,
            }
            Ok(())
        })?;
        self.give(directories).map_err(failed("unpack", &path))
    }

    /// Shows every entry of a layer; its digest is checked at the end, before anything of it counts.
    fn read(
        &self,
        layout: &OciLayout,
        layer: &Layer,
        mut each: impl FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
    ) -> Result<()> {
        let way = layer.digest.blob();
        let path = layout.path().join(&way);
        let told = |error| failed("unpack the layer", &path)(error);
        let found = layout.read(&way).map_err(told)?;
        let Some((source, size)) = found else {
            return Err(told(io::Error::new(ErrorKind::NotFound, "the layout does not hold it; copy the image anew")));
        };
        if size != layer.size {
            let message = format!("it has {size} bytes, and its manifest says {}; copy the image anew", layer.size);
            return Err(told(io::Error::new(ErrorKind::InvalidData, message)));
        }
        let mut hashing = Hashing::new(&layer.digest, BufReader::with_capacity(CHUNK, source));
        {
            let decoded: Box<dyn Read + '_> = match layer.is_gzip {
                true => Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, &mut hashing))),
                false => Box::new(&mut hashing),
            };
            let mut entries = Entries::new(decoded);
            while let Some(entry) = entries.next().map_err(told)? {
                self.waiting.check()?;
                each(&entry, &mut entries).map_err(told)?;
            }
        }
        io::copy(&mut hashing, &mut io::sink()).map_err(told)?;
        let is_whole = hashing.count() == layer.size;
        match hashing.ends_right() && is_whole {
            true => Ok(()),
            false => {
                let message = "its contents are not what its digest says; copy the image anew";
                Err(told(io::Error::new(ErrorKind::InvalidData, message)))
            }
        }
    }

    /// Opens what a way leads to for a program whose root this tree is; a link at its very end is refused.
    fn open(&self, way: &Path) -> nix::Result<OwnedFd> {
        let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
        openat2(&self.root, way, OpenHow::new().flags(DIRECTORY).resolve(ResolveFlag::RESOLVE_IN_ROOT))
    }

    /// The same for a directory that holds something: a link at its end is followed as well.
    fn open_parent(&self, way: &Path) -> nix::Result<OwnedFd> {
        let flags = DIRECTORY - OFlag::O_NOFOLLOW;
        let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
        openat2(&self.root, way, OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT))
    }

    /// The directory that holds what a way leads to, made if it is missing, and the last name.
    fn parent<'w>(&self, way: &'w Path) -> io::Result<(OwnedFd, &'w OsStr)> {
        let name = way.file_name().ok_or_else(|| io::Error::other("the layer has a file without a name"))?;
        Ok((self.make_way(way.parent().unwrap_or_else(|| Path::new("")))?, name))
    }

    fn make_way(&self, way: &Path) -> io::Result<OwnedFd> {
        match self.open_parent(way) {
            Ok(directory) => Ok(directory),
            // Only what is missing is made; what is too long for the kernel stays an error, and ends this.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) if way.file_name().is_some() => {
                let (above, name) = self.parent(way)?;
                make_directory(above.as_fd(), name)?;
                let made = open_directory(above.as_fd(), name)?;
                // Ours is 0700 until the layer says otherwise, which it need not.
                nix::sys::stat::fchmod(&made, Mode::from_bits_truncate(0o755))?;
                Ok(made)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn make_dir(&self, way: &Path) -> io::Result<()> {
        if way.as_os_str().is_empty() || self.open(way).is_ok() {
            return Ok(());
        }
        let (above, name) = self.parent(way)?;
        make_directory(above.as_fd(), name)
    }

    fn file(&self, way: &Path, entry: &Entry, contents: &mut dyn Read) -> io::Result<()> {
        let (directory, name) = self.parent(way)?;
        if entry.kind == Kind::HardLink {
            let other = way_of(&entry.leads)?;
            if other == way {
                return Ok(());
            }
            self.make_room(directory.as_fd(), name)?;
            let parent = self.open_parent(other.parent().unwrap_or_else(|| Path::new("")))?;
            let first = other.file_name().ok_or_else(|| io::Error::other("the layer has a link to nothing"))?;
            return Ok(linkat(parent, first, &directory, name, AtFlags::empty())?);
        }
        self.make_room(directory.as_fd(), name)?;
        place(directory.as_fd(), name, entry, contents)
    }

    /// What a lower layer has of that name goes, a directory with all that is in it.
    fn make_room(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        clear(directory, name)?;
        remove_in(directory, name, self.target, self.waiting).map_err(io::Error::other)
    }

    fn take_away(&self, gone: &Whiteout) -> Result<()> {
        let told = |error| failed("unpack an image to", self.target)(error);
        let opened = match gone {
            Whiteout::All(way) => self.open_parent(way),
            Whiteout::One(way) => self.open_parent(way.parent().unwrap_or_else(|| Path::new(""))),
        };
        let directory = match opened {
            Ok(directory) => directory,
            // There is nothing to take away.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
            Err(errno) => return Err(told(errno.into())),
        };
        match gone {
            Whiteout::All(_) => {
                for name in listing::names(directory.as_fd()).map_err(told)? {
                    self.make_room(directory.as_fd(), &name).map_err(told)?;
                }
                Ok(())
            }
            Whiteout::One(way) => {
                let name = way.file_name().unwrap_or_default();
                self.make_room(directory.as_fd(), name).map_err(told)
            }
        }
    }

    /// From the inside out: what is made in a directory changes its time, and its mode may forbid it.
    fn give(&self, mut directories: Vec<(PathBuf, Attributes)>) -> io::Result<()> {
        directories.sort_by_key(|(way, _)| std::cmp::Reverse(way.components().count()));
        for (way, attributes) in directories {
            match self.open(&way) {
                Ok(directory) => attributes.give(directory)?,
                // The same layer has put something else in its place.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

enum Whiteout {
    /// What has this name.
    One(PathBuf),
    /// All that is in this directory.
    All(PathBuf),
}

fn whiteout(way: &Path) -> io::Result<Option<Whiteout>> {
    let Some(name) = way.file_name().map(OsStr::as_bytes) else { return Ok(None) };
    let parent = way.parent().unwrap_or_else(|| Path::new(""));
    if name == OPAQUE {
        return Ok(Some(Whiteout::All(parent.to_owned())));
    }
    match name.strip_prefix(WHITEOUT) {
        Some(_) if name.starts_with(NOTE) => Ok(None),
        Some(b"" | b"." | b"..") => Err(io::Error::other("the layer takes away what has no name")),
        Some(gone) => Ok(Some(Whiteout::One(parent.join(OsStr::from_bytes(gone))))),
        None => Ok(None),
    }
}

/// The way that a name in a layer stands for, from its own root; one that climbs is refused.
fn way_of(name: &[u8]) -> io::Result<PathBuf> {
    let mut way = PathBuf::new();
    for part in Path::new(&os(name)).components() {
        match part {
            Component::Normal(part) => way.push(part),
            Component::CurDir | Component::RootDir => {}
            _ => {
                let message = format!("the layer has {:?}, which leads out of it", String::from_utf8_lossy(name));
                return Err(io::Error::other(message));
            }
        }
    }
    Ok(way)
}

#[cfg(test)]
#[path = "layers/tests.rs"]
mod tests;

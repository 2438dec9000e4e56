use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc;
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::SubPath;
use crate::files::{self, failed};
use crate::{Error, FileKind, Place, Result, Target, bind, place, target, walk};

const HELD: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);
/// Of one process that moves directories as fast as we look; then it is told to try again.
const ATTEMPTS: u32 = 16;
/// More mounts than ever lie above each other at one target.
const LAYERS: u32 = 16;

pub(super) fn prepare(sub_path: &SubPath) -> Result<FileKind> {
    let hide = |why: &'static str| {
        let sub_path = sub_path.path.clone();
        move |error| Error::PrepareSubPath { sub_path, why, source: Box::new(error) }
    };
    let names = sub_path.names()?;
    let part = open_part(&sub_path.volume, &names).map_err(|source| {
        let why = match source.raw_os_error() {
            Some(libc::EXDEV) => "it leads out of the volume",
            Some(libc::ELOOP) => "it leads to a link that cannot be followed",
            Some(libc::ENOTDIR) => "something on its way is no directory",
            Some(libc::EAGAIN) => "it is being moved; the call is to be repeated",
            Some(libc::EROFS) => "it does not exist and the volume is read-only",
            _ => "it could not be opened or made",
        };
        hide(why)(failed("open the sub path in", &sub_path.volume)(source))
    })?;
    let show = || -> Result<FileKind> {
        let seen = place::of(part.as_fd()).map_err(failed("look into", &sub_path.volume))?;
        let target = target::make_and_hold(&files::locate(&sub_path.target)?)?;
        if !free(&target, &seen)? {
            make_room(&target, seen.kind)?;
            bind::bind_open_at(part.as_fd(), &sub_path.volume, &target)?;
        }
        Ok(seen.kind)
    };
    show().map_err(hide("it could not be shown to the container"))
}

/// Opens the part, with what is missing of it made; never anything outside the volume.
fn open_part(volume: &Path, names: &[&str]) -> io::Result<OwnedFd> {
    let root = openat(AT_FDCWD, volume, HELD | OFlag::O_DIRECTORY, Mode::empty())?;
    let mode = Mode::from_bits_truncate(walk::about_open(root.as_fd())?.mode);
    let mut missing = 0;
    let mut found = loop {
        let way: PathBuf = names[..names.len() - missing].iter().collect();
        match within(&root, &way) {
            Ok(found) => break found,
            Err(Errno::ENOENT) if missing < names.len() => missing += 1,
            Err(errno) => return Err(errno.into()),
        }
    };
    for name in &names[names.len() - missing..] {
        found = make(&found, name, mode)?;
    }
    Ok(found)
}

/// Follows a way with its links, as long as it stays in the volume.
fn within(root: &OwnedFd, way: &Path) -> nix::Result<OwnedFd> {
    let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let mut attempt = 0;
    loop {
        attempt += 1;
        match openat2(root, way, OpenHow::new().flags(HELD).resolve(resolve)) {
            // The kernel cannot tell whether it is still inside, because somebody moves directories.
            Err(Errno::EAGAIN) if attempt < ATTEMPTS => {}
            other => return other,
        }
    }
}

fn make(directory: &OwnedFd, name: &str, mode: Mode) -> io::Result<OwnedFd> {
    let made = match mkdirat(directory, name, mode) {
        Ok(()) => true,
        // By somebody else, or it is a link to nowhere.
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let open = openat2(directory, name, OpenHow::new().flags(flags).resolve(resolve))?;
    if made {
        // Not by mkdir's own mode, which the umask cuts.
        fchmod(&open, mode)?;
    }
    Ok(open)
}

/// Takes away what is mounted at a target, unless it is what is wanted there; true if it stays.
fn free(target: &Target, wanted: &Place) -> Result<bool> {
    for _ in 0..LAYERS {
        match place::at(target.directory(), target.name()) {
            Ok(Some(seen)) if seen.is_mount && seen.shows_the_same(wanted) => return Ok(true),
            Ok(Some(seen)) if !seen.is_mount => return Ok(false),
            Ok(None) => return Ok(false),
            Ok(Some(_)) => {}
            Err(error) if is_corrupted(&error) => {}
            Err(error) => return Err(failed("look at", target.path())(error)),
        }
        bind::detach_at(target)?;
    }
    Err(Error::UnmountUsed { target: target.path().into() })
}

/// What the kernel says of a mount whose server or device is gone.
fn is_corrupted(error: &io::Error) -> bool {
    let gone = [libc::ENOTCONN, libc::ESTALE, libc::EIO, libc::EACCES, libc::EHOSTDOWN, libc::EWOULDBLOCK];
    error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

/// Makes a target of the kind that can show the part; what another kind of part left there goes if it is empty.
fn make_room(target: &Target, kind: FileKind) -> Result<()> {
    let wants_directory = kind == FileKind::Directory;
    let is_other = |place: &Place| (place.kind == FileKind::Directory) != wants_directory;
    if let Some(seen) = target::look(target)?.filter(is_other) {
        let flag = match (seen.kind, seen.size) {
            (FileKind::Directory, _) => UnlinkatFlags::RemoveDir,
            (FileKind::File, 0) => UnlinkatFlags::NoRemoveDir,
            _ => return Err(failed("replace", target.path())(Errno::EEXIST.into())),
        };
        let removed = unlinkat(target.directory(), target.name(), flag);
        removed.map_err(|errno| failed("replace", target.path())(errno.into()))?;
    }
    match wants_directory {
        true => target::make_dir(target),
        false => make_file(target).map_err(failed("make", target.path())),
    }
}

fn make_file(target: &Target) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(target.directory(), target.name(), flags, Mode::from_bits_truncate(0o640))?;
    match File::from(file).metadata()?.is_file() {
        true => Ok(()),
        false => Err(Errno::EEXIST.into()),
    }
}

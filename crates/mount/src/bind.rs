//! mount(2), umount(2), and bind mounts through the newer calls (open_tree, mount_setattr, move_mount: Linux 5.12).
//!
//! With bind and remount a read-only mount would be writable for a moment, and for ever after a crash in between.
//! Here it gets its flags while it is still detached and appears at the target complete or not at all.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_long, c_uint};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, umount2};
use sys_mount::{Mount, MountFlags};

use crate::{Error, MountOptions, MountTable, Place, Result, Target, files, place, target};

const OPEN_TREE_CLONE: c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: c_uint = 0x04;
const MOVE_MOUNT_T_EMPTY_PATH: c_uint = 0x40;
const MOUNT_ATTR_RDONLY: u64 = 0x01;
const MOUNT_ATTR_NOSUID: u64 = 0x02;
const MOUNT_ATTR_NODEV: u64 = 0x04;
const MOUNT_ATTR_NOEXEC: u64 = 0x08;
/// All of the next two, which are one choice; neither means relatime.
const MOUNT_ATTR_ATIME: u64 = 0x70;
const MOUNT_ATTR_NOATIME: u64 = 0x10;
const MOUNT_ATTR_STRICTATIME: u64 = 0x20;
const MOUNT_ATTR_NODIRATIME: u64 = 0x80;

/// The kernel's `struct mount_attr`, first version.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

pub(crate) fn mount(from: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
    let call = || mount_on(from, &open_place(target)?, fs_type, options);
    call().map_err(|source| Error::Mount { from: from.into(), target: target.into(), fs_type: fs_type.into(), source })
}

pub(crate) fn mount_at(from: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()> {
    let call = || mount_on(from, &target.open()?, fs_type, options);
    let failed = |source| {
        let (from, target, fs_type) = (from.into(), target.path().into(), fs_type.into());
        Error::Mount { from, target, fs_type, source }
    };
    call().map_err(failed)?;
    unless_moved(target)
}

fn mount_on(from: &str, place: &File, fs_type: &str, options: &MountOptions) -> io::Result<()> {
    let (flags, data) = options.split();
    let place = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    // Retained, because sys-mount has no name for lazytime.
    let call = Mount::builder().fstype(fs_type).flags(MountFlags::from_bits_retain(flags.bits()));
    let call = if data.is_empty() { call } else { call.data(&data) };
    // Only the handles of `mount_autodrop` unmount when they are dropped.
    let mounted = call.mount(from, place).map(drop);
    // What the kernel never saw has a NUL in it.
    mounted.map_err(|error| if error.raw_os_error().is_none() { Errno::EINVAL.into() } else { error })
}

pub(crate) fn bind(from: &Path, target: &Path, options: &MountOptions) -> Result<()> {
    let call = || bind_on(clone_tree(None, from)?, &open_place(target)?, options);
    call().map_err(|source| Error::Bind { from: from.into(), target: target.into(), source })
}

pub(crate) fn bind_at(from: &Path, target: &Target, options: &MountOptions) -> Result<()> {
    let call = || bind_on(clone_tree(None, from)?, &target.open()?, options);
    call().map_err(|source| Error::Bind { from: from.into(), target: target.path().into(), source })?;
    unless_moved(target)
}

pub(crate) fn bind_seen_at(from: &Target, seen: &Place, target: &Target, options: &MountOptions) -> Result<()> {
    let failed = |source| Error::Bind { from: from.path().into(), target: target.path().into(), source };
    // What is looked at is the copy that will be shown, and nobody can put another in its place.
    let tree = clone_tree(Some(from.directory()), Path::new(from.name())).map_err(failed)?;
    if !place::of(tree.as_fd()).map_err(failed)?.shows_the_same(seen) {
        return Err(Error::Moved { path: from.path().into() });
    }
    let call = || bind_on(tree, &target.open()?, options);
    call().map_err(failed)?;
    unless_moved(target)
}

/// Shows an open file or directory, whatever its name leads to by now.
pub(crate) fn bind_open_at(from: BorrowedFd<'_>, path: &Path, target: &Target) -> Result<()> {
    let call = || bind_on(clone_tree(Some(from), Path::new(""))?, &target.open()?, &MountOptions::default());
    call().map_err(|source| Error::Bind { from: path.into(), target: target.path().into(), source })?;
    unless_moved(target)
}

fn bind_on(tree: OwnedFd, place: &File, options: &MountOptions) -> io::Result<()> {
    let attributes = attributes(options);
    if attributes.set | attributes.clear != 0 {
        set_attributes(&tree, &attributes, 0)?;
    }
    move_tree(&tree, place)
}

/// A copy of what is at a path and of all that is mounted below, which is seen nowhere yet.
pub(crate) fn clone_whole(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let tree = clone_tree_with(None, path, libc::AT_RECURSIVE)?;
    if read_only {
        let attributes = MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
        set_attributes(&tree, &attributes, libc::AT_RECURSIVE)?;
    }
    Ok(tree)
}

/// Shows such a copy at a target.
pub(crate) fn show_at(tree: &OwnedFd, target: &Target) -> io::Result<()> {
    move_tree(tree, &target.open()?)
}

/// A held directory may have been moved away with what is now mounted in it.
fn unless_moved(target: &Target) -> Result<()> {
    if target.is_in_place()? {
        return Ok(());
    }
    // Also if somebody is in it by now.
    let flags = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH;
    let undone = umount2(&target.through_directory(), flags);
    undone.map_err(|errno| Error::Unmount { target: target.path().into(), source: errno.into() })?;
    Err(Error::Moved { path: target.path().into() })
}

/// What mount_setattr is to be told. A way to keep times replaces the one the source has.
fn attributes(options: &MountOptions) -> MountAttr {
    let (flags, _) = options.split();
    let words = [
        (MsFlags::MS_RDONLY, MOUNT_ATTR_RDONLY),
        (MsFlags::MS_NOSUID, MOUNT_ATTR_NOSUID),
        (MsFlags::MS_NODEV, MOUNT_ATTR_NODEV),
        (MsFlags::MS_NOEXEC, MOUNT_ATTR_NOEXEC),
        (MsFlags::MS_NOATIME, MOUNT_ATTR_NOATIME),
        (MsFlags::MS_STRICTATIME, MOUNT_ATTR_STRICTATIME),
        (MsFlags::MS_NODIRATIME, MOUNT_ATTR_NODIRATIME),
    ];
    // As mount(2) has it, the stricter of the two counts.
    let flags = if flags.contains(MsFlags::MS_STRICTATIME) { flags - MsFlags::MS_NOATIME } else { flags };
    let set = words.into_iter().filter(|(flag, _)| flags.contains(*flag)).fold(0, |set, (_, one)| set | one);
    let one_choice = MsFlags::MS_NOATIME | MsFlags::MS_STRICTATIME | MsFlags::MS_RELATIME;
    let clear = if flags.intersects(one_choice) { MOUNT_ATTR_ATIME } else { 0 };
    MountAttr { set, clear, ..MountAttr::default() }
}

pub(crate) fn unmount(target: &Path) -> Result<()> {
    unmount_with(target, MntFlags::empty())
}

pub(crate) fn unmount_lazily(target: &Path) -> Result<()> {
    unmount_with(target, MntFlags::MNT_DETACH)
}

pub(crate) fn unmount_by_force(target: &Path) -> Result<()> {
    unmount_with(target, MntFlags::MNT_FORCE)
}

/// The flags of the mount that are not named stay: mount(2) would clear them.
pub(crate) fn remount(target: &Path, options: &MountOptions) -> Result<()> {
    let failed = |source| Error::Remount { target: target.into(), source };
    let Some(resolved) = files::resolve(target)? else { return Err(failed(Errno::ENOENT.into())) };
    let table = MountTable::read()?;
    let mount = table.at(&resolved).ok_or_else(|| failed(Errno::EINVAL.into()))?;
    let (flags, _) = MountOptions::new(mount.options.iter().chain(&options.words)).split();
    let (_, data) = options.split();
    let data = (!data.is_empty()).then_some(data.as_str());
    let held = open_place(target).map_err(failed)?;
    let place = format!("/proc/thread-self/fd/{}", held.as_raw_fd());
    let flags = flags | MsFlags::MS_REMOUNT;
    nix::mount::mount(None::<&str>, place.as_str(), None::<&str>, flags, data).map_err(|errno| failed(errno.into()))
}

fn unmount_with(target: &Path, flags: MntFlags) -> Result<()> {
    match umount2(target, MntFlags::UMOUNT_NOFOLLOW | flags) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        // Also what the kernel says of mounts it will not let go; only the table tells the two apart.
        Err(Errno::EINVAL) if !is_mounted(target)? => Ok(()),
        Err(Errno::EBUSY) => Err(Error::UnmountUsed { target: target.into() }),
        Err(errno) => Err(Error::Unmount { target: target.into(), source: errno.into() }),
    }
}

/// Takes a mount away whoever is in it; what they have open stays theirs until they close it.
pub(crate) fn detach_at(target: &Target) -> Result<()> {
    match umount2(&target.through_directory(), MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::Unmount { target: target.path().into(), source: errno.into() }),
    }
}

/// Through the held directory and by its last name: an open mount would be busy.
pub(crate) fn unmount_at(target: &Target) -> Result<()> {
    let failed = |source| Error::Unmount { target: target.path().into(), source };
    match umount2(&target.through_directory(), MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(Errno::EINVAL) if !target::look(target)?.is_some_and(|place| place.is_mount) => Ok(()),
        Err(Errno::EBUSY) => Err(Error::UnmountUsed { target: target.path().into() }),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn is_mounted(target: &Path) -> Result<bool> {
    let Some(resolved) = files::resolve(target)? else { return Ok(false) };
    Ok(MountTable::read()?.at(&resolved).is_some())
}

/// Holds the target by descriptor, so that nobody can put a link in its place between check and mount.
fn open_place(target: &Path) -> io::Result<File> {
    let place = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(target)?;
    match place.metadata()?.file_type().is_symlink() {
        true => Err(Errno::ELOOP.into()),
        false => Ok(place),
    }
}

fn clone_tree(directory: Option<BorrowedFd<'_>>, from: &Path) -> io::Result<OwnedFd> {
    clone_tree_with(directory, from, 0)
}

fn clone_tree_with(directory: Option<BorrowedFd<'_>>, from: &Path, how: c_int) -> io::Result<OwnedFd> {
    let directory = directory.map_or(libc::AT_FDCWD, |directory| directory.as_raw_fd());
    let path = CString::new(from.as_os_str().as_bytes())?;
    let itself = if from.as_os_str().is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as c_uint | (libc::AT_SYMLINK_NOFOLLOW | itself | how) as c_uint;
    // SAFETY: open_tree reads a NUL-terminated path that lives until the call returns, and writes no memory.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_attributes(tree: &OwnedFd, attributes: &MountAttr, how: c_int) -> io::Result<()> {
    let (fd, here, flags) = (tree.as_raw_fd(), EMPTY.as_ptr(), libc::AT_EMPTY_PATH | how);
    let (attributes, size) = (std::ptr::from_ref(attributes), size_of::<MountAttr>());
    // SAFETY: mount_setattr reads the empty path and `size` bytes of attributes; both outlive the call.
    check(unsafe { libc::syscall(libc::SYS_mount_setattr, fd, here, flags, attributes, size) }).map(drop)
}

fn move_tree(tree: &OwnedFd, place: &File) -> io::Result<()> {
    let (from, to, here) = (tree.as_raw_fd(), place.as_raw_fd(), EMPTY.as_ptr());
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: move_mount reads two empty paths of static lifetime and writes no memory; both descriptors are open.
    check(unsafe { libc::syscall(libc::SYS_move_mount, from, here, to, here, flags) }).map(drop)
}

const EMPTY: &CStr = c"";

fn check(answer: c_long) -> io::Result<c_int> {
    match answer {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value as c_int),
    }
}

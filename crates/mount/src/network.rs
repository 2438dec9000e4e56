//! Network file systems: mounted by their helper, which finds the server and settles the protocol with it.
#![allow(unsafe_code)]

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::libc;
use nix::mount::{MntFlags, umount2};

use crate::files::failed;
use crate::program::without_open_files;
use crate::{Error, MountOptions, MountTable, NetworkMount, Result, Target, target};

const HELPER: &str = "mount.nfs";
const HELPER_FOLDERS: [&str; 4] = ["/sbin", "/usr/sbin", "/usr/local/sbin", "/bin"];
/// The original's; callers wait two minutes.
const MOST_SECONDS: u64 = 110;
/// For a helper that was told to end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// What these file systems are called in the mount table.
const TYPES: [&str; 2] = ["nfs", "nfs4"];

/// Mounts at a place whose path nobody else can change.
pub(crate) fn mount(from: &str, target: &Target, fs_type: &str, options: &MountOptions) -> Result<()> {
    let found = HELPER_FOLDERS.iter().map(|folder| Path::new(folder).join(HELPER)).find(|path| path.is_file());
    let helper = found.ok_or_else(|| Error::FindHelper { from: from.into(), helper: HELPER })?;
    let patience = Duration::from_secs(MOST_SECONDS);
    let answer = without_open_files(|| run(&helper, from, target.path(), options, patience));
    let refused = |output| Error::MountNetwork { from: from.into(), target: target.path().into(), output };
    match answer.map_err(|error| refused(error.to_string()))? {
        None => Err(Error::AwaitServer { from: from.into(), target: target.path().into(), seconds: MOST_SECONDS }),
        Some((status, _)) if status.success() => Ok(()),
        // The kernel loads what it has when it is asked for it.
        Some(_) if !has_file_system(fs_type)? => {
            Err(Error::FindFileSystem { from: from.into(), fs_type: fs_type.into() })
        }
        Some((status, output)) if output.is_empty() => Err(refused(format!("{HELPER} ended with {status}"))),
        Some((_, output)) => Err(refused(output)),
    }
}

/// What the helper came to and what it said; none if that took too long.
fn run(
    helper: &Path,
    from: &str,
    target: &Path,
    options: &MountOptions,
    patience: Duration,
) -> io::Result<Option<(ExitStatus, String)>> {
    let mut command = Command::new(helper);
    // Without a note of its own: what we unmount would stay in it, and the folder for it may be read-only.
    command.arg(from).arg(target).arg("-n");
    if !options.words.is_empty() {
        command.arg("-o").arg(options.words.join(","));
    }
    // What it says is read by us too.
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if !ends_within(&child, patience)? {
        child.kill()?;
        // One that hangs in the kernel cannot be ended, only left.
        if ends_within(&child, LAST_WORDS)? {
            child.wait()?;
        }
        return Ok(None);
    }
    let mut said = String::new();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(4096).read_to_string(&mut said);
    }
    Ok(Some((child.wait()?, said.trim().to_owned())))
}

fn ends_within(child: &Child, patience: Duration) -> io::Result<bool> {
    // SAFETY: pidfd_open takes no pointer; the child is not waited for yet, so its number is its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one `pollfd` that outlives the call is read and written.
    match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
        -1 => Err(io::Error::last_os_error()),
        count => Ok(count > 0),
    }
}

fn has_file_system(fs_type: &str) -> Result<bool> {
    let path = Path::new("/proc/filesystems");
    let list = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(list.lines().any(|line| line.split_whitespace().last().is_some_and(|name| name.starts_with(fs_type))))
}

/// By the mount table: a server that is away is not asked.
pub(crate) fn source_at(target: &Target) -> Result<Option<NetworkMount>> {
    let table = MountTable::read()?;
    let found = table.at(target.path()).filter(|mount| TYPES.contains(&mount.fs_type.as_str()));
    Ok(found.map(|mount| NetworkMount { source: mount.source.clone(), read_only: mount.is_read_only() }))
}

/// With force, requests that wait for the server are given up.
pub(crate) fn unmount(target: &Target, force: bool) -> Result<()> {
    let flags = if force { MntFlags::MNT_FORCE } else { MntFlags::empty() };
    match umount2(&target.through_directory(), MntFlags::UMOUNT_NOFOLLOW | flags) {
        Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
        Err(nix::errno::Errno::EINVAL) if MountTable::read()?.at(target.path()).is_none() => Ok(()),
        Err(nix::errno::Errno::EBUSY) => Err(Error::UnmountUsed { target: target.path().into() }),
        Err(errno) => Err(Error::Unmount { target: target.path().into(), source: errno.into() }),
    }
}

/// A directory in one that only this user can change.
pub(crate) fn make_private(directory: &Path, name: &str) -> Result<Target> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("make directory", directory))?;
    let about = fs::symlink_metadata(directory).map_err(failed("look at", directory))?;
    let ours = about.is_dir() && about.uid() == nix::unistd::geteuid().as_raw() && about.mode() & 0o022 == 0;
    if !ours {
        return Err(Error::TrustDirectory { path: directory.into() });
    }
    let target = target::make_and_hold(&directory.join(name))?;
    target::make_dir(&target)?;
    Ok(target)
}

/// Takes whatever is mounted at a private place away, and the place.
pub(crate) fn discard(target: &Target) -> Result<()> {
    loop {
        match umount2(&target.through_directory(), MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => break,
            Err(errno) => return Err(Error::Unmount { target: target.path().into(), source: errno.into() }),
        }
    }
    target::remove_dir(target)
}

/// The private places that are left in a directory.
pub(crate) fn private_places(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", directory))?,
    };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("helper");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        (dir, path)
    }

    fn ask(text: &str, patience: Duration) -> Option<(ExitStatus, String)> {
        let (_dir, helper) = script(text);
        let options = MountOptions::new(["nfsvers=4.1", "ro"]);
        without_open_files(|| run(&helper, "server:/a b", Path::new("/mnt"), &options, patience)).unwrap()
    }

    #[test]
    fn a_helper_is_given_source_target_and_options_and_what_it_says_is_kept() {
        let (status, said) = ask("printf '%s|' \"$@\" >&2; exit 32", Duration::from_secs(60)).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(32), "server:/a b|/mnt|-n|-o|nfsvers=4.1,ro|"));
    }

    #[test]
    fn a_helper_that_does_not_end_is_ended() {
        assert!(ask("exec sleep 600", Duration::from_millis(50)).is_none());
    }

    #[test]
    fn a_missing_helper_or_file_system_says_what_to_install() {
        let dir = tempfile::tempdir().unwrap();
        let target = make_private(&dir.path().join("own"), "place").unwrap();
        let installed = HELPER_FOLDERS.iter().any(|folder| Path::new(folder).join(HELPER).is_file());
        if installed {
            eprintln!("not tried without {HELPER}: it is installed here");
        } else {
            let message = mount("s:/x", &target, "nfs", &MountOptions::default()).unwrap_err().to_string();
            assert!(message.contains("install the package nfs-common"), "{message}");
        }
        assert!(has_file_system("proc").unwrap() && !has_file_system("no-such-file-system").unwrap());
        discard(&target).unwrap();
        assert_eq!(private_places(&dir.path().join("own")).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_directory_that_others_may_write_in_is_not_private() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(make_private(dir.path(), "place"), Err(Error::TrustDirectory { .. })));
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        assert!(make_private(&dir.path().join("link"), "place").is_err());
    }
}

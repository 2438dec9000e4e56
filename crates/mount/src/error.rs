use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::filesystem::{CHECK, FileSystem};

/// Why something on this machine could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's mount table could not be read.
    #[error("cannot read the mount table {path}: {source}")]
    ReadTable { path: PathBuf, source: io::Error },
    /// A line of the mount table is not what proc(5) describes.
    #[error("cannot parse line {line} of the mount table: {reason}")]
    ParseTable { line: usize, reason: &'static str },
    /// mount(2) refused.
    #[error("cannot mount {from} ({fs_type}) at {target}: {source}")]
    Mount { from: String, target: PathBuf, fs_type: String, source: io::Error },
    /// Network file systems are mounted by programs of their own.
    #[error(
        "cannot mount {from}: {helper} is not installed here; install the package nfs-common (Debian, Ubuntu) or nfs-utils (others)"
    )]
    FindHelper { from: String, helper: &'static str },
    /// The kernel was built without a file system, or its module is not there.
    #[error(
        "cannot mount {from}: this kernel has no file system {fs_type}; load it (modprobe {fs_type}) or install the kernel's further modules"
    )]
    FindFileSystem { from: String, fs_type: String },
    /// The helper has said why.
    #[error("cannot mount {from} at {target}: {output}")]
    MountNetwork { from: String, target: PathBuf, output: String },
    /// The server, or the way to it, is silent.
    #[error(
        "mounting {from} at {target} was given up after {seconds} s; is its server there, and does a firewall let it through?"
    )]
    AwaitServer { from: String, target: PathBuf, seconds: u64 },
    /// Whoever can write in it could lead a mount elsewhere.
    #[error("{path} belongs to somebody else, or others may write in it; give the driver a directory of its own")]
    TrustDirectory { path: PathBuf },
    /// A bind mount could not be made.
    #[error("cannot bind {from} to {target}: {source}")]
    Bind { from: PathBuf, target: PathBuf, source: io::Error },
    /// The options of a mount could not be changed.
    #[error("cannot remount {target}: {source}")]
    Remount { target: PathBuf, source: io::Error },
    /// umount(2) refused.
    #[error("cannot unmount {target}: {source}")]
    Unmount { target: PathBuf, source: io::Error },
    /// Somebody has put something else on the way to a path, or in its place, while it was used.
    #[error("what leads to {path} was changed while it was used, so nothing is mounted there; repeat the call")]
    Moved { path: PathBuf },
    /// Without it a path could lead elsewhere between two calls.
    #[error(
        "cannot hold {path}: the kernel or its filter refuses openat2, which Linux has since 5.6; use a newer kernel"
    )]
    HoldPath { path: PathBuf },
    /// A program has something open there, or something else is mounted below.
    #[error("cannot unmount {target}: it is in use; end what has files open there or is mounted below, and try again")]
    UnmountUsed { target: PathBuf },
    /// A directory is or holds a mount point and is therefore not removed.
    #[error("will not remove {path}: {mounted} is still mounted")]
    RemoveMounted { path: PathBuf, mounted: PathBuf },
    /// A sub path says by itself that it leads out of its volume.
    #[error("subPath {sub_path:?} is refused: {why}")]
    RefuseSubPath { sub_path: String, why: &'static str },
    /// A part of a volume could not be shown; the source is for the log, because it names paths of the machine.
    #[error("cannot prepare subPath {sub_path:?}: {why}")]
    PrepareSubPath { sub_path: String, why: &'static str, source: Box<Error> },
    /// A pod's directory is not empty although nothing of the pod is left to be taken down.
    #[error("will not remove the orphaned pod directory {path}: {reason}")]
    RemoveOrphan { path: PathBuf, reason: String },
    /// A file or directory could not be read or changed.
    #[error("cannot {action} {path}: {source}")]
    AccessFile { action: &'static str, path: PathBuf, source: io::Error },
    /// A loop device could not be set up, read or released.
    #[error("cannot {action} loop device {device}: {source}")]
    AccessLoop { action: &'static str, device: PathBuf, source: io::Error },
    /// A loop device now serves another image than the caller thinks.
    #[error("will not detach {device}: it no longer carries the tag {tag:?}")]
    DetachForeign { device: PathBuf, tag: String },
    /// Somebody else has a loop device open or mounted, so it goes on serving its image.
    #[error("{device} is still open or mounted somewhere else; it goes when that ends")]
    KeepLoop { device: PathBuf },
    /// Every free loop device was taken by somebody else first.
    #[error("no free loop device after {attempts} attempts: others take them as fast as the kernel offers them")]
    FindFreeLoop { attempts: u32 },
    /// A loop device's tag does not fit into the kernel's field.
    #[error("loop device tag {tag:?} is longer than {max} bytes")]
    TagLoop { tag: String, max: usize },
    /// A program such as mkfs could not be started.
    #[error("cannot run {tool} on {device}: {source}; is it installed?")]
    RunTool { tool: &'static str, device: PathBuf, source: io::Error },
    /// A program such as mkfs ran and failed.
    #[error("{tool} on {device} ended with {status}: {output}")]
    FinishTool { tool: &'static str, device: PathBuf, status: ExitStatus, output: String },
    /// A program that works on the device alone found somebody else there.
    #[error("{device} is in use by another program, so {tool} cannot work on it; wait until that has ended")]
    FindInUse { tool: &'static str, device: PathBuf },
    /// The kernel lets nobody grow a mounted ext4 who has not the right to exceed limits.
    #[error("growing the mounted file system on {device} needs the capability SYS_RESOURCE; give it to the driver")]
    GrowWithoutRight { device: PathBuf },
    /// Only the kernel could, while it is mounted.
    #[error("the file system on {device} cannot grow unmounted: {reason}; give the driver the capability SYS_RESOURCE")]
    GrowUnmounted { device: PathBuf, reason: &'static str },
    /// Somebody is growing the file system already.
    #[error("the file system on {device} is being grown already; wait until that is done")]
    GrowTwice { device: PathBuf },
    /// There is no way to make or check this file system here.
    #[error("making a file system of type {file_system} is not supported; use ext4, xfs or btrfs")]
    MakeUnsupported { file_system: FileSystem },
    /// A mount did not tell how full it is.
    #[error("cannot tell how full {path} is: {reason}")]
    ProbeUsage { path: PathBuf, reason: String },
    /// The worker thread that made the call is gone.
    #[error("the call did not finish: {reason}")]
    FinishCall { reason: String },
    /// A [`Counting`](crate::Counting) port was told to stop here.
    #[error("stopped at change {at}")]
    Stopped { at: u64 },
}

impl Error {
    /// The error the kernel gave, if it came from there.
    pub fn os_error(&self) -> Option<i32> {
        match self {
            Error::PrepareSubPath { source, .. } => source.os_error(),
            Error::ReadTable { source, .. }
            | Error::Mount { source, .. }
            | Error::Bind { source, .. }
            | Error::Remount { source, .. }
            | Error::Unmount { source, .. }
            | Error::AccessFile { source, .. }
            | Error::AccessLoop { source, .. }
            | Error::RunTool { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether a server will not have us.
    pub fn is_denied(&self) -> bool {
        let says = |output: &String| output.contains("access denied") || output.contains("Permission denied");
        matches!(self, Error::MountNetwork { output, .. } if says(output))
    }

    /// Whether a mount helper did not understand its options.
    pub fn is_bad_option(&self) -> bool {
        let says = |output: &String| {
            let output = output.to_ascii_lowercase();
            ["invalid argument", "incorrect mount option", "parsing error"].iter().any(|word| output.contains(word))
        };
        matches!(self, Error::MountNetwork { output, .. } if says(output))
    }

    /// Whether the server no longer knows what is mounted.
    pub fn is_stale(&self) -> bool {
        self.os_error() == Some(nix::libc::ESTALE)
    }

    /// Whether something is where something else was to be renamed to.
    pub fn is_occupied(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::EEXIST | nix::libc::ENOTEMPTY))
    }

    /// Whether the disk, the quota or the inodes ran out.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::ENOSPC | nix::libc::EDQUOT))
    }

    /// Whether the file is larger than the file system can hold.
    pub fn is_too_large(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::EFBIG | nix::libc::EOVERFLOW))
    }

    /// Whether somebody still uses the mount or device.
    pub fn is_busy(&self) -> bool {
        match self {
            Error::UnmountUsed { .. }
            | Error::FindInUse { .. }
            | Error::RemoveMounted { .. }
            | Error::KeepLoop { .. }
            | Error::GrowTwice { .. } => true,
            other => other.os_error() == Some(nix::libc::EBUSY),
        }
    }

    /// Whether an ext file system was checked and is not whole; of one that could not be checked nothing is known.
    pub fn is_failed_check(&self) -> bool {
        /// e2fsck: there are errors that it has left as they were.
        const LEFT: i32 = 4;
        match self {
            Error::FinishTool { tool: CHECK, status, .. } => status.code().is_some_and(|code| code & LEFT != 0),
            _ => false,
        }
    }

    /// Whether somebody changed what leads to a path while it was used.
    pub fn is_moved(&self) -> bool {
        matches!(self, Error::Moved { .. })
    }

    /// Whether the kernel knows what is asked for and cannot do it here.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::EINVAL | nix::libc::EOPNOTSUPP))
    }

    /// Whether this process may not do that.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::EACCES | nix::libc::EPERM))
    }

    /// Whether nobody knows if the change was made: the call got no answer.
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Error::FinishCall { .. } | Error::Stopped { .. } | Error::AwaitServer { .. })
    }

    /// Whether the file or one of its parents does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::ENOENT | nix::libc::ENOTDIR))
    }

    /// Whether a path leads through a file, a link to nowhere or a circle of links.
    pub fn is_astray(&self) -> bool {
        matches!(self.os_error(), Some(nix::libc::ENOTDIR | nix::libc::ELOOP | nix::libc::ENOENT))
    }

    /// Whether the file system is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.os_error() == Some(nix::libc::EROFS)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn only_a_check_that_has_ended_by_itself_says_that_a_file_system_is_damaged() {
        let ended = |tool, raw| {
            let status = ExitStatus::from_raw(raw);
            Error::FinishTool { tool, device: "loop0".into(), status, output: String::new() }
        };
        for (code, says) in [(4, true), (4 | 8, true), (8, false), (16, false), (32, false)] {
            assert_eq!(ended(CHECK, code << 8).is_failed_check(), says, "{code}");
        }
        // Killed: 4 is SIGILL here, 9 SIGKILL.
        for signal in [4, 9, 15] {
            assert!(!ended(CHECK, signal).is_failed_check(), "signal {signal}");
        }
        assert!(!ended("resize2fs", 4 << 8).is_failed_check());
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert!(!Error::RunTool { tool: CHECK, device: "loop0".into(), source: missing }.is_failed_check());
    }
}

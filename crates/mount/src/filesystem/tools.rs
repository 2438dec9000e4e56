//! The programs that make, check, grow and rename file systems.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use super::FileSystem;
use crate::{Error, Result, run_program};

/// Checks ext file systems of all generations.
pub(crate) const CHECK: &str = "fsck.ext4";
/// With it resize2fs leaves the inodes of new groups to the kernel. Else it does so only if it sees in /sys that the kernel can,
/// and there is nothing to see before the module of ext4 is loaded, which the mount of this file system may be the first to
/// need. All kernels since 2.6.37 can.
const LATER: &str = "RESIZE2FS_FORCE_LAZY_ITABLE_INIT";
/// How much of a failed program's words is kept.
const MAX_OUTPUT: usize = 600;

pub(crate) fn make(device: &Path, kind: FileSystem, options: &[String]) -> Result<()> {
    // Nobody is there to be asked (-F, -f), and there is nothing to discard: a new image is a hole, and one that was
    // allocated in advance must stay so (nodiscard, -K).
    let (tool, defaults): (_, &[&str]) = match kind {
        // -m 0: the volume is for its pods, none of it for root. The lazy options leave zeroing to the kernel.
        FileSystem::Ext4 => {
            ("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"])
        }
        FileSystem::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
        FileSystem::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
        other => return Err(Error::MakeUnsupported { file_system: other }),
    };
    let options = defaults.iter().copied().chain(options.iter().map(String::as_str));
    run(tool, options.map(OsStr::new).chain([device.as_os_str()]), device, &[0])
}

pub(crate) fn check(device: &Path, kind: FileSystem) -> Result<()> {
    check_with("-p", device, kind)
}

/// Whatever its superblock says of itself.
pub(crate) fn check_wholly(device: &Path, kind: FileSystem) -> Result<()> {
    check_with("-fp", device, kind)
}

fn check_with(words: &str, device: &Path, kind: FileSystem) -> Result<()> {
    match kind {
        // e2fsck: 0 clean, 1 repaired, 2 repaired and reboot (which only matters to a mounted root).
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => {
            run(CHECK, [OsStr::new(words), device.as_os_str()], device, &[0, 1, 2])
        }
        // xfs and btrfs replay their logs on mount and advise against checking before it.
        FileSystem::Xfs | FileSystem::Btrfs => Ok(()),
    }
}

/// Online, and repeatable: the kernel does the work in steps that are whole or not there.
pub(crate) fn grow(device: &Path, kind: FileSystem, mounted: &Path) -> Result<()> {
    let grown = match kind {
        // Mounted only: unmounted it would do the work itself, and killed half-way that costs data (see `growth`).
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => run("resize2fs", [device.as_os_str()], device, &[0]),
        FileSystem::Xfs => run("xfs_growfs", [OsStr::new("-d"), mounted.as_os_str()], device, &[0]),
        FileSystem::Btrfs => {
            let words = ["filesystem", "resize", "max"].map(OsStr::new);
            run("btrfs", words.into_iter().chain([mounted.as_os_str()]), device, &[0])
        }
    };
    grown.map_err(|error| match error {
        Error::FinishTool { output, .. } if says(&output, &["Permission denied"]) => {
            Error::GrowWithoutRight { device: device.into() }
        }
        // A killed program ends only after the kernel has done what it was asked for.
        Error::FinishTool { output, .. } if says(&output, &["in progress"]) => {
            Error::GrowTwice { device: device.into() }
        }
        Error::FindInUse { .. } => Error::GrowTwice { device: device.into() },
        other => other,
    })
}

/// A copy has the identity of its original until this; the file system must be whole and not mounted.
pub(crate) fn renew_id(device: &Path, kind: FileSystem) -> Result<()> {
    match kind {
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => {
            // tune2fs wants a check that is younger than the last mount.
            check_wholly(device, kind)?;
            let words = ["-U", "random"].map(OsStr::new);
            run("tune2fs", words.into_iter().chain([device.as_os_str()]), device, &[0])
        }
        FileSystem::Xfs => {
            let words = ["-U", "generate"].map(OsStr::new);
            run("xfs_admin", words.into_iter().chain([device.as_os_str()]), device, &[0])
        }
        // Only the superblock is rewritten, not every block of metadata (which -u would do).
        FileSystem::Btrfs => run("btrfstune", [OsStr::new("-m"), device.as_os_str()], device, &[0]),
    }
}

/// Mounted or not.
pub(crate) fn reserve_blocks(device: &Path, percent: u8) -> Result<()> {
    let percent = percent.to_string();
    run("tune2fs", [OsStr::new("-m"), OsStr::new(&percent), device.as_os_str()], device, &[0])
}

fn run<'a>(tool: &'static str, words: impl IntoIterator<Item = &'a OsStr>, device: &Path, good: &[i32]) -> Result<()> {
    listen(tool, words, device, good).map(drop)
}

/// Runs a program and returns its words.
pub(super) fn listen<'a>(
    tool: &'static str,
    words: impl IntoIterator<Item = &'a OsStr>,
    device: &Path,
    good: &[i32],
) -> Result<String> {
    let mut command = Command::new(tool);
    command.args(words).env("LC_ALL", "C").env(LATER, "1");
    let parent = Pid::this();
    // SAFETY: between fork and exec only prctl and getppid are called, which are safe there.
    unsafe {
        // A program that outlived us would write to the device while our successor starts it again.
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // Who was killed before that sends no signal any more.
            if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
        });
    }
    let output = run_program(&mut command).map_err(|source| Error::RunTool { tool, device: device.into(), source })?;
    let said = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" ");
    if output.status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(words);
    }
    let in_use = format!("{} is in use", device.display());
    if says(&words, &[&in_use, "apparently in use", "resource busy"]) {
        return Err(Error::FindInUse { tool, device: device.into() });
    }
    let output_words = words.chars().take(MAX_OUTPUT).collect();
    Err(Error::FinishTool { tool, device: device.into(), status: output.status, output: output_words })
}

fn says(output: &str, words: &[&str]) -> bool {
    words.iter().any(|word| output.contains(word))
}

//! What can be changed about a loop device while it is in use.
#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::{ioctl_write_int_bad, libc};

use crate::files::failed;
use crate::{Error, LoopDevice, Result};

// `LOOP_SET_DIRECT_IO` of the kernel's `linux/loop.h`.
ioctl_write_int_bad!(loop_set_direct_io, 0x4C08);

pub(crate) fn read_ahead(device: &LoopDevice, kilobytes: u32) -> Result<()> {
    let path = PathBuf::from(format!("/sys/block/loop{}/queue/read_ahead_kb", device.number.minor));
    fs::write(&path, kilobytes.to_string()).map_err(failed("write", &path))
}

pub(crate) fn direct_io(device: &LoopDevice, direct: bool) -> Result<()> {
    let set = || -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(&device.path)?;
        // SAFETY: the descriptor is open; the argument is a number.
        unsafe { loop_set_direct_io(file.as_raw_fd(), libc::c_int::from(direct)) }?;
        Ok(())
    };
    let failed = |source| Error::AccessLoop { action: "set direct I/O of", device: device.path.clone(), source };
    set().map_err(failed)
}

pub(crate) fn reserve_blocks(device: &Path, percent: u8) -> Result<()> {
    let tool = "tune2fs";
    let percent = percent.to_string();
    let run = Command::new(tool).args(["-m", &percent]).arg(device).stdin(Stdio::null()).output();
    let output = run.map_err(|source| Error::RunTool { tool, device: device.into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(Error::FinishTool { tool, device: device.into(), status: output.status.to_string(), output: said })
}

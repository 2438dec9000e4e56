//! `tether PARENT PROGRAM ARG...`: becomes PROGRAM, and is killed when the thread that started it ends.
//!
//! A program asks the kernel for that by itself; doing it here keeps code that runs between fork and exec out of the
//! harness.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args_os().skip(1);
    let parent = words.next().context("usage: tether PARENT PROGRAM ARG...")?;
    let program = words.next().context("usage: tether PARENT PROGRAM ARG...")?;
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to die with the parent")?;
    // It may have gone before we asked.
    ensure!(parent.to_str() == Some(&getppid().to_string()), "the parent {parent:?} is gone");
    let error = Command::new(&program).args(words).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

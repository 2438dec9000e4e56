//! Starting other programs beside mounts.
#![allow(unsafe_code)]

use std::io;
use std::process::{Command, Output, Stdio};

use nix::libc;

/// Runs a program to its end and returns what it said. Until a forked program executes it has a copy of every file its
/// parent has open, and a mount would be busy although nobody uses it; so it is forked from a thread that has none but
/// the first three.
pub fn run_program(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    std::thread::scope(|scope| {
        let run = || {
            leave_files();
            command.output()
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err(io::Error::other("the thread that ran it panicked")))
    })
}

/// Gives this thread a table of open files of its own. Where the kernel (before 5.9) or its keeper refuses, a program is
/// started as everywhere else.
fn leave_files() {
    // SAFETY: close_range with CLOSE_RANGE_UNSHARE touches no memory and no file of any other thread; this thread is new
    // and has opened none.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
}

//! Starting other programs beside mounts.
#![allow(unsafe_code)]

use std::io;
use std::panic::resume_unwind;
use std::process::{Command, Output, Stdio};

use nix::libc;

/// Runs a program to its end and returns what it said, as [`without_open_files`].
pub fn run_program(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    without_open_files(|| command.output())
}

/// Until a forked program executes, it has a copy of every file its parent has open, and a mount is busy although nobody
/// uses it. So programs are to be forked here: on a thread that has no files but the first three. What the work
/// opens it must close: outside, its numbers belong to other files.
pub fn without_open_files<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            leave_files();
            work()
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Gives this thread a table of open files of its own. Where the kernel (before 5.9) or its keeper refuses, a program is
/// started as everywhere else.
fn leave_files() {
    // SAFETY: close_range with CLOSE_RANGE_UNSHARE touches no memory and no file of any other thread; this thread is new
    // and has opened none.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
}

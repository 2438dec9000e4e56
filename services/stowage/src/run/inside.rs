//! The command in namespaces of its own: it sees its volumes where it wants them, and none of its processes outlives it.
//!
//! `run` starts this program once more as the first process of a PID namespace. That makes the places for the volumes, starts
//! the command, passes signals on, and ends when the command does or when nobody is at the other end of its pipe any more; with
//! it the kernel ends every process in the namespace, and so nobody is left who has the volumes.

use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::{ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

use volume_manager::api::ContainerMount;

use super::hold::Held;
use super::signals::{self, Signals};
use super::targets::Targets;
use crate::args::Enter;

/// Runs the command with its volumes, and passes signals on; its exit code is ours.
pub async fn command(
    mounts: &[ContainerMount],
    command: &[std::ffi::OsString],
    held: &mut Held,
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let ourselves = std::env::current_exe().context("cannot find this program")?;
    let shown = serde_json::to_string(mounts).context("cannot pass the mounts on")?;
    // Closed in every program that is started: the other end hears of our end, whatever brings it about.
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).context("cannot make a pipe")?;
    let orders = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
    let mut first = Command::new(ourselves);
    first.args(["enter", "--mounts", &shown, "--orders", &orders, "--"]).args(command).stdin(Stdio::inherit());
    let mut child = start_in_pid_namespace(first)?;
    let mut orders = std::fs::File::from(writer);
    loop {
        tokio::select! {
            biased;
            ended = child.wait() => return Ok(exit_code(ended.context("cannot wait for the command")?)),
            // Nobody may write any more to what is about to be unmounted.
            _ = held.next() => {
                drop(orders);
                child.wait().await.context("cannot end the command")?;
                bail!("the pod that stands for the command is gone, and its volumes go with it: the command was ended");
            }
            told = signals.next() => if !signals::is_told_to_all(told) {
                // One that has ended meanwhile hears nothing.
                let _ = orders.write_all(&[told as u8]);
            },
        }
    }
}

/// Threads that have left for a PID namespace can start no others, so it is done by one that ends.
fn start_in_pid_namespace(mut first: Command) -> anyhow::Result<Child> {
    let runtime = Handle::current();
    let start = move || -> anyhow::Result<Child> {
        let _inside = runtime.enter();
        unshare(CloneFlags::CLONE_NEWPID).context("cannot make a PID namespace for the command")?;
        first.spawn().context("cannot start the command")
    };
    on_own_thread(start)
}

fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    std::thread::spawn(work).join().unwrap_or_else(|_| bail!("the command could not be started"))
}

/// As a shell tells it: 128 and the signal for one that was killed.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    code(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1))
}

fn code(number: i32) -> ExitCode {
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

/// The first process of the namespace.
pub async fn enter(options: Enter) -> anyhow::Result<ExitCode> {
    ensure!(std::process::id() == 1, "`enter` is what `stowage run` starts; it does nothing by itself");
    let mounts: Vec<ContainerMount> =
        serde_json::from_str(&options.mounts).context("--mounts is not what `stowage run` passes on")?;
    let mut children = signal(SignalKind::child()).context("cannot hear of processes that end")?;
    let orders = pipe::OpenOptions::new().open_receiver(&options.orders).context("cannot hear from `stowage run`")?;
    let targets = Targets::make(&mounts)?;
    let shown = targets.shown().to_vec();
    // This thread stays where it can remove what was made: not where volumes are mounted on it.
    let started = on_own_thread(move || {
        stowage_mount::enter(&shown)?;
        let Some((program, arguments)) = options.command.split_first() else { bail!("there is no command to run") };
        let started = std::process::Command::new(program).args(arguments).spawn();
        started.with_context(|| format!("cannot run {}", program.to_string_lossy()))
    });
    let ended = match started {
        Ok(command) => attend(Pid::from_raw(i32::try_from(command.id())?), &mut children, orders).await,
        Err(error) => Err(error),
    };
    end_all();
    targets.remove();
    ended
}

/// Passes signals on until the command has ended, or nobody is there who wants it.
async fn attend(
    command: Pid,
    children: &mut tokio::signal::unix::Signal,
    mut orders: pipe::Receiver,
) -> anyhow::Result<ExitCode> {
    loop {
        tokio::select! {
            biased;
            _ = children.recv() => if let Some(number) = reap(command) {
                return Ok(code(number));
            },
            told = orders.read_u8() => match told {
                Ok(told) => if let Ok(told) = Signal::try_from(i32::from(told)) {
                    // It is not reaped before we have heard of its end, so its number is nobody else's.
                    let _ = kill(command, told);
                },
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(code(128 + Signal::SIGKILL as i32)),
                Err(error) => return Err(error).context("cannot hear from `stowage run`"),
            },
        }
    }
}

/// Takes note of all that have ended, also of those whose parents ended before; how the command did, if it is among them.
fn reap(command: Pid) -> Option<i32> {
    let mut ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, number)) if pid == command => ended = Some(number),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => ended = Some(128 + signal as i32),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return ended,
            Ok(_) | Err(_) => {}
        }
    }
}

/// Nobody is left who could use the volumes.
fn end_all() {
    // As the first process: all others of its namespace, and nobody outside. None is left if it fails.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while waitpid(None, None) != Err(Errno::ECHILD) {}
}

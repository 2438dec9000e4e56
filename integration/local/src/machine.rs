//! Where a test runs: a directory, a thread, and a mount namespace if it mounts.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::leftovers;

/// Where whole logs are copied to, if set.
const KEEP: &str = "STOWAGE_LOGS";
/// How much of each log is printed when a test fails.
const TAIL_LINES: usize = 40;

/// Runs a test that mounts, if this machine can; else says in a line what is missing.
pub fn with_mounts<F: Future<Output = anyhow::Result<()>>>(
    test: impl FnOnce(PathBuf) -> F + Send + 'static,
) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: volumes are mounted, which needs root");
        return Ok(());
    }
    if let Err(error) = fs::metadata("/dev/loop-control") {
        eprintln!("skipped: no loop devices on this machine: /dev/loop-control: {error}");
        return Ok(());
    }
    on_own_thread(move || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).context("cannot leave the mount namespace")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .context("cannot make mounts private")?;
        in_folder(test)
    })
}

/// Runs a test that only needs processes.
pub fn with_processes<F: Future<Output = anyhow::Result<()>>>(
    test: impl FnOnce(PathBuf) -> F + Send + 'static,
) -> anyhow::Result<()> {
    on_own_thread(move || in_folder(test))
}

/// A namespace belongs to a thread, and so do the processes started from it: they die when it ends.
fn on_own_thread(test: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    std::thread::spawn(test).join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn in_folder<F: Future<Output = anyhow::Result<()>>>(test: impl FnOnce(PathBuf) -> F) -> anyhow::Result<()> {
    // Short, for the sockets below it.
    let folder = tempfile::Builder::new().prefix("stw-").tempdir_in("/tmp").context("cannot make a directory")?;
    let root = folder.path().canonicalize().context("cannot resolve the directory")?;
    // One thread, and blocking ones that it starts: all in its namespace.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(test(root.clone()))));
    if !matches!(outcome, Ok(Ok(()))) {
        print_logs(&root);
    }
    keep_logs(&root);
    let swept = runtime.block_on(leftovers::sweep(&root));
    drop(runtime);
    match outcome {
        Ok(outcome) => outcome.and(swept),
        Err(panic) => resume_unwind(panic),
    }
}

fn logs(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("logs")).into_iter().flatten().flatten();
    let mut logs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    logs.sort();
    logs
}

fn print_logs(root: &Path) {
    for log in logs(root) {
        let text = fs::read_to_string(&log).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("--- {}", log.display());
        lines[lines.len().saturating_sub(TAIL_LINES)..].iter().for_each(|line| eprintln!("{line}"));
    }
}

fn keep_logs(root: &Path) {
    let Some(folder) = std::env::var_os(KEEP).map(PathBuf::from) else { return };
    let copied = fs::create_dir_all(&folder).and_then(|()| {
        logs(root).iter().try_for_each(|log| {
            let name = log.file_name().unwrap_or_default();
            fs::copy(log, folder.join(name)).map(|_| ())
        })
    });
    if let Err(error) = copied {
        eprintln!("{KEEP}={}: {error}", folder.display());
    }
}

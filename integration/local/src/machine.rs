//! Where a test runs: a directory, a thread, and a mount namespace if it mounts.

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::leftovers;

/// Short, for the sockets below it.
const PARENT: &str = "/tmp";
const PREFIX: &str = "stw-local-";
/// Not the directory itself: servers lock that while they bind their sockets in it.
const LOCK: &str = "lock";
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
    // One thread, and blocking ones that it starts: all in its namespace.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    // The folder goes first: unlocked, it would be taken for that of a killed test.
    let (_lock, folder) = take_folder(&runtime)?;
    let root = folder.path().canonicalize().context("cannot resolve the directory")?;
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

/// A directory that is locked while its test runs, so that the next test can tell those of killed ones.
fn take_folder(runtime: &Runtime) -> anyhow::Result<(Flock<File>, TempDir)> {
    let lock = |path: &Path, how| {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Flock::lock(file, how).map_err(|(_, errno)| errno).with_context(|| format!("cannot lock {}", path.display()))
    };
    // Between its making and its locking nobody may take a directory for that of a killed test.
    let _turn = lock(Path::new(PARENT), FlockArg::LockExclusive)?;
    for entry in fs::read_dir(PARENT).context("cannot list the temporary directory")? {
        let entry = entry.context("cannot list the temporary directory")?;
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && lock(&entry.path().join(LOCK), FlockArg::LockExclusiveNonblock).is_ok() {
            eprintln!("note: removing {}, left by a test that was killed", entry.path().display());
            runtime.block_on(leftovers::sweep(&entry.path()))?;
            fs::remove_dir_all(entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(PARENT).context("cannot make a directory")?;
    let name = folder.path().join(LOCK);
    File::create(&name).with_context(|| format!("cannot create {}", name.display()))?;
    let held = lock(&name, FlockArg::LockExclusive)?;
    Ok((held, folder))
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

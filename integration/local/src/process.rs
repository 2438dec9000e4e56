//! One process under test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::binaries;

/// How often an exit is looked for: children cannot be awaited without a reaper of their own.
const LOOK: Duration = Duration::from_millis(20);

/// A running process; killed and reaped when dropped, and killed by the kernel when the test is.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a binary under test; what it prints is appended to `logs/NAME.log`.
    pub fn start(name: &str, binary: &str, args: &[String], logs: &Path) -> anyhow::Result<Self> {
        Self::start_with(name, binary, args, logs, None)
    }

    /// The same with these variables in its environment, as a container has them.
    pub fn start_in(
        name: &str,
        binary: &str,
        args: &[String],
        environment: &[(&str, String)],
        logs: &Path,
    ) -> anyhow::Result<Self> {
        Self::spawn(name, binary, args, environment, logs, None)
    }

    /// The same with another standard error.
    pub fn start_with(
        name: &str,
        binary: &str,
        args: &[String],
        logs: &Path,
        errors: Option<File>,
    ) -> anyhow::Result<Self> {
        Self::spawn(name, binary, args, &[], logs, errors)
    }

    fn spawn(
        name: &str,
        binary: &str,
        args: &[String],
        environment: &[(&str, String)],
        logs: &Path,
        errors: Option<File>,
    ) -> anyhow::Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot open {}", log.display()))?;
        let errors = errors.map_or_else(|| file.try_clone().context("cannot share a log file"), Ok)?;
        let child = Command::new(binaries::find("tether")?)
            .arg(std::process::id().to_string())
            .arg(binaries::find(binary)?)
            .args(args)
            // No accidental cluster: only what a test passes.
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            // Of panics, not of errors.
            .env("RUST_BACKTRACE", "1")
            .env("RUST_LIB_BACKTRACE", "0")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// What it is called in messages and logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id: the tether becomes the binary.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything processes of this name have printed so far.
    pub fn said(&self) -> anyhow::Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("cannot read {}", self.log.display()))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("a process id is out of range")?);
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// How it ended, if it did.
    pub fn exited(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Waits for its end.
    pub async fn ended(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} still runs after {} s", self.name, within.as_secs());
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until it has printed something.
    pub async fn says(&mut self, text: &str, within: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let said = self.said()?;
            if said.contains(text) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{} has not said {text:?} after {} s, but: {said}", self.name, within.as_secs());
            }
            sleep(LOOK).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it is gone and reaped already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

//! A provisioner or a binder that is a process of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::world::World;

pub struct Process(Child);

/// The binary that `--ours` names, or that cargo built for this benchmark.
pub fn ours(words: &[String]) -> PathBuf {
    stowage_testing::bench::value(words, "--ours").unwrap_or(env!("CARGO_BIN_EXE_provisioner")).into()
}

/// Processor time of this process so far: the server, the binder, the driver and the user.
pub fn own_processor() -> Duration {
    processor(&std::fs::read_to_string("/proc/self/stat").unwrap())
}

fn processor(stat: &str) -> Duration {
    // The name before it may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

impl Process {
    pub async fn provisioner(world: &mut World, file: &Path, words: &[&str]) -> Self {
        let kubeconfig = world.kubeconfig().await;
        let mut command = Command::new(file);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--csi-address={}", world.socket().display()))
            .args(words);
        Self::start(command, file)
    }

    /// Our binder.
    pub async fn binder(world: &mut World, file: &Path) -> Self {
        let kubeconfig = world.kubeconfig().await;
        let mut command = Command::new(file);
        command.arg(format!("--kubeconfig={}", kubeconfig.display())).arg("--leader-elect=false");
        Self::start(command, file)
    }

    /// The binder and the protection of claims and volumes, of a kube-controller-manager.
    pub async fn original_binder(world: &mut World, file: &Path, words: &[&str]) -> Self {
        let kubeconfig = world.kubeconfig().await;
        let mut command = Command::new(file);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(["--leader-elect=false", "--secure-port=0"])
            .arg(
                "--controllers=persistentvolume-binder-controller,persistentvolume-protection-controller,\
                 persistentvolumeclaim-protection-controller",
            )
            .args(words);
        Self::start(command, file)
    }

    fn start(mut command: Command, file: &Path) -> Self {
        command.stderr(std::process::Stdio::null()).kill_on_drop(true);
        Self(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", file.display())))
    }

    /// Processor time so far.
    pub fn processor(&self) -> Duration {
        processor(&self.read("stat"))
    }

    /// Resident memory now.
    pub fn megabytes(&self) -> f64 {
        let status = self.read("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.0.id().unwrap())).unwrap()
    }
}

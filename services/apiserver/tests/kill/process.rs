//! The real program as a child process.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

pub struct Process {
    child: Child,
    kubeconfig: PathBuf,
}

impl Process {
    /// Starts the server on the data in `home` and waits until it serves.
    pub async fn start(home: &Path) -> Self {
        let kubeconfig = home.join("kubeconfig");
        let mut child = Command::new(env!("CARGO_BIN_EXE_apiserver"))
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(home.join("data"))
            .arg("--kubeconfig-out")
            .arg(&kubeconfig)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut seen = String::new();
        loop {
            let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("the server ended: {seen}"));
            if line.contains("serving") {
                break;
            }
            seen.push_str(&line);
        }
        // What it logs from now on is of no interest, but must not block it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, kubeconfig }
    }

    /// A client with a connection of its own.
    pub async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    /// `kill -9`.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

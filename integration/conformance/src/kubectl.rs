//! The installed kubectl.

use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Whether there is one; says so in one line if not.
pub(crate) fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|directory| directory.join("kubectl").is_file());
    if !there {
        println!("skipped: there is no kubectl on PATH");
    }
    there
}

/// Runs kubectl; returns whether it succeeded, and all it printed.
pub(crate) async fn run(home: &Path, kubeconfig: &Path, arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new("kubectl")
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", home)
        .env("KUBE_EDITOR", "sed -i s/before/after/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

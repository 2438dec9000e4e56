//! `compose.yaml` by the tool it is made for: up, kubectl from this machine, a claim to its data, down.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use container_suite::compose::repository;
use container_suite::machine::with_engine;
use container_suite::stack::until;

const PROJECT: &str = "stowage-suite";
/// Not the one people use.
const PORT: &str = "26443";

/// Whichever of the two is installed, with the words before the project's own.
fn compose() -> Option<(&'static str, &'static [&'static str])> {
    let tools: [(&str, &[&str]); 2] = [("docker-compose", &[]), ("docker", &["compose"])];
    tools.into_iter().find(|(program, words)| {
        Command::new(program).args(*words).arg("version").output().is_ok_and(|output| output.status.success())
    })
}

fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn run_compose(words: &[&str]) -> anyhow::Result<String> {
    let (program, before) = compose().context("no docker-compose")?;
    let mut command = Command::new(program);
    command.args(before).args(["--project-name", PROJECT]).args(words).current_dir(repository());
    said(command.env("STOWAGE_PORT", PORT))
}

fn kubectl(words: &[&str]) -> anyhow::Result<String> {
    let kubeconfig = repository().join(".stowage/kubeconfig");
    said(Command::new("kubectl").arg("--kubeconfig").arg(kubeconfig).args(words).current_dir(repository()))
}

fn mounts_below(folders: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let table = stowage_mount::MountTable::read()?;
    let below = |folder: &Path| table.under(folder).map(|mount| mount.target.clone()).collect::<Vec<_>>();
    Ok(folders.iter().flat_map(|folder| below(folder)).collect())
}

#[test]
fn compose_brings_the_stack_up_serves_kubectl_and_takes_it_down_without_a_mount_left() -> anyhow::Result<()> {
    if compose().is_none() || Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("skipped: docker-compose and kubectl are not both installed");
        return Ok(());
    }
    with_engine(async |engine| {
        let nodes = ["stowage-node-1", "stowage-node-2"].map(|name| PathBuf::from(engine.volume_path(name)));
        if nodes.iter().any(|node| std::fs::metadata(node).is_ok()) {
            eprintln!("skipped: a stack of compose.yaml is here already, whose volumes this would use");
            return Ok(());
        }
        let lived = async {
            run_compose(&["up", "-d"])?;
            kubectl(&["apply", "-f", "examples/claim-and-pod.yaml"])?;
            until("the pod to run", async || {
                let phase = kubectl(&["get", "pod", "writer", "-o", "jsonpath={.status.phase}"])?;
                Ok((phase == "Running").then_some(()))
            })
            .await?;
            ensure!(mounts_below(&nodes)?.len() == 2, "one staged and one published mount");
            run_compose(&["stop"])?;
            ensure!(mounts_below(&nodes)?.is_empty(), "still mounted: {:?}", mounts_below(&nodes)?);
            // The same again: what was closed is opened, and the claim is still there.
            run_compose(&["up", "-d"])?;
            ensure!(
                kubectl(&["get", "pvc", "data", "-o", "jsonpath={.status.phase}"])? == "Bound",
                "the claim is lost"
            );
            kubectl(&["apply", "-f", "examples/claim-and-pod.yaml"])?;
            until("the pod to run again", async || {
                let phase = kubectl(&["get", "pod", "writer", "-o", "jsonpath={.status.phase}"])?;
                Ok((phase == "Running").then_some(()))
            })
            .await
        };
        let lived = lived.await;
        if lived.is_err() {
            eprintln!("{}", run_compose(&["logs", "--tail=30"]).unwrap_or_default());
        }
        // Volumes are kept at first, for a mount below them must not hide their removal.
        let down = run_compose(&["down"]);
        let left = mounts_below(&nodes)?;
        let removed = run_compose(&["down", "--volumes"]);
        lived?;
        down?;
        ensure!(left.is_empty(), "mounted after `down`: {left:?}");
        removed.map(drop)
    })
}

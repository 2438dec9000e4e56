//! `compose.yaml` by the tool it is made for: up, kubectl from this machine, a claim to its data, down.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use stowage_mount::{Host as _, LinuxMounter};

use container_suite::compose::repository;
use container_suite::engine::Engine;
use container_suite::machine::with_engine;
use container_suite::stack::until;

const PROJECT: &str = "stowage-suite";
/// Not the one people use.
const PORT: &str = "26443";

/// A compose tool, with the words before the project's own.
type Tool = (&'static str, &'static [&'static str]);

/// All that are installed.
fn tools() -> Vec<Tool> {
    let tools: [Tool; 2] = [("docker-compose", &[]), ("docker", &["compose"])];
    let answers = |(program, words): &Tool| {
        Command::new(program).args(*words).arg("version").output().is_ok_and(|output| output.status.success())
    };
    tools.into_iter().filter(answers).collect()
}

fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn run_compose((program, before): Tool, words: &[&str]) -> anyhow::Result<String> {
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

/// The loop devices of the project's pool.
async fn loops(engine: &Engine) -> anyhow::Result<usize> {
    let pool = Path::new(&engine.volume_path(&format!("{PROJECT}_pool"))).join("volumes");
    let images: Vec<(u64, u64)> = std::fs::read_dir(&pool)
        .with_context(|| format!("cannot list {}", pool.display()))?
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|data| (data.dev(), data.ino()))
        .collect();
    let all = LinuxMounter.loops().await.context("cannot list loop devices")?;
    Ok(all.iter().filter(|one| images.contains(&(one.image.device, one.image.inode))).count())
}

async fn runs() -> anyhow::Result<()> {
    until("the pod to run", async || {
        let phase = kubectl(&["get", "pod", "writer", "-o", "jsonpath={.status.phase}"])?;
        Ok((phase == "Running").then_some(()))
    })
    .await
}

#[test]
fn compose_brings_the_stack_up_serves_kubectl_and_takes_it_down_without_a_mount_left() -> anyhow::Result<()> {
    if tools().is_empty() || Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("skipped: a compose tool and kubectl are not both installed");
        return Ok(());
    }
    with_engine(async |engine| {
        let nodes = ["stowage-node-1", "stowage-node-2"].map(|name| PathBuf::from(engine.volume_path(name)));
        if nodes.iter().any(|node| std::fs::metadata(node).is_ok()) {
            eprintln!("skipped: a stack of compose.yaml is here already, whose volumes this would use");
            return Ok(());
        }
        for tool in tools() {
            up_and_down(&engine, &nodes, tool).await.with_context(|| format!("{tool:?}"))?;
        }
        Ok(())
    })
}

async fn up_and_down(engine: &Engine, nodes: &[PathBuf], tool: Tool) -> anyhow::Result<()> {
    let lived = async {
        run_compose(tool, &["up", "-d"])?;
        kubectl(&["apply", "-f", "examples/claim-and-pod.yaml"])?;
        runs().await?;
        ensure!(mounts_below(nodes)?.len() == 2, "one staged and one published mount");
        run_compose(tool, &["stop"])?;
        ensure!(mounts_below(nodes)?.is_empty(), "still mounted: {:?}", mounts_below(nodes)?);
        // The same again: what was closed is opened, and the claim is still there.
        run_compose(tool, &["up", "-d"])?;
        let phase = kubectl(&["get", "pvc", "data", "-o", "jsonpath={.status.phase}"])?;
        ensure!(phase == "Bound", "the claim is lost");
        kubectl(&["apply", "-f", "examples/claim-and-pod.yaml"])?;
        runs().await?;
        // Nobody drains what is killed: the mounts stay, even without containers, and the next `up` takes them over.
        run_compose(tool, &["kill"])?;
        run_compose(tool, &["down"])?;
        ensure!(mounts_below(nodes)?.len() == 2, "mounts of a stack that was killed: {:?}", mounts_below(nodes)?);
        run_compose(tool, &["up", "-d"])?;
        runs().await?;
        ensure!(loops(engine).await? == 1, "one volume is in use");
        Ok(())
    };
    let lived = lived.await;
    if lived.is_err() {
        eprintln!("{}", run_compose(tool, &["logs", "--tail=30"]).unwrap_or_default());
    }
    // Volumes are kept at first, for a mount below them must not hide their removal.
    let down = run_compose(tool, &["down"]);
    let left = mounts_below(nodes)?;
    // The kernel lets go of a loop device when the last program that looks at it closes it.
    let detached = until("no loop device", async || Ok((loops(engine).await? == 0).then_some(()))).await;
    let removed = run_compose(tool, &["down", "--volumes"]);
    lived?;
    down?;
    ensure!(left.is_empty(), "mounted after `down`: {left:?}");
    detached?;
    removed.map(drop)
}

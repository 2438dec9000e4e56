//! `cargo xtask test`: sets up what is missing, runs the whole suite, and names what could not run.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, bail};

/// Programs the kernel tests use, and the Debian packages that bring them.
const TOOLS: [(&str, &str); 4] =
    [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("mkfs.btrfs", "btrfs-progs"), ("losetup", "mount")];

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(),
        "setup" => set_up(),
        "lint" => lint(),
        other => {
            eprintln!("xtask: unknown task {other:?}; the tasks are: test, setup, lint");
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn lint() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn test() -> anyhow::Result<()> {
    let mut stages = Vec::new();
    let mut stage = |name: &'static str, run: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<()> {
        let started = Instant::now();
        let result = run();
        stages.push((name, started.elapsed()));
        result
    };
    stage("set-up", &set_up)?;
    // The local suite starts the real binaries, so they are built first.
    stage("build", &|| cargo(&["build", "--workspace", "--bins"]))?;
    stage("tests", &|| cargo(&["test", "--workspace"]))?;
    not_run();
    println!("stage          minutes");
    for (name, took) in stages {
        println!("{name:<12} {:>9.1}", took.as_secs_f64() / 60.0);
    }
    Ok(())
}

/// What this run could not test, one line each.
fn not_run() {
    if !is_root() {
        println!("not run: everything that mounts (not root)");
    }
    if !answers("kubectl", &["version", "--client"]) {
        println!("not run: kubectl tests (no kubectl in PATH)");
    }
    let suite = Path::new("integration/containers/Cargo.toml");
    if !answers("docker", &["info"]) {
        println!("not run: container suite (no container engine answers)");
    } else if !suite.is_file() {
        println!("not run: container suite (not built yet, see issue 7)");
    }
}

fn set_up() -> anyhow::Result<()> {
    let missing: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| !is_installed(tool)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() || !is_installed("apt-get") {
        println!("not set up: {} (install by hand, or run as root on Debian)", missing.join(", "));
        return Ok(());
    }
    println!("installing {}", missing.join(", "));
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    let install = ["install", "-y", "-qq", "--no-install-recommends"];
    run(Command::new("apt-get").args(install).args(&missing).env("DEBIAN_FRONTEND", "noninteractive"))
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    run(Command::new(env!("CARGO")).args(arguments))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

fn is_installed(tool: &str) -> bool {
    let paths = std::env::var("PATH").unwrap_or_default();
    paths.split(':').chain(["/usr/sbin", "/sbin"]).any(|place| Path::new(place).join(tool).is_file())
}

fn is_root() -> bool {
    // Safe on every Linux: the owner of our own entry in /proc is our effective user.
    std::fs::metadata("/proc/self").is_ok_and(|info| std::os::unix::fs::MetadataExt::uid(&info) == 0)
}

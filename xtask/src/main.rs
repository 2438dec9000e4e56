//! `cargo xtask test`: sets up what is missing, runs the whole suite, and names what could not run.

mod images;
mod tools;

use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::tools::{answers, apt_install, is_installed, is_root, run};

/// Programs the kernel tests use, and the Debian packages that bring them.
const TOOLS: [(&str, &str); 4] =
    [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("mkfs.btrfs", "btrfs-progs"), ("losetup", "mount")];

/// The suite that runs the images, and what makes it fail instead of skipping where one is missing.
const CONTAINERS: &str = "container-suite";
const REQUIRED: &str = "STOWAGE_CONTAINERS_REQUIRED";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(),
        "setup" => set_up(),
        "lint" => lint(),
        "images" => images::Options::read(std::env::args().skip(2)).and_then(|options| images::build(&options)),
        other => {
            eprintln!("xtask: unknown task {other:?}; the tasks are: test, setup, lint, images");
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
    stage("tests", &|| cargo(&["test", "--workspace", "--exclude", CONTAINERS]))?;
    let mut failed = None;
    if answers("docker", &["info"]) {
        let options = images::Options::read(std::iter::empty())?;
        stage("images", &|| images::build(&options))?;
        // Whether this suite passes or not, the table of minutes is shown.
        let suite = || run(Command::new(env!("CARGO")).args(["test", "-p", CONTAINERS]).env(REQUIRED, "1"));
        failed = stage("containers", &suite).err();
    }
    not_run();
    println!("stage          minutes");
    for (name, took) in stages {
        println!("{name:<12} {:>9.1}", took.as_secs_f64() / 60.0);
    }
    failed.map_or(Ok(()), Err)
}

/// What this run could not test, one line each.
fn not_run() {
    if !is_root() {
        println!("not run: everything that mounts (not root)");
    }
    if !answers("kubectl", &["version", "--client"]) {
        println!("not run: kubectl tests (no kubectl in PATH)");
    }
    if !answers("docker", &["info"]) {
        println!("not run: container suite (no container engine answers)");
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
    apt_install(&missing)
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    run(Command::new(env!("CARGO")).args(arguments))
}

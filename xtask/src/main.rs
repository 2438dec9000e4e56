//! `cargo xtask test`: sets up what is missing, runs the whole suite, and names what could not run.

mod crds;
mod images;
mod mirror;
mod tools;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::tools::{answers, apt_install, is_installed, is_root, run};

/// Programs the kernel tests use, and the Debian packages that bring them.
const TOOLS: [(&str, &str); 4] =
    [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("mkfs.btrfs", "btrfs-progs"), ("losetup", "mount")];

/// Where proptest's random worlds begin.
const SEED: &str = "PROPTEST_RNG_SEED";

/// Tells the suite that runs the images when its time has come.
const CONTAINERS: &str = "STOWAGE_CONTAINERS";

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let result = match task.as_str() {
        "test" => test(&mut Stages::default()),
        "ci" => ci(),
        "setup" => set_up(),
        "lint" => lint(),
        "crds" => crds::write(),
        "images" => images::Options::read(std::env::args().skip(2)).and_then(|options| images::build(&options)),
        other => {
            eprintln!("xtask: unknown task {other:?}; the tasks are: test, setup, lint, crds, images, ci");
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
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    if !answers(env!("CARGO"), &["deny", "--version"]) {
        println!("not checked: licences, sources and banned crates (cargo install cargo-deny)");
        return Ok(());
    }
    cargo(&["deny", "check", "bans", "licenses", "sources"])
}

/// What was done and how long it took; shown at the end, whether that was good or not.
#[derive(Default)]
struct Stages(Vec<(&'static str, Duration)>);

impl Stages {
    fn run(&mut self, name: &'static str, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let started = Instant::now();
        let result = work();
        self.0.push((name, started.elapsed()));
        result
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        println!("stage          minutes");
        let all = ("all", self.0.iter().map(|(_, took)| *took).sum());
        for (name, took) in self.0.iter().chain([&all]) {
            println!("{name:<12} {:>9.1}", took.as_secs_f64() / 60.0);
        }
    }
}

/// What every submission must pass.
fn ci() -> anyhow::Result<()> {
    let mut stages = Stages::default();
    stages.run("lint", lint)?;
    test(&mut stages)
}

fn test(stages: &mut Stages) -> anyhow::Result<()> {
    stages.run("set-up", set_up)?;
    // The local suite starts the real binaries, so they are built first.
    stages.run("build", || cargo(&["build", "--workspace", "--bins"]))?;
    // Always the whole workspace: a part of it has other features, and everything would be built again for it. All of it also
    // where something fails: who waited half an hour for one failure wants to know the others.
    let words = ["test", "--workspace", "--no-fail-fast"];
    stages.run("tests", || {
        // The same random worlds for everybody: a submission is no place to find a new one. `cargo test` alone draws others.
        let seed = std::env::var(SEED).unwrap_or_else(|_| "1".to_owned());
        run(Command::new(env!("CARGO")).args(words).env(CONTAINERS, "later").env(SEED, seed))
    })?;
    if answers("docker", &["info"]) {
        stages.run("images", || images::build(&images::Options::read(std::iter::empty())?))?;
        stages.run("containers", || {
            // The stacks of two tests would see each other's loop devices; what passes is still worth seeing.
            let words = ["test", "--workspace", "--test", "containers", "--", "--test-threads=1", "--show-output"];
            run(Command::new(env!("CARGO")).args(words).env(CONTAINERS, "required"))
        })?;
    }
    not_run();
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
    if !answers("docker-compose", &["version"]) && !answers("docker", &["compose", "version"]) {
        println!("not run: compose.yaml by its own tool (neither docker-compose nor docker compose is installed)");
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

//! Programs of this machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

/// Runs a program that may talk to the user.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Runs a program quietly; what it said is shown only if it fails.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{command:?} failed: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}

pub fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

pub fn is_installed(tool: &str) -> bool {
    let paths = std::env::var("PATH").unwrap_or_default();
    paths.split(':').chain(["/usr/sbin", "/sbin"]).any(|place| Path::new(place).join(tool).is_file())
}

pub fn is_root() -> bool {
    // Safe on every Linux: the owner of our own entry in /proc is our effective user.
    std::fs::metadata("/proc/self").is_ok_and(|info| std::os::unix::fs::MetadataExt::uid(&info) == 0)
}

/// Installs Debian packages, as root.
pub fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    println!("installing {}", packages.join(", "));
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    let install = ["install", "-y", "-qq", "--no-install-recommends"];
    run(Command::new("apt-get").args(install).args(packages).env("DEBIAN_FRONTEND", "noninteractive"))
}

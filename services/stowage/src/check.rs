//! `stowage check`: what this machine lacks, before anything fails.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What to do about it; `None` when it is as it should be.
    pub way_out: Option<String>,
    /// Whether nothing works without it.
    pub needed: bool,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), way_out: None, needed: false }
    }

    fn missing(what: &'static str, found: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { what, found: found.into(), way_out: Some(way_out.into()), needed: true }
    }

    fn weak(what: &'static str, found: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { needed: false, ..Self::missing(what, found, way_out) }
    }
}

/// Prints every finding; fails if something needed is missing.
pub fn run() -> ExitCode {
    let findings = findings();
    for finding in &findings {
        let mark = match (&finding.way_out, finding.needed) {
            (None, _) => "ok  ",
            (Some(_), true) => "FAIL",
            (Some(_), false) => "weak",
        };
        println!("{mark}  {:<22} {}", finding.what, finding.found);
        if let Some(way_out) = &finding.way_out {
            println!("      -> {way_out}");
        }
    }
    if findings.iter().any(is_fatal) {
        println!("this machine cannot run `stowage up` yet: see the lines marked FAIL");
        return ExitCode::FAILURE;
    }
    println!("this machine can run `stowage up` and `stowage demo`");
    ExitCode::SUCCESS
}

fn is_fatal(finding: &Finding) -> bool {
    finding.needed && finding.way_out.is_some()
}

/// What keeps the stack from running here, as one sentence per thing.
pub fn obstacles() -> Vec<String> {
    findings()
        .into_iter()
        .filter(is_fatal)
        .map(|finding| format!("{}: {}; {}", finding.what, finding.found, finding.way_out.unwrap_or_default()))
        .collect()
}

/// Looks at everything.
pub fn findings() -> Vec<Finding> {
    let status = read("/proc/self/status");
    let mut findings = vec![capability(&status), growth(&status), loop_control(), file_system("ext4", true)];
    for program in ["mkfs.ext4", "fsck.ext4", "resize2fs"] {
        findings.push(tool(program, "e2fsprogs", program != "resize2fs"));
    }
    findings.push(file_system("xfs", false));
    findings.push(tool("mkfs.xfs", "xfsprogs", false));
    findings.push(file_system("btrfs", false));
    findings.push(tool("mkfs.btrfs", "btrfs-progs", false));
    findings.push(limit("inotify instances", "/proc/sys/fs/inotify/max_user_instances", 128));
    findings.push(limit("inotify watches", "/proc/sys/fs/inotify/max_user_watches", 8192));
    findings
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Bits of CAP_SYS_ADMIN and CAP_SYS_RESOURCE in the capability sets.
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;

fn effective(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// Only what is mounted: before it is mounted ext4 grows without the right.
fn growth(status: &str) -> Finding {
    let what = "growth of ext4 in use";
    match effective(status) & SYS_RESOURCE != 0 {
        true => Finding::good(what, "CAP_SYS_RESOURCE"),
        false => Finding::weak(
            what,
            "CAP_SYS_RESOURCE is not in effect, so an ext4 grows when its pod is next started",
            "add the capability (--cap-add SYS_RESOURCE), or use a class with fsType xfs or btrfs",
        ),
    }
}

fn capability(status: &str) -> Finding {
    if effective(status) & SYS_ADMIN != 0 {
        return Finding::good("right to mount", "CAP_SYS_ADMIN");
    }
    Finding::missing(
        "right to mount",
        "CAP_SYS_ADMIN is not in effect",
        "run as root, for example `sudo -E cargo run --release -- demo`, or in a container with --cap-add SYS_ADMIN",
    )
}

fn loop_control() -> Finding {
    let way_out = "load the module with `modprobe loop`; in a container pass --device /dev/loop-control, the loop \
                   devices and a device cgroup rule for block major 7";
    match fs::File::options().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => Finding::good("loop devices", "/dev/loop-control opens"),
        Err(error) => Finding::missing("loop devices", format!("/dev/loop-control: {error}"), way_out),
    }
}

fn file_system(name: &'static str, needed: bool) -> Finding {
    let known = read("/proc/filesystems").lines().any(|line| line.split_whitespace().last() == Some(name));
    let modules = read(&format!("/lib/modules/{}/modules.dep", read("/proc/sys/kernel/osrelease").trim()));
    let what = match name {
        "ext4" => "kernel ext4",
        "xfs" => "kernel xfs",
        _ => "kernel btrfs",
    };
    if known {
        return Finding::good(what, "known to the kernel");
    }
    if modules.lines().any(|line| line.split(':').next().is_some_and(|path| path.contains(&format!("/{name}.ko")))) {
        return Finding::good(what, "can be loaded as a module");
    }
    let way_out = format!("use a kernel with {name}, or classes that do not ask for fsType {name}");
    Finding { needed, ..Finding::missing(what, "not known to the kernel", way_out) }
}

fn tool(program: &'static str, package: &str, needed: bool) -> Finding {
    let paths = std::env::var("PATH").unwrap_or_default();
    let places = paths.split(':').chain(["/usr/sbin", "/sbin"]);
    let found = places.map(|place| Path::new(place).join(program)).find(|path| path.is_file());
    match found {
        Some(path) => Finding::good(program, path.display().to_string()),
        None => {
            let way_out = format!("install it, on Debian with `apt-get install {package}`");
            Finding { needed, ..Finding::missing(program, "not installed", way_out) }
        }
    }
}

fn limit(what: &'static str, path: &str, enough: u64) -> Finding {
    match read(path).trim().parse::<u64>() {
        Ok(value) if value >= enough => Finding::good(what, value.to_string()),
        Ok(value) => {
            let name = path.trim_start_matches("/proc/sys/").replace('/', ".");
            Finding::weak(what, value.to_string(), format!("raise it: `sysctl -w {name}={enough}`"))
        }
        Err(_) => Finding::weak(what, "cannot be read", format!("look at {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_to_mount_is_read_from_the_effective_set() {
        assert_eq!(capability("CapEff:\t000001ffffffffff\n").way_out, None);
        let without = capability("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n");
        assert!(is_fatal(&without) && without.way_out.unwrap().contains("sudo"));
    }

    #[test]
    fn without_the_right_to_grow_ext4_in_use_the_rest_works() {
        let without = growth("CapEff:\t000001fffeffffff\n");
        assert!(!is_fatal(&without) && without.found.contains("next started"), "{}", without.found);
        assert_eq!(growth("CapEff:\t000001ffffffffff\n").way_out, None);
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let finding = tool("mkfs.no-such", "no-such-progs", true);
        assert!(is_fatal(&finding) && finding.way_out.unwrap().contains("no-such-progs"));
    }
}

//! The volume manager as a process of its own: what it has in memory, and what it asks of the kernel.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// What concerns files and mounts; the rest is talk with the API server and drivers, and threads that wait for each other.
const FILES: &[&str] = &[
    "access",
    "chmod",
    "chown",
    "close",
    "copy_file_range",
    "faccessat",
    "faccessat2",
    "fallocate",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "fdatasync",
    "flock",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getdents64",
    "lchown",
    "lgetxattr",
    "link",
    "linkat",
    "lseek",
    "lstat",
    "mkdir",
    "mkdirat",
    "mount",
    "mount_setattr",
    "move_mount",
    "newfstatat",
    "open",
    "open_tree",
    "openat",
    "openat2",
    "pread64",
    "pwrite64",
    "readlink",
    "readlinkat",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "stat",
    "statfs",
    "statx",
    "symlink",
    "symlinkat",
    "syncfs",
    "umount2",
    "unlink",
    "unlinkat",
    "utimensat",
];

pub struct Process(Child);

impl Process {
    /// The binary that cargo built for this benchmark, for the node `node`.
    pub fn start(kubeconfig: &Path, root: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_volume-manager"));
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--root-dir={}", root.display()))
            .arg("--node-name=node")
            .stderr(Stdio::null())
            .kill_on_drop(true);
        Self(command.spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id().expect("it is not waited for before it is dropped")
    }

    /// Resident now, at the highest, and what of that now is its own and not the code of its binary.
    pub fn megabytes(&self) -> [f64; 3] {
        let status = self.read("status");
        ["VmRSS:", "VmHWM:", "RssAnon:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / 1e6
        })
    }

    /// Processor time so far.
    pub fn processor(&self) -> Duration {
        let stat = self.read("stat");
        // The name before it may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// Until it has had nothing to do for a while: nobody tells of that.
    pub async fn quiet(&self) {
        let mut before = Duration::MAX;
        while before != self.processor() {
            before = self.processor();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.id())).unwrap()
    }

    pub async fn stop(mut self) {
        self.0.kill().await.unwrap();
    }
}

/// Counts system calls of a process until it is asked for them. It is many times slower meanwhile.
pub struct Tracer {
    strace: Child,
    output: tempfile::NamedTempFile,
}

/// How many system calls there were, by name.
pub struct Calls(Vec<(String, usize)>);

impl Tracer {
    /// None where there is no strace.
    pub async fn start(process: &Process) -> Option<Self> {
        let output = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(output.path()).args(["-p", &process.id().to_string()]);
        let strace = command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().ok()?;
        // There is no event for it: each thread says by whom it is traced.
        while !process.read("status").lines().any(|line| line == format!("TracerPid:\t{}", strace.id().unwrap())) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Some(Self { strace, output })
    }

    pub async fn stop(mut self) -> Calls {
        let pid = nix::unistd::Pid::from_raw(self.strace.id().unwrap().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        self.strace.wait().await.unwrap();
        let text = std::fs::read_to_string(self.output.path()).unwrap();
        let lines = text.lines().filter_map(|line| {
            let (calls, name) = line.trim().split_once(' ')?;
            Some((name.trim().to_owned(), calls.parse().ok()?))
        });
        Calls(lines.filter(|(name, _)| name != "total").collect())
    }
}

impl Calls {
    /// All of them, and those that concern files and mounts.
    pub fn sums(&self) -> [usize; 2] {
        let sum = |counts: &dyn Fn(&str) -> bool| self.0.iter().filter(|(name, _)| counts(name)).map(|(_, n)| n).sum();
        [sum(&|_| true), sum(&|name| FILES.contains(&name))]
    }

    /// The most frequent ones, for each of so many.
    pub fn most(&self, of: usize) -> String {
        let mut calls = self.0.clone();
        calls.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
        let each = |(name, calls): &(String, usize)| format!("{name} {:.1}", *calls as f64 / of as f64);
        calls.iter().take(12).map(each).collect::<Vec<_>>().join(", ")
    }
}

//! A Linux machine, read from /proc, /sys and /etc. What cannot be read is said to be nothing, never guessed.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use nix::sys::statvfs::statvfs;

use super::{LookAtMachine, Machine, Pressure};

/// The kubelet's default thresholds of eviction.
const LEAST_MEMORY: u64 = 100 << 20;
const LEAST_STORAGE_PERCENT: u64 = 10;
const LEAST_INODES_PERCENT: u64 = 5;

/// Documentation addresses (RFC 5737, RFC 3849): nothing is sent there, only the way out is asked for.
const SOMEWHERE: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// This machine.
#[derive(Debug, Clone)]
pub struct LinuxMachine {
    /// Where /proc, /sys and /etc are.
    system: PathBuf,
    /// The directory whose file system holds pods and plugins.
    root: PathBuf,
    /// The addresses it was told to have.
    addresses: Vec<IpAddr>,
}

impl LinuxMachine {
    /// This machine, with volumes below `root`; without addresses it finds the one its routes lead out by.
    pub fn new(root: impl Into<PathBuf>, addresses: Vec<IpAddr>) -> Arc<Self> {
        Arc::new(Self { system: "/".into(), root: root.into(), addresses })
    }

    fn read(&self) -> Machine {
        let memory = self.text("proc/meminfo");
        let storage = self.storage();
        Machine {
            cpus: cpus(&self.text("proc/cpuinfo")),
            memory_bytes: kibibytes(&memory, "MemTotal:").unwrap_or(0),
            storage_bytes: storage.map_or(0, |storage| storage.bytes),
            huge_pages: self.huge_pages(),
            addresses: match self.addresses.is_empty() {
                true => way_out().into_iter().collect(),
                false => self.addresses.clone(),
            },
            kernel_version: self.text("proc/sys/kernel/osrelease"),
            os_image: os_image(&self.text("etc/os-release")),
            machine_id: self.text("etc/machine-id"),
            boot_id: self.text("proc/sys/kernel/random/boot_id"),
            system_uuid: self.text("sys/class/dmi/id/product_uuid"),
            pressure: Pressure {
                memory: kibibytes(&memory, "MemAvailable:").is_some_and(|available| available < LEAST_MEMORY),
                disk: storage.is_some_and(|storage| storage.is_short),
                // The kubelet has no threshold of its own for process ids.
                pids: false,
            },
        }
    }

    fn text(&self, path: &str) -> String {
        let text = fs::read_to_string(self.system.join(path)).unwrap_or_default();
        text.trim().to_owned()
    }

    fn huge_pages(&self) -> BTreeMap<u64, u64> {
        let base = self.system.join("sys/kernel/mm/hugepages");
        let entries = fs::read_dir(base).into_iter().flatten().flatten();
        let sizes = entries.filter_map(|entry| {
            let name = entry.file_name();
            let kibibytes: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages: u64 = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            let size = kibibytes.checked_mul(1024)?;
            Some((size, size.checked_mul(pages)?))
        });
        sizes.collect()
    }

    fn storage(&self) -> Option<Storage> {
        // Before the first start the directory may not be there: what will hold it is what counts.
        let known = self.root.ancestors().find_map(|dir| statvfs(dir as &Path).ok())?;
        let unit = known.fragment_size();
        let short =
            |least: u64, free: u64, all: u64| all > 0 && u128::from(free) * 100 < u128::from(all) * u128::from(least);
        Some(Storage {
            bytes: known.blocks().saturating_mul(unit),
            is_short: short(LEAST_STORAGE_PERCENT, known.blocks_available(), known.blocks())
                || short(LEAST_INODES_PERCENT, known.files_available(), known.files()),
        })
    }
}

#[derive(Clone, Copy)]
struct Storage {
    bytes: u64,
    is_short: bool,
}

impl LookAtMachine for LinuxMachine {
    fn look(&self) -> BoxFuture<'_, Machine> {
        let machine = self.clone();
        Box::pin(async move {
            let looked = tokio::task::spawn_blocking(move || machine.read()).await;
            // Only a runtime that is shutting down loses the question.
            looked.unwrap_or_default()
        })
    }
}

fn cpus(cpuinfo: &str) -> u64 {
    let listed = cpuinfo.lines().filter(|line| line.starts_with("processor") && line.contains(':')).count();
    match listed {
        // Some architectures list them otherwise.
        0 => std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        listed => listed as u64,
    }
}

fn kibibytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn os_image(release: &str) -> String {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches(['"', '\'']).to_owned()
}

/// The address of the interface by which packets leave.
fn way_out() -> Option<IpAddr> {
    let address = |(from, to): (&str, &str)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified() && !address.is_loopback()).then_some(address)
    };
    SOMEWHERE.into_iter().find_map(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> (tempfile::TempDir, LinuxMachine) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = LinuxMachine {
            system: dir.path().to_owned(),
            root: dir.path().join("not/yet/there"),
            addresses: vec!["10.0.0.7".parse().unwrap()],
        };
        (dir, machine)
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let (_dir, machine) = written(&[
            ("proc/meminfo", "MemTotal:       16393244 kB\nMemFree: 1 kB\nMemAvailable:    9000000 kB\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
            ("proc/sys/kernel/random/boot_id", "b-o-o-t\n"),
            ("etc/machine-id", "abc\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            ("sys/class/dmi/id/product_uuid", "u-u-i-d\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n"),
        ]);
        let read = machine.read();
        assert_eq!((read.cpus, read.memory_bytes), (2, 16_393_244 * 1024));
        assert_eq!(read.huge_pages, BTreeMap::from([(2 << 20, 6 << 20)]));
        assert_eq!(
            (read.kernel_version.as_str(), read.os_image.as_str()),
            ("6.1.0-18-amd64", "Debian GNU/Linux 12 (bookworm)")
        );
        assert_eq!(
            (read.machine_id.as_str(), read.boot_id.as_str(), read.system_uuid.as_str()),
            ("abc", "b-o-o-t", "u-u-i-d")
        );
        assert_eq!(read.addresses, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        assert!(read.storage_bytes > 0, "the file system that will hold the directory counts");
        assert!(!read.pressure.memory);
    }

    #[test]
    fn less_than_a_hundred_mebibytes_of_memory_is_pressure() {
        let (_dir, machine) = written(&[("proc/meminfo", "MemTotal: 16393244 kB\nMemAvailable: 102399 kB\n")]);
        assert!(machine.read().pressure.memory);
    }

    #[test]
    fn what_cannot_be_read_is_nothing_and_no_failure() {
        let (_dir, machine) = written(&[]);
        let read = machine.read();
        assert_eq!((read.memory_bytes, read.boot_id.as_str(), read.os_image.as_str()), (0, "", "Linux"));
        assert!(read.cpus > 0 && !read.pressure.memory);
    }

    #[tokio::test]
    async fn the_machine_that_runs_this_has_processors_and_memory() {
        let machine = LinuxMachine::new("/var/lib/kubelet", Vec::new()).look().await;
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && machine.storage_bytes > 0);
        assert!(!machine.kernel_version.is_empty() && !machine.boot_id.is_empty());
    }
}

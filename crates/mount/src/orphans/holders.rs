//! Looks through /proc. Nothing there is opened but /proc itself: a file on a server that does not answer would hold us too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use super::{Held, Hold, Holder, Holders};
use crate::files::{self, failed};
use crate::{DeviceNumber, Mount, MountTable, Result};

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many holders are told.
const TOLD: usize = 32;
/// How many open files of one process are looked at.
const FILES: usize = 16_384;
/// How much of one process's mappings and of its mount table is read, in bytes.
const TEXT: u64 = 4 << 20;

pub(super) fn find(held: &Held) -> Result<Holders> {
    let own = MountTable::read()?;
    let Some(search) = Search::new(held, &own)? else { return Ok(Holders { found: Vec::new(), complete: true }) };
    search.all()
}

struct Search {
    device: DeviceNumber,
    /// Of a mount: which, and what of its device it shows.
    mount: Option<(u32, PathBuf)>,
    own_namespace: PathBuf,
    deadline: Instant,
}

impl Search {
    fn new(held: &Held, own: &MountTable) -> Result<Option<Self>> {
        let (device, mount) = match held {
            Held::Device(device) => (*device, None),
            Held::DeviceNode(path) => {
                let Some(node) = files::unless_missing(fs::metadata(path)).map_err(failed("look at", path))? else {
                    return Ok(None);
                };
                (DeviceNumber { major: libc::major(node.rdev()), minor: libc::minor(node.rdev()) }, None)
            }
            Held::Mount(path) => {
                let Some(path) = files::resolve(path)? else { return Ok(None) };
                let Some(mount) = own.at(&path) else { return Ok(None) };
                (mount.device, Some((mount.id, mount.root.clone())))
            }
        };
        let own_namespace = fs::read_link("/proc/thread-self/ns/mnt").unwrap_or_default();
        Ok(Some(Search { device, mount, own_namespace, deadline: Instant::now() + PATIENCE }))
    }

    fn all(&self) -> Result<Holders> {
        let list = Path::new("/proc");
        let mut pids: Vec<u32> = Vec::new();
        for entry in fs::read_dir(list).map_err(failed("list", list))? {
            let name = entry.map_err(failed("list", list))?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        pids.sort_unstable();
        let mut namespaces: BTreeMap<PathBuf, (u32, Vec<Mount>)> = BTreeMap::new();
        let mut of_process = BTreeMap::new();
        for pid in &pids {
            // A process that ends while we look has nothing any more.
            let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
            if !namespaces.contains_key(&namespace) {
                let Some(mounts) = mounts_of(*pid) else { continue };
                namespaces.insert(namespace.clone(), (*pid, mounts));
            }
            of_process.insert(*pid, namespace);
            if self.is_late() {
                break;
            }
        }
        let ids: BTreeSet<u32> = match &self.mount {
            Some((id, _)) => BTreeSet::from([*id]),
            None => {
                let mounts = namespaces.values().flat_map(|(_, mounts)| mounts);
                mounts.filter(|mount| mount.device == self.device).map(|mount| mount.id).collect()
            }
        };
        let mut found = Holders { found: Vec::new(), complete: !self.is_late() };
        for (pid, namespace) in &of_process {
            if self.is_late() || found.found.len() == TOLD {
                found.complete = false;
                break;
            }
            let mounts = namespaces.get(namespace).map_or(&[][..], |(_, mounts)| mounts.as_slice());
            let mut how = self.hold_of(*pid, &ids, mounts);
            if how.is_none() && *namespace != self.own_namespace {
                // Told once for each namespace, by the first process in it.
                let first = namespaces.get(namespace).filter(|(first, _)| first == pid);
                how = first.and_then(|(_, mounts)| self.same(mounts)).map(Hold::Namespace);
            }
            if let Some(how) = how {
                found.found.push(Holder { pid: *pid, name: name(*pid), how });
            }
        }
        Ok(found)
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.deadline
    }

    /// Where another namespace shows what we ask for.
    fn same(&self, mounts: &[Mount]) -> Option<PathBuf> {
        let shows = |mount: &&Mount| {
            mount.device == self.device && self.mount.as_ref().is_none_or(|(_, root)| *root == mount.root)
        };
        mounts.iter().find(shows).map(|mount| mount.target.clone())
    }

    fn hold_of(&self, pid: u32, ids: &BTreeSet<u32>, mounts: &[Mount]) -> Option<Hold> {
        let at = |link: &str| fs::read_link(format!("/proc/{pid}/{link}")).ok();
        // A path is where it says it is only if the mount seen there is one of those that are asked for.
        let inside = |path: &Path| {
            let covering = mounts.iter().filter(|mount| path.starts_with(&mount.target));
            covering.max_by_key(|mount| mount.target.components().count()).is_some_and(|mount| ids.contains(&mount.id))
        };
        self.open_file(pid, ids)
            .map(Hold::File)
            .or_else(|| at("cwd").filter(|path| inside(path)).map(|_| Hold::WorkingDirectory))
            .or_else(|| at("root").filter(|path| path != Path::new("/") && inside(path)).map(|_| Hold::Root))
            .or_else(|| self.mapping(pid, &inside).map(Hold::Mapping))
    }

    fn open_file(&self, pid: u32, ids: &BTreeSet<u32>) -> Option<PathBuf> {
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?.take(FILES) {
            let number = entry.ok()?.file_name();
            let link = || fs::read_link(Path::new(&format!("/proc/{pid}/fd")).join(&number)).ok();
            if mount_of(pid, &number).is_some_and(|id| ids.contains(&id)) {
                return link().or_else(|| Some("a file".into()));
            }
            if self.mount.is_none()
                && let Some(node) = link().filter(|path| path.starts_with("/dev"))
                && self.is_node(&Path::new(&format!("/proc/{pid}/fd")).join(&number))
            {
                return Some(node);
            }
        }
        None
    }

    /// Only asked of files in /dev, which is in memory.
    fn is_node(&self, file: &Path) -> bool {
        let wanted = libc::makedev(self.device.major, self.device.minor);
        fs::metadata(file).is_ok_and(|about| about.mode() & libc::S_IFMT == libc::S_IFBLK && about.rdev() == wanted)
    }

    fn mapping(&self, pid: u32, inside: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
        let text = read(&format!("/proc/{pid}/maps"))?;
        let device = format!("{:02x}:{:02x}", self.device.major, self.device.minor);
        text.split(|byte| *byte == b'\n').find_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
            (fields.nth(3)? == device.as_bytes()).then_some(())?;
            let start = line.iter().position(|byte| *byte == b'/')?;
            let path = Path::new(OsStr::from_bytes(&line[start..]));
            inside(path).then(|| path.to_owned())
        })
    }
}

fn mounts_of(pid: u32) -> Option<Vec<Mount>> {
    let table = MountTable::parse(&read(&format!("/proc/{pid}/mountinfo"))?).ok()?;
    Some(table.iter().cloned().collect())
}

/// Which mount an open file was opened through.
fn mount_of(pid: u32, number: &OsStr) -> Option<u32> {
    let path = Path::new(&format!("/proc/{pid}/fdinfo")).join(number);
    let mut text = [0; 256];
    let length = File::open(path).ok()?.read(&mut text).ok()?;
    let lines = std::str::from_utf8(&text[..length]).ok()?.lines();
    lines.filter_map(|line| line.strip_prefix("mnt_id:")).find_map(|id| id.trim().parse().ok())
}

fn name(pid: u32) -> String {
    let name = read(&format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

fn read(path: &str) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(TEXT).read_to_end(&mut text).ok()?;
    Some(text)
}

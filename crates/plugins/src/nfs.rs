//! Directories of other machines, exported over NFS: mounted for pods, or erased without one.

mod attempts;
mod on_node;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use stowage_model::migration;
use stowage_mount::{LinuxMounter, MountOptions, Mounter};

use crate::disk::{Disk, Threads, checked};
use crate::erase::erase;
use crate::permit::Permit;
use crate::reclaim::{Error, RecyclableVolumePlugin, name, text};

use attempts::{Attempts, addresses};

pub use on_node::NfsVolume;

/// Where exports are mounted while they are erased. Names of volumes are names of directories too.
const ROOT: &str = "/run/stowage/recycle";

/// Directories that another machine exports.
pub struct Nfs {
    disk: Arc<dyn Disk>,
}

impl Nfs {
    /// As Kubernetes calls it.
    pub const NAME: &str = migration::NFS;

    /// With the disk that mounts them.
    pub fn on(disk: Arc<dyn Disk>) -> Self {
        Self { disk }
    }
}

impl RecyclableVolumePlugin for Nfs {
    fn recycle<'a>(&'a self, volume: &'a Value, permit: &'a Permit) -> BoxFuture<'a, Result<(), Error>> {
        async move { Ok(self.disk.erase_export(&Export::of(volume)?, permit).await?) }.boxed()
    }
}

/// The directory of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The name of the PersistentVolume.
    pub volume: String,
    /// A name or an address.
    pub server: String,
    /// On the server.
    pub path: PathBuf,
    /// `spec.mountOptions`.
    pub options: Vec<String>,
}

impl Export {
    fn of(volume: &Value) -> Result<Self, Error> {
        Ok(Self {
            volume: name(volume).to_owned(),
            server: text(volume, "nfs.server")?.to_owned(),
            path: text(volume, "nfs.path")?.into(),
            options: volume["spec"]["mountOptions"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|word| word.as_str().map(str::to_owned))
                .collect(),
        })
    }

    /// As a pod would mount it, but whoever erases must write, and trusts nothing that is there.
    fn attempts(&self) -> Attempts<'_> {
        Attempts { words: self.options.iter().map(String::as_str).chain(["rw", "nosuid", "nodev"]).collect() }
    }

    /// As mount(8) writes it; an IPv6 address is bracketed.
    fn source(&self) -> String {
        let path = self.path.display();
        match self.server.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{path}"),
            _ => format!("{}:{path}", self.server),
        }
    }
}

/// The little that is asked of mounts.
pub(crate) trait Mounts: Send + Sync {
    fn mount<'a>(&'a self, export: &'a Export, target: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, io::Result<()>>;
}

impl Mounts for LinuxMounter {
    fn mount<'a>(&'a self, export: &'a Export, target: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        async move {
            let (from, source) = (addresses(&export.server).await?, export.source());
            let call = |options: MountOptions| {
                let source = source.as_str();
                async move { Mounter::mount(self, source, target, "nfs", &options).await }.boxed()
            };
            export.attempts().mount(&from, call).await.map_err(io::Error::other)
        }
        .boxed()
    }

    fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        async move { Mounter::unmount(self, target).await.map_err(io::Error::other) }.boxed()
    }
}

/// Erases exports by mounting each for as long as that takes.
#[derive(Clone)]
pub(crate) struct Exports {
    mounts: Arc<dyn Mounts>,
    root: PathBuf,
    threads: Threads,
}

impl Exports {
    pub(crate) fn with(threads: Threads) -> Self {
        Self { mounts: Arc::new(LinuxMounter), root: ROOT.into(), threads }
    }

    pub(crate) async fn erase(&self, export: &Export, permit: &Permit) -> io::Result<()> {
        let target = checked(&self.root.join(&export.volume))?;
        if target.parent() != Some(self.root.as_path()) {
            return Err(io::Error::other(format!("volume name {:?} is no name of a directory", export.volume)));
        }
        tokio::fs::create_dir_all(&target).await?;
        // A process that was killed may have left it mounted.
        self.mounts.unmount(&target).await?;
        self.mounts.mount(export, &target).await.map_err(|error| cannot_mount(export, &error))?;
        let mounted = target.clone();
        let erased = self.threads.run(permit, move |permit| erase(&mounted, permit)).await;
        self.mounts.unmount(&target).await?;
        tokio::fs::remove_dir(&target).await?;
        erased
    }
}

fn cannot_mount(export: &Export, error: &io::Error) -> io::Error {
    io::Error::other(format!(
        "cannot mount {} to erase it: {error}; let this process mount NFS, or start with --pv-recycler=pod",
        export.source()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;

    /// "Mounts" by moving the exported directory to the target and back.
    struct Moves {
        exported: PathBuf,
        busy: AtomicBool,
        refuses: bool,
    }

    impl Mounts for Moves {
        fn mount<'a>(&'a self, export: &'a Export, target: &'a Path) -> BoxFuture<'a, io::Result<()>> {
            assert_eq!(export.source(), "[2001:db8::1]:/exports/a");
            let moved = if self.refuses {
                Err(io::Error::from(io::ErrorKind::PermissionDenied))
            } else {
                fs::rename(&self.exported, target).inspect(|()| self.busy.store(true, Ordering::SeqCst))
            };
            async { moved }.boxed()
        }

        fn unmount<'a>(&'a self, target: &'a Path) -> BoxFuture<'a, io::Result<()>> {
            let back = if self.busy.swap(false, Ordering::SeqCst) {
                fs::rename(target, &self.exported).and_then(|()| fs::create_dir(target))
            } else {
                Ok(())
            };
            async { back }.boxed()
        }
    }

    struct Machine {
        _directory: tempfile::TempDir,
        exported: PathBuf,
        root: PathBuf,
    }

    fn machine() -> Machine {
        let directory = tempfile::tempdir().unwrap();
        let (exported, root) = (directory.path().join("exported"), directory.path().join("mounts"));
        fs::create_dir_all(exported.join("a/b")).unwrap();
        fs::write(exported.join("a/b/secret"), "x").unwrap();
        Machine { _directory: directory, exported, root }
    }

    fn exports(machine: &Machine, refuses: bool, busy: bool) -> Exports {
        let mounts = Moves { exported: machine.exported.clone(), busy: AtomicBool::new(busy), refuses };
        Exports { mounts: Arc::new(mounts), root: machine.root.clone(), threads: Threads::default() }
    }

    fn export(volume: &str) -> Export {
        Export { volume: volume.into(), server: "2001:db8::1".into(), path: "/exports/a".into(), options: Vec::new() }
    }

    #[tokio::test]
    async fn an_export_is_mounted_to_be_erased_as_its_volume_says_with_older_versions_too() {
        let nfs = json!({ "server": "192.0.2.1", "path": "/x" });
        let spec = json!({ "nfs": nfs, "mountOptions": ["port=2050,ro", "soft"] });
        let export = Export::of(&json!({ "metadata": { "name": "v" }, "spec": spec })).unwrap();
        let tried = std::sync::Mutex::new(Vec::new());
        let only_three = |options: MountOptions| {
            let is_three = options.words.contains(&"vers=3".to_owned());
            tried.lock().unwrap().push(options);
            let refused = || stowage_mount::Error::Mount {
                from: export.source(),
                target: "/t".into(),
                fs_type: "nfs".into(),
                source: io::Error::from_raw_os_error(nix::libc::EPROTONOSUPPORT),
            };
            let answer = if is_three { Ok(()) } else { Err(refused()) };
            async move { answer }.boxed()
        };
        let from = addresses(&export.server).await.unwrap();
        export.attempts().mount(&from, only_three).await.unwrap();
        let tried = tried.into_inner().unwrap();
        assert_eq!(tried.len(), 4);
        assert!(tried.iter().all(|options| !options.read_only()), "who erases must write: {tried:?}");
        let words: Vec<&str> = tried[3].words.iter().map(String::as_str).collect();
        let expected = ["port=2050", "ro", "soft", "rw", "nosuid", "nodev", "vers=3", "nolock", "addr=192.0.2.1"];
        assert_eq!(words, expected);
    }

    #[tokio::test]
    async fn an_export_is_emptied_and_nothing_stays_mounted() {
        let machine = machine();
        exports(&machine, false, false).erase(&export("v"), &Permit::always()).await.unwrap();
        assert_eq!(fs::read_dir(&machine.exported).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&machine.root).unwrap().count(), 0, "a directory of the mount is left");
    }

    #[tokio::test]
    async fn what_a_killed_process_left_mounted_is_erased_from_the_start() {
        let machine = machine();
        fs::create_dir(&machine.root).unwrap();
        fs::rename(&machine.exported, machine.root.join("v")).unwrap();
        exports(&machine, false, true).erase(&export("v"), &Permit::always()).await.unwrap();
        assert_eq!(fs::read_dir(&machine.exported).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_export_that_cannot_be_mounted_is_named_with_the_way_out() {
        let machine = machine();
        let error =
            exports(&machine, true, false).erase(&export("v"), &Permit::always()).await.unwrap_err().to_string();
        assert!(error.contains("[2001:db8::1]:/exports/a") && error.contains("--pv-recycler=pod"), "{error}");
        assert!(machine.exported.join("a/b/secret").is_file());
    }

    #[tokio::test]
    async fn a_volume_whose_name_is_a_path_is_refused() {
        let machine = machine();
        for name in ["../../etc", "", "..", "/etc"] {
            assert!(exports(&machine, false, false).erase(&export(name), &Permit::always()).await.is_err(), "{name:?}");
        }
        assert!(machine.exported.join("a/b/secret").is_file());
    }
}

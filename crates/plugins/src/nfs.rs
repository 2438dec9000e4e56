//! Directories of other machines, exported over NFS: mounted for pods, or erased without one.

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

pub use on_node::NfsVolume;

/// Where exports are mounted while they are erased. Names of volumes are names of directories too.
const ROOT: &str = "/run/stowage/recycle";

const PORT: u16 = 2049;

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
}

impl Export {
    fn of(volume: &Value) -> Result<Self, Error> {
        Ok(Self {
            volume: name(volume).to_owned(),
            server: text(volume, "nfs.server")?.to_owned(),
            path: text(volume, "nfs.path")?.into(),
        })
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
            // The kernel wants the address; only mount(8) resolves names.
            let mut addresses = tokio::net::lookup_host((export.server.as_str(), PORT)).await?;
            let address = addresses.next().ok_or_else(|| io::Error::other("the name has no address"))?;
            let options = MountOptions::new([format!("addr={}", address.ip()), "vers=4.2,nosuid,nodev".to_owned()]);
            Mounter::mount(self, &export.source(), target, "nfs4", &options).await.map_err(io::Error::other)
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
        Export { volume: volume.into(), server: "2001:db8::1".into(), path: "/exports/a".into() }
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

//! Places of the driver's own, where shares are mounted for the length of a call.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use stowage_mount::{MountOptions, Share, Shares, Target};

use super::handle::Export;
use super::options::Options;

pub const FILE_SYSTEM: &str = "nfs";

pub struct Mounts {
    host: Arc<dyn Shares>,
    working: PathBuf,
    /// The directory of this process: no other has its endpoint.
    name: String,
    next: AtomicU64,
}

/// A share that is mounted, to be given back.
pub struct Mounted {
    pub share: Share,
    place: Target,
}

impl Mounts {
    pub fn new(options: &Options, host: Arc<dyn Shares>) -> Self {
        let digest = Sha256::digest(options.endpoint.to_string());
        let digits: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{}-{digits}", options.driver_name);
        Mounts { host, working: options.working_mount_dir.clone(), name, next: AtomicU64::new(0) }
    }

    async fn directory(&self) -> Result<PathBuf, stowage_mount::Error> {
        // Links on the way to it are followed once, so that it is known by the name that the mount table has.
        self.host.locate(&self.working.join(&self.name)).await
    }

    /// Takes away what an earlier run of this process had mounted when it was killed.
    pub async fn recover(&self) -> Result<(), stowage_mount::Error> {
        for path in self.host.private_places(&self.directory().await?).await? {
            if let Some(place) = self.host.hold(&path).await? {
                self.give_back(&place).await;
            }
        }
        Ok(())
    }

    /// Mounts a source at a new place.
    pub async fn mount(&self, source: &str, options: &MountOptions) -> Result<Target, stowage_mount::Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let place = self.host.make_private(&self.directory().await?, &number).await?;
        match self.host.mount_network(source, &place, FILE_SYSTEM, options).await {
            Ok(()) => Ok(place),
            Err(error) => {
                self.give_back(&place).await;
                Err(error)
            }
        }
    }

    /// The share of an export, to make and remove directories in. Whoever may write to it could put a program or a device
    /// into it: the controller uses neither.
    pub async fn open(&self, export: &Export, words: &[&str]) -> Result<Mounted, stowage_mount::Error> {
        let all = MountOptions::new(["nosuid", "nodev", "noexec"].iter().chain(words));
        let words = all.words.into_iter().filter(|word| word != "ro");
        let place = self.mount(&export.source(), &MountOptions { words: words.collect() }).await?;
        match self.host.share(&place).await {
            Ok(share) => Ok(Mounted { share, place }),
            Err(error) => {
                self.give_back(&place).await;
                Err(error)
            }
        }
    }

    pub async fn close(&self, mounted: Mounted) {
        let Mounted { share, place } = mounted;
        drop(share);
        self.give_back(&place).await;
    }

    /// What cannot be taken away now is when the driver starts again.
    pub async fn give_back(&self, place: &Target) {
        if let Err(error) = self.host.discard(place).await {
            tracing::warn!(path = %place.path().display(), %error, "a share stays mounted until the driver is restarted");
        }
    }
}

/// The name of a way, for messages.
pub fn name_of(export: &Export, way: &Path) -> String {
    format!("{}/{}", export.source().trim_end_matches('/'), way.display())
}

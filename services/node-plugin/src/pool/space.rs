//! What a pool can still promise.
//!
//! A volume is promised its size, a snapshot what it holds: together they may come to need all of that. Against it
//! stands the space that is free and the space they have already. Copies share blocks where the pool can, and the
//! kernel counts a shared block once per file: so of each family only the largest member is taken to be there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;

use stowage_mount::FileInfo;

use super::{Error, Pool};
use crate::handle::Handle;
use crate::volume::Record;

/// What can still be promised, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// To volumes that take space as they are written.
    pub thin: u64,
    /// To volumes that take all their space at once.
    pub thick: u64,
}

impl Pool {
    pub async fn free(&self) -> Result<Free, Error> {
        let usage = self.open_for_writing().await?;
        // To find out takes a block; without one, what is there is counted as if it were shared, which promises less.
        let shares = match self.can_clone().await {
            Err(error) if error.is_out_of_space() => true,
            answer => answer?,
        };
        let mut promised = 0u64;
        let mut occupied = BTreeMap::<String, u64>::new();
        let mut count = |family: String, allocated: u64| {
            let sum = occupied.entry(family).or_default();
            *sum = if shares { allocated.max(*sum) } else { allocated.saturating_add(*sum) };
        };
        for (folder, of_snapshots) in [(self.volumes(), false), (self.snapshots(), true)] {
            for name in self.names(&folder).await?.iter().filter(|name| name.ends_with(".img")) {
                let Some(image) = self.stat(&folder.join(name)).await? else { continue };
                // An image is as long as its volume was promised to be.
                promised = promised.saturating_add(if of_snapshots { image.allocated } else { image.size });
                let key = name.trim_end_matches(".img");
                let family = if shares { self.family(key, &image, of_snapshots).await } else { String::new() };
                count(family, image.allocated);
            }
        }
        let occupied = occupied.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let space = usage.available_bytes.saturating_add(occupied);
        let thin = ((space as f64 * self.overcommit) as u64).saturating_sub(promised);
        Ok(Free { thin, thick: thin.min(usage.available_bytes) })
    }

    /// How large a volume with an image is: as large as its image, where a call that let it grow was cut short before the
    /// record followed. Its file system may have grown into that since.
    pub async fn bytes_of(&self, id: &Handle, record: &Record) -> Result<u64, Error> {
        let image = self.stat(&self.image(id)).await?;
        Ok(image.map_or(0, |image| image.size).max(record.capacity_bytes))
    }

    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>, Error> {
        self.host.stat(path).await.map_err(|source| self.failed(source))
    }

    /// Read from the record once per image; an image whose record cannot be read is a family of its own.
    async fn family(&self, key: &str, image: &FileInfo, of_snapshot: bool) -> String {
        let known = self.families.lock().unwrap_or_else(PoisonError::into_inner).get(&image.id).cloned();
        if let Some(family) = known {
            return family;
        }
        let Some(handle) = Handle::new(&self.name, key, None) else { return key.to_owned() };
        let family = match of_snapshot {
            true => self.load_snapshot(&handle).await.ok().flatten().map(|snapshot| snapshot.family),
            false => self.load(&handle).await.ok().flatten().map(|record| record.family),
        };
        let family = family.unwrap_or_else(|| key.to_owned());
        self.families.lock().unwrap_or_else(PoisonError::into_inner).insert(image.id, family.clone());
        family
    }

    /// An image is gone; its number may come back with another one.
    pub fn forget_family(&self, image: &FileInfo) {
        self.families.lock().unwrap_or_else(PoisonError::into_inner).remove(&image.id);
    }

    /// Counts what is about to be made until its image does; returns what others in the making take.
    ///
    /// Taken before the images are counted, so that of two calls at least one sees the other.
    pub fn promise<'a>(&'a self, key: &str, bytes: u64) -> (Promise<'a>, u64) {
        let mut promises = self.promises.lock().unwrap_or_else(PoisonError::into_inner);
        let others = promises.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        promises.insert(key.to_owned(), bytes);
        (Promise { pool: self, key: key.to_owned() }, others)
    }
}

/// Space set aside in memory; given up on drop.
pub struct Promise<'a> {
    pool: &'a Pool,
    key: String,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.pool.promises.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

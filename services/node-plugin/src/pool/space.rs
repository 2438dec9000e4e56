//! What a pool can still promise.
//!
//! A volume is promised its size, a snapshot what it holds: together they may come to need all of that. Against it
//! stands the space that is free and the space they have already. Copies share blocks where the pool can, and the
//! kernel counts a shared block once per file: so of each family only the largest member is taken to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use stowage_mount::{FileId, FileInfo};

use super::{Error, Pool};
use crate::driver::Shared;
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

/// What the images of one pool add up to, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    promised: u64,
    occupied: u64,
}

/// What tells file systems apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSystemId {
    Btrfs([u8; 16]),
    /// The device of its files.
    Other(u64),
}

/// Of each file system this part is nobody's: a file of scattered blocks needs that much to say where they are, and a write
/// within a volume's size must not fail for want of it.
const OWN_SHARE: u64 = 50;
/// btrfs writes down much more about each block, and all of it twice.
const OWN_SHARE_OF_BTRFS: u64 = 10;

/// What a pool can still promise. Pools on one file system have one space between them.
pub async fn free(shared: &Shared, pool: &Pool) -> Result<Free, Error> {
    let usage = pool.open_for_writing().await?;
    let sum = |sum: Counted, one: Counted| Counted {
        promised: sum.promised.saturating_add(one.promised),
        occupied: sum.occupied.saturating_add(one.occupied),
    };
    // To find out takes a block; without one, what is there is counted as if it were shared, which promises less.
    let shares = match pool.can_clone().await {
        Err(error) if error.is_out_of_space() => true,
        answer => answer?,
    };
    let mut all = Counted::default();
    for one in neighbours(shared, pool).await? {
        all = sum(all, one.count(shares).await?);
    }
    let share = match pool.file_system().await? {
        FileSystemId::Btrfs(_) => OWN_SHARE_OF_BTRFS,
        FileSystemId::Other(_) => OWN_SHARE,
    };
    // What only root may write (ext4) is for this, too: a loop device writes as root.
    let for_root = usage.total_bytes.saturating_sub(usage.used_bytes).saturating_sub(usage.available_bytes);
    let own = (usage.total_bytes / share).saturating_sub(for_root);
    let available = usage.available_bytes.saturating_sub(own);
    let space = available.saturating_add(all.occupied);
    let thin = ((space as f64 * pool.overcommit) as u64).saturating_sub(all.promised);
    Ok(Free { thin, thick: thin.min(available) })
}

/// The pools on the file system of this one, itself among them.
pub async fn neighbours<'a>(shared: &'a Shared, pool: &'a Pool) -> Result<Vec<&'a Pool>, Error> {
    let mut found = vec![pool];
    if shared.pools.len() > 1 {
        let here = pool.file_system().await?;
        for other in shared.pools.iter().filter(|other| other.name != pool.name) {
            // One that is away has nothing here.
            if other.open().await.is_ok() && other.file_system().await.is_ok_and(|there| there == here) {
                found.push(other);
            }
        }
    }
    Ok(found)
}

/// Sets space aside for what is about to be made, until its image counts; and tells what can be promised beside all others
/// in the making. In this order, so that of two calls at least one sees the other.
pub async fn set_aside<'a>(
    shared: &'a Shared,
    pool: &'a Pool,
    key: &str,
    bytes: u64,
) -> Result<(Promise<'a>, Free), Error> {
    let promise = pool.promise(key, bytes);
    let near = neighbours(shared, pool).await?;
    let making = near.iter().fold(0u64, |sum, pool| sum.saturating_add(pool.in_the_making()));
    let others = making.saturating_sub(bytes);
    let free = free(shared, pool).await?;
    Ok((promise, Free { thin: free.thin.saturating_sub(others), thick: free.thick.saturating_sub(others) }))
}

impl Pool {
    async fn file_system(&self) -> Result<FileSystemId, Error> {
        let volumes = self.volumes();
        Ok(match self.host.btrfs_id(&volumes).await.map_err(|source| self.failed(source))? {
            Some(id) => FileSystemId::Btrfs(id),
            None => FileSystemId::Other(self.stat(&volumes).await?.map_or(0, |info| info.id.device)),
        })
    }

    /// `shares`: whether files on this file system can share blocks.
    async fn count(&self, shares: bool) -> Result<Counted, Error> {
        let mut promised = 0u64;
        let mut occupied = BTreeMap::<String, u64>::new();
        let mut count = |family: String, allocated: u64| {
            let sum = occupied.entry(family).or_default();
            *sum = if shares { allocated.max(*sum) } else { allocated.saturating_add(*sum) };
        };
        let mut seen = BTreeSet::new();
        for (folder, of_snapshots) in [(self.volumes(), false), (self.snapshots(), true)] {
            for name in self.names(&folder).await?.iter().filter(|name| name.ends_with(".img")) {
                let path = folder.join(name);
                let Some(image) = self.stat(&path).await? else { continue };
                // An image is as long as its volume was promised to be.
                promised = promised.saturating_add(if of_snapshots { image.allocated } else { image.size });
                let key = name.trim_end_matches(".img");
                let family = if shares { self.family(key, &path, &image, of_snapshots).await } else { String::new() };
                // What a growth that was cut short has set aside beyond its end is not the volume's yet.
                count(family, image.allocated.min(image.size));
                seen.insert(path);
            }
        }
        // The number of an image that is gone comes back with another one, and so may its name.
        self.known_families().retain(|path, _| seen.contains(path));
        let occupied = occupied.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        Ok(Counted { promised, occupied })
    }

    /// How large a volume with an image is: as large as its image, where a call that let it grow was cut short before the
    /// record followed. Its file system may have grown into that since.
    pub async fn bytes_of(&self, id: &Handle, record: &Record) -> Result<u64, Error> {
        let image = self.stat(&self.image(id)).await?;
        Ok(image.map_or(0, |image| image.size).max(record.capacity_bytes))
    }

    /// The space that the image of a thick volume has: more than its size where a growth was cut short.
    pub async fn set_aside_for(&self, id: &Handle, record: &Record) -> Result<u64, Error> {
        let image = self.stat(&self.image(id)).await?;
        Ok(image.filter(|_| !record.thin).map_or(0, |image| image.allocated))
    }

    async fn stat(&self, path: &Path) -> Result<Option<FileInfo>, Error> {
        self.host.stat(path).await.map_err(|source| self.failed(source))
    }

    /// Read from the record once per image; an image whose record cannot be read is a family of its own until it can.
    async fn family(&self, key: &str, path: &Path, image: &FileInfo, of_snapshot: bool) -> String {
        let known = self.known_families().get(path).filter(|(of, _)| *of == image.id).map(|(_, family)| family.clone());
        if let Some(family) = known {
            return family;
        }
        let Some(handle) = Handle::new(&self.name, key, None) else { return key.to_owned() };
        let family = match of_snapshot {
            true => self.load_snapshot(&handle).await.ok().flatten().map(|snapshot| snapshot.family),
            false => self.load(&handle).await.ok().flatten().map(|record| record.family),
        };
        let Some(family) = family else { return key.to_owned() };
        self.known_families().insert(path.to_owned(), (image.id, family.clone()));
        family
    }

    fn known_families(&self) -> MutexGuard<'_, BTreeMap<PathBuf, (FileId, String)>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn promise(&self, key: &str, bytes: u64) -> Promise<'_> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), bytes);
        Promise { pool: self, key: key.to_owned() }
    }

    fn in_the_making(&self) -> u64 {
        let promises = self.promises.lock().unwrap_or_else(PoisonError::into_inner);
        promises.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use stowage_mount::{FileKind, Host, Usage};
use tonic::Code;

use crate::args::PoolOption;
use crate::volume::{RECORD_VERSION, Record, VolumeId};

/// Why a pool cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("pool {pool:?} is not known here; add --pool {pool}=PATH or use one of: {known}")]
    FindPool { pool: String, known: String },
    #[error("pool {pool:?} is not there: {path} is not a directory; create or mount it")]
    OpenPool { pool: String, path: PathBuf },
    #[error("pool {pool:?} was lost: {path} is gone; is its file system still mounted?")]
    KeepPool { pool: String, path: PathBuf },
    #[error("pool {pool:?} is read-only at {path}; remount it writable")]
    WritePool { pool: String, path: PathBuf },
    #[error("record {path} is of version {version}, this driver knows {RECORD_VERSION}; use a newer driver")]
    UnderstandRecord { path: PathBuf, version: u32 },
    #[error("record {path} is damaged: {source}; restore it from a backup")]
    ParseRecord { path: PathBuf, source: serde_json::Error },
    #[error("pool {pool:?}: {source}")]
    AccessPool { pool: String, source: stowage_mount::Error },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Error::FindPool { .. } | Error::UnderstandRecord { .. } => Code::FailedPrecondition,
            // Not a final answer: what was begun in a pool that is away is still in it.
            Error::OpenPool { .. } | Error::KeepPool { .. } | Error::WritePool { .. } => Code::Unavailable,
            Error::ParseRecord { .. } => Code::DataLoss,
            Error::AccessPool { source, .. } if source.is_out_of_space() => Code::ResourceExhausted,
            Error::AccessPool { source, .. } if source.is_too_large() => Code::OutOfRange,
            Error::AccessPool { .. } => Code::Unavailable,
        }
    }
}

pub fn is_pool_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A directory that holds volumes:
/// `volumes/KEY.json` the record (written by the controller), `volumes/KEY.img` the image,
/// `volumes/KEY.formatting` while mkfs runs, `volumes/KEY.staged.NODE.json` and `nodes/NODE.json` (written by that node).
pub struct Pool {
    name: String,
    root: PathBuf,
    host: Arc<dyn Host>,
    overcommit: f64,
    /// Set once the pool was seen whole: from then on its absence is a loss, not a beginning.
    seen: AtomicBool,
    /// Sizes of volumes that are being made, by key.
    promises: Mutex<BTreeMap<String, u64>>,
}

impl Pool {
    pub fn new(option: &PoolOption, overcommit: f64, host: Arc<dyn Host>) -> Self {
        let (name, root) = (option.name.clone(), option.path.clone());
        Pool { name, root, host, overcommit, seen: AtomicBool::new(false), promises: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    fn file(&self, key: &str, ending: &str) -> PathBuf {
        self.volumes().join(format!("{key}.{ending}"))
    }

    pub fn image(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "img")
    }

    /// Exists while a file system is being made: what the image holds then is nobody's data.
    pub fn formatting(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "formatting")
    }

    pub fn staged(&self, id: &VolumeId, node: &str) -> PathBuf {
        self.file(id.key(), &format!("staged.{node}.json"))
    }

    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(format!("{node}.json"))
    }

    pub fn failed(&self, source: stowage_mount::Error) -> Error {
        Error::AccessPool { pool: self.name.clone(), source }
    }

    /// Whether the pool can be read; prepares a new one on the first look.
    pub async fn open(&self) -> Result<(), Error> {
        let volumes = self.volumes();
        match self.host.stat(&volumes).await.map_err(|source| self.failed(source))? {
            Some(info) if info.kind == FileKind::Directory => {}
            Some(_) => return Err(Error::OpenPool { pool: self.name.clone(), path: volumes }),
            None if self.seen.load(Ordering::Relaxed) => {
                return Err(Error::KeepPool { pool: self.name.clone(), path: volumes });
            }
            None => self.prepare(&volumes).await?,
        }
        self.seen.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn prepare(&self, volumes: &Path) -> Result<(), Error> {
        let failed = |source| self.failed(source);
        if self.host.list_dir(&self.root).await.map_err(failed)?.is_none() {
            return Err(Error::OpenPool { pool: self.name.clone(), path: self.root.clone() });
        }
        self.host.create_dir(&self.root.join("nodes")).await.map_err(|source| self.refused(source))?;
        self.host.create_dir(volumes).await.map_err(failed)?;
        self.host.sync_dir(&self.root).await.map_err(failed)
    }

    fn refused(&self, source: stowage_mount::Error) -> Error {
        match source.is_read_only() {
            true => Error::WritePool { pool: self.name.clone(), path: self.root.clone() },
            false => self.failed(source),
        }
    }

    /// Whether the pool can be written.
    pub async fn open_for_writing(&self) -> Result<Usage, Error> {
        self.open().await?;
        let usage = self.host.usage(&self.volumes()).await.map_err(|source| self.failed(source))?;
        match usage.read_only {
            true => Err(Error::WritePool { pool: self.name.clone(), path: self.root.clone() }),
            false => Ok(usage),
        }
    }

    pub async fn load(&self, id: &VolumeId) -> Result<Option<Record>, Error> {
        self.load_file(&self.file(id.key(), "json")).await
    }

    pub async fn store(&self, id: &VolumeId, record: &Record) -> Result<(), Error> {
        self.store_file(&self.file(id.key(), "json"), record).await
    }

    pub async fn forget(&self, id: &VolumeId) -> Result<(), Error> {
        self.remove(&self.file(id.key(), "json")).await
    }

    pub async fn remove(&self, path: &Path) -> Result<(), Error> {
        self.host.remove_file(path).await.map_err(|source| self.failed(source))
    }

    pub async fn exists(&self, path: &Path) -> Result<bool, Error> {
        Ok(self.host.stat(path).await.map_err(|source| self.failed(source))?.is_some())
    }

    /// Reads any of our records; the version is looked at before the rest is understood.
    pub async fn load_file<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, Error> {
        #[derive(serde::Deserialize)]
        struct Versioned {
            version: u32,
        }
        let contents = self.host.read_file(path).await.map_err(|source| self.failed(source))?;
        let Some(contents) = contents else { return Ok(None) };
        let damaged = |source| Error::ParseRecord { path: path.into(), source };
        let Versioned { version } = serde_json::from_slice(&contents).map_err(damaged)?;
        if version > RECORD_VERSION {
            return Err(Error::UnderstandRecord { path: path.into(), version });
        }
        serde_json::from_slice(&contents).map(Some).map_err(damaged)
    }

    pub async fn store_file<T: Serialize>(&self, path: &Path, record: &T) -> Result<(), Error> {
        let damaged = |source| Error::ParseRecord { path: path.into(), source };
        let contents = serde_json::to_vec_pretty(record).map_err(damaged)?;
        self.host.write_file(path, &contents).await.map_err(|source| self.failed(source))
    }

    /// The names of the files that belong to one volume.
    pub async fn files_of(&self, id: &VolumeId) -> Result<Vec<PathBuf>, Error> {
        let prefix = format!("{}.", id.key());
        Ok(self
            .names()
            .await?
            .into_iter()
            .filter(|name| name.starts_with(&prefix))
            .map(|name| self.volumes().join(name))
            .collect())
    }

    /// All volumes that have a record, in order.
    pub async fn ids(&self) -> Result<Vec<VolumeId>, Error> {
        let ids = |name: String| VolumeId::new(&self.name, name.strip_suffix(".json")?);
        Ok(self.names().await?.into_iter().filter_map(ids).collect())
    }

    async fn names(&self) -> Result<Vec<String>, Error> {
        let entries = self.host.list_dir(&self.volumes()).await.map_err(|source| self.failed(source))?;
        Ok(entries.unwrap_or_default().into_iter().filter_map(|entry| entry.name.into_string().ok()).collect())
    }

    /// Bytes that may still be promised to new volumes: what all images may occupy together, less their sizes.
    pub async fn free(&self) -> Result<u64, Error> {
        let usage = self.open_for_writing().await?;
        let (mut promised, mut occupied) = (0u64, 0u64);
        // An image is as long as its volume was promised to be, so no record has to be read.
        for name in self.names().await?.iter().filter(|name| name.ends_with(".img")) {
            let image = self.host.stat(&self.volumes().join(name)).await.map_err(|source| self.failed(source))?;
            let Some(image) = image else { continue };
            promised = promised.saturating_add(image.size);
            occupied = occupied.saturating_add(image.allocated);
        }
        let space = usage.available_bytes.saturating_add(occupied);
        Ok(((space as f64 * self.overcommit) as u64).saturating_sub(promised))
    }

    /// Counts a volume that is about to be made until its record does; returns what others in the making take.
    ///
    /// Taken before the records are counted, so that of two calls at least one sees the other.
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

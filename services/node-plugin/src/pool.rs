mod records;
mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stowage_mount::{FileId, FileKind, Host, Usage};
use tokio::sync::OnceCell;
use tonic::Code;

pub use self::space::{Promise, free, neighbours, set_aside};
use crate::args::{Options, PoolOption};
use crate::handle::Handle;
use crate::volume::{RECORD_VERSION, VolumeId};

/// Why a pool cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("pool {pool:?} is not known here; add --pool {pool}=PATH or use one of: {known}")]
    FindPool { pool: String, known: String },
    #[error("{handle} is not of node {node}; ask the driver on the node it was made on")]
    OtherNode { handle: String, node: String },
    #[error("pool {pool:?} is not there: {path} is not a directory; create or mount it")]
    OpenPool { pool: String, path: PathBuf },
    #[error("pool {pool:?} was lost: {path} is gone; is its file system still mounted? To begin it anew remove {mark}")]
    KeepPool { pool: String, path: PathBuf, mark: PathBuf },
    #[error("pool {pool:?} is read-only at {path}; remount it writable")]
    WritePool { pool: String, path: PathBuf },
    #[error("pool {pool:?} is full at {path}: {bytes} bytes and {inodes} inodes are left; delete volumes or add space")]
    FillPool { pool: String, path: PathBuf, bytes: u64, inodes: u64 },
    #[error("record {path} is of version {version}, this driver knows {RECORD_VERSION}; use a newer driver")]
    UnderstandRecord { path: PathBuf, version: u64 },
    #[error("record {path} is damaged: {source}; restore it from a backup")]
    ParseRecord { path: PathBuf, source: serde_json::Error },
    #[error("pool {pool:?}: {source}")]
    AccessPool { pool: String, source: stowage_mount::Error },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Error::FindPool { .. } | Error::OtherNode { .. } | Error::UnderstandRecord { .. } => {
                Code::FailedPrecondition
            }
            // Not a final answer: what was begun in a pool that is away is still in it.
            Error::OpenPool { .. } | Error::KeepPool { .. } | Error::WritePool { .. } => Code::Unavailable,
            Error::FillPool { .. } => Code::ResourceExhausted,
            Error::ParseRecord { .. } => Code::DataLoss,
            Error::AccessPool { source, .. } if source.is_out_of_space() => Code::ResourceExhausted,
            Error::AccessPool { source, .. } if source.is_too_large() => Code::OutOfRange,
            Error::AccessPool { .. } => Code::Unavailable,
        }
    }
}

impl Error {
    /// Whether nothing can be made in the pool until somebody has brought it back.
    pub fn is_away(&self) -> bool {
        match self {
            Error::OpenPool { .. } | Error::KeepPool { .. } | Error::WritePool { .. } => true,
            // A dead disk, a server that is gone.
            Error::AccessPool { source, .. } => !source.is_out_of_space() && !source.is_moved(),
            _ => false,
        }
    }

    pub fn is_read_only(&self) -> bool {
        matches!(self, Error::AccessPool { source, .. } if source.is_read_only())
    }

    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Error::AccessPool { source, .. } if source.is_out_of_space())
    }
}

pub fn is_pool_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A pool that nobody looks into.
#[cfg(test)]
pub fn example(name: &str) -> Pool {
    let words = ["node-plugin", "--endpoint=unix:///s/csi.sock", "--nodeid=n", &format!("--pool={name}=/x")];
    let args: crate::args::Args = stowage_process::flags::try_parse_from(words.map(Into::into)).unwrap();
    let options = args.options().unwrap();
    Pool::new(&options.pools[0], &options, Arc::new(stowage_mount::LinuxMounter))
}

/// With less than this a pool cannot even take a record.
const LEAST_BYTES: u64 = 64 << 10;

/// A directory that holds volumes and their snapshots. Written by the controller:
/// `volumes/KEY.json` the record, `volumes/KEY.img` or `volumes/KEY.dir` the data, `volumes/KEY.fresh` while a copy has
/// the identity of its source, `volumes/KEY.attached.NODE.json` while a node may use it, `volumes/KEY.frozen.NODE` while a node's file system stands still,
/// `snapshots/KEY.json` and `snapshots/KEY.img`, `groups/KEY.json`.
/// Written by a node: `volumes/KEY.formatting` while mkfs runs, `volumes/KEY.growing` while a file system grows unmounted, `volumes/KEY.staged.NODE.json`, `volumes/KEY.alone.NODE` while
/// one pod has it alone, `nodes/NODE.json`.
pub struct Pool {
    name: String,
    root: PathBuf,
    host: Arc<dyn Host>,
    overcommit: f64,
    /// Where it is noted that the pool was seen whole: from then on its absence is a loss, not a beginning. Not in the
    /// pool, since a disk that is not mounted takes all that it holds with it. It names the pool's path.
    mark: PathBuf,
    /// Whether that was noted.
    noted: AtomicBool,
    /// Whether the pool was seen and that could not be noted.
    seen: AtomicBool,
    /// Whether a pool that was never seen may be begun.
    prepares: bool,
    /// Set once what an earlier run left frozen was thawed.
    pub recovered: OnceCell<()>,
    /// What should have been thawed and could not be.
    still_frozen: Mutex<BTreeSet<Handle>>,
    /// Set once this node is known in it.
    pub signed: OnceCell<()>,
    /// Whether files here can share blocks; asked once.
    clones: OnceCell<bool>,
    /// Sizes of volumes and snapshots that are being made, by key.
    promises: Mutex<BTreeMap<String, u64>>,
    /// The families of images, which never change as long as the file is the same one.
    families: Mutex<BTreeMap<PathBuf, (FileId, String)>>,
}

impl Pool {
    pub fn new(option: &PoolOption, options: &Options, host: Arc<dyn Host>) -> Self {
        Pool {
            name: option.name.clone(),
            root: option.path.clone(),
            host,
            overcommit: options.overcommit,
            mark: options.state_dir.join(format!("{}.pool", option.name)),
            noted: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            prepares: options.prepare_pools,
            recovered: OnceCell::new(),
            still_frozen: Mutex::default(),
            signed: OnceCell::new(),
            clones: OnceCell::new(),
            promises: Mutex::default(),
            families: Mutex::default(),
        }
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

    fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    fn groups(&self) -> PathBuf {
        self.root.join("groups")
    }

    fn file(&self, key: &str, ending: &str) -> PathBuf {
        self.volumes().join(format!("{key}.{ending}"))
    }

    pub fn image(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "img")
    }

    /// The data of a volume with backend=directory.
    pub fn directory(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "dir")
    }

    /// Exists while a file system is being made: what the image holds then is nobody's data.
    pub fn formatting(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "formatting")
    }

    /// The plan of a growth, while that is carried out: what the image holds then is of two sizes.
    pub fn growing(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "growing")
    }

    /// Exists while the file system of a copy still has the identity, or only the size, of its source.
    pub fn fresh(&self, id: &VolumeId) -> PathBuf {
        self.file(id.key(), "fresh")
    }

    pub fn staged(&self, id: &VolumeId, node: &str) -> PathBuf {
        self.file(id.key(), &format!("staged.{node}.json"))
    }

    /// Exists while the volume is attached to this node.
    pub fn attached(&self, id: &VolumeId, node: &str) -> PathBuf {
        self.file(id.key(), &format!("attached.{node}.json"))
    }

    /// Exists while this node keeps the volume's file system from being written.
    pub fn frozen(&self, id: &VolumeId, node: &str) -> PathBuf {
        self.file(id.key(), &format!("frozen.{node}"))
    }

    /// Exists while one pod of this node has the volume alone.
    pub fn alone(&self, id: &VolumeId, node: &str) -> PathBuf {
        self.file(id.key(), &format!("alone.{node}"))
    }

    pub fn snapshot_image(&self, id: &VolumeId) -> PathBuf {
        self.snapshots().join(format!("{}.img", id.key()))
    }

    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(format!("{node}.json"))
    }

    fn frozen_now(&self) -> MutexGuard<'_, BTreeSet<Handle>> {
        self.still_frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn still_frozen(&self, id: &Handle) {
        self.frozen_now().insert(id.clone());
    }

    pub fn thawed(&self, id: &Handle) {
        self.frozen_now().remove(id);
    }

    pub fn is_still_frozen(&self, id: &Handle) -> bool {
        self.frozen_now().contains(id)
    }

    pub fn all_still_frozen(&self) -> Vec<Handle> {
        self.frozen_now().iter().cloned().collect()
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
            None if self.seen.load(Ordering::Relaxed) || self.is_remembered().await? => {
                return Err(Error::KeepPool { pool: self.name.clone(), path: volumes, mark: self.mark.clone() });
            }
            None if !self.prepares => return Err(Error::OpenPool { pool: self.name.clone(), path: volumes }),
            None => {
                self.prepare(&volumes).await?;
                self.noted.store(false, Ordering::Relaxed);
            }
        }
        // Who begins no pools has nothing to remember.
        if self.prepares && !self.noted.load(Ordering::Relaxed) {
            self.remember().await;
        }
        Ok(())
    }

    async fn is_remembered(&self) -> Result<bool, Error> {
        let path = self.host.read_file(&self.mark).await.map_err(|source| self.failed(source))?;
        Ok(path.is_some_and(|path| path == self.root.as_os_str().as_encoded_bytes()))
    }

    async fn remember(&self) {
        let noted = async {
            if !self.is_remembered().await? {
                if let Some(state) = self.mark.parent() {
                    self.host.create_dir(state).await.map_err(|source| self.failed(source))?;
                }
                let written = self.host.write_file(&self.mark, self.root.as_os_str().as_encoded_bytes()).await;
                written.map_err(|source| self.failed(source))?;
            }
            Ok::<_, Error>(())
        };
        match noted.await {
            Ok(()) => self.noted.store(true, Ordering::Relaxed),
            Err(error) => {
                if !self.seen.swap(true, Ordering::Relaxed) {
                    tracing::warn!(pool = self.name, %error, "the next start would take its absence for a new beginning");
                }
            }
        }
    }

    async fn prepare(&self, volumes: &Path) -> Result<(), Error> {
        let failed = |source| self.failed(source);
        if self.host.list_dir(&self.root).await.map_err(failed)?.is_none() {
            return Err(Error::OpenPool { pool: self.name.clone(), path: self.root.clone() });
        }
        for folder in [self.root.join("nodes"), self.snapshots(), self.groups()] {
            self.host.create_dir(&folder).await.map_err(|source| self.refused(source))?;
        }
        self.host.create_dir(volumes).await.map_err(failed)?;
        self.host.sync_dir(&self.root).await.map_err(failed)
    }

    /// A pool that an older driver made has no folders for snapshots.
    pub async fn prepare_for_snapshots(&self) -> Result<(), Error> {
        let failed = |source| self.failed(source);
        for folder in [self.snapshots(), self.groups()] {
            if !self.exists(&folder).await? {
                self.host.create_dir(&folder).await.map_err(failed)?;
                self.host.sync_dir(&self.root).await.map_err(failed)?;
            }
        }
        Ok(())
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

    /// Whether the pool can take anything new.
    pub async fn check_room(&self) -> Result<(), Error> {
        let usage = self.open_for_writing().await?;
        let (bytes, inodes) = (usage.available_bytes, usage.available_inodes);
        match bytes < LEAST_BYTES || (usage.total_inodes > 0 && inodes == 0) {
            true => Err(Error::FillPool { pool: self.name.clone(), path: self.root.clone(), bytes, inodes }),
            false => Ok(()),
        }
    }

    /// Whether copies of images here share their blocks.
    pub async fn can_clone(&self) -> Result<bool, Error> {
        let ask = async || self.host.can_clone(&self.volumes()).await.map_err(|source| self.failed(source));
        self.clones.get_or_try_init(ask).await.copied()
    }
}

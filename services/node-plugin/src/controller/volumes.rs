//! CreateVolume and DeleteVolume.
//!
//! The record comes first and goes last: whatever a kill leaves behind has a record, so it is listed, finished by the
//! same CreateVolume, and removed by DeleteVolume. An image without a record is never touched.

use stowage_csi::v1::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, Topology, Volume,
    VolumeContentSource, volume_content_source,
};
use stowage_mount::{FileKind, FileSystem, Space};

use super::source::{self, Origin};
use super::{Error, check_name};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::parameters::Parameters;
use crate::pool::{self, Pool, Promise};
use crate::size::{self, Limits};
use crate::tuning::Tuning;
use crate::volume::{AS_LARGE, Backend, RECORD_VERSION, Record, SECTOR_BYTES, Source, VolumeId};

/// A CreateVolumeRequest whose fields fit together.
struct Wanted {
    name: String,
    limits: Limits,
    parameters: Parameters,
    /// None for block and directory volumes.
    file_system: Option<FileSystem>,
    mkfs_options: Vec<String>,
    block: bool,
    tuning: Tuning,
    source: Option<Source>,
}

impl Wanted {
    fn read(shared: &Shared, request: &CreateVolumeRequest) -> Result<Self, Error> {
        check_name(&request.name)?;
        let capabilities = Capability::read_all(&request.volume_capabilities).map_err(Error::ReadCapability)?;
        let parameters = Parameters::read(&request.parameters).map_err(Error::ReadParameters)?;
        for capability in &capabilities {
            capability.check(shared.attach, parameters.backend).map_err(Error::ReadCapability)?;
        }
        let block = capabilities[0].is_block();
        let file_system = match (block, parameters.backend) {
            (true, _) => {
                parameters.check_block().map_err(Error::ReadParameters)?;
                None
            }
            (false, Backend::Directory) => None,
            (false, Backend::Image) => {
                let names = capabilities.iter().map(|capability| capability.mount().fs_type.as_str());
                Some(parameters.choose_file_system(names).map_err(Error::ReadParameters)?)
            }
        };
        let mkfs_options = file_system.map_or(Ok(Vec::new()), |kind| parameters.mkfs_options(kind));
        Ok(Wanted {
            name: request.name.clone(),
            limits: Limits::read(request.capacity_range.as_ref()).map_err(Error::ReadSize)?,
            file_system,
            mkfs_options: mkfs_options.map_err(Error::ReadParameters)?,
            block,
            tuning: Tuning::read(&request.mutable_parameters).map_err(Error::ReadTuning)?,
            source: source::read(request.volume_content_source.as_ref())?,
            parameters,
        })
    }

    fn fs_type(&self) -> &'static str {
        self.file_system.map_or("", FileSystem::name)
    }

    /// The record of a new volume of this kind.
    fn record(&self, key: &str, origin: Option<&Origin<'_>>) -> Result<Record, Error> {
        let capacity_bytes = match origin {
            Some(origin) => self.limits.choose_for_copy(origin.bytes),
            None => self.limits.choose(size::least(self.file_system)),
        };
        let record = Record {
            version: RECORD_VERSION,
            name: self.name.clone(),
            capacity_bytes: capacity_bytes.map_err(Error::ReadSize)?,
            fs_type: self.fs_type().into(),
            backend: self.parameters.backend,
            block: self.block,
            sector_bytes: origin.map_or(SECTOR_BYTES, |origin| origin.sector_bytes),
            thin: self.parameters.thin,
            mkfs_options: self.mkfs_options.clone(),
            tuning: self.tuning,
            family: origin
                .filter(|_| self.parameters.thin)
                .map_or_else(|| key.to_owned(), |origin| origin.family.clone()),
            source: self.source.clone(),
            attachments: Vec::new(),
        };
        record.tuning.check(&record).map_err(Error::ReadTuning)?;
        Ok(record)
    }

    fn match_existing(&self, id: &VolumeId, record: &Record) -> Result<(), Error> {
        let wanted =
            (&self.name, self.fs_type(), self.parameters.backend, self.block, self.parameters.thin, &self.source);
        let has = (&record.name, record.fs_type.as_str(), record.backend, record.block, record.thin, &record.source);
        let differ = |has: String, wanted: String| Err(Error::MatchExisting { volume: id.to_string(), has, wanted });
        if wanted != has {
            return differ(format!("{has:?}"), format!("{wanted:?} (name, fsType, backend, block, thin, source)"));
        }
        if self.mkfs_options != record.mkfs_options {
            let words = |options: &[String]| format!("mkfsOptions {:?}", options.join(" "));
            return differ(words(&record.mkfs_options), words(&self.mkfs_options));
        }
        match self.limits.allow(record.capacity_bytes) {
            true => Ok(()),
            false => differ(format!("{} bytes", record.capacity_bytes), format!("{:?}", self.limits)),
        }
    }
}

pub async fn create(shared: &Shared, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Error> {
    let wanted = Wanted::read(shared, request)?;
    super::topology::check(shared, request.accessibility_requirements.as_ref())?;
    let pool = choose_pool(shared, &wanted.parameters)?;
    let key = VolumeId::key_of(&request.name);
    let id = shared.id_in(pool, &key);
    let _guard = shared.locks.try_lock(&key).ok_or_else(|| Error::Lock { volume: request.name.clone() })?;
    refuse_twin(shared, &id).await?;
    pool.open_for_writing().await?;

    let existing = pool.load(&id).await?;
    if let Some(record) = &existing {
        wanted.match_existing(&id, record)?;
        if is_made(pool, &id, record).await? {
            return Ok(CreateVolumeResponse { volume: Some(describe(shared, &id, record)) });
        }
    }
    let unfinished = existing.is_some();
    let plan = match plan(shared, pool, &id, &wanted, existing).await {
        Err(cause) if unfinished => return Err(undo(shared, pool, &id, wanted.parameters.backend, cause).await),
        plan => plan?,
    };
    if let Err(cause) = make(shared, pool, &id, &plan, wanted.parameters.freeze_for_copy).await {
        return Err(undo(shared, pool, &id, wanted.parameters.backend, cause).await);
    }
    tracing::info!(volume = %id, name = %request.name, bytes = plan.record.capacity_bytes, "made");
    Ok(CreateVolumeResponse { volume: Some(describe(shared, &id, &plan.record)) })
}

/// A volume that can be made, and the space that is set aside for it.
struct Plan<'a> {
    record: Record,
    origin: Option<Origin<'a>>,
    _promise: Promise<'a>,
}

/// Changes nothing. `existing` is what a kill between record and image has left.
async fn plan<'a>(
    shared: &'a Shared,
    pool: &'a Pool,
    id: &VolumeId,
    wanted: &Wanted,
    existing: Option<Record>,
) -> Result<Plan<'a>, Error> {
    let origin = match &wanted.source {
        Some(source) => Some(source::find(shared, source, &wanted.record_shape()).await?),
        None => None,
    };
    // The source may have grown since.
    let fits = |record: &Record| origin.as_ref().is_none_or(|origin| origin.bytes <= record.capacity_bytes);
    let record = existing.filter(fits).map_or_else(|| wanted.record(id.key(), origin.as_ref()), Ok)?;
    let (promise, free) = pool::set_aside(shared, pool, id.key(), record.capacity_bytes).await?;
    let free = if record.thin { free.thin } else { free.thick };
    match record.capacity_bytes <= free {
        true => Ok(Plan { record, origin, _promise: promise }),
        false => Err(Error::PromiseSpace { pool: pool.name().into(), free, wanted: record.capacity_bytes }),
    }
}

/// A final error code says "there is nothing": so there must be nothing, or the code must not be final.
async fn undo(shared: &Shared, pool: &Pool, id: &VolumeId, backend: Backend, cause: Error) -> Error {
    let undone = async {
        pool.remove(&pool.image(id)).await?;
        if backend == Backend::Directory {
            // Never with what is in it, which would be somebody's.
            shared.host.remove_dir(&pool.directory(id)).await.map_err(|source| pool.failed(source))?;
        }
        pool.remove(&pool.fresh(id)).await?;
        pool.forget(id).await
    };
    cause.once_undone(format!("volume {id}"), undone.await)
}

impl Wanted {
    fn record_shape(&self) -> source::Shape {
        source::Shape { block: self.block, fs_type: self.fs_type(), backend: self.parameters.backend }
    }
}

pub fn describe(shared: &Shared, id: &VolumeId, record: &Record) -> Volume {
    use volume_content_source::{SnapshotSource, Type, VolumeSource};
    let kind = |source: &Source| match source.clone() {
        Source::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
        Source::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
    };
    let segments = |(key, value): &(String, String)| Topology { segments: [(key.clone(), value.clone())].into() };
    // 0 says "unknown": a directory may hold as much as its pool.
    let capacity = if record.is_image() { record.capacity_bytes } else { 0 };
    Volume {
        volume_id: id.to_string(),
        capacity_bytes: capacity.try_into().unwrap_or(i64::MAX),
        content_source: record.source.as_ref().map(|source| VolumeContentSource { r#type: Some(kind(source)) }),
        accessible_topology: shared.topology.iter().map(segments).collect(),
        ..Default::default()
    }
}

pub fn choose_pool<'a>(shared: &'a Shared, parameters: &Parameters) -> Result<&'a Pool, Error> {
    let known = || shared.pools.iter().map(Pool::name).collect::<Vec<_>>().join(", ");
    match (&parameters.pool, shared.pools.as_slice()) {
        (Some(name), _) => shared.pool(name).map_err(|_| Error::FindPool { pool: name.clone(), known: known() }),
        (None, [only]) => Ok(only),
        (None, _) => Err(Error::ChoosePool { known: known() }),
    }
}

/// The same name in another pool is the same volume with other parameters.
async fn refuse_twin(shared: &Shared, id: &VolumeId) -> Result<(), Error> {
    for pool in shared.pools.iter().filter(|pool| pool.name() != id.pool()) {
        let twin = shared.id_in(pool, id.key());
        // A pool that is away does not stop the others.
        if pool.open().await.is_ok() && pool.load(&twin).await?.is_some() {
            let (has, wanted) = (format!("pool {:?}", pool.name()), format!("pool {:?}", id.pool()));
            return Err(Error::MatchExisting { volume: twin.to_string(), has, wanted });
        }
    }
    Ok(())
}

/// Images and directories appear whole, so one that is there is finished.
pub async fn is_made(pool: &Pool, id: &VolumeId, record: &Record) -> Result<bool, Error> {
    let (data, kind) = match record.backend {
        Backend::Image => (pool.image(id), FileKind::File),
        Backend::Directory => (pool.directory(id), FileKind::Directory),
    };
    Ok(pool.kind_of(&data).await? == Some(kind))
}

async fn make(
    shared: &Shared,
    pool: &Pool,
    id: &VolumeId,
    Plan { record, origin, .. }: &Plan<'_>,
    freeze_for_copy: bool,
) -> Result<(), Error> {
    let failed = |source| pool.failed(source);
    pool.store(id, record).await?;
    match (record.backend, origin) {
        (Backend::Directory, _) => shared.host.make_tree(&pool.directory(id)).await.map_err(failed)?,
        (Backend::Image, None) => {
            let made = shared.host.make_image(&pool.image(id), record.capacity_bytes, space(record)).await;
            made.map_err(failed)?;
        }
        (Backend::Image, Some(origin)) => {
            if !record.block {
                // Before the image has its name: no node may mount a copy under the identity of its source.
                let mark = if record.capacity_bytes > origin.bytes { b"" } else { AS_LARGE };
                shared.host.write_file(&pool.fresh(id), mark).await.map_err(failed)?;
            }
            origin.copy_to(shared, pool, id, record, freeze_for_copy).await?;
        }
    }
    Ok(())
}

pub fn space(record: &Record) -> Space {
    if record.thin { Space::Sparse } else { Space::Allocated }
}

pub async fn delete(shared: &Shared, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let Some(id) = VolumeId::parse(&request.volume_id) else { return Ok(DeleteVolumeResponse {}) };
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let Some(record) = pool.load(&id).await? else { return Ok(DeleteVolumeResponse {}) };

    if let Some(attachment) = record.attachments.first() {
        return Err(Error::Attached { volume: id.to_string(), node: attachment.node.clone() });
    }
    match record.backend {
        Backend::Image => delete_image(shared, pool, &id).await?,
        Backend::Directory => delete_directory(shared, pool, &id).await?,
    }
    // Records of nodes that were cut off, and a mkfs that was: worth nothing without the data.
    for path in pool.marks_of(&id, &shared.node).await? {
        pool.remove(&path).await?;
    }
    pool.forget(&id).await?;
    tracing::info!(volume = %id, name = %record.name, "removed");
    Ok(DeleteVolumeResponse {})
}

async fn delete_image(shared: &Shared, pool: &Pool, id: &VolumeId) -> Result<(), Error> {
    let image = pool.image(id);
    if let Some(info) = shared.host.stat(&image).await.map_err(|source| pool.failed(source))? {
        let loops = match shared.host.loops().await {
            // A controller that is not root sees no devices, as one on another machine: the attachments must do.
            Err(error) if error.is_forbidden() => Vec::new(),
            loops => loops.map_err(|source| pool.failed(source))?,
        };
        if let Some(device) = loops.iter().find(|device| device.image == info.id) {
            return Err(Error::InUse { volume: id.to_string(), device: device.path.display().to_string() });
        }
    }
    Ok(pool.remove(&image).await?)
}

async fn delete_directory(shared: &Shared, pool: &Pool, id: &VolumeId) -> Result<(), Error> {
    let name = format!("{}.dir", id.key());
    let table = shared.host.mounts().await.map_err(|source| pool.failed(source))?;
    // A bind mount shows where in its file system it comes from; no other directory ends in this key.
    if let Some(mount) = table.iter().find(|mount| mount.root.ends_with(&name)) {
        return Err(Error::InUse { volume: id.to_string(), device: mount.target.display().to_string() });
    }
    match shared.host.remove_tree(&pool.directory(id)).await {
        Err(source) if source.is_forbidden() => Err(Error::RemoveForeign { volume: id.to_string(), source }),
        removed => Ok(removed.map_err(|source| pool.failed(source))?),
    }
}

//! CreateVolume and DeleteVolume.
//!
//! The record comes first and goes last: whatever a kill leaves behind has a record, so it is listed, finished by the
//! same CreateVolume, and removed by DeleteVolume. An image without a record is never touched.

use stowage_csi::v1::{CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, Volume};
use stowage_mount::LoopDevice;

use super::Error;
use crate::capability::Capability;
use crate::driver::Shared;
use crate::parameters::Parameters;
use crate::pool::{self, Pool};
use crate::size::Limits;
use crate::staging::Tag;
use crate::volume::{RECORD_VERSION, Record, VolumeId};

/// CSI's limit for strings, in bytes.
const MAX_NAME: usize = 128;

pub async fn create(shared: &Shared, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Error> {
    check_name(&request.name)?;
    let capabilities = Capability::read_all(&request.volume_capabilities).map_err(Error::ReadCapability)?;
    if request.volume_content_source.is_some() {
        return Err(Error::Support { field: "volume_content_source", way_out: "create an empty volume" });
    }
    if !request.mutable_parameters.is_empty() {
        return Err(Error::Support { field: "mutable_parameters", way_out: "use no volume attributes class" });
    }
    let parameters = Parameters::read(&request.parameters).map_err(Error::ReadParameters)?;
    let wanted = capabilities.iter().map(|capability| capability.mount.fs_type.as_str());
    let file_system = parameters.choose_file_system(wanted).map_err(Error::ReadParameters)?;
    let limits = Limits::read(request.capacity_range.as_ref()).map_err(Error::ReadSize)?;
    let pool = choose_pool(shared, &parameters)?;

    let key = VolumeId::key_of(&request.name);
    let id = VolumeId::new(pool.name(), &key).expect("a pool's name and a digest make an id");
    let _guard = shared.locks.try_lock(&key).ok_or_else(|| Error::Lock { volume: request.name.clone() })?;
    refuse_twin(shared, &id).await?;
    pool.open_for_writing().await?;

    let record = match pool.load(&id).await? {
        Some(record) => {
            match_existing(&id, &record, request, &limits, file_system.name())?;
            // A kill between record and image leaves this to do; on a whole volume it changes nothing.
            if !pool.exists(&pool.image(&id)).await? {
                make_image(shared, pool, &id, &record).await?;
            }
            record
        }
        None => {
            let record = Record {
                version: RECORD_VERSION,
                name: request.name.clone(),
                capacity_bytes: limits.choose().map_err(Error::ReadSize)?,
                fs_type: file_system.name().into(),
                attachment: None,
            };
            make(shared, pool, &id, &record).await?;
            tracing::info!(volume = %id, name = %request.name, bytes = record.capacity_bytes, "made");
            record
        }
    };
    Ok(CreateVolumeResponse { volume: Some(describe(&id, &record)) })
}

pub fn describe(id: &VolumeId, record: &Record) -> Volume {
    let capacity_bytes = record.capacity_bytes.try_into().unwrap_or(i64::MAX);
    Volume { volume_id: id.to_string(), capacity_bytes, ..Default::default() }
}

fn check_name(name: &str) -> Result<(), Error> {
    let refuse = |reason| Error::ReadName { name: name.chars().take(MAX_NAME).collect(), reason };
    if name.is_empty() {
        return Err(Error::ReadField { field: "name" });
    }
    if name.len() > MAX_NAME {
        return Err(refuse("it is longer than 128 bytes"));
    }
    match name.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
        true => Err(refuse("it holds control characters")),
        false => Ok(()),
    }
}

fn choose_pool<'a>(shared: &'a Shared, parameters: &Parameters) -> Result<&'a Pool, Error> {
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
        let twin = VolumeId::new(pool.name(), id.key()).expect("a pool's name and a digest make an id");
        // A pool that is away does not stop the others.
        if pool.open().await.is_ok() && pool.load(&twin).await?.is_some() {
            let (has, wanted) = (format!("pool {:?}", pool.name()), format!("pool {:?}", id.pool()));
            return Err(Error::MatchExisting { volume: twin.to_string(), has, wanted });
        }
    }
    Ok(())
}

fn match_existing(
    id: &VolumeId,
    record: &Record,
    request: &CreateVolumeRequest,
    limits: &Limits,
    fs_type: &str,
) -> Result<(), Error> {
    let differ = |has: String, wanted: String| Err(Error::MatchExisting { volume: id.to_string(), has, wanted });
    if record.name != request.name {
        return differ(format!("name {:?}", record.name), format!("name {:?}", request.name));
    }
    if !limits.allow(record.capacity_bytes) {
        return differ(format!("{} bytes", record.capacity_bytes), format!("{:?}", request.capacity_range));
    }
    if record.fs_type != fs_type {
        return differ(format!("fsType {}", record.fs_type), format!("fsType {fs_type}"));
    }
    Ok(())
}

async fn make(shared: &Shared, pool: &Pool, id: &VolumeId, record: &Record) -> Result<(), Error> {
    let (_promise, others) = pool.promise(id.key(), record.capacity_bytes);
    let free = pool.free().await?.saturating_sub(others);
    if record.capacity_bytes > free {
        return Err(Error::PromiseSpace { pool: pool.name().into(), free, wanted: record.capacity_bytes });
    }
    let made = async {
        pool.store(id, record).await?;
        make_image(shared, pool, id, record).await
    };
    let Err(cause) = made.await else { return Ok(()) };
    // A final error code says "there is nothing": so there must be nothing, or the code must not be final.
    let undone = async {
        pool.remove(&pool.image(id)).await?;
        pool.forget(id).await
    };
    match undone.await {
        Ok(()) => Err(cause.into()),
        Err(source) => {
            let (cause, source) = (Box::new(cause), Box::new(source));
            Err(Error::Undo { volume: id.to_string(), cause, source })
        }
    }
}

async fn make_image(shared: &Shared, pool: &Pool, id: &VolumeId, record: &Record) -> Result<(), pool::Error> {
    let made = shared.host.create_image(&pool.image(id), record.capacity_bytes).await;
    made.map_err(|source| pool.failed(source))
}

pub async fn delete(shared: &Shared, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let Some(id) = VolumeId::parse(&request.volume_id) else { return Ok(DeleteVolumeResponse {}) };
    let pool = shared.pool(id.pool())?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let Some(record) = pool.load(&id).await? else { return Ok(DeleteVolumeResponse {}) };

    if let Some(attachment) = record.attachment {
        return Err(Error::Attached { volume: id.to_string(), node: attachment.node });
    }
    let image = pool.image(&id);
    if let Some(info) = shared.host.stat(&image).await.map_err(|source| pool.failed(source))? {
        let loops = shared.host.loops().await.map_err(|source| pool.failed(source))?;
        // One that we have detached may linger for as long as somebody looks at it.
        let in_use = |device: &&LoopDevice| device.image == info.id && !(device.autoclear && Tag::is_ours(device));
        if let Some(device) = loops.iter().find(in_use) {
            return Err(Error::InUse { volume: id.to_string(), device: device.path.display().to_string() });
        }
    }
    pool.remove(&image).await?;
    // Records of nodes that were cut off, and a mkfs that was: worth nothing without the image.
    let record_file = format!("{}.json", id.key());
    for path in pool.files_of(&id).await?.iter().filter(|path| !path.ends_with(&record_file)) {
        pool.remove(path).await?;
    }
    pool.forget(&id).await?;
    tracing::info!(volume = %id, name = %record.name, "removed");
    Ok(DeleteVolumeResponse {})
}

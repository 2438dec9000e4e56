//! Calls that change a volume that is there: ControllerExpandVolume and ControllerModifyVolume.

use stowage_csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse,
};

use super::{Error, volumes};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::pool;
use crate::size::Limits;
use crate::staging::View;
use crate::tuning::{self, Tuning};
use crate::volume::VolumeId;

/// The image grows first and the record follows: a volume is never said to be larger than its image. The device and
/// the file system on it are grown by the node.
pub async fn expand(
    shared: &Shared,
    request: &ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let limits = Limits::read(request.capacity_range.as_ref()).map_err(Error::ReadSize)?;
    if limits.is_empty() {
        return Err(Error::ReadField { field: "capacity_range" });
    }
    let read = |capability| Capability::read(Some(capability)).map_err(Error::ReadCapability);
    let capability = request.volume_capability.as_ref().map(read).transpose()?;
    let unknown = || Error::FindVolume { volume: request.volume_id.clone() };
    let id = VolumeId::parse(&request.volume_id).ok_or_else(unknown)?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let mut record = pool.load(&id).await?.ok_or_else(unknown)?;
    if let Some(capability) = &capability {
        capability.check_volume(shared.attach, &record).map_err(Error::ReadCapability)?;
    }
    if !record.is_image() {
        return Err(Error::NeedImage { volume: id.to_string(), what: "size of its own" });
    }
    if !volumes::is_made(pool, &id, &record).await? {
        return Err(Error::FindImage { volume: id.to_string() });
    }

    // What an interrupted call has grown already is promised already, and cannot be taken back: a node may use it.
    let now = pool.bytes_of(&id, &record).await?;
    let bytes = limits.choose_for_growth(now).map_err(Error::ReadSize)?;
    if bytes > now {
        let more = bytes - now.max(pool.set_aside_for(&id, &record).await?).min(bytes);
        let (_promise, free) = pool::set_aside(shared, pool, id.key(), more).await?;
        let free = if record.thin { free.thin } else { free.thick };
        if more > free {
            return Err(Error::PromiseSpace { pool: pool.name().into(), free, wanted: more });
        }
        let grown = shared.host.grow_image(&pool.image(&id), bytes, volumes::space(&record)).await;
        grown.map_err(|source| pool.failed(source))?;
    }
    if bytes > record.capacity_bytes {
        record.capacity_bytes = bytes;
        pool.store(&id, &record).await?;
        tracing::info!(volume = %id, bytes, "grown");
    }
    let capacity_bytes = record.capacity_bytes.try_into().unwrap_or(i64::MAX);
    Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true })
}

/// In force at once on a volume staged by this process' node, elsewhere when it is staged next: a kill may have left a
/// device that nothing shows, and half of a growth or a copy's old identity on it, which is not to be written to before
/// the stage has seen to it.
pub async fn modify(
    shared: &Shared,
    request: &ControllerModifyVolumeRequest,
) -> Result<ControllerModifyVolumeResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    let unknown = || Error::FindVolume { volume: request.volume_id.clone() };
    let id = VolumeId::parse(&request.volume_id).ok_or_else(unknown)?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    pool.open_for_writing().await?;
    let mut record = pool.load(&id).await?.ok_or_else(unknown)?;
    let wanted = Tuning::read(&request.mutable_parameters).map_err(Error::ReadTuning)?;
    wanted.check(&record).map_err(Error::ReadTuning)?;

    if request.mutable_parameters.is_empty() {
        return Err(Error::ReadField { field: "mutable_parameters" });
    }
    // What comes into force must be written down, too.
    pool.check_room().await?;

    // What was never set is as a new device has it.
    let before = Tuning { direct_io: record.tuning.direct_io.or(Some(true)), ..record.tuning };
    record.tuning = wanted.over(record.tuning);
    let view = View::look(shared, pool, &id).await.map_err(|source| pool.failed(source))?;
    let devices = || view.ours.iter().filter(|device| !device.autoclear && view.is_mounted(device));
    let applied = async {
        for device in devices() {
            let refused = |source| Error::ApplyTuning { volume: id.to_string(), source };
            tuning::apply(&*shared.host, device, record.tuning).await.map_err(refused)?;
        }
        // What the device refuses is not written down: the volume could not be staged any more.
        Ok::<_, Error>(pool.store(&id, &record).await?)
    };
    if let Err(cause) = applied.await {
        for (device, part) in devices().flat_map(|device| before.parts().map(|part| (device, part))) {
            if let Err(error) = tuning::apply(&*shared.host, device, part).await {
                tracing::warn!(volume = %id, %error, "a part of the refused tuning stays until the volume is staged again");
            }
        }
        return Err(cause);
    }
    tracing::info!(volume = %id, tuning = ?record.tuning, "modified");
    Ok(ControllerModifyVolumeResponse {})
}

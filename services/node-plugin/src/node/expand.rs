//! NodeExpandVolume: what the controller has made larger becomes larger for those who use it, while they use it.

use stowage_csi::v1::{NodeExpandVolumeRequest, NodeExpandVolumeResponse};
use stowage_mount::FileSystem;

use super::Error;
use super::device::Volume;
use super::stats::{find, locate};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::size::Limits;
use crate::staging::Form;
use crate::token;

pub async fn expand(shared: &Shared, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Error> {
    let (id, path) = locate(shared, &request.volume_id, &request.volume_path).await?;
    let limits = Limits::read(request.capacity_range.as_ref()).map_err(Error::ReadSize)?;
    let pool = shared.pool_of(&id)?;
    let _guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
    let record = pool.load(&id).await?.ok_or_else(|| Error::FindVolume { volume: id.to_string() })?;
    if let Some(capability) = &request.volume_capability {
        let capability = Capability::read(Some(capability)).map_err(Error::ReadCapability)?;
        capability.check_volume(shared.attach, &record).map_err(Error::ReadCapability)?;
    }
    let (staged, _) = find(shared, pool, &id, &path).await?;
    token::check_held(shared.attach, &record, &shared.node, &staged.staging.token)
        .map_err(|source| Error::CheckToken { volume: id.to_string(), source })?;
    if !limits.allow(record.capacity_bytes) {
        let (volume, has, wanted) = (id.to_string(), record.capacity_bytes, format!("{:?}", request.capacity_range));
        return Err(Error::ExpandFirst { volume, has, wanted });
    }
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let Some(device) = &staged.device else {
        return Ok(NodeExpandVolumeResponse { capacity_bytes: signed(record.capacity_bytes) });
    };
    let host = &shared.host;
    let image = host.stat(&pool.image(&id)).await?.ok_or_else(|| Error::FindData { volume: id.to_string() })?;
    let volume = Volume { shared, pool, id: &id };
    let mut device = device.clone();
    // Readers of a block volume have a device of their own.
    for other in volume.look().await?.ours.iter().filter(|other| other.size < image.size && !other.autoclear) {
        let grown = host.refresh_loop(other).await?;
        if grown.number == device.number {
            device = grown;
        }
    }
    if staged.staging.form == Form::FileSystem {
        let unknown = |()| Error::FindVolume { volume: id.to_string() };
        let kind: FileSystem = record.fs_type.parse().map_err(unknown)?;
        let mounted = &staged.target;
        let behind = host.filesystem_size(&device.path).await?.is_some_and(|size| size < device.size);
        if behind && host.usage_at(mounted).await?.read_only {
            return Err(Error::GrowReadOnly { volume: id.to_string() });
        }
        volume.grow(&device, kind, mounted).await?;
    }
    tracing::info!(volume = %id, bytes = device.size, "expanded");
    Ok(NodeExpandVolumeResponse { capacity_bytes: signed(device.size) })
}

//! NodeGetVolumeStats: costs the same whatever the volume holds and however many there are.

use std::path::{Path, PathBuf};

use stowage_csi::v1::volume_usage::Unit;
use stowage_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use stowage_mount::{MountOptions, Target, Usage};

use super::Error;
use super::inline;
use super::paths::{check_fields, hold, read_id, read_target};
use crate::driver::Shared;
use crate::pool::Pool;
use crate::staging::{Form, Staged};
use crate::volume::VolumeId;

pub async fn stats(shared: &Shared, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Error> {
    let (id, path) = locate(shared, &request.volume_id, &request.volume_path).await?;
    let pool = shared.pool_of(&id)?;
    let (staged, target) = find(shared, pool, &id, &path).await?;
    if let (Form::Block, Some(device)) = (staged.staging.form, &staged.device) {
        let usage = vec![entry(Unit::Bytes, device.size, 0, 0)];
        let condition = condition(shared, pool, &id, &staged, None).await?;
        return Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) });
    }
    let usage = shared.host.usage_at(&target).await?;
    let condition = condition(shared, pool, &id, &staged, Some(usage)).await?;
    let bytes = entry(Unit::Bytes, usage.total_bytes, usage.used_bytes, usage.available_bytes);
    let inodes = entry(Unit::Inodes, usage.total_inodes, usage.used_inodes, usage.available_inodes);
    Ok(NodeGetVolumeStatsResponse { usage: vec![bytes, inodes], volume_condition: Some(condition) })
}

/// The volume and the path of a call that is about one mount.
pub async fn locate(shared: &Shared, volume: &str, path: &str) -> Result<(VolumeId, PathBuf), Error> {
    check_fields(&[("volume_id", volume), ("volume_path", path)])?;
    let unknown = || Error::FindVolume { volume: volume.into() };
    let id = match inline::is_inline(volume) {
        true => inline::find(shared, volume).await?.ok_or_else(unknown)?,
        false => read_id(volume)?,
    };
    let pool = shared.pool_of(&id)?;
    pool.open().await?;
    if pool.load(&id).await?.is_none() {
        return Err(unknown());
    }
    let absent = || Error::FindMount { volume: id.to_string(), path: path.into() };
    // A path that is none has no volume at it.
    let path = read_target(shared, "volume_path", path).await.map_err(|_| absent())?;
    Ok((id, path))
}

/// The staging of a volume that is mounted at this path, and the place itself.
pub async fn find(shared: &Shared, pool: &Pool, id: &VolumeId, path: &Path) -> Result<(Staged, Target), Error> {
    let absent = || Error::FindMount { volume: id.to_string(), path: path.into() };
    let staged = Staged::find(shared, pool, id).await?.ok_or_else(absent)?;
    let (Some(target), Some(place)) = hold(shared, path).await? else { return Err(absent()) };
    // The staging directory of a block volume is no mount itself.
    let staging_itself = path == staged.staging.path;
    match staging_itself || staged.is_at(&*shared.host, &place).await? {
        true => Ok((staged, target)),
        false => Err(absent()),
    }
}

/// What would make a pod's writes fail, or its data differ from what it wrote.
async fn condition(
    shared: &Shared,
    pool: &Pool,
    id: &VolumeId,
    staged: &Staged,
    usage: Option<Usage>,
) -> Result<VolumeCondition, Error> {
    let abnormal = |message: String| VolumeCondition { abnormal: true, message };
    let normal = || VolumeCondition { abnormal: false, message: "the volume is in order".into() };
    if let Some(device) = &staged.device {
        let image = shared.host.stat(&pool.image(id)).await?;
        if image.is_none_or(|image| image.id != device.image) {
            let message = format!("its image is gone from pool {:?}; what is written now will be lost", pool.name());
            return Ok(abnormal(message));
        }
        let asked_for = MountOptions::new(&staged.staging.mount_flags).read_only();
        if usage.is_some_and(|usage| usage.read_only) && !asked_for {
            return Ok(abnormal("its file system has become read-only, as after an I/O error; look at the log".into()));
        }
        if let Some(image) = image.filter(|image| image.allocated < image.size) {
            let free = shared.host.usage(pool.root()).await?.available_bytes;
            if free == 0 {
                let missing = image.size - image.allocated;
                let pool = pool.name();
                return Ok(abnormal(format!(
                    "pool {pool:?} is full, {missing} bytes of this volume are not there yet"
                )));
            }
        }
    }
    Ok(normal())
}

fn entry(unit: Unit, total: u64, used: u64, available: u64) -> VolumeUsage {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    VolumeUsage { unit: unit.into(), total: signed(total), used: signed(used), available: signed(available) }
}

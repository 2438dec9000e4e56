//! NodeGetVolumeStats: what the server says of the file system that a volume lies on, remembered for a while.

use std::sync::PoisonError;

use stowage_csi::v1::volume_usage::Unit;
use stowage_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsage};
use tokio::time::Instant;

use super::Error;
use super::publish::{check, read_target};
use crate::nfs::driver::Shared;

pub async fn stats(shared: &Shared, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Error> {
    let volume = check(&[("volume_id", &request.volume_id), ("volume_path", &request.volume_path)])?;
    let absent = || Error::FindMount { volume: volume.clone(), path: request.volume_path.clone().into() };
    // A path that is none has no volume at it.
    let path = read_target(shared, "volume_path", &request.volume_path).await.map_err(|_| absent())?;
    let target = shared.host.hold(&path).await?.ok_or_else(absent)?;
    if shared.host.network_at(&target).await?.is_none() {
        return Err(absent());
    }
    let key = (volume.clone(), path.display().to_string());
    if let Some(known) = shared.known_stats(&key) {
        return Ok(known);
    }
    // A call that waits for a server keeps a thread: one for each volume, not one for each time it is asked for.
    let lock = format!("stats {} {}", key.0, key.1);
    let _guard = shared.locks.try_lock(&lock).ok_or_else(|| Error::Lock { volume: volume.clone() })?;
    let usage = shared.host.usage_at(&target).await?;
    let bytes = entry(Unit::Bytes, usage.total_bytes, usage.used_bytes, usage.available_bytes);
    let inodes = entry(Unit::Inodes, usage.total_inodes, usage.used_inodes, usage.available_inodes);
    let answer = NodeGetVolumeStatsResponse { usage: vec![bytes, inodes], volume_condition: None };
    let mut stats = shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
    stats.insert(key, (Instant::now(), answer.clone()));
    Ok(answer)
}

impl Shared {
    fn known_stats(&self, key: &(String, String)) -> Option<NodeGetVolumeStatsResponse> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.retain(|_, (since, _)| since.elapsed() < self.options.remember_stats);
        stats.get(key).map(|(_, answer)| answer.clone())
    }

    pub fn forget_stats(&self, volume: &str) {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| of != volume);
    }
}

fn entry(unit: Unit, total: u64, used: u64, available: u64) -> VolumeUsage {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    VolumeUsage { unit: unit.into(), total: signed(total), used: signed(used), available: signed(available) }
}

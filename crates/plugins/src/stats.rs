//! How full volumes are that have no driver to ask.

use std::path::Path;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::VolumeStats;

/// So many files are looked at each second at most: whoever counts must not take the disk from those who work.
const ENTRIES_PER_SECOND: u32 = 20_000;

/// The figures of the file system that is seen at a path.
pub(crate) async fn of_file_system(host: &VolumeHost, path: &Path) -> Result<VolumeStats, Fault> {
    let usage = host.mounter.usage(path).await.map_err(Fault::before("ask how full the file system is"))?;
    let inodes = (usage.total_inodes > 0).then_some(usage);
    Ok(VolumeStats {
        capacity_bytes: Some(usage.total_bytes),
        available_bytes: Some(usage.available_bytes),
        used_bytes: Some(usage.used_bytes),
        inodes: inodes.map(|usage| usage.total_inodes),
        inodes_free: inodes.map(|usage| usage.available_inodes),
        inodes_used: inodes.map(|usage| usage.used_inodes),
        condition: None,
    })
}

/// What a plain directory holds, and how much its file system has left.
pub(crate) async fn of_files(host: &VolumeHost, path: &Path) -> Result<VolumeStats, Fault> {
    let held = host.mounter.disk_usage(path, ENTRIES_PER_SECOND).await;
    let held = held.map_err(Fault::before("count what the volume holds"))?;
    let whole = of_file_system(host, path).await?;
    Ok(VolumeStats { used_bytes: Some(held.bytes), inodes_used: Some(held.inodes), ..whole })
}

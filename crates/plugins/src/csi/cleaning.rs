//! What must hold before directories and metadata go: the kernel says that nothing is mounted any more.

use std::path::Path;

use crate::fault::Fault;
use crate::host::VolumeHost;

use super::data_file;

/// Removes a mount's directories and metadata once the kernel says that it is gone, the metadata second to last:
/// as long as it is there a restart comes back here.
pub async fn clean_up(host: &VolumeHost, dir: &Path, target: &Path) -> Result<(), Fault> {
    if is_mounted(host, target).await? {
        return Err(Fault::uncertain(format!("the driver said it unmounted {}, but it is mounted", target.display())));
    }
    remove_target(host, target).await?;
    host.mounter.remove_file(&data_file(dir)).await.map_err(Fault::after("remove the volume's metadata"))?;
    host.mounter.remove_dir(dir).await.map_err(Fault::after("remove the volume's directory"))
}

/// Whether something is mounted at exactly this path.
pub async fn is_mounted(host: &VolumeHost, target: &Path) -> Result<bool, Fault> {
    let table = host.mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
    let spelled = host.mounter.resolve(target).await.map_err(Fault::after("resolve the mount point"))?;
    Ok(spelled.is_some_and(|spelled| table.at(&spelled).is_some()))
}

/// A driver may have published a link or a file instead of a mount; what it did not remove goes, never what it leads to.
pub async fn remove_target(host: &VolumeHost, target: &Path) -> Result<(), Fault> {
    let found = host.mounter.stat(target).await.map_err(Fault::after("look at the mount point"))?;
    match found {
        Some(found) if found.kind != stowage_mount::FileKind::Directory => {
            host.mounter.remove_file(target).await.map_err(Fault::after("remove what was published"))
        }
        _ => host.mounter.remove_dir(target).await.map_err(Fault::after("remove the mount point")),
    }
}

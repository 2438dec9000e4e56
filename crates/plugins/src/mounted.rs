//! What the kernel says is mounted at a volume's places, and how a place is left.

use std::path::{Path, PathBuf};

use stowage_mount::Mount;

use crate::fault::{Certainty, Fault};
use crate::host::VolumeHost;

/// What is mounted at exactly this path.
pub(crate) async fn at(host: &VolumeHost, path: &Path) -> Result<Option<Mount>, Fault> {
    let table = host.mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
    let spelled = host.mounter.resolve(path).await.map_err(Fault::after("resolve the mount point"))?;
    Ok(spelled.and_then(|spelled| table.at(&spelled).cloned()))
}

/// Takes away all mounts at exactly this path whose kind is known to be ours.
pub(crate) async fn unmount_all(host: &VolumeHost, path: &Path, is_ours: fn(&Mount) -> bool) -> Result<(), Fault> {
    let mut last = None;
    while let Some(mount) = at(host, path).await?.filter(is_ours) {
        if last == Some(mount.id) {
            return Err(Fault::uncertain(format!("{} is still mounted", path.display())));
        }
        host.mounter.unmount(path).await.map_err(Fault::after("unmount the volume"))?;
        last = Some(mount.id);
    }
    Ok(())
}

/// Takes away the mounts at a pod's directory, and the directory, which must be empty then.
pub(crate) async fn leave(host: &VolumeHost, dir: &Path) -> Result<(), Fault> {
    unmount_all(host, dir, |_| true).await?;
    host.mounter.remove_dir(dir).await.map_err(Fault::after("remove the volume's directory"))
}

/// The fault of a step that was undone, or that could not be.
pub(crate) fn undone(fault: Fault, undone: Result<(), Fault>) -> Fault {
    match undone {
        Ok(()) => fault.with_certainty(Certainty::Final),
        Err(left) => {
            let message = format!("{fault}; {left}");
            Fault { message, ..fault }.with_certainty(Certainty::Uncertain)
        }
    }
}

/// Other places where the file or directory that is seen at `source` is mounted, told from the mount table alone.
pub(crate) async fn references(host: &VolumeHost, source: &Path) -> Result<Vec<PathBuf>, Fault> {
    let table = host.mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
    let Some(place) = host.mounter.canonical(source).await.map_err(Fault::after("follow the volume's path"))? else {
        return Ok(Vec::new());
    };
    let holder = table.iter().filter(|mount| place.starts_with(&mount.target)).max_by_key(|mount| {
        // Of two mounts at one place the later is seen; max_by_key keeps the last of equals.
        mount.target.components().count()
    });
    let Some(holder) = holder else { return Ok(Vec::new()) };
    let below = place.strip_prefix(&holder.target).unwrap_or_else(|_| Path::new(""));
    let root = if below.as_os_str().is_empty() { holder.root.clone() } else { holder.root.join(below) };
    let same = |mount: &&Mount| mount.device == holder.device && mount.root == root && mount.target != place;
    Ok(table.iter().filter(same).map(|mount| mount.target.clone()).collect())
}

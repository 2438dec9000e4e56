//! What is or may be mounted when the service starts: the files it left behind and the kernel's mount table.
//!
//! Every mount found is uncertain. Those that are wanted are mounted again, which CSI makes harmless, and the others
//! are unmounted, once the pods and the own Node have been read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stowage_model::names;
use stowage_mount::{MountTable, Mounter};

use crate::layout::{Layout, data_file};
use crate::vol_data;
use crate::world::{Hold, Published, Staged, World};

/// One directory that holds, held or may hold a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The directory with the metadata.
    pub dir: PathBuf,
    /// The mount point in it.
    pub target: PathBuf,
    pub owner: Owner,
    pub data: Option<Vec<u8>>,
    /// What the kernel says.
    pub mounted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Driver(String),
    Pod { uid: String, dir_name: String },
}

/// What was concluded.
#[derive(Debug, Default)]
pub struct Reconstruction {
    pub world: World,
    /// Empty leftovers of a cleaning that was cut short.
    pub leftovers: Vec<Trace>,
    /// Mounts nobody can tell the volume of; a person must look.
    pub unexplained: Vec<(Trace, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the mount table: {source}")]
    ReadMounts { source: stowage_mount::Error },
    #[error("look at {path}: {source}")]
    Look { path: PathBuf, source: stowage_mount::Error },
}

/// Looks at the node and removes empty leftovers.
pub async fn reconstruct(host: &dyn Mounter, layout: &Layout) -> Result<World, Error> {
    let (traces, pod_dirs) = look(host, layout).await?;
    let mut found = conclude(traces);
    found.world.pod_dirs = pod_dirs;
    for (trace, why) in &found.unexplained {
        tracing::error!(
            mount = %trace.target.display(), why,
            "cannot tell whose mount this is: it stays, and so does every volume it can be in the node's in-use list; \
             unmount it, remove its directory and restart"
        );
    }
    found.world.unexplained = found.unexplained.iter().map(|(trace, _)| trace.dir.clone()).collect();
    for trace in &found.leftovers {
        for path in [&trace.target, &trace.dir] {
            if let Err(error) = host.remove_dir(path).await {
                tracing::warn!(path = %path.display(), %error, "leftover directory stays");
            }
        }
    }
    Ok(found.world)
}

/// Decides what each trace means.
pub fn conclude(traces: Vec<Trace>) -> Reconstruction {
    let mut found = Reconstruction::default();
    for trace in traces {
        let data = match trace.data.as_deref().map(vol_data::parse) {
            Some(Ok(data)) => data,
            Some(Err(error)) => {
                found.unexplained.push((trace, error.to_string()));
                continue;
            }
            None if trace.mounted => {
                found.unexplained.push((trace, "it has no metadata".into()));
                continue;
            }
            None => {
                found.leftovers.push(trace);
                continue;
            }
        };
        match &trace.owner {
            Owner::Driver(_) => {
                found.world.set_staged(&data.volume, Some(Staged { hold: Hold::Uncertain, reconstructed: true }));
            }
            Owner::Pod { uid, dir_name } => {
                let spec_name = data.spec_name.unwrap_or_else(|| dir_name.clone());
                let published = Published { spec_name, hold: Hold::Uncertain, reconstructed: true };
                found.world.set_published(&data.volume, uid, Some(published));
            }
        }
    }
    found
}

async fn look(host: &dyn Mounter, layout: &Layout) -> Result<(Vec<Trace>, BTreeSet<String>), Error> {
    let table = host.mounts().await.map_err(|source| Error::ReadMounts { source })?;
    let mut traces = Vec::new();
    for driver in names_in(host, &layout.staging()).await? {
        let driver_dir = layout.staging().join(&driver);
        // Raw block volumes are kept beside the drivers' directories, by another scheme.
        if driver == "volumeDevices" {
            continue;
        }
        for volume in names_in(host, &driver_dir).await? {
            let dir = driver_dir.join(volume);
            let target = dir.join("globalmount");
            traces.push(trace(host, &table, dir, target, Owner::Driver(driver.clone())).await?);
        }
    }
    let mut pod_dirs = BTreeSet::new();
    for uid in names_in(host, &layout.pods()).await? {
        for dir_name in names_in(host, &layout.pod_volumes(&uid)).await? {
            let dir = layout.pod_volumes(&uid).join(&dir_name);
            let target = dir.join("mount");
            let owner = Owner::Pod { uid: uid.clone(), dir_name };
            traces.push(trace(host, &table, dir, target, owner).await?);
        }
        pod_dirs.insert(uid);
    }
    Ok((traces, pod_dirs))
}

async fn trace(
    host: &dyn Mounter,
    table: &MountTable,
    dir: PathBuf,
    target: PathBuf,
    owner: Owner,
) -> Result<Trace, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Look { path, source }
    };
    let data = host.read_file(&data_file(&dir)).await.map_err(failed(&dir))?;
    let spelled = host.resolve(&target).await.map_err(failed(&target))?;
    let mounted = spelled.is_some_and(|spelled| table.at(&spelled).is_some());
    Ok(Trace { dir, target, owner, data, mounted })
}

/// Names in a directory that may not exist; what is not UTF-8 is not ours.
async fn names_in(host: &dyn Mounter, dir: &Path) -> Result<Vec<String>, Error> {
    let entries = host.list_dir(dir).await.map_err(|source| Error::Look { path: dir.to_owned(), source })?;
    let names = entries.unwrap_or_default().into_iter().filter_map(|entry| entry.name.into_string().ok());
    Ok(names.filter(|name| name != names::VOLUME_DATA_FILE).collect())
}

#[cfg(test)]
mod tests;

//! What is or may be mounted when the service starts: the files it left behind and the kernel's mount table.
//!
//! Every mount found is uncertain. Those that are wanted are mounted again, which plugins make harmless, and the others
//! are unmounted, once the pods and the own Node have been read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stowage_model::names::UniqueVolumeName;
use stowage_plugins::plugin::{Found, Reconstructed, TearDown};
use stowage_plugins::{Fault, Layout, VolumeHost, VolumePlugin, VolumePluginManager};

use crate::actual_state::{MountState, MountedVolume};
use crate::desired_state::Inputs;
use crate::state::States;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("look at {path}: {source}")]
    Look { path: PathBuf, source: stowage_mount::Error },
    #[error("{0}")]
    Plugin(Fault),
}

/// What was found, and how many volumes could not be told.
pub struct Reconstruction {
    pub states: States,
    pub found: u64,
    pub failed: u64,
}

/// Looks at the node and removes empty leftovers.
pub async fn reconstruct(host: &VolumeHost, plugins: &VolumePluginManager) -> Result<Reconstruction, Error> {
    let mut looking = Looking { host, plugins, states: States::default(), found: 0, failed: 0 };
    looking.devices().await?;
    for uid in names_in(host, &host.layout.pods()).await? {
        looking.pod(&uid).await?;
        looking.states.pod_dirs.insert(uid);
    }
    let Looking { states, found, failed, .. } = looking;
    for path in &states.report.unexplained {
        tracing::error!(
            path = %path.display(),
            "cannot tell whose mount this is: it stays, and so does every volume it can be in the node's in-use list; \
             unmount it, remove its directory and restart"
        );
    }
    Ok(Reconstruction { states, found, failed })
}

struct Looking<'a> {
    host: &'a VolumeHost,
    plugins: &'a VolumePluginManager,
    states: States,
    found: u64,
    failed: u64,
}

impl Looking<'_> {
    /// What is mounted for the node, whether a pod has it or not.
    async fn devices(&mut self) -> Result<(), Error> {
        for name in self.plugins.names() {
            let Some(plugin) = self.plugins.by_name(&name) else { continue };
            let Some(reconstructor) = plugin.reconstructor() else { continue };
            let (devices, unexplained) = reconstructor.devices(self.host).await.map_err(Error::Plugin)?;
            self.states.report.unexplained.extend(unexplained);
            for device in devices {
                self.device(&device);
                for uid in reconstructor.users(self.host, &device).await.map_err(Error::Plugin)? {
                    self.mounted(&uid, &device);
                    self.states.pod_dirs.insert(uid);
                }
            }
        }
        Ok(())
    }

    fn device(&mut self, device: &Reconstructed) {
        self.found += 1;
        self.states.actual.update(&device.volume, &Arc::new(device.spec.clone()), |known| {
            known.device = Some(MountState::Uncertain);
            known.is_reconstructed = true;
            known.se_linux_label.clone_from(&device.se_linux_label);
        });
    }

    /// What a pod's directory holds.
    async fn pod(&mut self, uid: &str) -> Result<(), Error> {
        let layout = &self.host.layout;
        for (top, is_block) in [(layout.pod_volumes(uid), false), (layout.pod_devices(uid), true)] {
            for plugin in names_in(self.host, &top).await? {
                for name in names_in(self.host, &top.join(&plugin)).await? {
                    let found = Found { pod_uid: uid, name: &name, is_block };
                    self.volume(&plugin.replace('~', "/"), &found, &top.join(&plugin).join(&name)).await?;
                }
            }
        }
        Ok(())
    }

    async fn volume(&mut self, plugin: &str, found: &Found<'_>, path: &Path) -> Result<(), Error> {
        let Some(plugin) = self.plugins.by_name(plugin) else {
            self.failed += 1;
            if self.holds_mount(path).await? {
                self.states.report.unexplained.push(path.to_owned());
            }
            return Ok(());
        };
        let Some(reconstructor) = plugin.reconstructor() else { return Ok(()) };
        match reconstructor.reconstruct(self.host, found).await {
            Ok(volume) => self.mounted(found.pod_uid, &volume),
            Err(fault) => self.unknown(&*plugin, found, path, &fault).await?,
        }
        Ok(())
    }

    fn mounted(&mut self, uid: &str, volume: &Reconstructed) {
        self.found += 1;
        let spec = Arc::new(volume.spec.clone());
        let mounted = MountedVolume {
            spec: Arc::clone(&spec),
            state: MountState::Uncertain,
            is_reconstructed: true,
            inputs: Inputs::default(),
            again_at: None,
        };
        self.states.actual.update(&volume.volume, &spec, |known| {
            // The pod's directory tells the name that the node's does not.
            known.spec = Arc::clone(&spec);
            known.is_reconstructed = true;
            known.pods.insert(uid.to_owned(), mounted);
            if volume.is_device_mountable && known.device.is_none() {
                known.device = Some(MountState::Uncertain);
            }
        });
    }

    /// A volume that nobody can tell: an empty leftover goes, a mount stays and is said.
    async fn unknown(
        &mut self,
        plugin: &dyn VolumePlugin,
        found: &Found<'_>,
        path: &Path,
        fault: &Fault,
    ) -> Result<(), Error> {
        self.failed += 1;
        let request = TearDown { name: found.name, pod_uid: found.pod_uid };
        let mut is_mounted = self.holds_mount(path).await?;
        for target in
            plugin.unmounter().map(|unmounter| unmounter.mount_points(self.host, &request)).unwrap_or_default()
        {
            is_mounted |= self.holds_mount(&target).await?;
            if !is_mounted {
                self.remove_leftover(&target).await;
            }
        }
        let has_data = self.host.mounter.stat(&path.join(stowage_model::names::VOLUME_DATA_FILE)).await;
        if is_mounted || has_data.is_ok_and(|found| found.is_some()) {
            tracing::warn!(path = %path.display(), error = %fault, "a volume cannot be told from what is on the disk");
            self.states.report.unexplained.push(path.to_owned());
        } else {
            self.remove_leftover(path).await;
        }
        Ok(())
    }

    async fn remove_leftover(&self, path: &Path) {
        if let Err(error) = self.host.mounter.remove_dir(path).await {
            tracing::warn!(path = %path.display(), %error, "leftover directory stays");
        }
    }

    async fn holds_mount(&self, path: &Path) -> Result<bool, Error> {
        let failed = |source| Error::Look { path: path.to_owned(), source };
        let table = self.host.mounter.mounts().await.map_err(failed)?;
        let spelled = self.host.mounter.resolve(path).await.map_err(failed)?;
        Ok(spelled.is_some_and(|spelled| table.iter().any(|mount| mount.target.starts_with(&spelled))))
    }
}

/// Names in a directory that may not exist; what is not UTF-8 is not ours.
async fn names_in(host: &VolumeHost, dir: &Path) -> Result<Vec<String>, Error> {
    let entries = host.mounter.list_dir(dir).await.map_err(|source| Error::Look { path: dir.to_owned(), source })?;
    Ok(entries.unwrap_or_default().into_iter().filter_map(|entry| entry.name.into_string().ok()).collect())
}

/// The volumes that were reported in use before the start and that an unexplained mount may be of.
///
/// A staging directory tells its volume by its name; a pod's directory and a device's do not, so any volume is possible.
pub fn possible_volumes(reported: &[String], unexplained: &[PathBuf], layout: &Layout) -> Vec<UniqueVolumeName> {
    let reported = reported.iter().map(|name| name.as_str().into());
    reported.filter(|name| is_possible(name, unexplained, layout)).collect()
}

/// Whether one of these may be a mount of the volume.
pub fn is_possible(name: &UniqueVolumeName, unexplained: &[PathBuf], layout: &Layout) -> bool {
    let staging = layout.plugin(stowage_plugins::Csi::NAME);
    let devices = staging.join("volumeDevices");
    let staged = name
        .driver_and_handle()
        .map(|(driver, handle)| layout.root().join(stowage_model::names::staging_dir(driver, handle.as_str())));
    let tells = |dir: &Path| dir.starts_with(&staging) && !dir.starts_with(&devices);
    unexplained.iter().any(|dir| !tells(dir) || Some(dir) == staged.as_ref())
}

#[cfg(test)]
mod tests;

//! What CSI volumes are on the disk, told from the metadata beside them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use stowage_model::access_mode::AccessModes;
use stowage_model::csi_driver::LifecycleMode;
use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::object::Key;
use stowage_model::phase::VolumeMode;
use stowage_model::pod::CsiInline;
use stowage_model::quantity::Quantity;
use stowage_model::volume::CsiSource;
use stowage_model::volume_source::VolumeSource;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{BlockMapper, Found, Reconstructed, Reconstructor};
use crate::spec::{Persistent, VolumeSpec};

use super::block::{devices_dir, publish_dir, read_data, staging_path, volume_dir};
use super::data::VolumeData;
use super::{Csi, cleaning, data_file, pod_dir};

#[async_trait]
impl Reconstructor for Csi {
    async fn reconstruct(&self, host: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        let data = match found.is_block {
            true => read_data(host, found.name).await?,
            false => read(host, &pod_dir(&host.layout, found.pod_uid, found.name)).await?,
        };
        let data = data.ok_or_else(|| Fault::uncertain(format!("volume {} has no metadata", found.name)))?;
        let Some(pod) = &data.pod else {
            return Err(Fault::uncertain(format!("the metadata of volume {} does not say its name", found.name)));
        };
        let (spec_name, is_inline) = (pod.spec_name.clone(), pod.lifecycle == Some(LifecycleMode::Ephemeral));
        let volume = match is_inline {
            true => names::csi_inline_volume(found.pod_uid, &spec_name).into(),
            false => UniqueVolumeName::csi(&data.driver, &data.handle),
        };
        Ok(Reconstructed {
            volume,
            is_device_mountable: !is_inline,
            se_linux_label: data.label.clone(),
            spec: spec(&data, spec_name, found.is_block, is_inline),
        })
    }

    async fn devices(&self, host: &VolumeHost) -> Result<(Vec<Reconstructed>, Vec<PathBuf>), Fault> {
        let (mut known, mut unexplained) = (Vec::new(), Vec::new());
        let top = host.layout.plugin(Csi::NAME);
        for driver in names_in(host, &top).await? {
            if driver == "volumeDevices" {
                continue;
            }
            for hash in names_in(host, &top.join(&driver)).await? {
                let dir = top.join(&driver).join(&hash);
                let target = dir.join("globalmount");
                match read(host, &dir).await {
                    Ok(Some(data)) => known.push(staged(&data, String::new(), false)),
                    // The metadata goes second to last: without it a directory is what is left, unless it is mounted.
                    Ok(None) if !cleaning::is_mounted(host, &target).await? => {
                        remove_leftovers(host, &[target, dir]).await;
                    }
                    Ok(None) => unexplained.push(dir),
                    Err(fault) => {
                        tracing::warn!(path = %dir.display(), error = %fault, "a staging directory cannot be explained");
                        unexplained.push(dir);
                    }
                }
            }
        }
        for name in device_names(host).await? {
            match read_data(host, &name).await {
                Ok(Some(data)) => {
                    let spec_name = data.pod.as_ref().map_or_else(|| name.clone(), |pod| pod.spec_name.clone());
                    known.push(staged(&data, spec_name, true));
                }
                // The metadata goes last but for empty directories: without it a device that is there is somebody's.
                Ok(None) if !may_be_there(host, &name).await? => {
                    let dir = volume_dir(&host.layout, &name);
                    remove_leftovers(host, &[dir.join("dev"), dir.join("data"), dir]).await;
                }
                Ok(None) => unexplained.push(volume_dir(&host.layout, &name)),
                Err(fault) => {
                    tracing::warn!(volume = name, error = %fault, "a device's metadata cannot be read");
                    unexplained.push(volume_dir(&host.layout, &name));
                }
            }
        }
        Ok((known, unexplained))
    }

    /// The pod's link is made last and may be gone while the device is bound or published for it.
    async fn users(&self, host: &VolumeHost, device: &Reconstructed) -> Result<Vec<String>, Fault> {
        if !device.spec.is_block() {
            return Ok(Vec::new());
        }
        let name = &device.spec.name;
        let mut users = names_in(host, &self.global_map_path(host, name)).await?;
        users.extend(names_in(host, &publish_dir(&host.layout, name)).await?);
        Ok(users)
    }
}

/// The names of all volumes of which something is there as a device.
async fn device_names(host: &VolumeHost) -> Result<BTreeSet<String>, Fault> {
    let top = devices_dir(&host.layout);
    let mut names = BTreeSet::new();
    for dir in [top.clone(), top.join("staging"), top.join("publish")] {
        names.extend(names_in(host, &dir).await?);
    }
    names.remove("staging");
    names.remove("publish");
    Ok(names)
}

/// Whether the kernel has a device of the volume bound anywhere below its directories, or the driver may have it staged:
/// that shows in no mount, but its directory comes after the metadata and goes before it.
async fn may_be_there(host: &VolumeHost, name: &str) -> Result<bool, Fault> {
    let layout = &host.layout;
    let staged = host.mounter.stat(&staging_path(layout, name)).await;
    if staged.map_err(Fault::after("look at the staging directory"))?.is_some() {
        return Ok(true);
    }
    let table = host.mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
    for dir in [volume_dir(layout, name), publish_dir(layout, name)] {
        let spelled = host.mounter.resolve(&dir).await.map_err(Fault::after("resolve the device's directory"))?;
        if spelled.is_some_and(|spelled| table.iter().any(|mount| mount.target.starts_with(&spelled))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes empty directories, the inner ones first; what is in use or full is not removed.
async fn remove_leftovers(host: &VolumeHost, dirs: &[PathBuf]) {
    for dir in dirs {
        if let Err(error) = host.mounter.remove_dir(dir).await {
            tracing::warn!(path = %dir.display(), %error, "leftover directory stays");
            return;
        }
    }
}

fn staged(data: &VolumeData, spec_name: String, is_block: bool) -> Reconstructed {
    Reconstructed {
        volume: UniqueVolumeName::csi(&data.driver, &data.handle),
        is_device_mountable: true,
        se_linux_label: data.label.clone(),
        spec: spec(data, spec_name, is_block, false),
    }
}

/// As much of the spec as the metadata tells: enough to take the volume down, not to set it up.
fn spec(data: &VolumeData, name: String, is_block: bool, is_inline: bool) -> VolumeSpec {
    let driver = data.driver.clone();
    if is_inline {
        return VolumeSpec::inline(name, VolumeSource::CsiInline(CsiInline { driver, ..CsiInline::default() }));
    }
    let source = CsiSource { driver, volume_handle: data.handle.to_string(), ..CsiSource::default() };
    let persistent = Persistent {
        claim: Key::default(),
        access_modes: AccessModes::default(),
        access_mode: None,
        volume_mode: if is_block { VolumeMode::Block } else { VolumeMode::Filesystem },
        mount_options: Vec::new(),
        capacity: Quantity::default(),
        node_affinity: None,
        group: None,
    };
    VolumeSpec { name, source: VolumeSource::Csi(source), persistent: Some(persistent), read_only: false }
}

async fn read(host: &VolumeHost, dir: &Path) -> Result<Option<VolumeData>, Fault> {
    let file = data_file(dir);
    let found = host.mounter.read_file(&file).await.map_err(Fault::after("read the volume's metadata"))?;
    let parsed = found.map(|bytes| VolumeData::parse(&bytes)).transpose();
    parsed.map_err(|error| Fault::uncertain(format!("{}: {error}", file.display())))
}

/// Names in a directory that may not exist; what is not UTF-8 is not ours.
async fn names_in(host: &VolumeHost, dir: &Path) -> Result<Vec<String>, Fault> {
    let entries = host.mounter.list_dir(dir).await.map_err(Fault::after("list a directory of volumes"))?;
    Ok(entries.unwrap_or_default().into_iter().filter_map(|entry| entry.name.into_string().ok()).collect())
}

//! What local volumes are on the disk, told from the mount table.

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_model::volume_source::{LocalSource, VolumeSource};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{Found, Reconstructed, Reconstructor};
use crate::{mounted, reconstructed};

use super::{Local, global_mount, mounts_dir};

#[async_trait]
impl Reconstructor for Local {
    async fn reconstruct(&self, host: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        volume(host, found.name, found.is_block).await
    }

    async fn devices(&self, host: &VolumeHost) -> Result<(Vec<Reconstructed>, Vec<PathBuf>), Fault> {
        let entries = host.mounter.list_dir(&mounts_dir(&host.layout)).await;
        let entries = entries.map_err(Fault::after("list the devices that are mounted"))?.unwrap_or_default();
        let mut known = Vec::new();
        for name in entries.into_iter().filter_map(|entry| entry.name.into_string().ok()) {
            known.push(volume(host, &name, false).await?);
        }
        Ok((known, Vec::new()))
    }
}

async fn volume(host: &VolumeHost, name: &str, is_block: bool) -> Result<Reconstructed, Fault> {
    let device = mounted::at(host, &global_mount(&host.layout, name)).await?.map(|mount| mount.source);
    let source = LocalSource { path: device.unwrap_or_default(), ..LocalSource::default() };
    Ok(Reconstructed {
        spec: reconstructed::persistent(name, VolumeSource::Local(source), is_block),
        volume: format!("{}/{name}", Local::NAME).into(),
        is_device_mountable: true,
        se_linux_label: None,
    })
}

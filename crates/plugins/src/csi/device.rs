//! A volume once for the node: staging and unstaging.
//!
//! Metadata is on disk before the driver is called and goes only after the kernel's mount table shows the mount gone,
//! so that a restart at any moment finds out what may be mounted.

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};
use stowage_model::names::VolumeHandle;
use stowage_model::volume_source::VolumeSource;

use crate::fault::{Certainty, Fault};
use crate::host::VolumeHost;
use crate::plugin::{DeviceMounter, MountDevice, UnmountDevice};
use crate::spec::VolumeSpec;

use super::cleaning::clean_up;
use super::data::VolumeData;
use super::request::capability;
use super::{
    Csi, STAGE, UNSTAGE, data_file, driver_of, global_mount, handle_of, path_text, publish_context, secret_key, stages,
    staging_dir,
};

#[async_trait]
impl DeviceMounter for Csi {
    async fn mount_device(&self, host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault> {
        let spec = request.spec;
        let name = driver_of(spec)?;
        let handle = handle_of(spec, &request.pod.meta.uid);
        let (dir, target) = (staging_dir(&host.layout, name, &handle), global_mount(&host.layout, name, &handle));
        let staged = stage(host, request, &handle, &target).await;
        match staged {
            // The driver says that it failed: what was made for it goes, unless it may be in use from before.
            Err(fault) if fault.certainty == Certainty::Final && !request.is_reconstructed => {
                match clean_up(host, &dir, &target).await {
                    Ok(()) => Err(fault),
                    Err(left) => {
                        let message = format!("{fault}; {left}");
                        Err(Fault { message, ..fault }.with_certainty(Certainty::Uncertain))
                    }
                }
            }
            other => other,
        }
    }

    async fn unmount_device(&self, host: &VolumeHost, request: &UnmountDevice<'_>) -> Result<(), Fault> {
        let name = driver_of(request.spec)?;
        let VolumeSource::Csi(source) = &request.spec.source else { return Ok(()) };
        let handle = source.handle();
        let (dir, target) = (staging_dir(&host.layout, name, &handle), global_mount(&host.layout, name, &handle));
        check_unpublished(host, &target).await?;
        unstage(host, name, &handle, &target).await?;
        clean_up(host, &dir, &target).await
    }

    fn device_mount_path(&self, host: &VolumeHost, spec: &VolumeSpec) -> Result<PathBuf, Fault> {
        let VolumeSource::Csi(source) = &spec.source else {
            return Err(Fault::refused(format!("volume {}: a volume of one pod has no mount of its own", spec.name)));
        };
        Ok(global_mount(&host.layout, driver_of(spec)?, &source.handle()))
    }
}

async fn stage(
    host: &VolumeHost,
    request: &MountDevice<'_>,
    handle: &VolumeHandle,
    target: &std::path::Path,
) -> Result<(), Fault> {
    let spec = request.spec;
    let name = driver_of(spec)?;
    let (driver, caller) = host.driver(name)?;
    let dir = staging_dir(&host.layout, name, handle);
    // Directory and metadata are there for drivers without stage too: they tell a restart, and any kubelet, what it is.
    let context = publish_context(spec, name, handle, host)?;
    let VolumeSource::Csi(source) = &spec.source else { return Ok(()) };
    let secret = source.node_stage_secret_ref.as_deref().filter(|_| stages(&driver)).map(secret_key);
    let secrets = caller.secrets(secret.as_ref()).await.map_err(Fault::unsent)?;
    host.mounter.create_dir(target).await.map_err(Fault::before("make the staging directory"))?;
    let label = request.se_linux_label.map(str::to_owned);
    let data = VolumeData { driver: name.to_owned(), handle: handle.clone(), pod: None, label };
    let written = host.mounter.write_file_with(&data_file(&dir), &data.encode(), super::DATA_MODE).await;
    written.map_err(Fault::before("write the volume's metadata"))?;
    if !stages(&driver) {
        return Ok(());
    }
    let call = NodeStageVolumeRequest {
        volume_id: handle.to_string(),
        publish_context: context,
        staging_target_path: path_text(target)?,
        volume_capability: Some(capability(spec, &driver, request.fs_group, request.se_linux_label)),
        secrets,
        volume_context: source.volume_attributes.clone(),
    };
    let send = async |channel, request| NodeClient::new(channel).node_stage_volume(request).await;
    caller.call(STAGE, call, send).await.map(drop).map_err(Fault::call(STAGE))
}

/// A pod's mount whose metadata cannot be read is in no state: only the kernel tells that the volume is still published.
async fn check_unpublished(host: &VolumeHost, target: &std::path::Path) -> Result<(), Fault> {
    let table = host.mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
    let spelled = host.mounter.resolve(target).await.map_err(Fault::after("resolve the staging directory"))?;
    let pods = host.mounter.resolve(&host.layout.pods()).await.map_err(Fault::after("resolve the pods' directory"))?;
    let (Some(staged), Some(pods)) = (spelled.and_then(|spelled| table.at(&spelled)), pods) else { return Ok(()) };
    let mut published = table.under(&pods);
    match published.find(|mount| mount.device == staged.device && mount.root.starts_with(&staged.root)) {
        None => Ok(()),
        Some(mount) => Err(Fault::uncertain(format!(
            "the volume is still mounted at {}, so it stays staged",
            mount.target.display()
        ))),
    }
}

/// Undoes staging; a driver that does not stage has nothing to undo.
pub async fn unstage(
    host: &VolumeHost,
    name: &str,
    handle: &VolumeHandle,
    target: &std::path::Path,
) -> Result<(), Fault> {
    let (driver, caller) = host.driver(name)?;
    if !stages(&driver) {
        return Ok(());
    }
    let call = NodeUnstageVolumeRequest { volume_id: handle.to_string(), staging_target_path: path_text(target)? };
    let send = async |channel, request| NodeClient::new(channel).node_unstage_volume(request).await;
    caller.call(UNSTAGE, call, send).await.map(drop).map_err(Fault::call(UNSTAGE))
}

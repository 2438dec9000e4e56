//! A volume as a device: staged for the node, published for pods.

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_csi::v1::NodeStageVolumeRequest;
use stowage_csi::v1::node_client::NodeClient;
use stowage_model::names;
use stowage_model::volume_source::VolumeSource;

use crate::fault::{Certainty, Fault};
use crate::host::VolumeHost;
use crate::layout::Layout;
use crate::plugin::{BlockMapper, MountDevice, SetUp, TearDown, UnmountDevice};
use crate::spec::VolumeSpec;

use super::cleaning::{is_mounted, remove_target};
use super::data::{PodData, VolumeData};
use super::device::unstage;
use super::pod::{Asked, send_publish, unpublish};
use super::request::capability;
use super::{Csi, STAGE, data_file, driver_of, handle_of, path_text, publish_context, secret_key, stages};

#[async_trait]
impl BlockMapper for Csi {
    async fn set_up_device(&self, host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault> {
        let staged = stage(host, request).await;
        match staged {
            Err(fault) if fault.certainty == Certainty::Final && !request.is_reconstructed => {
                match clean_up(host, &request.spec.name).await {
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

    async fn map_pod_device(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<PathBuf, Fault> {
        let (spec, uid) = (request.spec, request.pod.meta.uid.as_str());
        let name = driver_of(spec)?;
        let (driver, caller) = host.driver(name)?;
        let handle = handle_of(spec, uid);
        let asked = Asked::of(host, request, name, &handle, &caller).await?;
        let target = publish_path(&host.layout, &spec.name, uid);
        let parent = target.parent().unwrap_or(&target);
        host.mounter.create_dir(parent).await.map_err(Fault::before("make the directory to publish in"))?;
        // Told whether the driver stages or not, as the kubelet does for devices.
        let staging = path_text(&staging_path(&host.layout, &spec.name))?;
        send_publish(&caller, asked.request(request, &driver, &handle, staging, path_text(&target)?)).await?;
        Ok(target)
    }

    async fn unmap_pod_device(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        let target = publish_path(&host.layout, request.name, request.pod_uid);
        if let Some(data) = read_data(host, request.name).await? {
            let (_, caller) = host.driver(&data.driver)?;
            unpublish(&caller, &data.handle, &target).await?;
        }
        if is_mounted(host, &target).await? {
            return Err(Fault::uncertain(format!(
                "the driver said it unpublished {}, but it is mounted",
                target.display()
            )));
        }
        remove_target(host, &target).await
    }

    async fn tear_down_device(&self, host: &VolumeHost, request: &UnmountDevice<'_>) -> Result<(), Fault> {
        let name = &request.spec.name;
        if let Some(data) = read_data(host, name).await? {
            let staging = staging_path(&host.layout, name);
            let found = host.mounter.stat(&staging).await.map_err(Fault::after("look at the staging directory"))?;
            if found.is_some() {
                unstage(host, &data.driver, &data.handle, &staging).await?;
            }
        }
        clean_up(host, name).await
    }

    fn global_map_path(&self, host: &VolumeHost, name: &str) -> PathBuf {
        volume_dir(&host.layout, name).join("dev")
    }
}

async fn stage(host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault> {
    let spec = request.spec;
    let name = driver_of(spec)?;
    let (driver, caller) = host.driver(name)?;
    let handle = handle_of(spec, &request.pod.meta.uid);
    let VolumeSource::Csi(source) = &spec.source else { return Ok(()) };
    let publish_context = publish_context(spec, name, &handle, host)?;
    let secret = source.node_stage_secret_ref.as_deref().filter(|_| stages(&driver)).map(secret_key);
    let secrets = caller.secrets(secret.as_ref()).await.map_err(Fault::unsent)?;
    write_data(host, spec, name).await?;
    if !stages(&driver) {
        return Ok(());
    }
    let target = staging_path(&host.layout, &spec.name);
    host.mounter.create_dir(&target).await.map_err(Fault::before("make the staging directory"))?;
    let call = NodeStageVolumeRequest {
        volume_id: handle.to_string(),
        publish_context,
        staging_target_path: path_text(&target)?,
        volume_capability: Some(capability(spec, &driver, None, None)),
        secrets,
        volume_context: source.volume_attributes.clone(),
    };
    let send = async |channel, request| NodeClient::new(channel).node_stage_volume(request).await;
    caller.call(STAGE, call, send).await.map(drop).map_err(Fault::call(STAGE))
}

async fn write_data(host: &VolumeHost, spec: &VolumeSpec, driver: &str) -> Result<(), Fault> {
    let dir = data_dir(&host.layout, &spec.name);
    host.mounter.create_dir(&dir).await.map_err(Fault::before("make the directory of the volume's metadata"))?;
    let data = VolumeData {
        driver: driver.to_owned(),
        handle: handle_of(spec, ""),
        pod: Some(PodData { spec_name: spec.name.clone(), node: host.node_name.clone(), lifecycle: None }),
        label: None,
    };
    let written = host.mounter.write_file_with(&data_file(&dir), &data.encode(), super::DATA_MODE).await;
    written.map_err(Fault::before("write the volume's metadata"))
}

/// What is beside a device; none if nothing was ever begun.
pub async fn read_data(host: &VolumeHost, name: &str) -> Result<Option<VolumeData>, Fault> {
    let file = data_file(&data_dir(&host.layout, name));
    let found = host.mounter.read_file(&file).await.map_err(Fault::after("read the volume's metadata"))?;
    let parsed = found.map(|bytes| VolumeData::parse(&bytes)).transpose();
    parsed.map_err(|error| Fault::uncertain(format!("{}: {error}", file.display())))
}

/// Removes what was made for the device, the metadata last: as long as it is there a restart comes back here.
async fn clean_up(host: &VolumeHost, name: &str) -> Result<(), Fault> {
    let (layout, mounter) = (&host.layout, &host.mounter);
    let staging = staging_path(layout, name);
    for entry in
        mounter.list_dir(&staging).await.map_err(Fault::after("list the staging directory"))?.unwrap_or_default()
    {
        // Drivers leave the file that the device was bound to.
        let left = staging.join(entry.name);
        if is_mounted(host, &left).await? {
            return Err(Fault::uncertain(format!("the driver unstaged the device, but {} is mounted", left.display())));
        }
        remove_target(host, &left).await?;
    }
    if is_mounted(host, &staging).await? {
        return Err(Fault::uncertain(format!("the driver unstaged the device, but {} is mounted", staging.display())));
    }
    let published = publish_dir(layout, name);
    let volume = volume_dir(layout, name);
    let data = data_dir(layout, name);
    for dir in [&staging, &published, &volume.join("dev")] {
        mounter.remove_dir(dir).await.map_err(Fault::after("remove the device's directories"))?;
    }
    mounter.remove_file(&data_file(&data)).await.map_err(Fault::after("remove the volume's metadata"))?;
    for dir in [&data, &volume] {
        mounter.remove_dir(dir).await.map_err(Fault::after("remove the device's directories"))?;
    }
    Ok(())
}

/// Where all of a device's directories are.
pub fn volume_dir(layout: &Layout, name: &str) -> PathBuf {
    devices_dir(layout).join(names::escaped(name))
}

/// Where the devices of all CSI volumes are.
pub fn devices_dir(layout: &Layout) -> PathBuf {
    layout.plugin(Csi::NAME).join("volumeDevices")
}

fn data_dir(layout: &Layout, name: &str) -> PathBuf {
    layout.root().join(names::block_data_dir(name))
}

/// Where a device is staged.
pub fn staging_path(layout: &Layout, name: &str) -> PathBuf {
    layout.root().join(names::block_staging_dir(name))
}

/// Where a device is published, one entry for each pod.
pub fn publish_dir(layout: &Layout, name: &str) -> PathBuf {
    devices_dir(layout).join("publish").join(name)
}

fn publish_path(layout: &Layout, name: &str, pod_uid: &str) -> PathBuf {
    layout.root().join(names::block_publish(name, pod_uid))
}

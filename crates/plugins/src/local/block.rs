//! A device of the node as it is.

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_model::names;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{BlockMapper, MountDevice, SetUp, TearDown, UnmountDevice};

use super::{Local, Origin, origin};

#[async_trait]
impl BlockMapper for Local {
    async fn set_up_device(&self, _: &VolumeHost, _: &MountDevice<'_>) -> Result<(), Fault> {
        Ok(())
    }

    async fn map_pod_device(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<PathBuf, Fault> {
        match origin(host, request.spec).await? {
            (device, Origin::Device) => Ok(device),
            (path, Origin::Directory) => Err(Fault::transient(format!(
                "volume {}: local.path {} is a directory, and volumeMode Block needs a device",
                request.spec.name,
                path.display()
            ))),
        }
    }

    async fn unmap_pod_device(&self, _: &VolumeHost, _: &TearDown<'_>) -> Result<(), Fault> {
        Ok(())
    }

    async fn tear_down_device(&self, _: &VolumeHost, _: &UnmountDevice<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// With the plugin's name in one word, as the kubelet has it here and nowhere else.
    fn global_map_path(&self, host: &VolumeHost, name: &str) -> PathBuf {
        host.layout.plugin(&names::escaped(Self::NAME)).join("volumeDevices").join(name)
    }
}

//! A device's file system, mounted once for the node, and its growth.

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_mount::Content;

use crate::fault::Fault;
use crate::format::{Format, devices, format_and_mount};
use crate::host::VolumeHost;
use crate::mounted;
use crate::plugin::{DeviceMounter, Expand, Expanded, MountDevice, UnmountDevice, VolumeExpander};
use crate::spec::VolumeSpec;

use super::{Local, Origin, global_mount, origin, source_of};

#[async_trait]
impl DeviceMounter for Local {
    async fn mount_device(&self, host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault> {
        let spec = request.spec;
        let (device, Origin::Device) = origin(host, spec).await? else { return Ok(()) };
        let target = global_mount(&host.layout, &spec.name);
        if mounted::at(host, &target).await?.is_some() {
            return Ok(());
        }
        host.mounter.create_dir(&target).await.map_err(Fault::after("make the directory for the device"))?;
        let format = Format {
            device: &device,
            target: &target,
            fs_type: &source_of(spec)?.fs_type,
            read_only: spec.read_only,
            options: spec.mount_options(),
        };
        match format_and_mount(host, &format).await {
            Err(fault) if !request.is_reconstructed => Err(mounted::undone(fault, mounted::leave(host, &target).await)),
            other => other,
        }
    }

    async fn unmount_device(&self, host: &VolumeHost, request: &UnmountDevice<'_>) -> Result<(), Fault> {
        mounted::leave(host, &global_mount(&host.layout, &request.spec.name)).await
    }

    /// A directory needs no mount of its own; then nothing is there.
    fn device_mount_path(&self, host: &VolumeHost, spec: &VolumeSpec) -> Result<PathBuf, Fault> {
        Ok(global_mount(&host.layout, &spec.name))
    }
}

#[async_trait]
impl VolumeExpander for Local {
    async fn expand(&self, host: &VolumeHost, request: &Expand<'_>) -> Result<Expanded, Fault> {
        let spec = request.spec;
        let (device, Origin::Device) = origin(host, spec).await? else { return Ok(Expanded::Done) };
        if spec.is_block() {
            return Ok(Expanded::Done);
        }
        let devices = devices(host)?;
        match devices.probe(&device).await.map_err(Fault::before("read what the device holds"))? {
            Content::FileSystem(kind) => {
                let target = global_mount(&host.layout, &spec.name);
                let grown = devices.grow_filesystem(&device, kind, &target).await;
                grown.map_err(Fault::after("grow the file system"))?;
                Ok(Expanded::Done)
            }
            Content::Blank => Ok(Expanded::Done),
            other => Err(Fault::refused(format!("device {} holds {other}, which cannot grow", device.display()))),
        }
    }
}

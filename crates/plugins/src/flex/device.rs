//! A driver's volume for the node: attached, mounted once, and grown.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use stowage_mount::Content;

use crate::fault::Fault;
use crate::format::{Format, devices, format_and_mount};
use crate::host::VolumeHost;
use crate::mounted;
use crate::plugin::{DeviceMounter, Expand, Expanded, MountDevice, UnmountDevice, VolumeExpander};
use crate::spec::VolumeSpec;

use super::Flex;

#[async_trait]
impl DeviceMounter for Flex {
    async fn mount_device(&self, host: &VolumeHost, request: &MountDevice<'_>) -> Result<(), Fault> {
        let spec = request.spec;
        let dir = self.device_dir(&host.layout, &spec.name);
        if mounted::at(host, &dir).await?.is_some() {
            return Ok(());
        }
        let options = self.options(host, spec, Some(request.pod), request.fs_group).await?;
        // Made before anything is attached: as long as it is there a restart comes back to detach.
        host.mounter.create_dir(&dir).await.map_err(Fault::after("make the directory for the device"))?;
        match self.attach_and_mount(host, spec, &dir, &options).await {
            Err(fault) if !request.is_reconstructed => Err(mounted::undone(fault, self.let_go(host, &spec.name).await)),
            other => other,
        }
    }

    async fn unmount_device(&self, host: &VolumeHost, request: &UnmountDevice<'_>) -> Result<(), Fault> {
        self.let_go(host, &request.spec.name).await
    }

    fn device_mount_path(&self, host: &VolumeHost, spec: &VolumeSpec) -> Result<PathBuf, Fault> {
        Ok(self.device_dir(&host.layout, &spec.name))
    }
}

impl Flex {
    async fn attach_and_mount(
        &self,
        host: &VolumeHost,
        spec: &VolumeSpec,
        dir: &Path,
        options: &str,
    ) -> Result<(), Fault> {
        let attached = self.call(host, "attach", &[options, &host.node_name]).await?.unwrap_or_default().device;
        let waited = self.call(host, "waitforattach", &[&attached, options]).await?;
        let device = waited.map(|answer| answer.device).filter(|device| !device.is_empty()).unwrap_or(attached);
        if self.call(host, "mountdevice", &[&dir.to_string_lossy(), &device, options]).await?.is_some() {
            return Ok(());
        }
        let format = Format {
            device: Path::new(&device),
            target: dir,
            fs_type: &self.source_of(spec)?.fs_type,
            read_only: spec.read_only,
            options: &[],
        };
        format_and_mount(host, &format).await
    }

    async fn let_go(&self, host: &VolumeHost, name: &str) -> Result<(), Fault> {
        let dir = self.device_dir(&host.layout, name);
        let found = host.mounter.stat(&dir).await.map_err(Fault::after("look at the device's directory"))?;
        if found.is_none() {
            return Ok(());
        }
        self.call(host, "unmountdevice", &[&dir.to_string_lossy()]).await?;
        mounted::unmount_all(host, &dir, |_| true).await?;
        self.call(host, "detach", &[name, &host.node_name]).await?;
        mounted::leave(host, &dir).await
    }
}

#[async_trait]
impl VolumeExpander for Flex {
    async fn expand(&self, host: &VolumeHost, request: &Expand<'_>) -> Result<Expanded, Fault> {
        let spec = request.spec;
        let dir = self.device_dir(&host.layout, &spec.name);
        let options = self.options(host, spec, None, None).await?;
        let new = request.new_size.to_string();
        // Drivers count with it; what the file system has is what there is.
        let old = host.mounter.usage(request.volume_path).await.map(|usage| usage.total_bytes).unwrap_or_default();
        let old = old.to_string();
        // Upstream has a controller do this; here nobody but the node calls the program.
        let volume = self.call(host, "expandvolume", &[&options, &dir.to_string_lossy(), &new, &old]).await?;
        if !self.capabilities.requires_fs_resize {
            return Ok(if volume.is_some() { Expanded::Done } else { Expanded::NotSupported });
        }
        let device = mounted::at(host, &dir).await?.map(|mount| mount.source).unwrap_or_default();
        let path = request.volume_path.to_string_lossy();
        if self.call(host, "expandfs", &[&options, &device, &path, &new, &old]).await?.is_some() || device.is_empty() {
            return Ok(Expanded::Done);
        }
        let (devices, device) = (devices(host)?, PathBuf::from(device));
        if let Content::FileSystem(kind) = devices.probe(&device).await.map_err(Fault::before("read the device"))? {
            devices.grow_filesystem(&device, kind, &dir).await.map_err(Fault::after("grow the file system"))?;
        }
        Ok(Expanded::Done)
    }
}

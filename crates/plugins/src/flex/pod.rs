//! A driver's volume for one pod.

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_mount::Access;

use crate::fault::{Certainty, Fault};
use crate::host::VolumeHost;
use crate::plugin::{IsSetUp, SetUp, TearDown, VolumeMounter, VolumeUnmounter};
use crate::spec::VolumeSpec;
use crate::{mounted, ownership};

use super::Flex;

#[async_trait]
impl VolumeMounter for Flex {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let (spec, pod) = (request.spec, request.pod);
        let dir = self.pod_dir(&host.layout, &pod.meta.uid, &spec.name);
        if mounted::at(host, &dir).await?.is_none() {
            let options = self.options(host, spec, Some(pod), request.fs_group).await?;
            host.mounter.create_dir(&dir).await.map_err(Fault::after("make the pod's volume directory"))?;
            if let Err(fault) = self.mount(host, spec, &dir, &options).await {
                return match request.is_reconstructed {
                    true => Err(fault),
                    false => Err(mounted::undone(fault, self.leave(host, &dir).await)),
                };
            }
        }
        // Also for what is found mounted: a walk that was interrupted leaves the mount.
        let gives = self.capabilities.fs_group && !spec.read_only && !request.is_remount;
        if let Some(group) = request.fs_group.filter(|_| gives) {
            let given = ownership::give(host, request, &dir, group).await;
            given.map_err(|fault| fault.with_certainty(Certainty::Uncertain))?;
        }
        Ok(IsSetUp::default())
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        self.pod_dir(&host.layout, pod_uid, &spec.name)
    }
}

#[async_trait]
impl VolumeUnmounter for Flex {
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        self.leave(host, &self.pod_dir(&host.layout, request.pod_uid, request.name)).await
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        vec![self.pod_dir(&host.layout, request.pod_uid, request.name)]
    }
}

impl Flex {
    async fn mount(
        &self,
        host: &VolumeHost,
        spec: &VolumeSpec,
        dir: &std::path::Path,
        options: &str,
    ) -> Result<(), Fault> {
        let at = dir.to_string_lossy();
        if self.call(host, "mount", &[&at, options]).await?.is_some() {
            return Ok(());
        }
        if !self.capabilities.attach {
            return Err(Fault::transient(format!("FlexVolume driver {} can neither attach nor mount", self.name)));
        }
        let access = if spec.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let bound = host.mounter.bind(&self.device_dir(&host.layout, &spec.name), dir, access).await;
        bound.map_err(Fault::after("show the volume in the pod's directory"))
    }

    /// What the driver does not take away is taken away here.
    async fn leave(&self, host: &VolumeHost, dir: &std::path::Path) -> Result<(), Fault> {
        let found = host.mounter.stat(dir).await.map_err(Fault::after("look at the volume's directory"))?;
        if found.is_some() {
            self.call(host, "unmount", &[&dir.to_string_lossy()]).await?;
        }
        mounted::leave(host, dir).await
    }
}

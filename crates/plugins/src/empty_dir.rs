//! A directory, or a file system in memory, that lives as long as its pod.

mod medium;
mod place;

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use stowage_model::Quantity;
use stowage_model::node_view::NodePod;
use stowage_model::volume_source::{EmptyDirSource, SourceKind, VolumeSource};
use stowage_mount::{ChangePolicy, MountOptions, OwnershipWalk, Progress};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{
    Claim, Expand, Expanded, Found, IsSetUp, Reconstructed, Reconstructor, SetUp, TearDown, VolumeExpander,
    VolumeMetrics, VolumeMounter, VolumePlugin, VolumeStats, VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Metrics, Traits};
use crate::{mounted, reconstructed, stats};

pub(crate) use medium::Medium;
pub(crate) use place::{Place, mark_ready, set_up, tear_down};

/// Directories that live as long as their pod.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmptyDir;

impl EmptyDir {
    /// As Kubernetes calls it.
    pub const NAME: &str = "kubernetes.io/empty-dir";
}

impl VolumePlugin for EmptyDir {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(SourceKind::EmptyDir)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(spec.name.clone())
    }

    fn traits(&self, _: &VolumeSpec, _: &VolumeHost) -> Traits {
        Traits { metrics: Metrics::Usage, ..Traits::PLAIN }
    }

    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        Some(self)
    }

    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
        Some(self)
    }

    fn expander(&self) -> Option<&dyn VolumeExpander> {
        Some(self)
    }

    fn metrics(&self) -> Option<&dyn VolumeMetrics> {
        Some(self)
    }

    fn reconstructor(&self) -> Option<&dyn Reconstructor> {
        Some(self)
    }
}

#[async_trait]
impl VolumeMounter for EmptyDir {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let source = source_of(request.spec)?;
        let medium = match medium::is_memory(source) {
            true => memory(host, request.pod, source.size_limit).await?,
            false => medium::of(source, request.pod)
                .map_err(|wrong| Fault::transient(format!("volume {}: {wrong}", request.spec.name)))?,
        };
        let place = Place::own(&host.layout, &request.pod.meta.uid, &request.spec.name);
        match set_up(host, &place, &medium, source.mode).await {
            Ok(true) => give(host, request, &place.dir).await,
            Ok(false) => {}
            Err(fault) if request.is_remount || request.is_reconstructed => return Err(fault),
            Err(fault) => return Err(mounted::undone(fault, tear_down(host, &place).await)),
        }
        place::mark_ready(host, &place).await?;
        Ok(IsSetUp::default())
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        Place::own(&host.layout, pod_uid, &spec.name).dir
    }
}

#[async_trait]
impl VolumeUnmounter for EmptyDir {
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        tear_down(host, &Place::own(&host.layout, request.pod_uid, request.name)).await
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        vec![Place::own(&host.layout, request.pod_uid, request.name).dir]
    }
}

/// A file system in memory takes another size while it is used; nothing else of this kind has a size of its own.
#[async_trait]
impl VolumeExpander for EmptyDir {
    async fn expand(&self, host: &VolumeHost, request: &Expand<'_>) -> Result<Expanded, Fault> {
        if source_of(request.spec)?.medium != medium::MEMORY {
            return Err(Fault::refused(format!("volume {}: only medium Memory has a size", request.spec.name)));
        }
        if request.new_size == 0 {
            return Err(Fault::refused(format!("volume {}: a size of 0 is none", request.spec.name)));
        }
        let found = mounted::at(host, request.volume_path).await?;
        if found.is_none_or(|mount| mount.fs_type != place::TMPFS) {
            return Err(Fault::transient(format!("volume {} is not mounted yet", request.spec.name)));
        }
        let options = MountOptions::new([format!("size={}", request.new_size)]);
        let remounted = host.mounter.remount(request.volume_path, &options).await;
        remounted.map_err(Fault::after("give the file system in memory its size"))?;
        Ok(Expanded::Done)
    }
}

#[async_trait]
impl VolumeMetrics for EmptyDir {
    async fn stats(&self, host: &VolumeHost, spec: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault> {
        match spec.source {
            VolumeSource::EmptyDir(ref source) if !source.medium.is_empty() => stats::of_file_system(host, path).await,
            _ => stats::of_files(host, path).await,
        }
    }
}

#[async_trait]
impl Reconstructor for EmptyDir {
    async fn reconstruct(&self, _: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        let source = VolumeSource::EmptyDir(EmptyDirSource::default());
        Ok(reconstructed::of_pod(Self::NAME, found, source))
    }
}

/// Memory, as much as node, pod and volume let it have.
pub(crate) async fn memory(host: &VolumeHost, pod: &NodePod, limit: Option<Quantity>) -> Result<Medium, Fault> {
    let node = host.objects.allocatable().await.map_err(|error| Fault::transient(error.to_string()))?;
    Ok(medium::of_memory(&node, pod, limit))
}

/// Errors of giving files to the group are only logged, as the kubelet does: the directory is empty.
async fn give(host: &VolumeHost, request: &SetUp<'_>, dir: &Path) {
    let Some(gid) = request.fs_group.and_then(|group| u32::try_from(group).ok()) else { return };
    let walk = OwnershipWalk { root: dir.to_owned(), gid, read_only: false, policy: ChangePolicy::Always };
    if let Err(error) = host.mounter.own(&walk, &Progress::default()).await {
        tracing::warn!(volume = request.spec.name, %error, "an empty directory could not be given to the pod's group");
    }
}

fn source_of(spec: &VolumeSpec) -> Result<&EmptyDirSource, Fault> {
    match &spec.source {
        VolumeSource::EmptyDir(source) => Ok(source),
        other => Err(Fault::refused(format!("volume {}: source {other} is not an emptyDir", spec.name))),
    }
}

//! A directory or a device of one node, as a PersistentVolume.

mod block;
mod device;
mod pod;
mod reconstruct;

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use stowage_model::volume_source::{LocalSource, SourceKind, VolumeSource};
use stowage_mount::NodeKind;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::layout::Layout;
use crate::plugin::{
    BlockMapper, Claim, DeviceMounter, Reconstructor, VolumeExpander, VolumeMetrics, VolumeMounter, VolumePlugin,
    VolumeStats, VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Metrics, Traits};
use crate::{host_path, stats};

/// Directories and devices of one node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Local;

impl Local {
    /// As Kubernetes calls it.
    pub const NAME: &str = "kubernetes.io/local-volume";
}

impl VolumePlugin for Local {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(SourceKind::Local)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(spec.name.clone())
    }

    fn traits(&self, spec: &VolumeSpec, _: &VolumeHost) -> Traits {
        Traits {
            is_device_mountable: true,
            supports_block: true,
            is_expandable: true,
            supports_mount_options: true,
            metrics: Metrics::StatFs,
            attributes: Attributes { read_only: spec.read_only, managed: !spec.read_only, se_linux_relabel: true },
            ..Traits::PLAIN
        }
    }

    /// A volume of one node says which: without that, pods come to nodes that do not have it.
    fn ready(&self, spec: &VolumeSpec, _: &VolumeHost) -> Result<(), Fault> {
        let source = source_of(spec)?;
        match &spec.persistent {
            Some(persistent) if persistent.node_affinity.is_some() => Ok(()),
            Some(_) => Err(Fault::transient(format!(
                "volume {}: local volume {} has no nodeAffinity; create it anew with spec.nodeAffinity.required",
                spec.name, source.path
            ))),
            None => Err(Fault::refused(format!("volume {}: local needs a PersistentVolume", spec.name))),
        }
    }

    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        Some(self)
    }

    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
        Some(self)
    }

    fn device_mounter(&self) -> Option<&dyn DeviceMounter> {
        Some(self)
    }

    fn block_mapper(&self) -> Option<&dyn BlockMapper> {
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
impl VolumeMetrics for Local {
    async fn stats(&self, host: &VolumeHost, _: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault> {
        stats::of_file_system(host, path).await
    }
}

/// What is at the volume's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Directory,
    Device,
}

async fn origin(host: &VolumeHost, spec: &VolumeSpec) -> Result<(PathBuf, Origin), Fault> {
    let path = PathBuf::from(&source_of(spec)?.path);
    let refuse =
        |what: String| Err(Fault::transient(format!("volume {}: local.path {} {what}", spec.name, path.display())));
    match host_path::kind(host, &path).await? {
        Some(NodeKind::Directory) => Ok((path, Origin::Directory)),
        Some(NodeKind::BlockDevice) => Ok((path, Origin::Device)),
        Some(other) => refuse(format!("is a {other:?}; it must be a directory or a block device")),
        None => refuse("does not exist on this node; make the directory, or correct spec.nodeAffinity".to_owned()),
    }
}

/// Where a device with a file system is mounted for all pods of the node.
fn global_mount(layout: &Layout, name: &str) -> PathBuf {
    mounts_dir(layout).join(name)
}

fn mounts_dir(layout: &Layout) -> PathBuf {
    layout.plugin(Local::NAME).join("mounts")
}

fn source_of(spec: &VolumeSpec) -> Result<&LocalSource, Fault> {
    match &spec.source {
        VolumeSource::Local(source) if source.path.split('/').any(|part| part == "..") => {
            Err(Fault::refused(format!("volume {}: local.path {:?} must not contain \"..\"", spec.name, source.path)))
        }
        VolumeSource::Local(source) if !source.path.starts_with('/') => {
            Err(Fault::refused(format!("volume {}: local.path {:?} must be absolute", spec.name, source.path)))
        }
        VolumeSource::Local(source) => Ok(source),
        other => Err(Fault::refused(format!("volume {}: source {other} is not a local volume", spec.name))),
    }
}

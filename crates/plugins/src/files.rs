//! Volumes that are files made from objects of the API: configMap, secret, downwardAPI and projected.

mod build;
mod certificates;
mod downward;
mod keys;
mod nested;
mod pod;
mod writer;

use std::path::Path;

use async_trait::async_trait;

use stowage_model::volume_source::{SourceKind, VolumeSource};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{
    Claim, Found, Reconstructed, Reconstructor, VolumeMetrics, VolumeMounter, VolumePlugin, VolumeStats,
    VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Metrics, Remount, Traits};
use crate::{reconstructed, stats};

pub use downward::field_value;

/// Volumes that are files: one plugin for each of four sources, which differ in name and medium only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Files {
    name: &'static str,
    source: SourceKind,
    in_memory: bool,
}

impl Files {
    /// Files from a ConfigMap, on the node's disk.
    pub const CONFIG_MAP: Self =
        Self { name: "kubernetes.io/configmap", source: SourceKind::ConfigMap, in_memory: false };
    /// Files from a Secret, in memory.
    pub const SECRET: Self = Self { name: "kubernetes.io/secret", source: SourceKind::Secret, in_memory: true };
    /// Files about the pod, in memory.
    pub const DOWNWARD_API: Self =
        Self { name: "kubernetes.io/downward-api", source: SourceKind::DownwardApi, in_memory: true };
    /// Files from several sources, in memory.
    pub const PROJECTED: Self =
        Self { name: "kubernetes.io/projected", source: SourceKind::Projected, in_memory: true };
    /// All of them.
    pub const ALL: [Self; 4] = [Self::CONFIG_MAP, Self::SECRET, Self::DOWNWARD_API, Self::PROJECTED];
}

impl VolumePlugin for Files {
    fn name(&self) -> &str {
        self.name
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(self.source)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(spec.name.clone())
    }

    fn traits(&self, _: &VolumeSpec, _: &VolumeHost) -> Traits {
        Traits {
            remount: Remount::OnChange,
            metrics: Metrics::Usage,
            attributes: Attributes { read_only: true, managed: true, se_linux_relabel: true },
            ..Traits::PLAIN
        }
    }

    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        Some(self)
    }

    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
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
impl VolumeMetrics for Files {
    async fn stats(&self, host: &VolumeHost, _: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault> {
        stats::of_files(host, path).await
    }
}

#[async_trait]
impl Reconstructor for Files {
    async fn reconstruct(&self, _: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        let source = match self.source {
            SourceKind::ConfigMap => VolumeSource::ConfigMap(Default::default()),
            SourceKind::Secret => VolumeSource::Secret(Default::default()),
            SourceKind::DownwardApi => VolumeSource::DownwardApi(Default::default()),
            _ => VolumeSource::Projected(Default::default()),
        };
        Ok(reconstructed::of_pod(self.name, found, source))
    }
}

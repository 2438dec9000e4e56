//! FlexVolume: drivers that are programs in a directory of the node, called once for each step.

mod call;
mod device;
mod drivers;
mod options;
mod pod;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use stowage_model::volume_source::{FlexSource, VolumeSource};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::layout::Layout;
use crate::plugin::{
    Claim, DeviceMounter, Found, Reconstructed, Reconstructor, VolumeExpander, VolumeMetrics, VolumeMounter,
    VolumePlugin, VolumeStats, VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Metrics, Traits};
use crate::{reconstructed, stats};

pub use call::{Answer, Capabilities, LocalPrograms, Programs};
pub use drivers::{FlexDrivers, watch};

/// Where drivers are by custom.
pub const DRIVER_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

const DIR: &str = "kubernetes.io/flexvolume";

/// Volumes of one driver. A driver that attaches is asked to from the node, when the device is mounted.
#[derive(Clone)]
pub struct Flex {
    /// As in `vendor/driver`.
    name: String,
    program: PathBuf,
    capabilities: Capabilities,
    programs: Arc<dyn Programs>,
    /// Calls that it said it does not have; a program that is replaced is asked again.
    unsupported: Arc<Mutex<BTreeSet<String>>>,
}

impl VolumePlugin for Flex {
    fn name(&self) -> &str {
        &self.name
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Flex(self.name.clone())]
    }

    /// What a driver would call it is not asked, as upstream stopped to.
    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(spec.name.clone())
    }

    fn traits(&self, spec: &VolumeSpec, _: &VolumeHost) -> Traits {
        Traits {
            is_device_mountable: self.capabilities.attach,
            is_expandable: true,
            metrics: if self.capabilities.supports_metrics { Metrics::StatFs } else { Metrics::None },
            attributes: Attributes {
                read_only: spec.read_only,
                managed: !spec.read_only,
                se_linux_relabel: self.capabilities.se_linux_relabel,
            },
            ..Traits::PLAIN
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

    fn expander(&self) -> Option<&dyn VolumeExpander> {
        Some(self)
    }

    fn metrics(&self) -> Option<&dyn VolumeMetrics> {
        self.capabilities.supports_metrics.then_some(self)
    }

    fn reconstructor(&self) -> Option<&dyn Reconstructor> {
        Some(self)
    }
}

#[async_trait]
impl VolumeMetrics for Flex {
    async fn stats(&self, host: &VolumeHost, _: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault> {
        stats::of_file_system(host, path).await
    }
}

#[async_trait]
impl Reconstructor for Flex {
    async fn reconstruct(&self, _: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        let source = VolumeSource::Flex(FlexSource { driver: self.name.clone(), ..FlexSource::default() });
        if !self.capabilities.attach {
            return Ok(reconstructed::of_pod(&self.name, found, source));
        }
        Ok(Reconstructed {
            spec: reconstructed::persistent(found.name, source, false),
            volume: format!("{}/{}", self.name, found.name).into(),
            is_device_mountable: true,
            se_linux_label: None,
        })
    }
}

impl Flex {
    fn pod_dir(&self, layout: &Layout, pod_uid: &str, name: &str) -> PathBuf {
        layout.pod_volume(pod_uid, &self.name, name)
    }

    fn device_dir(&self, layout: &Layout, name: &str) -> PathBuf {
        layout.plugin(DIR).join(&self.name).join("mounts").join(name)
    }

    fn source_of<'a>(&self, spec: &'a VolumeSpec) -> Result<&'a FlexSource, Fault> {
        match &spec.source {
            VolumeSource::Flex(source) => Ok(source),
            other => Err(Fault::refused(format!("volume {}: source {other} is not a flexVolume", spec.name))),
        }
    }
}

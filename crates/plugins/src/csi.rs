//! Volumes of CSI drivers: claims with a file system or a device, and volumes that live as long as their pod.

mod attach;
mod block;
mod cleaning;
mod data;
mod device;
mod expand;
mod ownership;
mod pod;
mod reconstruct;
mod request;
mod stats;

use std::path::{Path, PathBuf};

use stowage_csi::Family;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::csi_driver::LifecycleMode;
use stowage_model::names::{self, VolumeHandle};
use stowage_model::object::Key;
use stowage_model::volume_source::{SourceKind, VolumeSource};
use stowage_runtime::caller::Rpc;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::layout::Layout;
use crate::plugin::{
    BlockMapper, Claim, DeviceMounter, Reconstructor, VolumeAttacher, VolumeExpander, VolumeMetrics, VolumeMounter,
    VolumePlugin, VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Metrics, Remount, Traits};

pub use ownership::changes_ownership;
pub(crate) use pod::publish_secret;

const STAGE: Rpc = Rpc { path: "/csi.v1.Node/NodeStageVolume", family: Family::NodeStage };
const PUBLISH: Rpc = Rpc { path: "/csi.v1.Node/NodePublishVolume", family: Family::NodePublish };
const UNPUBLISH: Rpc = Rpc { path: "/csi.v1.Node/NodeUnpublishVolume", family: Family::NodeUnpublish };
const UNSTAGE: Rpc = Rpc { path: "/csi.v1.Node/NodeUnstageVolume", family: Family::NodeUnpublish };
const EXPAND: Rpc = Rpc { path: "/csi.v1.Node/NodeExpandVolume", family: Family::NodeExpand };
const STATS: Rpc = Rpc { path: "/csi.v1.Node/NodeGetVolumeStats", family: Family::Read };

/// The metadata holds no secret, and the kubelet's can be read by everybody who may enter the directory.
const DATA_MODE: u32 = 0o644;

/// Volumes of CSI drivers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Csi;

impl Csi {
    /// As Kubernetes calls it.
    pub const NAME: &str = names::CSI_PLUGIN;
}

impl VolumePlugin for Csi {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(SourceKind::Csi), Claim::Source(SourceKind::CsiInline)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        let driver = driver_of(spec)?;
        match &spec.source {
            VolumeSource::Csi(source) if source.volume_handle.is_empty() => {
                Err(Fault::refused(format!("volume {}: spec.csi.volumeHandle is empty", spec.name)))
            }
            VolumeSource::Csi(source) => Ok(format!("{driver}^{}", source.volume_handle)),
            _ => Ok(spec.name.clone()),
        }
    }

    fn traits(&self, spec: &VolumeSpec, host: &VolumeHost) -> Traits {
        let Ok(driver) = driver_of(spec) else { return Traits::PLAIN };
        let object = host.drivers.object(driver);
        let is_persistent = matches!(spec.source, VolumeSource::Csi(_));
        let republished = object.as_ref().is_some_and(|driver| driver.spec.requires_republish);
        Traits {
            is_attachable: is_persistent && host.drivers.attaches(driver),
            is_device_mountable: is_persistent,
            supports_block: is_persistent,
            is_expandable: is_persistent,
            remount: if republished { Remount::OnChange } else { Remount::Never },
            supports_mount_options: true,
            supports_se_linux_mount: object.is_some_and(|driver| driver.spec.se_linux_mount),
            metrics: Metrics::Driver,
            attributes: Attributes { read_only: spec.read_only, managed: !spec.read_only, se_linux_relabel: true },
        }
    }

    fn reachable(&self, spec: &VolumeSpec, host: &VolumeHost) -> Result<(), Fault> {
        host.driver(driver_of(spec)?).map(drop)
    }

    fn ready(&self, spec: &VolumeSpec, host: &VolumeHost) -> Result<(), Fault> {
        check_lifecycle(spec, driver_of(spec)?, host)
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

    fn attacher(&self) -> Option<&dyn VolumeAttacher> {
        Some(self)
    }

    fn metrics(&self) -> Option<&dyn VolumeMetrics> {
        Some(self)
    }

    fn reconstructor(&self) -> Option<&dyn Reconstructor> {
        Some(self)
    }
}

/// The driver of a volume, if it is a name that can be part of a path.
fn driver_of(spec: &VolumeSpec) -> Result<&str, Fault> {
    let driver = match &spec.source {
        VolumeSource::Csi(source) => source.driver.as_str(),
        VolumeSource::CsiInline(source) => &source.driver,
        other => return Err(Fault::refused(format!("volume {}: source {other} is not a CSI volume", spec.name))),
    };
    match driver.is_empty() || driver.contains('/') || driver.starts_with('.') {
        true => Err(Fault::refused(format!("volume {}: csi.driver {driver:?} is not the name of a driver", spec.name))),
        false => Ok(driver),
    }
}

/// A driver must say that it has volumes that live as long as their pod; without a word it has only persistent ones.
fn check_lifecycle(spec: &VolumeSpec, driver: &str, host: &VolumeHost) -> Result<(), Fault> {
    let mode = match spec.source {
        VolumeSource::CsiInline(_) => LifecycleMode::Ephemeral,
        _ => LifecycleMode::Persistent,
    };
    let supported = match host.drivers.object(driver) {
        Some(object) => object.supports(mode),
        None => mode == LifecycleMode::Persistent,
    };
    match supported {
        true => Ok(()),
        false => Err(Fault::transient(format!(
            "volume {}: driver {driver} does not have {mode} volumes; its CSIDriver must list {mode} in \
             spec.volumeLifecycleModes",
            spec.name
        ))),
    }
}

/// What the driver calls the volume.
fn handle_of(spec: &VolumeSpec, pod_uid: &str) -> VolumeHandle {
    match &spec.source {
        VolumeSource::Csi(source) => source.handle(),
        _ => names::inline_handle(pod_uid, &spec.name).into(),
    }
}

fn global_mount(layout: &Layout, driver: &str, handle: &VolumeHandle) -> PathBuf {
    layout.root().join(names::global_mount(driver, handle.as_str()))
}

fn staging_dir(layout: &Layout, driver: &str, handle: &VolumeHandle) -> PathBuf {
    layout.root().join(names::staging_dir(driver, handle.as_str()))
}

fn pod_dir(layout: &Layout, pod_uid: &str, name: &str) -> PathBuf {
    layout.pod_volume(pod_uid, Csi::NAME, name)
}

fn pod_mount(layout: &Layout, pod_uid: &str, name: &str) -> PathBuf {
    pod_dir(layout, pod_uid, name).join("mount")
}

/// The metadata file beside a mount.
fn data_file(dir: &Path) -> PathBuf {
    dir.join(names::VOLUME_DATA_FILE)
}

fn path_text(path: &Path) -> Result<String, Fault> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Fault::refused(format!("path {} is not UTF-8, which CSI needs", path.display())))
}

fn secret_key(reference: &stowage_model::volume::SecretRef) -> Key {
    Key::namespaced(reference.namespace.as_str(), reference.name.as_str())
}

/// What attaching told the node; none where the driver does not attach.
fn publish_context(
    spec: &VolumeSpec,
    driver: &str,
    handle: &VolumeHandle,
    host: &VolumeHost,
) -> Result<std::collections::BTreeMap<String, String>, Fault> {
    if !matches!(spec.source, VolumeSource::Csi(_)) || !host.drivers.attaches(driver) {
        return Ok(Default::default());
    }
    let name = names::attachment(handle.as_str(), driver, &host.node_name);
    let Some(attachment) = host.drivers.attachment(&name) else {
        return Err(Fault::transient(format!("VolumeAttachment {name} does not exist")));
    };
    if attachment.meta.is_deleting() {
        return Err(Fault::transient(format!("VolumeAttachment {name} is being deleted")));
    }
    if !attachment.status.attached {
        let error = attachment.status.attach_error.as_ref();
        let cause = error.map(|error| format!(": {}", error.message)).unwrap_or_default();
        return Err(Fault::transient(format!("VolumeAttachment {name} is not attached{cause}")));
    }
    Ok(attachment.status.attachment_metadata.clone())
}

fn stages(driver: &crate::host::RegisteredDriver) -> bool {
    driver.can(Capability::StageUnstageVolume)
}

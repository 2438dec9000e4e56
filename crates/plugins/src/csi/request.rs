//! What a driver is told about a volume and its pod.

use std::collections::BTreeMap;

use stowage_csi::v1::VolumeCapability;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_capability::{AccessMode as WireMode, AccessType, BlockVolume, MountVolume};
use stowage_model::access_mode::{self, AccessMode};
use stowage_model::pod::Pod;
use stowage_model::volume_source::VolumeSource;

use crate::host::RegisteredDriver;
use crate::spec::VolumeSpec;

/// What the label of a context mount is called among mount options.
fn context_option(label: &str) -> String {
    format!("context=\"{label}\"")
}

/// How the volume is used, in CSI's words. The node tells one mode, the first that the volume lists.
pub fn capability(
    spec: &VolumeSpec,
    driver: &RegisteredDriver,
    fs_group: Option<i64>,
    label: Option<&str>,
) -> VolumeCapability {
    let access_type = if spec.is_block() {
        AccessType::Block(BlockVolume {})
    } else {
        let fs_type = match &spec.source {
            VolumeSource::Csi(source) => source.fs_type.clone(),
            VolumeSource::CsiInline(source) => source.fs_type.clone(),
            _ => String::new(),
        };
        let mount_flags = spec.mount_options().iter().cloned().chain(label.map(context_option)).collect();
        let group = fs_group.filter(|_| driver.can(Capability::VolumeMountGroup));
        let volume_mount_group = group.map(|group| group.to_string()).unwrap_or_default();
        AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group })
    };
    let mode = spec.persistent.as_ref().and_then(|persistent| persistent.access_mode);
    let finer = driver.can(Capability::SingleNodeMultiWriter);
    // A mode this version does not know is UNKNOWN to the driver too.
    let mode = access_mode::to_csi(mode.unwrap_or(AccessMode::ReadWriteOnce), finer).map_or(0, |mode| mode.number());
    VolumeCapability { access_mode: Some(WireMode { mode }), access_type: Some(access_type) }
}

/// What a driver is told about the pod, if it wants to know.
pub fn pod_info(pod: &Pod, is_ephemeral: bool) -> BTreeMap<String, String> {
    let pairs = [
        ("pod.name", pod.meta.name.as_str()),
        ("pod.namespace", &pod.meta.namespace),
        ("pod.uid", &pod.meta.uid),
        ("serviceAccount.name", &pod.spec.service_account_name),
        ("ephemeral", if is_ephemeral { "true" } else { "false" }),
    ];
    pairs.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned())).into()
}

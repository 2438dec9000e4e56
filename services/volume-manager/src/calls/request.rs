//! What a driver is told about a volume and its pod.

use std::collections::BTreeMap;
use std::path::Path;

use stowage_csi::v1::VolumeCapability;
use stowage_csi::v1::volume_capability::MountVolume;
use stowage_model::access_mode::{self, CsiAccessMode};
use stowage_model::pod::Pod;

use super::fault::Fault;
use crate::desired::Use;
use crate::world::DriverInfo;

/// How the volume is used, in CSI's words.
pub fn capability(usage: &Use, driver: &DriverInfo) -> Result<VolumeCapability, Fault> {
    let finer = driver.has_finer_access_modes();
    let mode = match usage.access_modes {
        // The API server does not let such a volume in; the kubelet takes it for ReadWriteOnce.
        modes if modes.is_empty() => Ok(CsiAccessMode::SingleNodeWriter),
        modes => access_mode::fold_to_csi(modes, finer).or_else(|error| {
            // Modes that are no single capability: the kubelet takes the first.
            modes.iter().next().map_or(Err(error), |mode| access_mode::to_csi(mode, finer))
        }),
    };
    let mode = mode.map_err(|error| Fault::Before(error.to_string()))?;
    let group = usage.fs_group.filter(|_| driver.takes_mount_group());
    let mount = MountVolume {
        fs_type: usage.fs_type.clone(),
        mount_flags: usage.mount_options.clone(),
        volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
    };
    Ok(VolumeCapability::new(mode.number(), Some(mount)))
}

/// What a driver is told about the pod, if it wants to know.
pub fn pod_info(pod: &Pod) -> BTreeMap<String, String> {
    let pairs = [
        ("pod.name", pod.meta.name.as_str()),
        ("pod.namespace", &pod.meta.namespace),
        ("pod.uid", &pod.meta.uid),
        ("serviceAccount.name", &pod.spec.service_account_name),
        ("ephemeral", "false"),
    ];
    pairs.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned())).into()
}

pub fn path_text(path: &Path) -> Result<String, Fault> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Fault::Before(format!("path {} is not UTF-8, which CSI needs", path.display())))
}

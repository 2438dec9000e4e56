//! Volumes that are known by their place alone.

use stowage_model::access_mode::AccessModes;
use stowage_model::object::Key;
use stowage_model::phase::VolumeMode;
use stowage_model::quantity::Quantity;
use stowage_model::volume_source::VolumeSource;

use crate::plugin::{Found, Reconstructed};
use crate::spec::{Persistent, VolumeSpec};

/// A volume that no two pods share: enough to take it down, not to set it up.
pub(crate) fn of_pod(plugin: &str, found: &Found<'_>, source: VolumeSource) -> Reconstructed {
    Reconstructed {
        spec: VolumeSpec::inline(found.name, source),
        volume: format!("{plugin}/{}-{}", found.pod_uid, found.name).into(),
        is_device_mountable: false,
        se_linux_label: None,
    }
}

/// A PersistentVolume of which only name and source are known.
pub(crate) fn persistent(name: &str, source: VolumeSource, is_block: bool) -> VolumeSpec {
    let persistent = Persistent {
        claim: Key::default(),
        access_modes: AccessModes::default(),
        access_mode: None,
        volume_mode: if is_block { VolumeMode::Block } else { VolumeMode::Filesystem },
        mount_options: Vec::new(),
        capacity: Quantity::default(),
        node_affinity: None,
        group: None,
    };
    VolumeSpec { name: name.to_owned(), source, persistent: Some(persistent), read_only: false }
}

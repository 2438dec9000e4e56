//! What a plugin is told about one volume of one pod.

use std::fmt;

use stowage_model::access_mode::{AccessMode, AccessModes};
use stowage_model::annotations;
use stowage_model::node_view::NodeVolume;
use stowage_model::object::Key;
use stowage_model::phase::VolumeMode;
use stowage_model::quantity::Quantity;
use stowage_model::selector::NodeSelector;
use stowage_model::volume_source::VolumeSource;

/// A volume that a pod names, or that stands behind the claim it names.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSpec {
    /// The PersistentVolume's name, or the volume's in the pod: names its directory.
    pub name: String,
    /// Where it comes from.
    pub source: VolumeSource,
    /// What its PersistentVolume says besides; none for what a pod names itself.
    pub persistent: Option<Persistent>,
    /// Whether this use may only read.
    pub read_only: bool,
}

/// What a PersistentVolume says besides its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Persistent {
    /// The claim it is bound to.
    pub claim: Key,
    /// The modes it can be used in.
    pub access_modes: AccessModes,
    /// The first of them in the object's own order, which is the one drivers are told.
    pub access_mode: Option<AccessMode>,
    /// File system or device.
    pub volume_mode: VolumeMode,
    /// Options for mounting it.
    pub mount_options: Vec<String>,
    /// Its size.
    pub capacity: Quantity,
    /// The nodes that reach it; absent means all.
    pub node_affinity: Option<NodeSelector>,
    /// A group its users belong to besides their own (`pv.beta.kubernetes.io/gid`).
    pub group: Option<i64>,
}

impl VolumeSpec {
    /// A volume that a pod names itself.
    pub fn inline(name: impl Into<String>, source: VolumeSource) -> Self {
        let read_only = source.is_read_only();
        Self { name: name.into(), source, persistent: None, read_only }
    }

    /// The volume behind a claim; none if the object has no source.
    pub fn persistent(volume: &NodeVolume, claim: Key, read_only: bool) -> Option<Self> {
        let source = volume.source.clone()?;
        let group = volume.meta.annotation(annotations::VOLUME_GID).and_then(|text| text.parse().ok());
        // For plugins of the tree the legacy annotation wins; CSI knows only the field.
        let annotated = volume.meta.annotation(annotations::BETA_MOUNT_OPTIONS);
        let mount_options = match (&source, annotated) {
            (VolumeSource::Csi(_), _) | (_, None) => volume.spec.mount_options.clone(),
            (_, Some(text)) => text.split(',').map(|option| option.trim().to_owned()).collect(),
        };
        let persistent = Persistent {
            claim,
            access_modes: volume.spec.access_modes,
            access_mode: volume.first_access_mode,
            volume_mode: volume.spec.volume_mode,
            mount_options,
            capacity: volume.capacity(),
            node_affinity: volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.clone()),
            group,
        };
        Some(Self { name: volume.meta.name.clone(), source, persistent: Some(persistent), read_only })
    }

    /// Whether it is mapped as a device and not mounted.
    pub fn is_block(&self) -> bool {
        self.persistent.as_ref().is_some_and(|persistent| persistent.volume_mode == VolumeMode::Block)
    }

    /// Options for mounting it.
    pub fn mount_options(&self) -> &[String] {
        self.persistent.as_ref().map_or(&[], |persistent| &persistent.mount_options)
    }

    /// Whether one pod at a time may have it: `ReadWriteOncePod` is its only mode.
    pub fn is_once_per_pod(&self) -> bool {
        let modes = self.persistent.as_ref().map(|persistent| persistent.access_modes);
        modes.is_some_and(|modes| modes.len() == 1 && modes.contains(AccessMode::ReadWriteOncePod))
    }
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.source)
    }
}

//! PersistentVolume.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::access_mode::AccessModes;
use crate::annotations;
use crate::claim::{Claim, Storage};
use crate::migration::source::{
    AwsElasticBlockStore, AzureDisk, AzureFile, Cinder, GcePersistentDisk, InTree, PortworxVolume, VsphereVolume,
    in_tree,
};
use crate::names::{UniqueVolumeName, VolumeHandle};
use crate::object::{Key, Kind, Meta, Projection, exact, kinds, or_default};
use crate::phase::{ReclaimPolicy, VolumeMode, VolumePhase};
use crate::quantity::Quantity;
use crate::selector::NodeSelector;

projection! {
    /// A piece of storage.
    pub struct Volume {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What it is.
        pub spec: VolumeSpec,
        /// What became of it.
        pub status: VolumeStatus,
    }

    /// What became of a volume.
    pub struct VolumeStatus {
        /// Where it is in its life.
        pub phase: VolumePhase,
        /// The machine-readable cause of the phase.
        pub reason: String,
        /// The cause of the phase for people.
        pub message: String,
        /// When the phase last changed.
        pub last_phase_transition_time: Option<Timestamp>,
    }

    /// The claim a volume is bound to or reserved for.
    pub struct ClaimRef {
        /// Namespace of the claim.
        pub namespace: String,
        /// Name of the claim.
        pub name: String,
        /// Uid of the claim; empty while the user only reserved the volume by name.
        pub uid: String,
    }

    /// Where a volume can be used from.
    pub struct VolumeNodeAffinity {
        /// The nodes that reach it; absent means all.
        pub required: Option<NodeSelector>,
    }

    /// A volume of a CSI driver.
    pub struct CsiSource {
        /// The driver's name.
        pub driver: String,
        /// The driver's id of the volume.
        pub volume_handle: String,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// Whether it may only be read.
        pub read_only: bool,
        /// What the driver said about it, given back to it at each use.
        pub volume_attributes: BTreeMap<String, String>,
        /// Secret for attaching and detaching.
        pub controller_publish_secret_ref: Option<Box<SecretRef>>,
        /// Secret for staging.
        pub node_stage_secret_ref: Option<Box<SecretRef>>,
        /// Secret for publishing on the node.
        pub node_publish_secret_ref: Option<Box<SecretRef>>,
        /// Secret for growing in the controller.
        pub controller_expand_secret_ref: Option<Box<SecretRef>>,
        /// Secret for growing on the node.
        pub node_expand_secret_ref: Option<Box<SecretRef>>,
    }

    /// Where a secret is.
    pub struct SecretRef {
        /// Namespace of the secret.
        pub namespace: String,
        /// Name of the secret.
        pub name: String,
    }
}

/// What a volume is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VolumeSpec {
    /// Its size (`capacity.storage`).
    pub capacity: Option<Quantity>,
    /// The modes it can be used in.
    pub access_modes: AccessModes,
    /// The claim it is bound to or reserved for.
    pub claim_ref: Option<ClaimRef>,
    /// What happens to it when the claim goes.
    pub reclaim_policy: ReclaimPolicy,
    /// The class field. See [`Volume::class_name`].
    pub storage_class_name: String,
    /// File system or device.
    pub volume_mode: VolumeMode,
    /// Options for mounting it.
    pub mount_options: Vec<String>,
    /// Where it can be used from.
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// The CSI volume, if it is one.
    pub csi: Option<CsiSource>,
    /// The field that names its source, if it is not a CSI volume: `hostPath`, `nfs`, ...
    pub other_source: Option<&'static str>,
    /// That source, where a CSI driver has taken over its plugin; see [`crate::migration::to_csi`].
    pub in_tree: Option<Box<InTree>>,
    /// The VolumeAttributesClass it has.
    pub volume_attributes_class_name: Option<String>,
}

/// Declares the spec as it is on the wire; sources that no CSI driver took over are only looked at for presence.
macro_rules! wire {
    ($( $source:ident: $type:ty = $text:literal, )*) => {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Wire {
            #[serde(deserialize_with = "or_default")]
            capacity: Storage,
            #[serde(deserialize_with = "or_default")]
            access_modes: AccessModes,
            claim_ref: Option<ClaimRef>,
            #[serde(deserialize_with = "or_default")]
            persistent_volume_reclaim_policy: ReclaimPolicy,
            #[serde(deserialize_with = "or_default")]
            storage_class_name: String,
            #[serde(deserialize_with = "or_default")]
            volume_mode: VolumeMode,
            #[serde(deserialize_with = "exact")]
            mount_options: Vec<String>,
            node_affinity: Option<VolumeNodeAffinity>,
            csi: Option<CsiSource>,
            volume_attributes_class_name: Option<String>,
            $( #[serde(rename = $text)] $source: Option<$type>, )*
        }

        impl Wire {
            fn other_source(&self) -> Option<&'static str> {
                $( if self.$source.is_some() { return Some($text); } )*
                None
            }
        }
    };
}

wire! {
    host_path: IgnoredAny = "hostPath",
    local: IgnoredAny = "local",
    nfs: IgnoredAny = "nfs",
    iscsi: IgnoredAny = "iscsi",
    fc: IgnoredAny = "fc",
    flex_volume: IgnoredAny = "flexVolume",
    aws: AwsElasticBlockStore = "awsElasticBlockStore",
    gce: GcePersistentDisk = "gcePersistentDisk",
    azure_disk: AzureDisk = "azureDisk",
    azure_file: AzureFile = "azureFile",
    vsphere: VsphereVolume = "vsphereVolume",
    cinder: Cinder = "cinder",
    ceph_fs: IgnoredAny = "cephfs",
    rbd: IgnoredAny = "rbd",
    glusterfs: IgnoredAny = "glusterfs",
    flocker: IgnoredAny = "flocker",
    quobyte: IgnoredAny = "quobyte",
    photon: IgnoredAny = "photonPersistentDisk",
    portworx: PortworxVolume = "portworxVolume",
    scale_io: IgnoredAny = "scaleIO",
    storage_os: IgnoredAny = "storageos",
}

impl<'de> Deserialize<'de> for VolumeSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut wire = Wire::deserialize(deserializer)?;
        Ok(Self {
            other_source: wire.other_source(),
            in_tree: in_tree!(&mut wire),
            capacity: wire.capacity.storage,
            access_modes: wire.access_modes,
            claim_ref: wire.claim_ref,
            reclaim_policy: wire.persistent_volume_reclaim_policy,
            storage_class_name: wire.storage_class_name,
            volume_mode: wire.volume_mode,
            mount_options: wire.mount_options,
            node_affinity: wire.node_affinity,
            csi: wire.csi,
            volume_attributes_class_name: wire.volume_attributes_class_name,
        })
    }
}

impl Projection for Volume {
    const KIND: Kind = kinds::VOLUME;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl ClaimRef {
    /// The claim's key.
    pub fn key(&self) -> Key {
        Key::namespaced(self.namespace.clone(), self.name.clone())
    }

    /// Whether it means this very claim, or a claim of this name whatever its uid.
    pub fn is_of(&self, claim: &Claim) -> bool {
        self.namespace == claim.meta.namespace
            && self.name == claim.meta.name
            && (self.uid.is_empty() || self.uid == claim.meta.uid)
    }
}

impl CsiSource {
    /// What its driver calls it.
    pub fn handle(&self) -> VolumeHandle {
        self.volume_handle.as_str().into()
    }

    /// The name under which nodes and the attach-detach controller know it.
    pub fn unique_name(&self) -> UniqueVolumeName {
        UniqueVolumeName::csi(&self.driver, &self.handle())
    }
}

impl Volume {
    /// The class's name: the legacy annotation wins over the field.
    pub fn class_name(&self) -> &str {
        self.meta.annotation(annotations::BETA_STORAGE_CLASS).unwrap_or(&self.spec.storage_class_name)
    }

    /// The VolumeAttributesClass's name, empty if none.
    pub fn attributes_class(&self) -> &str {
        self.spec.volume_attributes_class_name.as_deref().unwrap_or_default()
    }

    /// Its size, zero if not given.
    pub fn capacity(&self) -> Quantity {
        self.spec.capacity.unwrap_or_default()
    }

    /// Whether it is bound to or reserved for this claim.
    pub fn is_bound_to(&self, claim: &Claim) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|reference| reference.is_of(claim))
    }

    /// Whether the controller, not the user, made the claim reference; then it may be dropped again entirely.
    pub fn is_bound_by_controller(&self) -> bool {
        self.meta.annotation(annotations::BOUND_BY_CONTROLLER).is_some()
    }

    /// Who made it, if it was made for a claim.
    pub fn provisioned_by(&self) -> Option<&str> {
        self.meta.annotation(annotations::PROVISIONED_BY)
    }

    /// The CSI driver that took it over from an in-tree plugin.
    pub fn migrated_to(&self) -> Option<&str> {
        self.meta.annotation(annotations::MIGRATED_TO)
    }

    /// The secret its deletion needs, if any.
    pub fn deletion_secret(&self) -> Option<SecretRef> {
        let part = |key| self.meta.annotation(key).filter(|value| !value.is_empty());
        let name = part(annotations::DELETION_SECRET_NAME)?;
        let namespace = part(annotations::DELETION_SECRET_NAMESPACE)?;
        Some(SecretRef { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

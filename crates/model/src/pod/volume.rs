//! A pod's volumes, by where they come from.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::migration::source::{
    AwsElasticBlockStore, AzureDisk, AzureFile, Cinder, GcePersistentDisk, InTree, PortworxVolume, VsphereVolume,
    in_tree,
};
use crate::object::or_default;
use crate::volume::SecretRef;

/// A volume as a pod names it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Wire")]
pub struct PodVolume {
    /// Its name, unique in the pod.
    pub name: String,
    /// Where it comes from.
    pub source: PodVolumeSource,
}

/// Where a pod's volume comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum PodVolumeSource {
    /// A claim in the pod's namespace.
    Claim {
        /// The claim's name.
        claim_name: String,
        /// Whether the pod only reads it.
        read_only: bool,
    },
    /// A claim made for the pod and named after it and the volume.
    Ephemeral,
    /// A directory that lives as long as the pod.
    EmptyDir,
    /// Files from a ConfigMap.
    ConfigMap,
    /// Files from a Secret.
    Secret,
    /// Files from several sources.
    Projected,
    /// Files about the pod itself.
    DownwardApi,
    /// A path of the node.
    HostPath,
    /// A CSI volume that lives as long as the pod.
    Csi(CsiInline),
    /// A disk or share whose plugin's work a CSI driver has taken over; see [`crate::migration::inline_to_csi`].
    InTree(Box<InTree>),
    /// Anything else.
    Other,
}

projection! {
    /// A CSI volume that lives as long as its pod.
    pub struct CsiInline {
        /// The driver's name.
        pub driver: String,
        /// Whether it may only be read.
        pub read_only: bool,
        /// The file system, empty for the default.
        pub fs_type: String,
        /// What the driver is told.
        pub volume_attributes: BTreeMap<String, String>,
        /// Secret for publishing, in the pod's namespace: only the name is set.
        pub node_publish_secret_ref: Option<SecretRef>,
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    #[serde(deserialize_with = "or_default")]
    name: String,
    persistent_volume_claim: Option<ClaimWire>,
    ephemeral: Option<IgnoredAny>,
    empty_dir: Option<IgnoredAny>,
    config_map: Option<IgnoredAny>,
    secret: Option<IgnoredAny>,
    projected: Option<IgnoredAny>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<IgnoredAny>,
    host_path: Option<IgnoredAny>,
    csi: Option<CsiInline>,
    #[serde(rename = "awsElasticBlockStore")]
    aws: Option<AwsElasticBlockStore>,
    #[serde(rename = "gcePersistentDisk")]
    gce: Option<GcePersistentDisk>,
    azure_disk: Option<AzureDisk>,
    azure_file: Option<AzureFile>,
    #[serde(rename = "vsphereVolume")]
    vsphere: Option<VsphereVolume>,
    cinder: Option<Cinder>,
    #[serde(rename = "portworxVolume")]
    portworx: Option<PortworxVolume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimWire {
    #[serde(deserialize_with = "or_default")]
    claim_name: String,
    #[serde(deserialize_with = "or_default")]
    read_only: bool,
}

impl From<Wire> for PodVolume {
    fn from(mut wire: Wire) -> Self {
        let source = if let Some(claim) = wire.persistent_volume_claim {
            PodVolumeSource::Claim { claim_name: claim.claim_name, read_only: claim.read_only }
        } else if let Some(csi) = wire.csi {
            PodVolumeSource::Csi(csi)
        } else if let Some(source) = in_tree!(&mut wire) {
            PodVolumeSource::InTree(source)
        } else {
            let present = [
                (wire.ephemeral.is_some(), PodVolumeSource::Ephemeral),
                (wire.empty_dir.is_some(), PodVolumeSource::EmptyDir),
                (wire.config_map.is_some(), PodVolumeSource::ConfigMap),
                (wire.secret.is_some(), PodVolumeSource::Secret),
                (wire.projected.is_some(), PodVolumeSource::Projected),
                (wire.downward_api.is_some(), PodVolumeSource::DownwardApi),
                (wire.host_path.is_some(), PodVolumeSource::HostPath),
            ];
            present.into_iter().find_map(|(found, source)| found.then_some(source)).unwrap_or(PodVolumeSource::Other)
        };
        Self { name: wire.name, source }
    }
}

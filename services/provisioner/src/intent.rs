//! What must be known to send a CreateVolume again after a crash and to make its PersistentVolume: one journal record.
//!
//! CSI cannot look a volume up by name, so the record holds the whole request. Secrets are references here; their
//! values are read live for each call and never stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use stowage_csi::v1::{
    CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement, VolumeCapability, VolumeContentSource,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
    volume_content_source::{self, SnapshotSource, VolumeSource},
};
use stowage_model::names::VolumeHandle;
use stowage_model::object::{Key, ObjectRef, kinds};
use stowage_model::phase::ReclaimPolicy;
use stowage_model::topology::Segments;

use crate::places::{self, Part, Places};

pub use crate::places::Requirement;

/// Raised whenever a field is added that changes the request: an older binary must then leave the record alone.
/// 1: no place is asked for. 2: the request names places. 3: the request names a source. 4: the request names
/// attributes, or the volume is to be an in-tree plugin's. 5: the places stand apart.
const VERSION: u32 = 5;

/// The intent to make one volume for one claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    #[serde(rename = "v")]
    version: u32,
    pub claim: ClaimId,
    /// Name of the PersistentVolume, and of the volume in the CreateVolume call.
    pub volume: String,
    pub request: Request,
    #[serde(default, skip_serializing_if = "SecretRefs::is_empty")]
    pub secrets: SecretRefs,
    pub class: ClassPart,
}

/// The claim that is to have the volume; a namesake with another uid is not meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// The CreateVolume call, without secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub bytes: i64,
    /// Numbers of the CSI access modes: one capability each.
    pub modes: Vec<i32>,
    /// `None` for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<Mount>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Where the volume may be made; `None` leaves it to the driver. Read apart, for a long list stands elsewhere.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub places: Option<Requirement>,
    /// The node that was chosen; only provisioners that are no CSI driver are told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the volume is filled from; `None` for an empty one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What its VolumeAttributesClass says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
}

/// What a VolumeAttributesClass says; it may be gone when the record is replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    pub class: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// What a volume is filled from. The object may be gone when the record is replayed; the driver's id is what counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub kind: SourceKind,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The driver's id of the snapshot, or of the volume of the claim.
    pub handle: String,
    /// Whether the object was let go, though the record goes on: the driver may never tell what became of the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// The kinds of objects that volumes can be filled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    Snapshot,
    Claim,
}

/// How the volume will be mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

/// What the PersistentVolume takes from the class, which may be gone when the record is replayed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassPart {
    pub name: String,
    pub reclaim_policy: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// The in-tree plugin whose class it is, if the driver took over from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
}

/// The secrets a class names for each use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretRefs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<SecretRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_publish: Option<SecretRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_stage: Option<SecretRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_publish: Option<SecretRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_expand: Option<SecretRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_expand: Option<SecretRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_modify: Option<SecretRef>,
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

/// Why a record cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the record is not one of ours: {source}")]
    Read { source: serde_json::Error },
    #[error("the record has version {found}, this provisioner knows {VERSION}; run the newer one to settle it")]
    KnowVersion { found: u32 },
    #[error("the places of the record: {source}")]
    ReadPlaces { source: places::Error },
}

impl Intent {
    pub fn new(claim: ClaimId, volume: String, request: Request, secrets: SecretRefs, class: ClassPart) -> Self {
        Self { version: version(&request, &class), claim, volume, request, secrets, class }
    }

    /// Whether its volume goes with its claim.
    pub fn deletes(&self) -> bool {
        self.class.reclaim_policy == ReclaimPolicy::Delete.as_str()
    }

    /// The same, but filled.
    pub fn filled_from(self, source: Source) -> Self {
        self.asking(|request| request.source = Some(source))
    }

    /// Whether it asks for the same, though maybe elsewhere.
    pub fn asks_the_same_besides_places(&self, other: &Self) -> bool {
        let asked = |intent: &Self| {
            intent.clone().asking(|request| {
                request.places = None;
                request.source.iter_mut().for_each(|source| source.released = false);
            })
        };
        asked(self) == asked(other)
    }

    /// The same, but its source is not held for it any more.
    pub fn without_hold(self) -> Self {
        self.asking(|request| request.source.iter_mut().for_each(|source| source.released = true))
    }

    /// The same, but with these attributes.
    pub fn with(self, attributes: Attributes) -> Self {
        self.asking(|request| request.attributes = Some(attributes))
    }

    fn asking(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.request);
        self.version = version(&self.request, &self.class);
        self
    }

    /// The record as it is stored: compact JSON.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and maps with text keys always serialise")
    }

    /// Reads a stored record; `joined` finds the list of places that is stored in these parts.
    pub fn decode(text: &str, joined: impl FnOnce(&[String]) -> Option<Places>) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u32,
        }
        #[derive(Deserialize)]
        struct Placed {
            request: Asked,
        }
        #[derive(Deserialize)]
        struct Asked {
            places: Option<places::Stored>,
        }
        let read = |source| Error::Read { source };
        let versioned: Versioned = serde_json::from_str(text).map_err(read)?;
        if !(1..=VERSION).contains(&versioned.v) {
            return Err(Error::KnowVersion { found: versioned.v });
        }
        let mut intent: Self = serde_json::from_str(text).map_err(read)?;
        let placed: Placed = serde_json::from_str(text).map_err(read)?;
        let stored = placed.request.places.map(|stored| stored.read(joined));
        intent.request.places = stored.transpose().map_err(|source| Error::ReadPlaces { source })?;
        Ok(intent)
    }

    /// The parts of its list of places that are stored apart from it.
    pub fn parts(&self) -> &[Arc<Part>] {
        self.request.places.as_ref().map_or(&[], |places| places.requisite.parts())
    }

    /// The call to make, with the values its secret holds now.
    pub fn create_volume(&self, secrets: BTreeMap<String, String>) -> CreateVolumeRequest {
        let capability = |mode: &i32| VolumeCapability {
            access_mode: Some(AccessMode { mode: *mode }),
            access_type: Some(match &self.request.mount {
                None => AccessType::Block(BlockVolume {}),
                Some(mount) => AccessType::Mount(MountVolume {
                    fs_type: mount.fs_type.clone(),
                    mount_flags: mount.flags.clone(),
                    // Only nodes know the pod's group.
                    volume_mount_group: String::new(),
                }),
            }),
        };
        CreateVolumeRequest {
            name: self.volume.clone(),
            capacity_range: Some(CapacityRange { required_bytes: self.request.bytes, limit_bytes: 0 }),
            volume_capabilities: self.request.modes.iter().map(capability).collect(),
            parameters: self.request.parameters.clone(),
            secrets,
            volume_content_source: self.request.source.as_ref().map(content_source),
            accessibility_requirements: self.request.places.as_ref().map(|places| TopologyRequirement {
                requisite: topologies(places.requisite.all().iter()),
                preferred: topologies(places.preferred()),
            }),
            mutable_parameters: self.request.attributes.as_ref().map(|of| of.parameters.clone()).unwrap_or_default(),
        }
    }
}

/// The first version that knows all fields that are set: an older binary goes on settling what it understands.
fn version(request: &Request, class: &ClassPart) -> u32 {
    match request {
        Request { places: Some(places), .. } if !places.requisite.parts().is_empty() => VERSION,
        _ if class.plugin.is_some() => 4,
        Request { attributes: Some(_), .. } => 4,
        Request { source: Some(_), .. } => 3,
        Request { places: Some(_), .. } => 2,
        _ => 1,
    }
}

fn content_source(source: &Source) -> VolumeContentSource {
    let id = source.handle.clone();
    let r#type = match source.kind {
        SourceKind::Snapshot => volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id: id }),
        SourceKind::Claim => volume_content_source::Type::Volume(VolumeSource { volume_id: id }),
    };
    VolumeContentSource { r#type: Some(r#type) }
}

fn topologies<'a>(places: impl Iterator<Item = &'a Segments>) -> Vec<Topology> {
    places.map(|segments| Topology { segments: segments.clone() }).collect()
}

impl ClaimId {
    pub fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }

    pub fn reference(&self) -> ObjectRef {
        ObjectRef { kind: kinds::CLAIM, key: self.key(), uid: self.uid.clone() }
    }
}

impl SecretRefs {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl SecretRef {
    pub fn key(&self) -> Key {
        Key::namespaced(&self.namespace, &self.name)
    }
}

/// What the driver answered: the volume that exists now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    pub handle: VolumeHandle,
    pub bytes: i64,
    pub context: BTreeMap<String, String>,
    /// Where it can be reached from; empty means everywhere.
    pub topology: Vec<BTreeMap<String, String>>,
    /// Where it is, if it is not a CSI volume.
    pub location: Option<Location>,
}

/// The field of a PersistentVolume's spec that says where the volume is, as in `hostPath`, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub field: String,
    pub value: Value,
}

impl Made {
    /// The same, reachable only from nodes with this label.
    pub fn only_from(mut self, label: &str, value: &str) -> Self {
        self.topology.push(BTreeMap::from([(label.to_owned(), value.to_owned())]));
        self
    }
}

#[cfg(test)]
pub mod tests;

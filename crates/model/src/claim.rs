//! PersistentVolumeClaim.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::access_mode::AccessModes;
use crate::annotations;
use crate::condition::Condition;
use crate::names;
use crate::object::{Kind, Meta, Projection, exact, kinds, or_default};
use crate::phase::{ClaimPhase, VolumeMode};
use crate::pod::Pod;
use crate::quantity::Quantity;
use crate::selector::LabelSelector;

projection! {
    /// A user's request for a volume.
    pub struct Claim {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is asked for.
        pub spec: ClaimSpec,
        /// What was given.
        pub status: ClaimStatus,
    }

    /// A change of the VolumeAttributesClass under way.
    pub struct ModifyVolumeStatus {
        /// The class it aims at.
        pub target_volume_attributes_class_name: String,
    }

    /// The only resource of a volume: `storage`.
    pub struct Storage {
        /// The size, if given.
        pub storage: Option<Quantity>,
    }

    /// How far the growth of each resource is; a volume has only one.
    pub struct ResizeStatuses {
        /// Of the size.
        pub storage: ResizeStatus,
    }

    /// What a new volume is to be filled from.
    pub struct DataSource {
        /// API group of the source, absent for core kinds.
        pub api_group: Option<String>,
        /// Kind of the source.
        pub kind: String,
        /// Name of the source.
        pub name: String,
        /// Namespace of the source, if not the claim's.
        pub namespace: Option<String>,
    }
}

text_enum! {
    /// How far a claim's growth is.
    pub enum ResizeStatus {
        /// Nothing is under way.
        #[default]
        None = "",
        /// The driver's controller is at it.
        ControllerResizeInProgress = "ControllerResizeInProgress",
        /// The driver's controller cannot.
        ControllerResizeInfeasible = "ControllerResizeInfeasible",
        /// The node's turn.
        NodeResizePending = "NodeResizePending",
        /// The node is at it.
        NodeResizeInProgress = "NodeResizeInProgress",
        /// The node cannot.
        NodeResizeInfeasible = "NodeResizeInfeasible",
    }
}

/// What a claim asks for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// The modes it wants to be used in.
    #[serde(deserialize_with = "or_default")]
    pub access_modes: AccessModes,
    /// The size asked for (`resources.requests.storage`).
    #[serde(rename = "resources", deserialize_with = "storage_request")]
    pub requested: Option<Quantity>,
    /// The class field; absent and empty are different. See [`Claim::class_name`].
    pub storage_class_name: Option<String>,
    /// The volume it is bound to or wants; empty if none.
    #[serde(deserialize_with = "or_default")]
    pub volume_name: String,
    /// File system or device.
    #[serde(deserialize_with = "or_default")]
    pub volume_mode: VolumeMode,
    /// Which volumes' labels suit it.
    pub selector: Option<Box<LabelSelector>>,
    /// What to fill a new volume from (older field).
    pub data_source: Option<Box<DataSource>>,
    /// What to fill a new volume from (newer field, mirrors the older for known kinds).
    pub data_source_ref: Option<Box<DataSource>>,
    /// The VolumeAttributesClass it wants.
    pub volume_attributes_class_name: Option<String>,
}

/// What a claim was given.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// Where it is in its life.
    #[serde(deserialize_with = "or_default")]
    pub phase: ClaimPhase,
    /// The bound volume's modes.
    #[serde(deserialize_with = "or_default")]
    pub access_modes: AccessModes,
    /// The bound volume's size.
    #[serde(deserialize_with = "or_default")]
    pub capacity: Storage,
    /// The size a resize in progress aims at.
    #[serde(deserialize_with = "or_default")]
    pub allocated_resources: Storage,
    /// How far that is.
    #[serde(deserialize_with = "or_default")]
    pub allocated_resource_statuses: ResizeStatuses,
    /// Conditions.
    #[serde(deserialize_with = "exact")]
    pub conditions: Vec<Condition>,
    /// The VolumeAttributesClass in effect.
    pub current_volume_attributes_class_name: Option<String>,
    /// A change of the VolumeAttributesClass under way.
    #[serde(deserialize_with = "or_default")]
    pub modify_volume_status: ModifyVolumeStatus,
}

fn storage_request<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    projection! {
        /// `spec.resources`
        pub struct Resources {
            /// The lower bounds.
            pub requests: Storage,
        }
    }
    Ok(or_default::<D, Resources>(deserializer)?.requests.storage)
}

impl Projection for Claim {
    const KIND: Kind = kinds::CLAIM;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl Claim {
    /// The class's name: the legacy annotation wins over the field, and no class is the empty name.
    pub fn class_name(&self) -> &str {
        self.meta
            .annotation(annotations::BETA_STORAGE_CLASS)
            .or(self.spec.storage_class_name.as_deref())
            .unwrap_or_default()
    }

    /// Whether the user said anything about the class, even that there is none: then no default class applies.
    pub fn has_class(&self) -> bool {
        self.meta.annotation(annotations::BETA_STORAGE_CLASS).is_some() || self.spec.storage_class_name.is_some()
    }

    /// The VolumeAttributesClass's name, empty if none.
    pub fn attributes_class(&self) -> &str {
        self.spec.volume_attributes_class_name.as_deref().unwrap_or_default()
    }

    /// Every VolumeAttributesClass it names: wanted, in effect and aimed at, each once.
    pub fn attributes_classes(&self) -> BTreeSet<&str> {
        let current = self.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
        let target = self.status.modify_volume_status.target_volume_attributes_class_name.as_str();
        [self.attributes_class(), current, target].into_iter().filter(|name| !name.is_empty()).collect()
    }

    /// The size asked for, zero if none.
    pub fn requested(&self) -> Quantity {
        self.spec.requested.unwrap_or_default()
    }

    /// Whether it names a volume, by its user or by the controller.
    pub fn names_volume(&self) -> bool {
        !self.spec.volume_name.is_empty()
    }

    /// Whether the controller once finished binding it; for ever true from then on.
    pub fn is_bind_completed(&self) -> bool {
        self.meta.annotation(annotations::BIND_COMPLETED).is_some()
    }

    /// Whether the controller, not the user, chose its volume.
    pub fn is_bound_by_controller(&self) -> bool {
        self.meta.annotation(annotations::BOUND_BY_CONTROLLER).is_some()
    }

    /// Whether it has its volume and binding is finished, as the scheduler and the node ask.
    pub fn is_fully_bound(&self) -> bool {
        self.names_volume() && self.is_bind_completed()
    }

    /// The provisioner asked to make its volume, by the current or the legacy annotation.
    pub fn storage_provisioner(&self) -> Option<&str> {
        self.meta
            .annotation(annotations::STORAGE_PROVISIONER)
            .or_else(|| self.meta.annotation(annotations::BETA_STORAGE_PROVISIONER))
    }

    /// The node the scheduler chose for its first consumer.
    pub fn selected_node(&self) -> Option<&str> {
        self.meta.annotation(annotations::SELECTED_NODE).filter(|node| !node.is_empty())
    }

    /// The node that its volume is made for: the selected one, or what schedulers of old wrote where that is missing.
    /// Whether a claim still waits for its consumer is told by the first alone.
    pub fn node_of_volume(&self) -> Option<&str> {
        let annotation = |key| self.meta.annotation(key);
        let node = annotation(annotations::SELECTED_NODE).or_else(|| annotation(annotations::ALPHA_SELECTED_NODE));
        node.filter(|node| !node.is_empty())
    }

    /// What to fill its volume from, if anything.
    pub fn data_source(&self) -> Option<&DataSource> {
        self.spec.data_source_ref.as_deref().or(self.spec.data_source.as_deref())
    }

    /// The name of the volume made for it.
    pub fn provisioned_volume_name(&self) -> String {
        names::provisioned_volume("pvc", &self.meta.uid)
    }

    /// Whether the pod is its managing owner, as must be for a generic ephemeral volume.
    pub fn is_owned_by(&self, pod: &Pod) -> bool {
        self.meta.controller().is_some_and(|owner| owner.uid == pod.meta.uid)
    }
}

//! The pure part of Stowage: identities, quantities, access modes, topology, matching, phases.
//! No kube client, no tokio, no tonic.
//!
//! One file per kind holds its *projection*: the fields controllers decide on, read-only. Projections can be
//! deserialised but not serialised, so that nobody writes a trimmed object back over a full one.
#![forbid(unsafe_code)]

#[macro_use]
mod macros;

pub mod access_mode;
pub mod annotation_map;
pub mod annotations;
pub mod attachment;
pub mod attributes_class;
pub mod claim;
pub mod class;
pub mod condition;
pub mod config_map;
pub mod csi_driver;
pub mod csi_node;
pub mod event;
pub mod finalizers;
pub mod labels;
pub mod lease;
pub mod matching;
pub mod migration;
pub mod names;
pub mod node;
pub mod node_view;
pub mod object;
pub mod phase;
pub mod pod;
pub mod quantity;
pub mod reference_grant;
pub mod resize;
pub mod secret;
pub mod selector;
pub mod storage_capacity;
pub mod taints;
pub mod template;
pub mod text;
pub mod topology;
pub mod trust_bundle;
pub mod volume;
pub mod volume_group_snapshot;
pub mod volume_snapshot;
pub mod volume_source;

pub use crate::access_mode::{AccessMode, AccessModes};
pub use crate::annotation_map::Annotations;
pub use crate::attachment::VolumeAttachment;
pub use crate::attributes_class::AttributesClass;
pub use crate::claim::Claim;
pub use crate::class::StorageClass;
pub use crate::condition::Condition;
pub use crate::config_map::ConfigMap;
pub use crate::csi_driver::CsiDriver;
pub use crate::csi_node::CsiNode;
pub use crate::event::Event;
pub use crate::lease::Lease;
pub use crate::node::Node;
pub use crate::node_view::{NodePod, NodeVolume};
pub use crate::object::{Key, Kind, Meta, ObjectId, ObjectRef, Projection};
pub use crate::pod::Pod;
pub use crate::quantity::Quantity;
pub use crate::reference_grant::ReferenceGrant;
pub use crate::secret::Secret;
pub use crate::storage_capacity::StorageCapacity;
pub use crate::text::Text;
pub use crate::trust_bundle::ClusterTrustBundle;
pub use crate::volume::Volume;
pub use crate::volume_group_snapshot::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
pub use crate::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::annotations;
use crate::object::{Key, Kind, Meta, Projection, kinds};

text_enum! {
    /// What happens to the snapshot in the driver when its object goes.
    pub enum DeletionPolicy {
        /// It stays. Also what is done where nothing was said: what is kept can still be deleted.
        #[default]
        Retain = "Retain",
        /// It is deleted before the object goes.
        Delete = "Delete",
    }
}

projection! {
    /// The wish for a snapshot of a claim, or for one that exists already.
    pub struct VolumeSnapshot {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is wanted.
        pub spec: VolumeSnapshotSpec,
        /// What is; set by the snapshot-controller.
        pub status: Option<VolumeSnapshotStatus>,
    }

    /// What is wanted of a snapshot.
    pub struct VolumeSnapshotSpec {
        /// Where it comes from.
        pub source: VolumeSnapshotSource,
        /// The class; the snapshot-controller fills in the default.
        pub volume_snapshot_class_name: Option<String>,
    }

    /// Exactly one of the two.
    pub struct VolumeSnapshotSource {
        /// A claim of the same namespace, of which a snapshot is made.
        pub persistent_volume_claim_name: Option<String>,
        /// A content that stands for a snapshot the driver has already.
        pub volume_snapshot_content_name: Option<String>,
    }

    /// What is known of a snapshot.
    pub struct VolumeSnapshotStatus {
        /// The content it is bound to.
        pub bound_volume_snapshot_content_name: Option<String>,
        /// The moment whose data it holds.
        pub creation_time: Option<Timestamp>,
        /// Whether volumes can be made from it.
        pub ready_to_use: Option<bool>,
        /// The least size of a volume made from it, as a quantity.
        pub restore_size: Option<String>,
        /// What went wrong last.
        pub error: Option<SnapshotError>,
        /// The group snapshot it was made with.
        pub volume_group_snapshot_name: Option<String>,
    }

    /// What went wrong, and when it was first seen.
    pub struct SnapshotError {
        /// When.
        pub time: Option<Timestamp>,
        /// What.
        pub message: Option<String>,
    }

    /// A snapshot in a driver.
    pub struct VolumeSnapshotContent {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is wanted.
        pub spec: VolumeSnapshotContentSpec,
        /// What is; set by the snapshotter.
        pub status: Option<VolumeSnapshotContentStatus>,
    }

    /// What is wanted of a content.
    pub struct VolumeSnapshotContentSpec {
        /// The VolumeSnapshot it belongs to; without a uid nobody has checked that yet.
        pub volume_snapshot_ref: SnapshotRef,
        /// What happens to the snapshot in the driver when this object goes.
        pub deletion_policy: DeletionPolicy,
        /// Whose it is.
        pub driver: String,
        /// The class it was made with.
        pub volume_snapshot_class_name: Option<String>,
        /// Where it comes from.
        pub source: VolumeSnapshotContentSource,
        /// `Filesystem` or `Block`, as the source volume was.
        pub source_volume_mode: Option<String>,
    }

    /// The object a content belongs to.
    pub struct SnapshotRef {
        /// Its namespace.
        pub namespace: String,
        /// Its name.
        pub name: String,
        /// Its uid, empty until it is bound.
        pub uid: String,
    }

    /// Exactly one of the two.
    pub struct VolumeSnapshotContentSource {
        /// The volume of which a snapshot is made.
        pub volume_handle: Option<String>,
        /// A snapshot that the driver has already.
        pub snapshot_handle: Option<String>,
    }

    /// What is known of a content.
    pub struct VolumeSnapshotContentStatus {
        /// The driver's id of the snapshot.
        pub snapshot_handle: Option<String>,
        /// The moment whose data it holds, in nanoseconds since 1970.
        pub creation_time: Option<i64>,
        /// The least size of a volume made from it, in bytes.
        pub restore_size: Option<i64>,
        /// Whether volumes can be made from it.
        pub ready_to_use: Option<bool>,
        /// What went wrong last.
        pub error: Option<SnapshotError>,
        /// The driver's id of the group snapshot it was made with.
        pub volume_group_snapshot_handle: Option<String>,
    }

    /// How snapshots are made.
    pub struct VolumeSnapshotClass {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// The driver that makes them.
        pub driver: String,
        /// For the driver, and the secrets' templates.
        pub parameters: BTreeMap<String, String>,
        /// What contents of this class are made with.
        pub deletion_policy: DeletionPolicy,
    }
}

impl Projection for VolumeSnapshot {
    const KIND: Kind = kinds::VOLUME_SNAPSHOT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeSnapshot {
    /// The content it is bound to, on its side.
    pub fn bound_content(&self) -> Option<&str> {
        let name = self.status.as_ref()?.bound_volume_snapshot_content_name.as_deref();
        name.filter(|name| !name.is_empty())
    }

    /// Whether volumes can be made from it.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use).unwrap_or_default()
    }
}

impl SnapshotRef {
    /// Namespace and name.
    pub fn key(&self) -> Key {
        Key::namespaced(self.namespace.clone(), self.name.clone())
    }

    /// Whether it names this very object, or one of its name where no uid is known yet.
    pub fn names(&self, meta: &Meta) -> bool {
        self.namespace == meta.namespace && self.name == meta.name && (self.uid.is_empty() || self.uid == meta.uid)
    }
}

impl Projection for VolumeSnapshotContent {
    const KIND: Kind = kinds::VOLUME_SNAPSHOT_CONTENT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeSnapshotContent {
    /// The driver's id of the snapshot, once there is one.
    pub fn snapshot_handle(&self) -> Option<&str> {
        self.status.as_ref()?.snapshot_handle.as_deref().filter(|handle| !handle.is_empty())
    }

    /// Whether volumes can be made from it.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use).unwrap_or_default()
    }
}

impl Projection for VolumeSnapshotClass {
    const KIND: Kind = kinds::VOLUME_SNAPSHOT_CLASS;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeSnapshotClass {
    /// Whether snapshots without a class get this one, as far as its driver fits.
    pub fn is_default(&self) -> bool {
        self.meta.annotation(annotations::DEFAULT_SNAPSHOT_CLASS) == Some("true")
    }
}

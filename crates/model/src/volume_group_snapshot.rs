//! VolumeGroupSnapshot, VolumeGroupSnapshotContent and VolumeGroupSnapshotClass.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::annotations;
use crate::object::{Kind, Meta, Projection, kinds};
use crate::selector::LabelSelector;
use crate::volume_snapshot::{DeletionPolicy, SnapshotError, SnapshotRef};

projection! {
    /// The wish for snapshots of several claims, all of one moment.
    pub struct VolumeGroupSnapshot {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is wanted.
        pub spec: VolumeGroupSnapshotSpec,
        /// What is; set by the snapshot-controller.
        pub status: Option<VolumeGroupSnapshotStatus>,
    }

    /// What is wanted of a group snapshot.
    pub struct VolumeGroupSnapshotSpec {
        /// Where it comes from.
        pub source: VolumeGroupSnapshotSource,
        /// The class; the snapshot-controller fills in the default.
        pub volume_group_snapshot_class_name: Option<String>,
    }

    /// Exactly one of the two.
    pub struct VolumeGroupSnapshotSource {
        /// Claims of the same namespace.
        pub selector: Option<LabelSelector>,
        /// A content that stands for a group snapshot the driver has already.
        pub volume_group_snapshot_content_name: Option<String>,
    }

    /// What is known of a group snapshot.
    pub struct VolumeGroupSnapshotStatus {
        /// The content it is bound to.
        pub bound_volume_group_snapshot_content_name: Option<String>,
        /// The moment whose data it holds.
        pub creation_time: Option<Timestamp>,
        /// Whether volumes can be made from all its members.
        pub ready_to_use: Option<bool>,
        /// What went wrong last.
        pub error: Option<SnapshotError>,
    }

    /// A group snapshot in a driver.
    pub struct VolumeGroupSnapshotContent {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is wanted.
        pub spec: VolumeGroupSnapshotContentSpec,
        /// What is; set by the snapshotter.
        pub status: Option<VolumeGroupSnapshotContentStatus>,
    }

    /// What is wanted of a group content.
    pub struct VolumeGroupSnapshotContentSpec {
        /// The VolumeGroupSnapshot it belongs to; without a uid nobody has checked that yet.
        pub volume_group_snapshot_ref: SnapshotRef,
        /// What happens to the group snapshot in the driver when this object goes.
        pub deletion_policy: DeletionPolicy,
        /// Whose it is.
        pub driver: String,
        /// The class it was made with.
        pub volume_group_snapshot_class_name: Option<String>,
        /// Where it comes from.
        pub source: VolumeGroupSnapshotContentSource,
    }

    /// Exactly one of the two.
    pub struct VolumeGroupSnapshotContentSource {
        /// The volumes of which a group snapshot is made.
        pub volume_handles: Vec<String>,
        /// A group snapshot that the driver has already.
        pub group_snapshot_handles: Option<GroupSnapshotHandles>,
    }

    /// A group snapshot that the driver has already.
    pub struct GroupSnapshotHandles {
        /// The driver's id of the group.
        pub volume_group_snapshot_handle: String,
        /// The driver's ids of its members.
        pub volume_snapshot_handles: Vec<String>,
    }

    /// What is known of a group content.
    pub struct VolumeGroupSnapshotContentStatus {
        /// The driver's id of the group.
        pub volume_group_snapshot_handle: Option<String>,
        /// The moment whose data it holds.
        pub creation_time: Option<Timestamp>,
        /// Whether volumes can be made from all its members.
        pub ready_to_use: Option<bool>,
        /// What went wrong last.
        pub error: Option<SnapshotError>,
        /// Its members.
        pub volume_snapshot_info_list: Vec<VolumeSnapshotInfo>,
    }

    /// One member of a group snapshot.
    pub struct VolumeSnapshotInfo {
        /// The volume.
        pub volume_handle: String,
        /// The driver's id of its snapshot.
        pub snapshot_handle: String,
        /// The moment whose data it holds, in nanoseconds since 1970.
        pub creation_time: Option<i64>,
        /// Whether volumes can be made from it.
        pub ready_to_use: Option<bool>,
        /// The least size of a volume made from it, in bytes.
        pub restore_size: Option<i64>,
    }

    /// How group snapshots are made.
    pub struct VolumeGroupSnapshotClass {
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

impl Projection for VolumeGroupSnapshot {
    const KIND: Kind = kinds::VOLUME_GROUP_SNAPSHOT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeGroupSnapshot {
    /// The content it is bound to, on its side.
    pub fn bound_content(&self) -> Option<&str> {
        let name = self.status.as_ref()?.bound_volume_group_snapshot_content_name.as_deref();
        name.filter(|name| !name.is_empty())
    }

    /// Whether volumes can be made from all its members.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use).unwrap_or_default()
    }
}

impl Projection for VolumeGroupSnapshotContent {
    const KIND: Kind = kinds::VOLUME_GROUP_SNAPSHOT_CONTENT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeGroupSnapshotContent {
    /// The driver's id of the group, once there is one.
    pub fn group_handle(&self) -> Option<&str> {
        self.status.as_ref()?.volume_group_snapshot_handle.as_deref().filter(|handle| !handle.is_empty())
    }

    /// Whether volumes can be made from all its members.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use).unwrap_or_default()
    }
}

impl Projection for VolumeGroupSnapshotClass {
    const KIND: Kind = kinds::VOLUME_GROUP_SNAPSHOT_CLASS;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeGroupSnapshotClass {
    /// Whether group snapshots without a class get this one, as far as its driver fits.
    pub fn is_default(&self) -> bool {
        self.meta.annotation(annotations::DEFAULT_GROUP_SNAPSHOT_CLASS) == Some("true")
    }
}

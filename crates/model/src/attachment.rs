//! VolumeAttachment.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::annotations;
use crate::object::{Kind, Meta, Projection, kinds};
use crate::volume::{CsiSource, VolumeSpec};

projection! {
    /// The wish that a volume be attached to a node.
    pub struct VolumeAttachment {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is wished.
        pub spec: AttachmentSpec,
        /// What came of it.
        pub status: AttachmentStatus,
    }

    /// What is to be attached where.
    pub struct AttachmentSpec {
        /// The driver that attaches.
        pub attacher: String,
        /// The node.
        pub node_name: String,
        /// The volume.
        pub source: AttachmentSource,
    }

    /// The volume to attach: one of the two is set.
    pub struct AttachmentSource {
        /// A persistent volume's name.
        pub persistent_volume_name: Option<String>,
        /// A volume that has no object of its own.
        pub inline_volume_spec: Option<Box<VolumeSpec>>,
    }

    /// What came of the wish.
    pub struct AttachmentStatus {
        /// Whether the volume is attached.
        pub attached: bool,
        /// What the driver tells the node about it.
        pub attachment_metadata: BTreeMap<String, String>,
        /// Why attaching last failed.
        pub attach_error: Option<VolumeError>,
        /// Why detaching last failed.
        pub detach_error: Option<VolumeError>,
    }

    /// A failure of the driver.
    pub struct VolumeError {
        /// What happened.
        pub message: String,
        /// When it happened.
        pub time: Option<Timestamp>,
        /// The gRPC code, if the driver answered with one.
        pub error_code: Option<i32>,
    }
}

impl Projection for VolumeAttachment {
    const KIND: Kind = kinds::VOLUME_ATTACHMENT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl VolumeAttachment {
    /// The persistent volume's name, if it is about one.
    pub fn volume_name(&self) -> Option<&str> {
        self.spec.source.persistent_volume_name.as_deref()
    }

    /// The volume that it describes itself, if it names none.
    pub fn inline_spec(&self) -> Option<&VolumeSpec> {
        self.spec.source.inline_volume_spec.as_deref()
    }

    /// The CSI volume that it describes itself, if it names none.
    pub fn inline_csi(&self) -> Option<&CsiSource> {
        self.inline_spec()?.csi.as_ref()
    }

    /// The driver's id of the node when the volume was attached.
    pub fn node_id(&self) -> Option<&str> {
        self.meta.annotation(annotations::ATTACHMENT_NODE_ID)
    }
}

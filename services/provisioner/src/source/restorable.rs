//! A VolumeSnapshot as far as restoring it is concerned: all of the cluster are cached, so little of each is kept.

use serde::Deserialize;

use stowage_model::finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER;
use stowage_model::object::{Kind, Meta, Projection, kinds};
use stowage_model::quantity::Quantity;
use stowage_model::volume_snapshot::VolumeSnapshot;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "VolumeSnapshot")]
pub struct Restorable {
    /// Without labels, annotations and owners; of the finalizers only ours.
    pub meta: Meta,
    pub is_ready: bool,
    pub bound_to: Option<Box<str>>,
    pub restore_size: Option<Quantity>,
    pub error: Option<Box<str>>,
}

impl From<VolumeSnapshot> for Restorable {
    fn from(snapshot: VolumeSnapshot) -> Self {
        let is_ready = snapshot.is_ready();
        let bound_to = snapshot.bound_content().map(Into::into);
        let status = snapshot.status.unwrap_or_default();
        let mut meta = snapshot.meta;
        meta.finalizers.retain(|finalizer| finalizer == SNAPSHOT_SOURCE_OF_PROVISIONER);
        meta.finalizers.shrink_to_fit();
        (meta.labels, meta.annotations, meta.owner_references) = Default::default();
        Self {
            meta,
            is_ready,
            bound_to,
            restore_size: status.restore_size.and_then(|size| size.parse().ok()),
            error: status.error.and_then(|error| error.message).map(Into::into),
        }
    }
}

impl Projection for Restorable {
    const KIND: Kind = kinds::VOLUME_SNAPSHOT;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

//! What one decision needs, gathered from the caches, the journal and the operations.

use std::sync::Arc;

use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::volume::Volume;
use stowage_runtime::cache::View;
use stowage_runtime::operation::Record;
use stowage_runtime::told::Known;

use crate::facts::Facts;
use crate::intent::Made;
use crate::journal::{Recorded, Trace};
use crate::ownership::Bid;
use crate::requirement::Cluster;

/// A claim, its record, and what came of the calls for it.
#[derive(Debug, Clone)]
pub struct ClaimSnapshot<'a> {
    pub facts: &'a Facts,
    /// The claim with this uid; a namesake is not it.
    pub claim: Option<Arc<Claim>>,
    /// The class the claim names, if it exists.
    pub class: Option<Arc<StorageClass>>,
    /// What has the name the claim's volume gets.
    pub volume: View<Volume>,
    pub recorded: Option<Recorded>,
    pub creation: Option<Record<Made>>,
    /// DeleteVolume of a volume that nobody wants any more.
    pub cleanup: Option<Record<String>>,
    /// A PersistentVolume that has the handle of the volume made, whatever its name.
    pub owner: Option<String>,
    /// Where volumes can be; empty where no place has to be chosen any more.
    pub cluster: Cluster,
    /// Our attempt to become the owner of the claim, in node deployment.
    pub bid: Option<Bid>,
    /// GetCapacity for that attempt: whether the volume has room here.
    pub room: Option<Record<bool>>,
    /// What was said about the claim, so that it is not said again too soon.
    pub told: Known,
}

/// A PersistentVolume and what came of its deletion.
#[derive(Debug, Clone)]
pub struct VolumeSnapshot<'a> {
    pub facts: &'a Facts,
    pub volume: View<Volume>,
    /// Result: the uid of the object whose volume was deleted.
    pub deletion: Option<Record<String>>,
    /// Node of an attachment that still names the volume.
    pub attached_to: Option<String>,
    /// What is left of the record of its making.
    pub trace: Trace,
    pub told: Known,
}

//! Why a volume cannot be filled from the source that its claim names.

use stowage_model::phase::{ClaimPhase, VolumeMode, VolumePhase};
use stowage_model::quantity::Quantity;

use super::Origin;

/// Each names the field, the value and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error(
        "spec.dataSource is {origin}, and driver {driver:?} lacks the capability {capability}; \
         use a class of another driver, or claim an empty volume and copy the data into it"
    )]
    NeedCapability { origin: Origin, driver: String, capability: &'static str },
    #[error(
        "spec.dataSourceRef.namespace is {:?}, and the claim is in {own:?}; start the provisioner with \
         --feature-gates=CrossNamespaceVolumeDataSource=true, or use a source in {own:?}", origin.key.namespace
    )]
    CrossNamespaces { origin: Origin, own: String },
    #[error(
        "spec.dataSourceRef is {origin}, and no ReferenceGrant in namespace {:?} lets claims of namespace {own:?} use it; \
         create one there, or use a source in {own:?}", origin.key.namespace
    )]
    FindGrant { origin: Origin, own: String },
    #[error("spec.dataSource is {origin}, which does not exist; create it, or claim from a source that does")]
    FindClaim { origin: Origin },
    #[error(
        "spec.dataSource is {origin}, which does not exist, or its kind is not served; \
         create it, or install the definitions of the snapshot kinds"
    )]
    FindSnapshot { origin: Origin },
    #[error("spec.dataSource is {origin}, which is being deleted (metadata.deletionTimestamp); use another source")]
    Lasts { origin: Origin },
    #[error(
        "{origin} has no status.boundVolumeSnapshotContentName yet{error}; the claim goes on once it has, \
         and its events say what the snapshot-controller waits for"
    )]
    BindSnapshot { origin: Origin, error: Said },
    #[error(
        "status.readyToUse of {origin} is not true yet{error}; the claim goes on once it is, \
         and its events say what the snapshotter waits for"
    )]
    ReadySnapshot { origin: Origin, error: Said },
    #[error("{origin} or its VolumeSnapshotContent cannot be read: {reason}; let the provisioner get both")]
    ReadContent { origin: Origin, reason: String },
    #[error(
        "status.boundVolumeSnapshotContentName of {origin} is {content:?}, which does not exist; \
         take another snapshot, or import this one again with a VolumeSnapshotContent of that name"
    )]
    FindContent { origin: Origin, content: String },
    #[error(
        "spec.volumeSnapshotRef of VolumeSnapshotContent {content:?} is {named} and not {origin} with its uid; \
         use the snapshot that it names, or correct the reference"
    )]
    MatchContent { origin: Origin, content: String, named: String },
    #[error("{origin} is of driver {found:?} ({what}), and the claim's class of {driver:?}; use a class of the first")]
    MatchDriver { origin: Origin, what: String, found: String, driver: String },
    #[error(
        "VolumeSnapshotContent {content:?} of {origin} has no status.snapshotHandle; \
         wait for the snapshotter, or see its log"
    )]
    FindHandle { origin: Origin, content: String },
    #[error(
        "spec.resources.requests.storage is {requested}, and {field} of {origin} is {least}; ask for at least {least}"
    )]
    FitData { origin: Origin, requested: Quantity, field: &'static str, least: Quantity },
    #[error(
        "spec.volumeMode is {wanted}, and spec.sourceVolumeMode of VolumeSnapshotContent {content:?} is {found}; \
         ask for {found}, or have an administrator annotate the content with \
         snapshot.storage.kubernetes.io/allow-volume-mode-change=true"
    )]
    ConvertMode { content: String, wanted: VolumeMode, found: String },
    #[error("spec.volumeMode is {wanted}, and that of {origin} is {found}; ask for {found}")]
    MatchMode { origin: Origin, wanted: VolumeMode, found: VolumeMode },
    #[error("status.phase of {origin} is {phase}; the claim goes on once it is Bound, see its events")]
    BindClaim { origin: Origin, phase: ClaimPhase },
    #[error("{origin} has no spec.storageClassName; only volumes of a class can be cloned")]
    HaveClass { origin: Origin },
    #[error(
        "spec.volumeName of {origin} is {volume:?}, which does not exist; restore that volume, or use another source"
    )]
    FindVolume { origin: Origin, volume: String },
    #[error(
        "spec.claimRef of PersistentVolume {volume:?} is not {origin} with its uid, though that names it; \
         use the claim that the volume belongs to"
    )]
    MatchVolume { origin: Origin, volume: String },
    #[error("status.phase of PersistentVolume {volume:?} of {origin} is {phase}; the claim goes on once it is Bound")]
    BindVolume { origin: Origin, volume: String, phase: VolumePhase },
    #[error(
        "the data of {origin} is on {place}, and annotation volume.kubernetes.io/selected-node of the claim is {node:?}; \
         let its pod be placed where the data is, for example by a nodeSelector"
    )]
    Reach { origin: Origin, place: String, node: String },
}

/// The last error that a status tells, as a part of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said(pub Option<String>);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(error) => write!(f, " (status.error.message: {error})"),
            None => Ok(()),
        }
    }
}

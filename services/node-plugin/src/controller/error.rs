use tonic::{Code, Status};

use crate::driver::refusal;
use crate::{capability, parameters, pool, size, tuning};

/// Why a call of the Controller, GroupController or SnapshotMetadata service is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing")]
    ReadField { field: &'static str },
    #[error("name {name:?} is not allowed: {reason}")]
    ReadName { name: String, reason: &'static str },
    #[error("this driver has no attachments: its volumes are used on the node that has them; do not call {rpc}")]
    OfferAttach { rpc: &'static str },
    #[error(transparent)]
    ReadCapability(capability::Error),
    #[error(transparent)]
    ReadParameters(parameters::Error),
    #[error(transparent)]
    ReadTuning(tuning::Error),
    #[error("parameter pool is missing; choose one of: {known}")]
    ChoosePool { known: String },
    #[error("parameter pool {pool:?} is unknown; choose one of: {known}")]
    FindPool { pool: String, known: String },
    #[error(transparent)]
    ReadSize(size::Error),
    #[error("another call for {volume} is in progress; try again")]
    Lock { volume: String },
    #[error("{volume} of this name exists with {has}, asked for is {wanted}; delete it or use another name")]
    MatchExisting { volume: String, has: String, wanted: String },
    #[error(
        "pool {pool:?} can promise {free} more bytes, {wanted} are asked for; delete volumes, add space or raise --overcommit"
    )]
    PromiseSpace { pool: String, free: u64, wanted: u64 },
    #[error(
        "accessibility_requirements leave out {key}={node}, and this driver makes volumes nowhere else; ask the driver on another node"
    )]
    ReachTopology { key: String, node: String },
    #[error("the source {handle} is on another node, not on {node}; create the volume there")]
    ReachSource { handle: String, node: String },
    #[error("{field} {handle:?} does not exist")]
    FindSource { field: &'static str, handle: String },
    #[error("the source {handle} has {has}, asked for is {wanted}; ask for the same")]
    MatchSource { handle: String, has: String, wanted: String },
    #[error("volume_id {volume:?} does not exist")]
    FindVolume { volume: String },
    #[error("snapshot_id {snapshot:?} does not exist")]
    FindSnapshot { snapshot: String },
    #[error("group_snapshot_id {group:?} does not exist")]
    FindGroup { group: String },
    #[error("node_id {node:?} is not known to pool {pool:?}; the driver has not run on that node")]
    FindNode { node: String, pool: String },
    #[error("node {node} has {count} volumes, as many as --max-volumes-per-node allows; detach one first")]
    CountVolumes { node: String, count: i64 },
    #[error("volume {volume} was not made completely; repeat CreateVolume")]
    FindImage { volume: String },
    #[error("volume {volume} is attached to node {node} {access}; detach it before attaching it differently")]
    MatchAttachment { volume: String, node: String, access: &'static str },
    #[error("volume {volume} is attached to node {node}; detach it there first")]
    Attached { volume: String, node: String },
    #[error("volume {volume} is in use on this machine by {device}; unstage it first")]
    InUse { volume: String, device: String },
    #[error("volume {volume} has backend=directory, which has no {what}; use backend=image")]
    NeedImage { volume: String, what: &'static str },
    #[error(
        "volume {volume} is mounted, and pool {pool:?} cannot share blocks (reflink): stop its pods, set parameter freezeForCopy=true to keep it from being written while it is copied, or move it to a pool on xfs or btrfs"
    )]
    CopyMounted { volume: String, pool: String },
    #[error("the file system of volume {volume} is still being made; stage it until that succeeds, then copy it")]
    CopyUnfinished { volume: String },
    /// Not a final answer: another node is at it, and will have done.
    #[error("volume {volume} was growing whenever it was copied; repeat the call")]
    CopyMoving { volume: String },
    #[error("the growth of volume {volume} was cut short; stage it until that succeeds, then copy it")]
    CopyGrowing { volume: String },
    #[error(
        "block volume {volume} is in use, and pool {pool:?} cannot share blocks (reflink): stop its pods, or move it to a pool on xfs or btrfs"
    )]
    CopyDevice { volume: String, pool: String },
    #[error(
        "volume {volume} is attached to node {node}, and pool {pool:?} cannot share blocks (reflink): detach it first, or move it to a pool on xfs or btrfs"
    )]
    CopyElsewhere { volume: String, node: String, pool: String },
    #[error(
        "volume {volume} is in use, and a copy with thin=false has blocks of its own: take a snapshot and make the volume from that, stop its pods, or set parameter freezeForCopy=true if it is mounted on this node"
    )]
    CopyThick { volume: String },
    #[error("volume {volume} cannot be cut together with others: {reason}; stop its pods or take its snapshot alone")]
    CutTogether { volume: String, reason: &'static str },
    #[error(
        "a volume is being made from snapshot {snapshot}, or its blocks are being listed; delete it when that is done"
    )]
    ReadSnapshot { snapshot: String },
    #[error("snapshot {snapshot} belongs to group {group}; call DeleteVolumeGroupSnapshot")]
    Belong { snapshot: String, group: String },
    #[error("snapshot_ids of group {group} are {has:?}, given are {given:?}; give exactly those")]
    MatchMembers { group: String, has: Vec<String>, given: Vec<String> },
    #[error(
        "snapshots {base} and {target} are of different volumes or the target is smaller; compare snapshots of one volume"
    )]
    Compare { base: String, target: String },
    #[error("starting_offset {offset} is not within the snapshot's {size} bytes")]
    ReadOffset { offset: i64, size: u64 },
    #[error("max_results {value} is negative; use 0 to leave it to the driver")]
    ReadResults { value: i32 },
    #[error("starting_token {token:?} is not one of ours; list again from the start")]
    ReadPageToken { token: String },
    #[error("max_entries {value} is negative; use 0 for all")]
    ReadPageSize { value: i32 },
    #[error(
        "volume {volume} cannot be tuned so: {source}; its pool or kernel does not allow it, leave that parameter out"
    )]
    ApplyTuning { volume: String, source: stowage_mount::Error },
    #[error(
        "volume {volume}: {source}; to remove what pods own the driver needs the capabilities DAC_OVERRIDE and FOWNER"
    )]
    RemoveForeign { volume: String, source: stowage_mount::Error },
    #[error(transparent)]
    UsePool(#[from] pool::Error),
    /// The change stopped half-way and could not be undone: not a final answer.
    #[error("making {volume} was interrupted ({cause}) and could not be undone ({source}); repeat the call")]
    Undo { volume: String, cause: Box<Error>, source: Box<pool::Error> },
}

impl Error {
    /// The same error if what had been begun was undone; else one that is not final.
    pub fn once_undone(self, volume: String, undone: Result<(), pool::Error>) -> Self {
        match undone {
            Ok(()) => self,
            Err(source) => Error::Undo { volume, cause: Box::new(self), source: Box::new(source) },
        }
    }

    pub fn code(&self) -> Code {
        match self {
            Error::ReadField { .. }
            | Error::ReadName { .. }
            | Error::ReadCapability(_)
            | Error::ReadParameters(_)
            | Error::ReadTuning(_)
            | Error::ChoosePool { .. }
            | Error::FindPool { .. }
            | Error::MatchSource { .. }
            | Error::NeedImage { .. }
            | Error::Belong { .. }
            | Error::MatchMembers { .. }
            | Error::Compare { .. }
            | Error::ReadResults { .. }
            | Error::ReadPageSize { .. } => Code::InvalidArgument,
            Error::ReadSize(size::Error::OutOfRange { .. }) | Error::ReadOffset { .. } => Code::OutOfRange,
            Error::ReadSize(_) => Code::InvalidArgument,
            Error::OfferAttach { .. } => Code::Unimplemented,
            Error::Lock { .. } | Error::ReadPageToken { .. } => Code::Aborted,
            Error::MatchExisting { .. } | Error::MatchAttachment { .. } => Code::AlreadyExists,
            // For topology: CSI's "cannot be made where it was asked for", which makes the scheduler choose again.
            Error::PromiseSpace { .. }
            | Error::ReachTopology { .. }
            | Error::ReachSource { .. }
            | Error::CountVolumes { .. } => Code::ResourceExhausted,
            Error::FindSource { .. }
            | Error::FindVolume { .. }
            | Error::FindSnapshot { .. }
            | Error::FindGroup { .. }
            | Error::FindNode { .. } => Code::NotFound,
            Error::FindImage { .. }
            | Error::Attached { .. }
            | Error::InUse { .. }
            | Error::ReadSnapshot { .. }
            | Error::CopyMounted { .. }
            | Error::CopyUnfinished { .. }
            | Error::CopyGrowing { .. }
            | Error::CopyDevice { .. }
            | Error::CopyElsewhere { .. }
            | Error::CopyThick { .. }
            | Error::CutTogether { .. } => Code::FailedPrecondition,
            Error::ApplyTuning { source, .. } if source.is_unsupported() => Code::InvalidArgument,
            Error::UsePool(error) => error.code(),
            Error::ApplyTuning { .. } | Error::RemoveForeign { .. } | Error::CopyMoving { .. } | Error::Undo { .. } => {
                Code::Unavailable
            }
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        refusal(error.code(), error)
    }
}

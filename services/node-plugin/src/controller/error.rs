use tonic::{Code, Status};

use crate::{capability, parameters, pool, size};

/// Why a Controller call is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing")]
    ReadField { field: &'static str },
    #[error("name {name:?} is not allowed: {reason}")]
    ReadName { name: String, reason: &'static str },
    #[error("{field} is not supported; {way_out}")]
    Support { field: &'static str, way_out: &'static str },
    #[error(transparent)]
    ReadCapability(capability::Error),
    #[error(transparent)]
    ReadParameters(parameters::Error),
    #[error("parameter pool is missing; choose one of: {known}")]
    ChoosePool { known: String },
    #[error("parameter pool {pool:?} is unknown; choose one of: {known}")]
    FindPool { pool: String, known: String },
    #[error(transparent)]
    ReadSize(size::Error),
    #[error("another call for volume {volume} is in progress; try again")]
    Lock { volume: String },
    #[error("volume {volume} of this name exists with {has}, asked for is {wanted}; delete it or use another name")]
    MatchExisting { volume: String, has: String, wanted: String },
    #[error(
        "pool {pool:?} can promise {free} more bytes, {wanted} are asked for; delete volumes, add space or raise --overcommit"
    )]
    PromiseSpace { pool: String, free: u64, wanted: u64 },
    #[error("volume_id {volume:?} does not exist")]
    FindVolume { volume: String },
    #[error("node_id {node:?} is not known to pool {pool:?}; the driver has not run on that node")]
    FindNode { node: String, pool: String },
    #[error("volume {volume} was not made completely; repeat CreateVolume")]
    FindImage { volume: String },
    #[error("volume {volume} is attached to node {node}; detach it there first")]
    Attached { volume: String, node: String },
    #[error("volume {volume} is in use on this machine by {device}; unstage it first")]
    InUse { volume: String, device: String },
    #[error("starting_token {token:?} is not one of ours; list again from the start")]
    ReadPageToken { token: String },
    #[error("max_entries {value} is negative; use 0 for all")]
    ReadPageSize { value: i32 },
    #[error(transparent)]
    UsePool(#[from] pool::Error),
    /// The change stopped half-way and could not be undone: not a final answer.
    #[error("making volume {volume} was interrupted ({cause}) and could not be undone ({source}); repeat the call")]
    Undo { volume: String, cause: Box<pool::Error>, source: Box<pool::Error> },
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Error::ReadField { .. }
            | Error::ReadName { .. }
            | Error::Support { .. }
            | Error::ReadCapability(_)
            | Error::ReadParameters(_)
            | Error::ChoosePool { .. }
            | Error::FindPool { .. }
            | Error::ReadPageSize { .. } => Code::InvalidArgument,
            Error::ReadSize(size::Error::OutOfRange { .. }) => Code::OutOfRange,
            Error::ReadSize(_) => Code::InvalidArgument,
            Error::Lock { .. } | Error::ReadPageToken { .. } => Code::Aborted,
            Error::MatchExisting { .. } => Code::AlreadyExists,
            Error::PromiseSpace { .. } => Code::ResourceExhausted,
            Error::FindVolume { .. } | Error::FindNode { .. } => Code::NotFound,
            Error::FindImage { .. } | Error::Attached { .. } | Error::InUse { .. } => Code::FailedPrecondition,
            Error::UsePool(error) => error.code(),
            Error::Undo { .. } => Code::Unavailable,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Status::new(error.code(), error.to_string())
    }
}

use tonic::{Code, Status};

use crate::driver::refusal;
use crate::nfs::parameters;

/// Why a call of the Controller service is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing")]
    ReadField { field: &'static str },
    #[error("name {name:?} is not allowed: {reason}")]
    ReadName { name: String, reason: &'static str },
    #[error("volume_capabilities ask for a block device; a share has only file systems, use volume mode Filesystem")]
    ServeBlock,
    #[error(transparent)]
    ReadParameters(#[from] parameters::Error),
    #[error("another call for {volume} is in progress; try again")]
    Lock { volume: String },
    #[error("{field} {handle:?} does not exist")]
    Find { field: &'static str, handle: String },
    #[error("{place} is there and not a directory; remove it or use another subDir")]
    UsePlace { place: String },
    #[error(
        "{place} cannot be archived: {archived} is there from an earlier volume; move it away or set --remove-archived-volume-path"
    )]
    KeepArchived { place: String, archived: String },
    #[error("snapshot {name} exists with {found:?}, asked for is {wanted:?}; delete it or use another name")]
    MatchExisting { name: String, found: String, wanted: String },
    #[error("{place} holds {found:?}, which is no archive of this snapshot; it is left as it is, look at it by hand")]
    RemoveForeign { place: String, found: String },
    #[error(
        "{place} is no archive that can be read, and not one that was only begun, so it is left as it is; look at it by hand, \
         or use another name: {source}"
    )]
    ReadArchive { place: String, source: stowage_mount::Error },
    #[error("cannot reach {export}: {source}")]
    Mount { export: String, source: stowage_mount::Error },
    #[error(transparent)]
    ChangeShare(#[from] stowage_mount::Error),
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Error::ReadField { .. } | Error::ReadName { .. } | Error::ServeBlock | Error::ReadParameters(_) => {
                Code::InvalidArgument
            }
            Error::Lock { .. } => Code::Aborted,
            Error::Find { .. } => Code::NotFound,
            Error::MatchExisting { .. } => Code::AlreadyExists,
            Error::UsePlace { .. }
            | Error::KeepArchived { .. }
            | Error::RemoveForeign { .. }
            | Error::ReadArchive { .. } => Code::FailedPrecondition,
            Error::Mount { source, .. } if source.is_denied() => Code::PermissionDenied,
            Error::Mount { source, .. } if source.is_bad_option() => Code::InvalidArgument,
            Error::Mount { source, .. } | Error::ChangeShare(source) => match source {
                source if source.is_out_of_space() => Code::ResourceExhausted,
                // None is a final answer: nobody knows what was done, or it may be possible at the next call.
                source if source.is_uncertain() || source.is_busy() || source.is_stale() => Code::Unavailable,
                _ => Code::Internal,
            },
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        refusal(error.code(), error)
    }
}

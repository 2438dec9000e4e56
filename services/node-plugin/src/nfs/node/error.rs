use std::path::PathBuf;

use tonic::{Code, Status};

use crate::driver::refusal;
use crate::nfs::parameters;

/// Why a Node call is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing")]
    ReadField { field: &'static str },
    #[error("{field} {value:?} is not allowed: {reason}")]
    ReadPath { field: &'static str, value: String, reason: &'static str },
    #[error("{field} leads to {path}, which is not below {roots}; use a path there or add --target-root")]
    LeaveRoots { field: &'static str, path: PathBuf, roots: String },
    #[error("volume_capability asks for a block device; a share has only file systems, use volume mode Filesystem")]
    ServeBlock,
    /// Without its value, which may be a secret.
    #[error("a mount option is not allowed: it must be one word without spaces or control characters")]
    ReadOption,
    #[error("volume_context: {0}")]
    ReadContext(#[from] parameters::Error),
    #[error("another call for volume {volume} is in progress; try again")]
    Lock { volume: String },
    #[error("volume {volume} is not mounted at {path}")]
    FindMount { volume: String, path: PathBuf },
    #[error("{path} is the mount point of something that is no share; unmount it first")]
    UsePath { path: PathBuf },
    #[error("volume {volume} is published at {path} {access}; unpublish it before publishing it differently")]
    MatchPublishing { volume: String, path: PathBuf, access: &'static str },
    #[error(transparent)]
    ChangeHost(#[from] stowage_mount::Error),
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Error::ReadField { .. }
            | Error::ReadPath { .. }
            | Error::LeaveRoots { .. }
            | Error::ServeBlock
            | Error::ReadOption
            | Error::ReadContext(_) => Code::InvalidArgument,
            Error::Lock { .. } => Code::Aborted,
            Error::FindMount { .. } => Code::NotFound,
            Error::UsePath { .. } => Code::FailedPrecondition,
            Error::MatchPublishing { .. } => Code::AlreadyExists,
            Error::ChangeHost(error) if error.is_denied() => Code::PermissionDenied,
            Error::ChangeHost(error) if error.is_bad_option() => Code::InvalidArgument,
            // None is a final answer: what is in use or on the move now may be free or in place at the next call.
            Error::ChangeHost(error) if error.is_busy() || error.is_uncertain() || error.is_moved() => {
                Code::Unavailable
            }
            Error::ChangeHost(_) => Code::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        refusal(error.code(), error)
    }
}

use std::path::PathBuf;

use stowage_mount::Content;
use tonic::{Code, Status};

use crate::driver::refusal;
use crate::{capability, controller, parameters, pool, size, token};

/// Why a Node call is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing")]
    ReadField { field: &'static str },
    #[error("{field} {value:?} is not allowed: {reason}")]
    ReadPath { field: &'static str, value: String, reason: &'static str },
    #[error("{field} leads to {path}, which is not below {roots}; use a path there or add --target-root")]
    LeaveRoots { field: &'static str, path: PathBuf, roots: String },
    #[error(transparent)]
    ReadCapability(capability::Error),
    /// Well said, and more than this volume can do.
    #[error(transparent)]
    ServeCapability(capability::Error),
    #[error(transparent)]
    ServeFileSystem(parameters::Error),
    #[error(transparent)]
    ReadSize(size::Error),
    #[error("volume_context {key:?} is {value:?}; give a size such as 1Gi")]
    ReadInlineSize { key: &'static str, value: String },
    #[error("an inline volume is a file system; leave the block access type out")]
    InlineBlock,
    #[error("another call for volume {volume} is in progress; try again")]
    Lock { volume: String },
    #[error("volume_id {volume:?} does not exist")]
    FindVolume { volume: String },
    #[error("volume {volume} is not mounted at {path}")]
    FindMount { volume: String, path: PathBuf },
    #[error("volume {volume} has no data in its pool; repeat CreateVolume")]
    FindData { volume: String },
    #[error("volume {volume}: {source}")]
    CheckToken { volume: String, source: token::Error },
    /// Only the name: the value may be a secret.
    #[error("volume {volume} is staged without mount flag {flag:?}; publish it with the flags it was staged with")]
    ServeFlags { volume: String, flag: String },
    #[error("volume {volume} is open on this machine by {device}, which another node made; unstage it there first")]
    TakeImage { volume: String, device: String },
    /// Without the flags, which may hold secrets.
    #[error("volume {volume} is staged at {path}, or with other mount flags; unstage it before staging it differently")]
    MatchStaging { volume: String, path: PathBuf },
    #[error("staging_target_path is missing; stage the volume first")]
    ReadStagingPath,
    #[error("volume {volume} is not staged at {path} under the current token; call NodeStageVolume")]
    FindStaging { volume: String, path: PathBuf },
    #[error("{path} is already the mount point of {mounted}; unmount it first")]
    UsePath { path: PathBuf, mounted: String },
    #[error("volume {volume} is published at {path} {access}; unpublish it before publishing it differently")]
    MatchPublishing { volume: String, path: PathBuf, access: &'static str },
    #[error("volume {volume} has a single writer and is published at {path}; unpublish it there first")]
    ShareWriter { volume: String, path: PathBuf },
    #[error("volume {volume} is still published at {path}; unpublish it there first")]
    StillPublished { volume: String, path: PathBuf },
    /// Not a final answer: what is written there still reaches the image.
    #[error(
        "volume {volume} is still mounted or open somewhere else, as {device}; end what uses it there and repeat the call"
    )]
    StillOpen { volume: String, device: PathBuf },
    #[error("volume {volume} should hold {wanted} but holds {found}; it is left as it is, look at it by hand")]
    TrustContent { volume: String, wanted: String, found: Content },
    #[error("volume {volume} has {has} bytes, asked for are {wanted}; call ControllerExpandVolume first")]
    ExpandFirst { volume: String, has: u64, wanted: String },
    #[error("volume {volume} is mounted read-only, so its file system cannot grow; mount it writable")]
    GrowReadOnly { volume: String },
    #[error(
        "growing the mounted file system of volume {volume} needs the capability SYS_RESOURCE: stop all its pods on this node, then start its pod again, and it grows before it is mounted; or give the driver the capability"
    )]
    GrowMounted { volume: String },
    #[error(
        "growing the mounted file system of volume {volume} needs the capability SYS_RESOURCE: give it to the driver; to stop its pods does not help, since unmounted it cannot grow to its size: {reason}"
    )]
    GrowNever { volume: String, reason: &'static str },
    /// Whoever asked for the copy was told that it is as large as its device.
    #[error("volume {volume} was made from a smaller one, and its file system cannot grow to its size: {source}")]
    GrowCopy { volume: String, source: stowage_mount::Error },
    #[error(
        "pool {pool:?} can promise {free} more bytes, and the growth of volume {volume} takes {wanted} while it is planned; delete volumes or add space"
    )]
    PlanBesidePromises { volume: String, pool: String, free: u64, wanted: u64 },
    /// Somebody else was at it: not a final answer.
    #[error(
        "the plan by which volume {volume} was to grow is gone or of another state of its file system; repeat the call"
    )]
    LosePlan { volume: String },
    #[error("inline volume {volume}: {source}")]
    KeepInline { volume: String, source: Box<controller::Error> },
    #[error(transparent)]
    UsePool(#[from] pool::Error),
    #[error(transparent)]
    ChangeHost(#[from] stowage_mount::Error),
    /// The change stopped half-way and could not be undone: not a final answer.
    #[error("{cause}; undoing it failed too ({source}), repeat the call")]
    Undo { cause: Box<Error>, source: Box<Error> },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Error::ReadField { .. }
            | Error::ReadPath { .. }
            | Error::LeaveRoots { .. }
            | Error::ReadCapability(_)
            | Error::ReadInlineSize { .. }
            | Error::InlineBlock => Code::InvalidArgument,
            Error::ReadSize(_) | Error::ExpandFirst { .. } => Code::OutOfRange,
            Error::Lock { .. } => Code::Aborted,
            Error::FindVolume { .. } | Error::FindMount { .. } => Code::NotFound,
            Error::MatchStaging { .. } | Error::MatchPublishing { .. } => Code::AlreadyExists,
            Error::ServeCapability(_)
            | Error::ServeFileSystem(_)
            | Error::FindData { .. }
            | Error::ServeFlags { .. }
            | Error::CheckToken { .. }
            | Error::TakeImage { .. }
            | Error::ReadStagingPath
            | Error::FindStaging { .. }
            | Error::UsePath { .. }
            | Error::ShareWriter { .. }
            | Error::StillPublished { .. }
            | Error::GrowReadOnly { .. }
            | Error::GrowMounted { .. }
            | Error::GrowNever { .. }
            | Error::GrowCopy { source: stowage_mount::Error::GrowUnmounted { .. }, .. }
            | Error::TrustContent { .. } => Code::FailedPrecondition,
            Error::KeepInline { source, .. } => source.code(),
            Error::UsePool(error) => error.code(),
            Error::ChangeHost(stowage_mount::Error::GrowWithoutRight { .. }) => Code::FailedPrecondition,
            Error::PlanBesidePromises { .. } => Code::ResourceExhausted,
            Error::ChangeHost(error) | Error::GrowCopy { source: error, .. } if error.is_out_of_space() => {
                Code::ResourceExhausted
            }
            // None is a final answer: what is in use or on the move now may be free or in place at the next call.
            Error::ChangeHost(error) | Error::GrowCopy { source: error, .. }
                if error.is_busy() || error.is_uncertain() || error.is_moved() =>
            {
                Code::Unavailable
            }
            Error::ChangeHost(_) | Error::GrowCopy { .. } => Code::Internal,
            Error::StillOpen { .. } | Error::LosePlan { .. } | Error::Undo { .. } => Code::Unavailable,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        refusal(error.code(), error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use stowage_mount::Error as Cause;

    use super::*;

    #[test]
    fn a_growth_before_the_mount_is_refused_for_good_only_where_repeating_the_call_is_of_no_use() {
        let system = |code| Cause::AccessFile {
            action: "plan a growth at",
            path: "KEY.growing".into(),
            source: io::Error::from_raw_os_error(code),
        };
        let tool = "fsck.ext4";
        for (source, code) in [
            (Cause::GrowUnmounted { device: "loop0".into(), reason: "no room" }, Code::FailedPrecondition),
            (system(nix::libc::ENOSPC), Code::ResourceExhausted),
            (system(nix::libc::EDQUOT), Code::ResourceExhausted),
            (system(nix::libc::EIO), Code::Internal),
            (system(nix::libc::EBUSY), Code::Unavailable),
            (Cause::FindInUse { tool, device: "loop0".into() }, Code::Unavailable),
            (Cause::Stopped { at: 1 }, Code::Unavailable),
            (Cause::Moved { path: "stage".into() }, Code::Unavailable),
            (
                Cause::FinishTool {
                    tool,
                    device: "loop0".into(),
                    status: ExitStatus::from_raw(4 << 8),
                    output: String::new(),
                },
                Code::Internal,
            ),
        ] {
            let said = source.to_string();
            let refusal = Error::GrowCopy { volume: "v".into(), source };
            assert_eq!(refusal.code(), code, "{said}");
            assert!(refusal.to_string().ends_with(&said));
        }
        assert_eq!(Error::LosePlan { volume: "v".into() }.code(), Code::Unavailable);
        for mounted in
            [Error::GrowMounted { volume: "v".into() }, Error::GrowNever { volume: "v".into(), reason: "no room" }]
        {
            assert_eq!(mounted.code(), Code::FailedPrecondition, "{mounted}");
        }
    }
}

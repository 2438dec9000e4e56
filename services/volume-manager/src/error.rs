//! What can go wrong while carrying out an action.

use stowage_runtime::api;
use stowage_runtime::engine::{Retry, Retryable};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("node: {source}")]
    WriteNode { source: api::Error },
    #[error("CSINode: {source}")]
    WriteCsiNode { source: api::Error },
    #[error("pod: {source}")]
    WritePod { source: api::Error },
    #[error("remove the directories of pod {uid}: {source}")]
    RemovePodDir { uid: String, source: stowage_mount::Error },
    #[error("the lease has expired, so no driver may be called")]
    CallDriver,
}

impl Retryable for Error {
    fn retry(&self) -> Retry {
        match self {
            Self::WriteNode { source } | Self::WriteCsiNode { source } | Self::WritePod { source } => source.retry(),
            Self::RemovePodDir { .. } => Retry::Later,
            Self::CallDriver => Retry::Stop,
        }
    }
}

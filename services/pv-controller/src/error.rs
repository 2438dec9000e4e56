use stowage_runtime::api;
use stowage_runtime::engine::{Retry, Retryable};

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("write: {0}")]
    Write(#[source] api::Error),
    #[error("read before an irreversible step: {0}")]
    Read(#[source] api::Error),
    #[error("the world changed before the step could be taken: {0}")]
    Stale(&'static str),
    #[error("pod {pod} has no template for ephemeral volume {volume:?}")]
    FindTemplate { pod: String, volume: String },
    #[error("the class is kept: {user}, which may use it, cannot be read: {source}")]
    ReadUser { user: String, source: serde_json::Error },
    #[error("the claim is kept: pod {pod}, which may use it, cannot be read")]
    ReadPod { pod: String },
    #[error("a look at the pods comes first")]
    Looking,
    #[error("the write was given up because the service stops")]
    Stopped,
}

impl Error {
    /// Whether people must hear of it: nobody failed where somebody else was only faster.
    pub fn must_be_told(&self) -> bool {
        match self {
            Self::Write(error) | Self::Read(error) => error.must_be_told(),
            Self::Stale(_) | Self::Looking | Self::Stopped => false,
            Self::FindTemplate { .. } | Self::ReadUser { .. } | Self::ReadPod { .. } => true,
        }
    }
}

impl Retryable for Error {
    fn retry(&self) -> Retry {
        match self {
            Self::Write(error) | Self::Read(error) => error.retry(),
            Self::Stale(_) => Retry::Now,
            Self::Looking => Retry::Wait,
            Self::FindTemplate { .. } | Self::ReadUser { .. } | Self::ReadPod { .. } | Self::Stopped => Retry::Later,
        }
    }
}

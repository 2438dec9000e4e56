use stowage_runtime::api;
use stowage_runtime::engine::{Retry, Retryable};

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("write: {0}")]
    Write(#[source] api::Error),
    #[error("bind the pod: {0}")]
    Bind(#[source] api::Error),
    #[error("read: {0}")]
    Read(#[source] api::Error),
    #[error("the world changed before the step could be taken: {0}")]
    Stale(&'static str),
}

impl Error {
    /// Whether the step may have been done all the same.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Write(error) | Self::Bind(error) | Self::Read(error) => error.is_unanswered(),
            Self::Stale(_) => false,
        }
    }
}

impl Retryable for Error {
    fn retry(&self) -> Retry {
        match self {
            Self::Write(error) | Self::Bind(error) | Self::Read(error) => error.retry(),
            Self::Stale(_) => Retry::Now,
        }
    }
}

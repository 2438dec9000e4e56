use stowage_runtime::api;
use stowage_runtime::engine::{Retry, Retryable};

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("write the attachment: {0}")]
    WriteAttachment(#[source] api::Error),
    #[error("write the volume: {0}")]
    WriteVolume(#[source] api::Error),
    #[error("read before a step that cannot be taken back: {0}")]
    Read(#[source] api::Error),
    #[error("the world changed before the step could be taken: {0}")]
    Stale(&'static str),
    #[error("our lease has not been renewed in time, and without it the driver is not called")]
    Deposed,
}

impl Retryable for Error {
    fn retry(&self) -> Retry {
        match self {
            Self::WriteAttachment(error) | Self::WriteVolume(error) | Self::Read(error) => error.retry(),
            Self::Stale(_) => Retry::Now,
            Self::Deposed => Retry::Stop,
        }
    }
}

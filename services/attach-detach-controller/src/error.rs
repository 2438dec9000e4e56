use std::sync::Arc;

use stowage_runtime::api;
use stowage_runtime::engine::{Retry, Retryable};

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("create the attachment: {0}")]
    CreateAttachment(#[source] api::Error),
    #[error("delete the attachment: {0}")]
    DeleteAttachment(#[source] api::Error),
    /// One write carries the wishes of many volumes, so its failure has many owners.
    #[error("write volumesAttached: {0}")]
    ReportAttached(#[source] Arc<api::Error>),
    #[error("read before a step: {0}")]
    Read(#[source] api::Error),
    #[error("the world changed before the step could be taken: {0}")]
    Stale(&'static str),
    #[error("our lease has not been renewed in time, and without it nothing is attached or detached")]
    Deposed,
}

impl Retryable for Error {
    fn retry(&self) -> Retry {
        match self {
            Self::CreateAttachment(error) | Self::DeleteAttachment(error) | Self::Read(error) => error.retry(),
            Self::ReportAttached(error) => error.retry(),
            Self::Stale(_) => Retry::Now,
            Self::Deposed => Retry::Stop,
        }
    }
}

//! What can go wrong while an action is carried out, and what it means for the next step.

use stowage_csi::{connect, identity};
use stowage_runtime::api;
use stowage_runtime::engine::{Retry, Retryable};

use crate::journal;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use --csi-address {address:?}: {source}")]
    Connect { address: String, source: connect::Error },
    #[error(
        "the driver at {address} does not answer as it should: {source}; check that it runs and that --csi-address \
         names its socket"
    )]
    AskDriver { address: String, source: identity::Error },
    #[error("read claim: {source}")]
    GetClaim { source: api::Error },
    #[error("read volume: {source}")]
    GetVolume { source: api::Error },
    #[error("create volume: {source}")]
    CreateVolume { source: api::Error },
    #[error("delete volume: {source}")]
    DeleteVolume { source: api::Error },
    #[error("change finalizers: {source}")]
    PatchFinalizers { source: api::Error },
    #[error("choose the node of a claim: {source}")]
    SelectNode { source: api::Error },
    #[error(transparent)]
    Journal { source: journal::Error },
    #[error("{what} has changed since the decision")]
    Decide { what: &'static str },
    #[error("our lease has not been renewed in time, and without it nothing is done")]
    Lead,
}

impl Retryable for Error {
    fn retry(&self) -> Retry {
        match self {
            Self::GetClaim { source }
            | Self::GetVolume { source }
            | Self::CreateVolume { source }
            | Self::DeleteVolume { source }
            | Self::SelectNode { source }
            | Self::PatchFinalizers { source } => source.retry(),
            Self::Journal { source: journal::Error::Deposed { .. } } | Self::Lead => Retry::Stop,
            Self::Journal { .. } | Self::Connect { .. } | Self::AskDriver { .. } => Retry::Later,
            Self::Decide { .. } => Retry::Now,
        }
    }
}

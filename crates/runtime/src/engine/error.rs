//! Why an action was not carried out, and what that means for the next step.

use std::sync::Arc;

use crate::api;

/// What a failed action means for the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The view was stale; it is fresh now.
    Now,
    /// Try again with backoff.
    Later,
    /// Not a failure: something was begun that wakes the key when it ends.
    Wait,
    /// The service cannot go on, for example because its lease has expired.
    Stop,
}

/// Why an action was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A write failed, or its answer did not come.
    #[error("cannot {what}: {source}")]
    Write {
        /// What was to be done, as in "create the attachment".
        what: &'static str,
        /// What the server or the way to it said; shared, because one write may carry the wishes of many.
        source: Arc<api::Error>,
    },
    /// The fresh read before a step failed.
    #[error("cannot read {what}: {source}")]
    Read {
        /// What was to be read.
        what: &'static str,
        /// What the server or the way to it said.
        source: Arc<api::Error>,
    },
    /// The world changed between the decision and the step.
    #[error("{0} has changed since the decision")]
    Stale(&'static str),
    /// Something has been begun whose end wakes the key.
    #[error("{0} comes first")]
    Begun(&'static str),
    /// Our lease may not hold any more.
    #[error("our lease has not been renewed in time, and without it nothing is done")]
    Deposed,
    /// The service cannot go on.
    #[error("{reason}")]
    Ended {
        /// What is wrong, and the way out.
        reason: String,
    },
    /// Anything else; tried again with backoff.
    #[error("{0}")]
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// A failed write, as in `.map_err(Error::write("create the attachment"))`.
    pub fn write(what: &'static str) -> impl FnOnce(api::Error) -> Self {
        move |source| Self::Write { what, source: Arc::new(source) }
    }

    /// A failed read, as in `.map_err(Error::read("the attachment"))`.
    pub fn read(what: &'static str) -> impl FnOnce(api::Error) -> Self {
        move |source| Self::Read { what, source: Arc::new(source) }
    }

    /// A failure of another kind.
    pub fn other(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(source))
    }

    /// Whether and when to try again.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Write { source, .. } | Self::Read { source, .. } if source.is_stale() => Retry::Now,
            Self::Stale(_) => Retry::Now,
            Self::Write { .. } | Self::Read { .. } | Self::Other(_) => Retry::Later,
            Self::Begun(_) => Retry::Wait,
            Self::Deposed | Self::Ended { .. } => Retry::Stop,
        }
    }

    /// Of several that failed the heaviest says what happens next.
    pub(super) fn weight(&self) -> u8 {
        match self.retry() {
            Retry::Wait => 0,
            Retry::Now => 1,
            Retry::Later => 2,
            Retry::Stop => 3,
        }
    }

    /// What the API server, or the way to it, said.
    pub fn answer(&self) -> Option<&api::Error> {
        match self {
            Self::Write { source, .. } | Self::Read { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the step may have been done all the same.
    pub fn is_uncertain(&self) -> bool {
        self.answer().is_some_and(api::Error::is_unanswered)
    }

    /// Whether people must hear of it: nobody failed where somebody else was only faster.
    pub fn must_be_told(&self) -> bool {
        match self {
            Self::Write { source, .. } | Self::Read { source, .. } => source.must_be_told(),
            Self::Stale(_) | Self::Begun(_) | Self::Deposed | Self::Ended { .. } => false,
            Self::Other(_) => true,
        }
    }
}

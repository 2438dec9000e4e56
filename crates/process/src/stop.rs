//! Why a service ends.

use std::time::Duration;

use crate::tasks::Panicked;

/// Why a service's `run` ended before anybody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// We do not lead any more, and another replica may. Only services that speak to the API lead.
    #[error("stopped leading by lease {lease}: {reason}")]
    LeaseLost {
        /// Name of the Lease.
        lease: String,
        /// Taken by another, or not renewed in time.
        reason: Lost,
    },
    /// Asked to stop, but not everything that was begun has ended.
    #[error("stopped while {what} were under way: the lease is not given back and runs out by itself")]
    Undrained {
        /// What was under way.
        what: &'static str,
    },
    /// A part that must live died.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// The service cannot do its work as configured.
    #[error("{reason}")]
    Unable {
        /// What is wrong and the way out.
        reason: String,
    },
}

/// Why a term of leading ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Somebody else holds the lease.
    #[error("the lease is held by {holder:?} now")]
    Taken {
        /// Their identity; our own if another process uses it too.
        holder: String,
    },
    /// No renewal succeeded in time.
    #[error("the lease was not renewed within {0:?}")]
    Expired(Duration),
    /// We gave it up ourselves.
    #[error("the lease was given up")]
    Ended,
}

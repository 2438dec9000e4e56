//! The right to remove files.

use std::io;
use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

/// The right to remove files, asked for before each: it ends with the lease, with the service and when somebody takes the
/// volume back, and what is in the directory then may be a new tenant's.
#[derive(Clone)]
pub struct Permit(Arc<dyn Fn() -> bool + Send + Sync>);

/// Nothing failed: the right has ended, if only for the moment.
#[derive(Debug, thiserror::Error)]
#[error("this process may not remove files any more")]
struct CalledOff;

pub(crate) fn is_called_off(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<CalledOff>())
}

impl Permit {
    /// While that holds.
    pub fn new(lasts: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(lasts))
    }

    /// For as long as anybody waits: for tests.
    #[cfg(test)]
    pub fn always() -> Self {
        Self::new(|| true)
    }

    /// Whether files may be removed now.
    pub fn lasts(&self) -> bool {
        (self.0)()
    }

    /// The same right, while that holds too.
    pub fn as_long_as(&self, holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let outer = self.clone();
        Self::new(move || outer.lasts() && holds())
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        if self.lasts() { Ok(()) } else { Err(io::Error::other(CalledOff)) }
    }

    /// The same right, until the guard is dropped.
    pub(crate) fn while_waited_for(&self) -> (Self, DropGuard) {
        let (given_up, outer) = (CancellationToken::new(), self.clone());
        let guard = given_up.clone().drop_guard();
        (Self::new(move || !given_up.is_cancelled() && outer.lasts()), guard)
    }
}

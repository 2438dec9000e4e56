//! Long work on a blocking thread, for as long as somebody waits for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::{Error, Result};

/// How far a long piece of work has come; clones look at the same work.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// The files and directories that are done.
    pub fn done(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts more of them; for whoever does the work.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Shared {
    gone: AtomicBool,
    lock: Mutex<()>,
    left: Condvar,
}

/// Held by the one who waits; work that looks at its [`Waiting`] ends when this is dropped.
pub(crate) struct Waiter(Arc<Shared>);

#[derive(Clone)]
pub(crate) struct Waiting(Arc<Shared>);

impl Waiter {
    pub(crate) fn new() -> (Waiter, Waiting) {
        let shared = Arc::<Shared>::default();
        (Waiter(shared.clone()), Waiting(shared))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _lock = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.gone.store(true, Ordering::Relaxed);
        self.0.left.notify_all();
    }
}

impl Waiting {
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.gone.load(Ordering::Relaxed) {
            true => Err(Error::FinishCall { reason: "nobody waits for it any more".into() }),
            false => Ok(()),
        }
    }

    /// Lets some time pass, unless the one who waits goes.
    pub(crate) fn rest(&self, time: Duration) -> Result<()> {
        let lock = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let stays = |_: &mut ()| !self.0.gone.load(Ordering::Relaxed);
        let rested = self.0.left.wait_timeout_while(lock, time, stays);
        drop(rested);
        self.check()
    }
}

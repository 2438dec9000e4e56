//! One stretch of leading: how long it is still good, and that it ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Error, Lost, Shared, Timing};
use crate::clock::Clock;

/// A lease that cannot be given back by then runs out by itself; who stops us does not wait for long.
const LONGEST_RELEASE: Duration = Duration::from_secs(10);

/// How long after the lease has run out a leader that still believes in it is called sick.
const TOLERANCE: Duration = Duration::from_secs(20);

/// The facts of a term, shared by everyone who must know them.
pub(super) struct Term {
    clock: Arc<dyn Clock>,
    timing: Timing,
    /// Boot time, in nanoseconds, at which the last successful renewal was *sent*: others cannot have seen it earlier.
    renewed: AtomicU64,
    lost: watch::Sender<Option<Lost>>,
}

impl Term {
    pub(super) fn new(clock: Arc<dyn Clock>, timing: Timing, since: Duration) -> Self {
        let term = Self { clock, timing, renewed: AtomicU64::new(0), lost: watch::Sender::new(None) };
        term.renewed_at(since);
        term
    }

    pub(super) fn renewed_at(&self, sent: Duration) {
        // 64 bits of nanoseconds are more than 500 years of uptime.
        self.renewed.store(u64::try_from(sent.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    pub(super) fn age(&self) -> Duration {
        let renewed = Duration::from_nanos(self.renewed.load(Ordering::Acquire));
        self.clock.boottime().saturating_sub(renewed)
    }

    pub(super) fn remaining(&self) -> Duration {
        if self.is_lost() { Duration::ZERO } else { self.timing.renew_deadline().saturating_sub(self.age()) }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Ends the term for good; the first reason stays.
    pub(super) fn lose(&self, reason: Lost) -> bool {
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(reason);
            first
        })
    }
}

/// The right to act, while it lasts; clones are the same right. Renewed in the background until the last clone goes.
#[derive(Clone)]
pub struct Leadership(Arc<Held>);

struct Held {
    term: Arc<Term>,
    shared: Arc<Shared>,
    /// Of the Lease, for events about it.
    uid: String,
    renewal: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.term.lose(Lost::Ended);
        self.shared.leading(false);
    }
}

impl Leadership {
    pub(super) fn new(term: Arc<Term>, shared: Arc<Shared>, uid: String, renewal: AbortOnDropHandle<()>) -> Self {
        shared.leading(true);
        Self(Arc::new(Held { term, shared, uid, renewal: Mutex::new(Some(renewal)) }))
    }

    /// Whether we still lead, by a clock that counts suspended time: check it before every driver call.
    pub fn valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long we lead for certain if no renewal succeeds from now on.
    pub fn remaining(&self) -> Duration {
        self.0.term.remaining()
    }

    /// Name of the Lease.
    pub fn name(&self) -> &str {
        &self.0.shared.options.name
    }

    /// Resolves when the lease is lost or given up, with the reason.
    pub async fn lost(&self) -> Lost {
        let mut changes = self.0.term.lost.subscribe();
        let reason = changes.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone());
        // The sender lives in self.term, so the channel cannot close while we wait.
        reason.unwrap_or(Lost::Ended)
    }

    /// Ends the term when the service stops: gives the lease back if the options say so, else lets it run out.
    ///
    /// Call it after the last driver call has ended.
    pub async fn end(self) -> Result<(), Error> {
        if self.0.shared.options.release_on_exit {
            self.release().await?;
        } else {
            self.stop().await;
        }
        // Where the lease could not be given back nobody would hear this either.
        self.0.shared.tell_end(&self.0.uid).await;
        Ok(())
    }

    /// Ends the term of a service that failed or may still be at it, or that has lost the lease: it runs out by itself.
    pub async fn abandon(self) {
        self.stop().await;
        self.0.shared.tell_end(&self.0.uid).await;
    }

    /// Gives the lease back so that another candidate takes over at once.
    async fn release(&self) -> Result<(), Error> {
        // Nobody may act on the lease from here on, whether or not the release arrives.
        if !self.stop().await {
            return Ok(());
        }
        let limit = self.0.shared.options.timing.renew_deadline().min(LONGEST_RELEASE);
        match tokio::time::timeout(limit, self.0.shared.release()).await {
            Ok(result) => result,
            Err(_) => Err(Error::Answer { name: self.name().to_owned(), limit }),
        }
    }

    /// Ends renewals and the term; true if it had not been lost before.
    async fn stop(&self) -> bool {
        let ours = self.0.term.lose(Lost::Ended);
        let renewal = self.0.renewal.lock().expect("no code panics while holding the handle").take();
        if let Some(renewal) = renewal {
            renewal.abort();
            // An aborted task answers with an error, which is what was asked for.
            let _ = renewal.await;
        }
        self.0.shared.leading(false);
        ours
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership").field("name", &self.name()).field("remaining", &self.remaining()).finish()
    }
}

/// The answer of `/healthz/leader-election`; clones watch the same election.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Option<Arc<Term>>>>);

impl Health {
    pub(super) fn lead(&self, term: &Arc<Term>) {
        *self.0.lock().expect("no code panics while holding the term") = Some(Arc::clone(term));
    }

    /// Healthy while not leading; sick when leading long after the lease must have run out.
    pub fn check(&self) -> Result<(), String> {
        let term = self.0.lock().expect("no code panics while holding the term").clone();
        match term {
            Some(term) if !term.is_lost() && term.age() > term.timing.lease_duration() + TOLERANCE => {
                Err(format!("leading without a renewal for {:?}", term.age()))
            }
            _ => Ok(()),
        }
    }
}

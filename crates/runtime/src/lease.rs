//! Leader election by a Lease, compatible with client-go's.
//!
//! A candidate takes a Lease that is absent, released, or unchanged for its duration *as seen by the candidate
//! itself*, so clocks need not agree. A leader counts from the moment a renewal was sent, by a clock that goes on
//! while suspended, and stops at the renew deadline, well before others may take over. Unlike client-go a follower
//! watches the Lease, so a released one is taken at once and a held one costs no requests.
//!
//! Who begins to lead and who ends is told in events of the Lease.
//!
//! Somebody who deletes a held Lease by hand can make two leaders for a moment: a candidate that never saw it cannot
//! know of its holder. Those that did see it wait.

mod follow;
mod options;
mod record;
mod remote;
mod renew;
mod term;
#[cfg(test)]
mod tests;
mod told;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::follow::Seen;
use self::options::JITTER;
pub use self::options::{Options, Timing, TimingError, sanitize};
use self::record::Record;
pub use self::remote::Error;
use self::renew::renew;
use self::term::Term;
pub use self::term::{Health, Leadership};
use crate::clock::Clock;
use crate::metrics::{Metrics, NameLabel};
use crate::random::Random;
pub use stowage_process::stop::Lost;

/// A candidate for one Lease.
#[derive(Clone)]
pub struct Election(Arc<Shared>);

/// What acquiring and renewing both need.
struct Shared {
    client: Client,
    clock: Arc<dyn Clock>,
    random: Random,
    options: Options,
    health: Health,
    metrics: Metrics,
}

/// Outcome of one try to take the Lease.
enum Attempt {
    Won { record: Record, sent: Duration },
    Held,
    Raced,
}

impl Election {
    /// A candidate; use a client without a rate limit so that work cannot starve renewals.
    pub fn new(client: Client, clock: Arc<dyn Clock>, random: Random, metrics: Metrics, options: Options) -> Self {
        Self(Arc::new(Shared { client, clock, random, options, health: Health::default(), metrics }))
    }

    /// The state behind `/healthz/leader-election`.
    pub fn health(&self) -> Health {
        self.0.health.clone()
    }

    /// Waits until this candidate leads. Errors are logged and tried again; drop the future to give up.
    pub async fn acquire(&self) -> Leadership {
        let shared = &self.0;
        let timing = shared.options.timing;
        let mut seen = None;
        shared.leading(false);
        loop {
            let attempt = match timeout(timing.renew_deadline(), shared.attempt(&mut seen)).await {
                Ok(attempt) => attempt,
                Err(_) => Err(shared.unanswered(timing.renew_deadline())),
            };
            match attempt {
                Ok(Attempt::Won { record, sent }) => return self.lead(record, sent),
                Ok(Attempt::Held) => shared.follow(&mut seen).await,
                // Somebody wrote at the same moment; look again, out of step with the others.
                Ok(Attempt::Raced) => sleep(shared.random.jitter(timing.retry_period() / 10, JITTER)).await,
                Err(error) => {
                    tracing::warn!(lease = %shared.options.name, error = %chain(&error), "cannot try for the lease");
                    sleep(shared.random.jitter(timing.retry_period(), JITTER)).await;
                }
            }
        }
    }

    fn lead(&self, record: Record, sent: Duration) -> Leadership {
        let shared = Arc::clone(&self.0);
        tracing::info!(lease = %shared.options.name, identity = %shared.options.identity, "became leader");
        let term = Arc::new(Term::new(Arc::clone(&shared.clock), shared.options.timing, sent));
        shared.health.lead(&term);
        let uid = record.uid().to_owned();
        let renewal = tokio::spawn({
            let (shared, term) = (Arc::clone(&shared), Arc::clone(&term));
            async move {
                let lease = record.clone();
                tokio::join!(renew(Arc::clone(&shared), term, record), shared.tell_beginning(&lease));
            }
        });
        Leadership::new(term, shared, uid, AbortOnDropHandle::new(renewal))
    }
}

impl Shared {
    fn leading(&self, leading: bool) {
        let label = NameLabel { name: self.options.name.clone() };
        self.metrics.leader_election_master_status.get_or_create_owned(&label).set(i64::from(leading));
    }

    async fn attempt(&self, seen: &mut Option<Seen>) -> Result<Attempt, Error> {
        let live = self.get().await?;
        self.observe(seen, live.as_ref());
        // Also when it was deleted under a holder that may be alive: its own time has to pass first.
        if let Some(seen) = seen.as_ref().filter(|seen| !self.is_free(seen))
            && !self.left(seen).is_zero()
        {
            return Ok(Attempt::Held);
        }
        let Options { namespace, name, identity, timing, labels, .. } = &self.options;
        let base = live.clone().unwrap_or_else(|| Record::new(namespace, name));
        let taken = base.taken(identity, timing.lease_duration(), labels, self.clock.now());
        let sent = self.clock.boottime();
        let answer = match live {
            Some(_) => self.put("take", &taken).await?,
            None => self.create(&taken).await?,
        };
        Ok(answer.map_or(Attempt::Raced, |record| Attempt::Won { record, sent }))
    }
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

//! The leader's side: renewing until the term is lost, and giving the Lease back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::record::Record;
use super::term::Term;
use super::{Error, Lost, Shared, chain};
use crate::metrics::NameLabel;

/// Renews until the term is lost.
pub(super) async fn renew(shared: Arc<Shared>, term: Arc<Term>, mut record: Record) {
    let timing = shared.options.timing;
    let reason = loop {
        sleep(timing.retry_period().saturating_sub(term.age()).min(term.remaining())).await;
        match shared.renew_once(&term, &mut record).await {
            Ok(()) => {}
            Err(reason) => break reason,
        }
    };
    if term.lose(reason.clone()) {
        tracing::error!(lease = %shared.options.name, %reason, "stopped leading");
    }
    shared.leading(false);
}

impl Shared {
    /// One renewal, tried again until the renew deadline.
    async fn renew_once(&self, term: &Term, record: &mut Record) -> Result<(), Lost> {
        loop {
            let left = term.remaining();
            if left.is_zero() {
                return Err(Lost::Expired(self.options.timing.renew_deadline()));
            }
            // Before it is sent, not when it is answered: others count from the moment they see it, which may be earlier.
            let sent = self.clock.boottime();
            // Half of what is left, so that a lost answer leaves room for another try.
            let error = match timeout(left / 2, self.write_renewal(record)).await {
                Ok(Ok(renewed)) => {
                    *record = renewed?;
                    term.renewed_at(sent);
                    return Ok(());
                }
                Ok(Err(error)) => error,
                Err(_) => self.unanswered(left / 2),
            };
            tracing::warn!(lease = %self.options.name, error = %chain(&error), "cannot renew the lease");
            sleep(self.random.jitter(term.remaining() / 8, 1.0).max(Duration::from_millis(50))).await;
        }
    }

    /// Writes onto the answer to our last write; reads first only if somebody else has written meanwhile.
    async fn write_renewal(&self, last: &Record) -> Result<Result<Record, Lost>, Error> {
        if let Some(record) = self.put("renew", &last.renewed(self.clock.now())).await? {
            return Ok(Ok(record));
        }
        self.metrics.leader_election_slowpath.get_or_create_owned(&NameLabel { name: self.options.name.clone() }).inc();
        let Some(live) = self.get().await? else {
            // Deleted, and our time is not over: put it back before another candidate finds it absent.
            let record = last.renewed(self.clock.now()).recreated();
            return match self.create(&record).await? {
                Some(record) => Ok(Ok(record)),
                None => self.holder_of_live(last).await,
            };
        };
        if !live.same_term(last) {
            return Ok(Err(Lost::Taken { holder: live.holder().unwrap_or("nobody").to_owned() }));
        }
        match self.put("renew", &live.renewed(self.clock.now())).await? {
            Some(record) => Ok(Ok(record)),
            None => self.holder_of_live(last).await,
        }
    }

    /// After a race: lost to another holder, or an error that is tried again.
    async fn holder_of_live(&self, last: &Record) -> Result<Result<Record, Lost>, Error> {
        match self.get().await? {
            Some(live) if !live.same_term(last) => {
                Ok(Err(Lost::Taken { holder: live.holder().unwrap_or("nobody").to_owned() }))
            }
            _ => Err(Error::Race { name: self.options.name.clone() }),
        }
    }

    /// Gives the Lease back; a server that only has no time now is asked again.
    pub(super) async fn release(&self) -> Result<(), Error> {
        loop {
            let ended = self.give_back().await;
            match ended.as_ref().err().and_then(Error::retry_after) {
                Some(wait) => sleep(wait.min(self.options.timing.retry_period())).await,
                None => return ended,
            }
        }
    }

    async fn give_back(&self) -> Result<(), Error> {
        match self.get().await? {
            Some(live) if live.holder() == Some(&self.options.identity) => {
                self.put("release", &live.released(self.clock.now())).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

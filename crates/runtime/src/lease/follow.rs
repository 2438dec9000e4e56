//! The follower's side: watching the holder until its Lease is free or has run out.

use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::options::JITTER;
use super::record::Record;
use super::{Error, Shared, chain};

/// What a follower knows of the current holder.
pub(super) struct Seen {
    record: Record,
    /// Boot time at which the spec was last seen to change.
    since: Duration,
    /// Read as absent since then.
    gone: bool,
}

impl Shared {
    /// Waits until the Lease is worth another try.
    pub(super) async fn follow(&self, seen: &mut Option<Seen>) {
        let Some(current) = seen.as_mut() else { return };
        let holder = current.record.holder().unwrap_or_default();
        tracing::debug!(lease = %self.options.name, holder, "following");
        let opened = self.clock.boottime();
        let watching = timeout(self.left(current), self.watch(current.record.resource_version())).await;
        let error = match watching {
            Ok(Ok(events)) => match self.follow_events(events, current).await {
                Ok(()) => return,
                Err(ended) => ended,
            },
            Ok(Err(error)) => Some(error),
            Err(_) => return,
        };
        if let Some(error) = error {
            tracing::debug!(lease = %self.options.name, error = %chain(&error), "cannot watch the lease, reading it");
        }
        // A server that ends watches at once, or a role without watch, gets client-go's rhythm.
        let pause = self.random.jitter(self.options.timing.retry_period(), JITTER);
        sleep(pause.saturating_sub(self.clock.boottime().saturating_sub(opened)).min(self.left(current))).await;
    }

    /// Ends well when the Lease is free or has run out, else with why the watch ended.
    async fn follow_events(
        &self,
        events: impl Stream<Item = kube::Result<WatchEvent<Value>>>,
        seen: &mut Seen,
    ) -> Result<(), Option<Error>> {
        let mut events = std::pin::pin!(events);
        loop {
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                () = sleep(self.left(seen)) => return Ok(()),
            };
            match event {
                Some(Ok(WatchEvent::Added(value) | WatchEvent::Modified(value))) => {
                    self.see(seen, Record(value));
                    if self.is_free(seen) {
                        return Ok(());
                    }
                }
                // A live holder puts it back; otherwise its time runs out.
                Some(Ok(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(status))) => {
                    return Err(Some(self.failed("watch", kube::Error::Api(status))));
                }
                None => return Err(None),
                Some(Err(error)) => return Err(Some(self.failed("watch", error))),
            }
        }
    }

    /// Takes note of a fresh read.
    pub(super) fn observe(&self, seen: &mut Option<Seen>, live: Option<&Record>) {
        let since = self.clock.boottime();
        match (seen, live) {
            (Some(seen), Some(record)) => self.see(seen, record.clone()),
            (seen @ None, Some(record)) => *seen = Some(Seen { record: record.clone(), since, gone: false }),
            // Deleted under its holder, who may have renewed until that moment.
            (Some(seen), None) if !seen.gone => (seen.since, seen.gone) = (since, true),
            (_, None) => {}
        }
    }

    fn see(&self, seen: &mut Seen, record: Record) {
        if seen.gone || seen.record.spec() != record.spec() {
            seen.since = self.clock.boottime();
        }
        (seen.record, seen.gone) = (record, false);
    }

    /// Released, or held by an earlier process of our own name.
    pub(super) fn is_free(&self, seen: &Seen) -> bool {
        seen.record.holder().is_none_or(|holder| holder == self.options.identity)
    }

    /// How long the holder's time still runs, as far as we saw.
    pub(super) fn left(&self, seen: &Seen) -> Duration {
        let duration = seen.record.duration().unwrap_or_else(|| self.options.timing.lease_duration());
        (seen.since + duration).saturating_sub(self.clock.boottime())
    }
}

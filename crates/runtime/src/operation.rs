//! Driver calls as operations: they run beside the decisions and their record is part of the snapshot (rule 3).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::tasks::Spawner;

/// How a driver call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended<R> {
    /// It was done.
    Done(R),
    /// It certainly was not done.
    Failed(Failure),
    /// It may have been done, or may still be running in the driver.
    Uncertain(Failure),
}

impl<R> Ended<R> {
    /// The same with another result.
    pub fn map<S>(self, f: impl FnOnce(R) -> S) -> Ended<S> {
        match self {
            Self::Done(result) => Ended::Done(f(result)),
            Self::Failed(failure) => Ended::Failed(failure),
            Self::Uncertain(failure) => Ended::Uncertain(failure),
        }
    }
}

/// What the driver, or the way to it, said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The gRPC code's name, for example `ResourceExhausted`.
    pub code: String,
    /// The driver's sentence.
    pub message: String,
}

/// Where an operation stands.
#[derive(Debug, Clone, PartialEq)]
pub enum State<R> {
    /// The call is under way.
    Running,
    /// It ended well.
    Done(R),
    /// It ended and was not done.
    Failed(Failure),
    /// It ended and nobody knows.
    Uncertain(Failure),
}

/// The record of one operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<R> {
    /// Where it stands.
    pub state: State<R>,
    /// Since when it stands there.
    pub since: Timestamp,
    /// Calls that did not end well, in a row.
    pub failures: u32,
    /// Not to be tried again before this moment.
    pub retry_at: Timestamp,
}

impl<R> Record<R> {
    /// Whether the call is under way.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// What the call gave, if it ended well.
    pub fn done(&self) -> Option<&R> {
        match &self.state {
            State::Done(result) => Some(result),
            _ => None,
        }
    }

    /// Whether another call may start now.
    pub fn may_start(&self, now: Timestamp) -> bool {
        !matches!(self.state, State::Running) && self.retry_at <= now
    }
}

type OnEnd<K> = Box<dyn Fn(&K) + Send + Sync>;

/// The operations under way, whatever they are about. Clones count together.
#[derive(Clone)]
pub struct Running(Arc<watch::Sender<usize>>);

impl Default for Running {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Running {
    fn enter(&self) -> Entered {
        self.0.send_modify(|running| *running += 1);
        Entered(self.clone())
    }

    /// Resolves when none is under way.
    pub async fn none(&self) {
        // The sender lives in self, so the wait cannot fail.
        drop(self.0.subscribe().wait_for(|running| *running == 0).await);
    }
}

struct Entered(Running);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.send_modify(|running| *running -= 1);
    }
}

struct Inner<K, R> {
    running: Running,
    records: Mutex<BTreeMap<K, Record<R>>>,
    on_end: OnEnd<K>,
    clock: Arc<dyn Clock>,
    backoff: Backoff,
}

/// The operations of one service, one at a time per key.
pub struct Operations<K, R> {
    inner: Arc<Inner<K, R>>,
    spawner: Spawner,
}

impl<K, R> Clone for Operations<K, R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), spawner: self.spawner.clone() }
    }
}

impl<K, R> Operations<K, R>
where
    K: Ord + Clone + Debug + Send + Sync + 'static,
    R: Clone + Send + 'static,
{
    /// No operations yet; `on_end` is called with the key whenever one ends.
    pub fn new(
        spawner: Spawner,
        clock: Arc<dyn Clock>,
        backoff: Backoff,
        on_end: impl Fn(&K) + Send + Sync + 'static,
    ) -> Self {
        Self::counted(Running::default(), spawner, clock, backoff, on_end)
    }

    /// The same, counted together with others.
    pub fn counted(
        running: Running,
        spawner: Spawner,
        clock: Arc<dyn Clock>,
        backoff: Backoff,
        on_end: impl Fn(&K) + Send + Sync + 'static,
    ) -> Self {
        let records = Mutex::new(BTreeMap::new());
        let inner = Inner { running, records, on_end: Box::new(on_end), clock, backoff };
        Self { inner: Arc::new(inner), spawner }
    }

    /// What is known about the key's operation.
    pub fn record(&self, key: &K) -> Option<Record<R>> {
        self.lock().get(key).cloned()
    }

    /// Starts a call and returns at once; refuses while one is running for the key.
    pub fn start(&self, key: K, call: impl Future<Output = Ended<R>> + Send + 'static) -> bool {
        {
            let mut records = self.lock();
            let failures = match records.get(&key) {
                Some(Record { state: State::Running, .. }) => return false,
                Some(record) => record.failures,
                None => 0,
            };
            let now = self.inner.clock.now();
            records.insert(key.clone(), Record { state: State::Running, since: now, failures, retry_at: now });
        }
        let operations = self.clone();
        let under_way = self.inner.running.enter();
        self.spawner.spawn(async move {
            let _under_way = under_way;
            let ended = call.await;
            operations.end(&key, ended);
            (operations.inner.on_end)(&key);
        });
        true
    }

    fn end(&self, key: &K, ended: Ended<R>) {
        let now = self.inner.clock.now();
        let mut records = self.lock();
        let failures = records.get(key).map_or(0, |record| record.failures);
        let (state, failures) = match ended {
            Ended::Done(result) => (State::Done(result), 0),
            Ended::Failed(failure) => (State::Failed(failure), failures.saturating_add(1)),
            Ended::Uncertain(failure) => (State::Uncertain(failure), failures.saturating_add(1)),
        };
        let delay = SignedDuration::try_from(self.inner.backoff.delay(failures)).unwrap_or(SignedDuration::MAX);
        let retry_at = now.checked_add(delay).unwrap_or(Timestamp::MAX);
        records.insert(key.clone(), Record { state, since: now, failures, retry_at });
    }

    /// Drops the record of an ended operation; a running one stays.
    pub fn forget(&self, key: &K) {
        let mut records = self.lock();
        if records.get(key).is_some_and(|record| !matches!(record.state, State::Running)) {
            records.remove(key);
        }
    }

    /// Forgets those of which it holds, unless they are under way.
    pub fn forget_where(&self, holds: impl Fn(&K) -> bool) {
        self.lock().retain(|key, record| record.is_running() || !holds(key));
    }

    /// The records from `first` on for as long as their keys belong together, in key order.
    pub fn records_from(&self, first: &K, belongs: impl Fn(&K) -> bool) -> Vec<(K, Record<R>)> {
        let records = self.lock();
        let together = records.range(first..).take_while(|(key, _)| belongs(key));
        together.map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    /// Keys with a record.
    pub fn keys(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Record<R>>> {
        self.inner.records.lock().expect("no code panics while holding the records")
    }
}

#[cfg(test)]
mod tests;

//! Turns of driver calls: as many of one sort at a time as there are workers. Who waits for one is counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use stowage_runtime::clock::Clock;

#[derive(Clone)]
pub struct Turns(Arc<Inner>);

struct Inner {
    free: Arc<Semaphore>,
    line: Mutex<Line>,
    clock: Arc<dyn Clock>,
}

/// Who waits, in the order in which they came, and since when.
#[derive(Default)]
struct Line {
    came: u64,
    since: BTreeMap<u64, Duration>,
}

/// What the line looks like to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Calls that wait for their turn.
    pub depth: usize,
    /// How long the first of them has waited.
    pub age: Duration,
}

/// A place in the line, left when it is dropped: with a turn, or because the wait was given up.
struct Place<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.turns.line().since.remove(&self.number);
    }
}

impl Turns {
    pub fn new(calls: usize, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { free: Arc::new(Semaphore::new(calls)), line: Mutex::default(), clock }))
    }

    /// Waits for a turn, to be kept for as long as the call lasts.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let _place = self.stand();
        // None only of a semaphore that was closed, which nobody does.
        Arc::clone(&self.0.free).acquire_owned().await.ok()
    }

    fn stand(&self) -> Place<'_> {
        let now = self.0.clock.boottime();
        let mut line = self.line();
        line.came += 1;
        let number = line.came;
        line.since.insert(number, now);
        Place { turns: self, number }
    }

    pub fn backlog(&self) -> Backlog {
        let now = self.0.clock.boottime();
        let line = self.line();
        let first = line.since.first_key_value();
        Backlog { depth: line.since.len(), age: first.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(*since)) }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.line.lock().expect("no code panics while holding the line")
    }

    pub fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + 'static {
        let inner = Arc::downgrade(&self.0);
        move || inner.upgrade().map(Self)
    }
}

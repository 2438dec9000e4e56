//! Turns of driver calls: as many of one sort at a time as there are workers. Who waits for one is counted, and may be
//! sent away: the claim has something more urgent to ask for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use stowage_runtime::clock::Clock;

use crate::calls::Operation;

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
    places: BTreeMap<Operation, (u64, Arc<Notify>)>,
}

impl Line {
    fn leave(&mut self, operation: &Operation) -> Option<Arc<Notify>> {
        let (number, sent_away) = self.places.remove(operation)?;
        self.since.remove(&number);
        Some(sent_away)
    }
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
    operation: Operation,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.turns.line().leave(&self.operation);
    }
}

impl Turns {
    pub fn new(calls: usize, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { free: Arc::new(Semaphore::new(calls)), line: Mutex::default(), clock }))
    }

    /// Waits for a turn, to be kept for as long as the call lasts; none for who was sent away.
    pub async fn take(&self, operation: Operation) -> Option<OwnedSemaphorePermit> {
        let (_place, sent_away) = self.stand(operation);
        tokio::select! {
            biased;
            () = sent_away.notified() => None,
            // None only of a semaphore that was closed, which nobody does.
            turn = Arc::clone(&self.0.free).acquire_owned() => turn.ok(),
        }
    }

    fn stand(&self, operation: Operation) -> (Place<'_>, Arc<Notify>) {
        let now = self.0.clock.boottime();
        let mut line = self.line();
        line.came += 1;
        let (number, sent_away) = (line.came, Arc::new(Notify::new()));
        line.since.insert(number, now);
        line.places.insert(operation.clone(), (number, Arc::clone(&sent_away)));
        (Place { turns: self, operation }, sent_away)
    }

    pub fn is_in_line(&self, operation: &Operation) -> bool {
        self.line().places.contains_key(operation)
    }

    /// Ends the wait, if there is one: whoever has a turn keeps it.
    pub fn send_away(&self, operation: &Operation) {
        if let Some(waiting) = self.line().leave(operation) {
            waiting.notify_one();
        }
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

//! A keyed work queue: one entry per key, delays, per-key backoff, and never two workers on one key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::Backoff;

/// A clonable handle to one queue.
pub struct Queue<K>(Arc<Inner<K>>);

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: Backoff,
}

struct State<K> {
    ready: VecDeque<K>,
    queued: BTreeSet<K>,
    running: BTreeSet<K>,
    /// Added again while running: to be run once more when done.
    dirty: BTreeSet<K>,
    delayed: BTreeSet<(Instant, K)>,
    due: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
    added: u64,
}

impl<K: Ord + Clone + Debug> Queue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: BTreeSet::new(),
                running: BTreeSet::new(),
                dirty: BTreeSet::new(),
                delayed: BTreeSet::new(),
                due: BTreeMap::new(),
                failures: BTreeMap::new(),
                added: 0,
            }),
            changed: Notify::new(),
            backoff,
        }))
    }

    /// Asks for the key to be worked on as soon as possible.
    pub fn add(&self, key: K) {
        let mut state = self.lock();
        state.added += 1;
        if state.enqueue(key) {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Asks for the key to be worked on after a delay; an earlier wish stands.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay;
        let mut state = self.lock();
        match state.due.get(&key) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => {
                let entry = (*later, key.clone());
                state.delayed.remove(&entry);
            }
            None => {}
        }
        state.due.insert(key.clone(), at);
        state.delayed.insert((at, key));
        drop(state);
        self.0.changed.notify_one();
    }

    /// The next key to work on; it stays reserved until [`Queue::done`]. Cancel safe.
    pub async fn next(&self) -> K {
        loop {
            let wake = {
                let mut state = self.lock();
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.running.insert(key.clone());
                    return key;
                }
                state.delayed.first().map(|(at, _)| *at)
            };
            match wake {
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = self.0.changed.notified() => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => self.0.changed.notified().await,
            }
        }
    }

    /// Ends the work on a key; it runs again at once if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut state = self.lock();
        state.running.remove(key);
        if state.dirty.remove(key) {
            state.enqueue(key.clone());
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Counts a failure and asks for the key again after its backoff, which is returned.
    pub fn retry(&self, key: &K) -> Duration {
        let failures = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            *failures = failures.saturating_add(1);
            *failures
        };
        let delay = self.0.backoff.delay(failures);
        self.add_after(key.clone(), delay);
        delay
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// Keys waiting, delayed and running.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.ready.len() + state.delayed.len() + state.running.len()
    }

    /// Whether nothing waits, is delayed or runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody asked for this key, now or later.
    pub fn is_idle(&self, key: &K) -> bool {
        let state = self.lock();
        !state.queued.contains(key) && !state.running.contains(key) && !state.due.contains_key(key)
    }

    /// How many adds there were so far.
    pub fn adds(&self) -> u64 {
        self.lock().added
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.state.lock().expect("no code panics while holding the queue")
    }
}

impl<K: Ord + Clone> State<K> {
    fn enqueue(&mut self, key: K) -> bool {
        if let Some(at) = self.due.remove(&key) {
            self.delayed.remove(&(at, key.clone()));
        }
        if self.running.contains(&key) {
            self.dirty.insert(key);
            return false;
        }
        if !self.queued.insert(key.clone()) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    fn promote(&mut self, now: Instant) {
        while let Some((at, _)) = self.delayed.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.enqueue(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(4) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_twice_is_worked_on_once() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_running_runs_again_after_it_is_done() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert!(queue.next().now_or_never().is_none(), "two workers on one key");
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_key_comes_when_due_and_the_earlier_wish_stands() {
        let queue = queue();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(9));
        assert_eq!(queue.next().await, "a");
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        queue.done(&"a");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_until_forgotten() {
        let queue = queue();
        let delays: Vec<u64> = (0..4).map(|_| queue.retry(&"a").as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 4]);
        queue.forget(&"a");
        assert_eq!(queue.retry(&"a").as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_immediate_add_replaces_a_delayed_one() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(60));
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert!(queue.is_empty());
    }
}

//! A keyed work queue: one entry per key, delays, per-key backoff, and never two workers on one key.

mod meter;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::metrics::Metrics;

use meter::Meter;

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

/// What is begun goes first, but of this many keys one is new: else a few that never come to rest would stop all others.
const FAIRNESS: u32 = 8;

struct State<K> {
    ready: VecDeque<K>,
    /// Ready as well, and begun already.
    begun: VecDeque<K>,
    /// How many of the begun were taken since the last new one.
    taken_begun: u32,
    /// What is ready, since when.
    queued: BTreeMap<K, Instant>,
    /// What is worked on, since when.
    running: BTreeMap<K, Instant>,
    /// Added again while running, since when and whether as begun: to be run once more when done.
    dirty: BTreeMap<K, (Instant, bool)>,
    delayed: BTreeSet<(Instant, K)>,
    due: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
    added: u64,
    meter: Option<Meter<K>>,
}

impl<K: Ord + Clone + Debug> Queue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                begun: VecDeque::new(),
                taken_begun: 0,
                queued: BTreeMap::new(),
                running: BTreeMap::new(),
                dirty: BTreeMap::new(),
                delayed: BTreeSet::new(),
                due: BTreeMap::new(),
                failures: BTreeMap::new(),
                added: 0,
                meter: None,
            }),
            changed: Notify::new(),
            backoff,
        }))
    }

    /// Asks for the key to be worked on as soon as possible.
    pub fn add(&self, key: K) {
        self.enqueue(key, false);
    }

    /// The same for a key that is worked on and has more to do: it goes before those that are new.
    pub fn go_on(&self, key: K) {
        self.enqueue(key, true);
    }

    fn enqueue(&self, key: K, begun: bool) {
        let mut state = self.lock();
        state.added += 1;
        if state.enqueue(key, Instant::now(), begun) {
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Asks for the key to be worked on after a delay; an earlier wish stands.
    pub fn add_after(&self, key: K, delay: Duration) {
        let at = Instant::now() + delay;
        let mut state = self.lock();
        if let Some(meter) = &mut state.meter {
            meter.delayed(&key);
        }
        if delay.is_zero() {
            drop(state);
            return self.add(key);
        }
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
                let now = Instant::now();
                state.promote(now);
                if let Some(key) = state.pop() {
                    let since = state.queued.remove(&key).unwrap_or(now);
                    if let Some(meter) = &mut state.meter {
                        meter.taken(&key, now - since);
                    }
                    state.running.insert(key.clone(), now);
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
        let since = state.running.remove(key);
        if let (Some(since), Some(meter)) = (since, &mut state.meter) {
            meter.done(key, since.elapsed());
        }
        if let Some((since, begun)) = state.dirty.remove(key) {
            // It was counted when it was added.
            state.queued.insert(key.clone(), since);
            state.push(key.clone(), begun);
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
        state.queued.len() + state.delayed.len() + state.running.len()
    }

    /// Whether nothing waits, is delayed or runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody asked for this key, now or later.
    pub fn is_idle(&self, key: &K) -> bool {
        let state = self.lock();
        !state.queued.contains_key(key) && !state.running.contains_key(key) && !state.due.contains_key(key)
    }

    /// How many adds there were so far.
    pub fn adds(&self) -> u64 {
        self.lock().added
    }

    /// Shows the queue's numbers from now on, under the name each key has; what waits already counts as added.
    pub fn measure(&self, metrics: &Metrics, name: fn(&K) -> &'static str)
    where
        K: Send + Sync + 'static,
    {
        let mut meter = Meter::new(metrics.clone(), name);
        let mut state = self.lock();
        for key in state.queued.keys().chain(state.dirty.keys()) {
            meter.added(key);
        }
        state.meter = Some(meter);
        drop(state);
        let inner = Arc::downgrade(&self.0);
        let mut shown = BTreeMap::new();
        metrics.before_encoding(move || {
            let Some(inner) = inner.upgrade() else {
                meter::show(&shown, [].into_iter(), [].into_iter());
                return false;
            };
            let state = inner.state.lock().expect("no code panics while holding the queue");
            if let Some(meter) = &state.meter {
                shown.clone_from(&meter.by_name);
            }
            let ready = state.queued.keys().map(name);
            meter::show(&shown, ready, state.running.iter().map(|(key, since)| (name(key), since.elapsed())));
            true
        });
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.state.lock().expect("no code panics while holding the queue")
    }
}

impl<K: Ord + Clone> State<K> {
    fn push(&mut self, key: K, begun: bool) {
        if begun { self.begun.push_back(key) } else { self.ready.push_back(key) }
    }

    fn pop(&mut self) -> Option<K> {
        if (self.taken_begun < FAIRNESS || self.ready.is_empty())
            && let Some(key) = self.begun.pop_front()
        {
            self.taken_begun = self.taken_begun.saturating_add(1);
            return Some(key);
        }
        self.taken_begun = 0;
        self.ready.pop_front()
    }

    fn enqueue(&mut self, key: K, now: Instant, begun: bool) -> bool {
        if !self.due.is_empty()
            && let Some(at) = self.due.remove(&key)
        {
            self.delayed.remove(&(at, key.clone()));
        }
        let is_running = self.running.contains_key(&key);
        let waits = match (is_running, self.dirty.get_mut(&key)) {
            (true, Some((_, was_begun))) => {
                *was_begun |= begun;
                true
            }
            (true, None) => {
                self.dirty.insert(key.clone(), (now, begun));
                false
            }
            (false, _) => self.queued.contains_key(&key),
        };
        if waits {
            return false;
        }
        if let Some(meter) = &mut self.meter {
            meter.added(&key);
        }
        if is_running {
            return false;
        }
        self.queued.insert(key.clone(), now);
        self.push(key, begun);
        true
    }

    fn promote(&mut self, now: Instant) {
        while let Some((at, _)) = self.delayed.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.enqueue(key, now, false);
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
    async fn what_is_begun_goes_before_what_is_new_but_not_for_ever() {
        let queue = queue();
        queue.add("begun");
        assert_eq!(queue.next().await, "begun");
        queue.add("new");
        for _ in 0..FAIRNESS {
            queue.go_on("begun");
            queue.done(&"begun");
            assert_eq!(queue.next().await, "begun");
        }
        queue.go_on("begun");
        queue.done(&"begun");
        assert_eq!(queue.next().await, "new");
        queue.done(&"new");
        assert_eq!(queue.next().await, "begun");
        queue.done(&"begun");
        assert!(queue.is_empty());
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

    #[tokio::test(start_paused = true)]
    async fn the_numbers_are_those_of_client_go() {
        let (metrics, queue) = (Metrics::default(), queue());
        queue.add("early");
        queue.measure(&metrics, |key| if *key == "other" { "volumes" } else { "claims" });
        let line = |wanted: &str| {
            let text = metrics.encode();
            assert!(text.lines().any(|line| line == wanted), "no line {wanted:?} in\n{text}");
        };
        queue.add("early");
        queue.add("late");
        queue.add("other");
        line("workqueue_depth{name=\"claims\"} 2");
        line("workqueue_depth{name=\"volumes\"} 1");
        line("workqueue_adds_total{name=\"claims\"} 2");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(queue.next().await, "early");
        queue.add("early");
        queue.add("early");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(queue.next().await, "late");
        tokio::time::advance(Duration::from_secs(1)).await;
        line("workqueue_adds_total{name=\"claims\"} 3");
        line("workqueue_depth{name=\"claims\"} 0");
        line("workqueue_queue_duration_seconds_sum{name=\"claims\"} 8.0");
        line("workqueue_unfinished_work_seconds{name=\"claims\"} 4.0");
        line("workqueue_longest_running_processor_seconds{name=\"claims\"} 3.0");
        queue.retry(&"late");
        queue.done(&"late");
        queue.done(&"early");
        line("workqueue_work_duration_seconds_sum{name=\"claims\"} 4.0");
        line("workqueue_work_duration_seconds_count{name=\"claims\"} 2");
        line("workqueue_retries_total{name=\"claims\"} 1");
        line("workqueue_depth{name=\"claims\"} 1");
        drop(queue);
        line("workqueue_depth{name=\"claims\"} 0");
        line("workqueue_unfinished_work_seconds{name=\"claims\"} 0.0");
    }
}

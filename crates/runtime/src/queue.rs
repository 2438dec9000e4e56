//! A keyed work queue: one entry per key, delays, per-key backoff, and never two workers on one key.

mod meter;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
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
    /// Nothing is ready, and nothing is worked on.
    quiet: Notify,
    backoff: Backoff,
}

/// What is begun goes first, but of this many keys one is new: else a few that never come to rest would stop all others.
const FAIRNESS: u32 = 8;

/// Keys for which there is always room.
const SPARE: usize = 1024;

struct State<K> {
    /// By the place in which they came.
    ready: BTreeMap<u64, K>,
    /// Ready as well, and begun already.
    begun: BTreeMap<u64, K>,
    last_place: u64,
    running: usize,
    /// How many of the begun were taken since the last new one.
    taken_begun: u32,
    /// What is known of every key that waits, runs, is due or has failed. A hash map, because with many keys that only wait
    /// for a late hour a tree is slow; looked up and counted, so that its order reaches nobody.
    keys: HashMap<K, Entry>,
    delayed: BTreeSet<(Instant, K)>,
    added: u64,
    meter: Option<Meter<K>>,
}

struct Queued {
    since: Instant,
    place: u64,
    begun: bool,
}

#[derive(Default)]
struct Entry {
    /// Ready.
    queued: Option<Queued>,
    /// Worked on, since when.
    running: Option<Instant>,
    /// Added again while running, since when and whether as begun: to be run once more when done.
    dirty: Option<(Instant, bool)>,
    /// Reminded while running: to be run once more when done, unless it failed.
    is_reminded: bool,
    /// Delayed, until when.
    due: Option<Instant>,
    failures: u32,
}

impl Entry {
    fn is_empty(&self) -> bool {
        matches!(self, Self { queued: None, running: None, dirty: None, is_reminded: false, due: None, failures: 0 })
    }
}

impl<K: Ord + Hash + Clone + Debug> Queue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                ready: BTreeMap::new(),
                begun: BTreeMap::new(),
                last_place: 0,
                running: 0,
                taken_begun: 0,
                keys: HashMap::new(),
                delayed: BTreeSet::new(),
                added: 0,
                meter: None,
            }),
            changed: Notify::new(),
            quiet: Notify::new(),
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

    /// The same for a key that may have rested for lack of a view: one that failed, or fails yet, keeps its backoff. Else a
    /// server that fails every write would be written to without a pause.
    pub fn remind(&self, key: K) {
        if let Some(entry) = self.lock().keys.get_mut(&key) {
            if entry.running.is_some() {
                entry.is_reminded = true;
                return;
            }
            if entry.failures > 0 && entry.due.is_some() {
                return;
            }
        }
        self.add(key);
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
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(meter) = &mut state.meter {
            meter.delayed(&key);
        }
        if delay.is_zero() {
            drop(guard);
            return self.add(key);
        }
        let entry = state.keys.entry(key.clone()).or_default();
        let later = match entry.due {
            Some(earlier) if earlier <= at => return,
            later => later,
        };
        entry.due = Some(at);
        if let Some(later) = later {
            state.delayed.remove(&(later, key.clone()));
        }
        state.delayed.insert((at, key));
        drop(guard);
        self.0.changed.notify_one();
    }

    /// The next key to work on; it stays reserved until [`Queue::done`]. Cancel safe.
    pub async fn next(&self) -> K {
        loop {
            let wake = {
                let mut guard = self.lock();
                let state = &mut *guard;
                let now = Instant::now();
                state.promote(now);
                if let Some(key) = state.pop() {
                    let entry = state.keys.entry(key.clone()).or_default();
                    let since = entry.queued.take().map_or(now, |queued| queued.since);
                    entry.running = Some(now);
                    state.running += 1;
                    if let Some(meter) = &mut state.meter {
                        meter.taken(&key, now - since);
                    }
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
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(entry) = state.keys.get_mut(key).filter(|entry| entry.running.is_some()) else { return };
        let (since, dirty) = (entry.running.take(), entry.dirty.take());
        let is_reminded = std::mem::take(&mut entry.is_reminded);
        state.running -= 1;
        if entry.is_empty() && dirty.is_none() && !is_reminded {
            state.remove(key);
        }
        if let (Some(since), Some(meter)) = (since, &mut state.meter) {
            meter.done(key, since.elapsed());
        }
        if is_reminded && dirty.is_none() {
            state.added += 1;
            state.enqueue(key.clone(), Instant::now(), false);
            drop(guard);
            self.0.changed.notify_one();
        } else if let Some((since, begun)) = dirty {
            // It was counted when it was added.
            state.push(key.clone(), since, begun);
            drop(guard);
            self.0.changed.notify_one();
        } else if state.is_quiet() {
            drop(guard);
            self.0.quiet.notify_waiters();
        }
    }

    /// Resolves when no key is ready and none is worked on, whatever is delayed.
    pub async fn quiet(&self) {
        loop {
            let quiet = self.0.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            if self.lock().is_quiet() {
                return;
            }
            quiet.await;
        }
    }

    /// Counts a failure and asks for the key again after its backoff, which is returned.
    pub fn retry(&self, key: &K) -> Duration {
        let failures = {
            let mut state = self.lock();
            let entry = state.keys.entry(key.clone()).or_default();
            entry.failures = entry.failures.saturating_add(1);
            entry.is_reminded = false;
            entry.failures
        };
        let delay = self.0.backoff.delay(failures);
        self.add_after(key.clone(), delay);
        delay
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        let Some(entry) = state.keys.get_mut(key) else { return };
        entry.failures = 0;
        if entry.is_empty() {
            state.remove(key);
        }
    }

    /// Keys waiting, delayed and running.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.ready.len() + state.begun.len() + state.delayed.len() + state.running
    }

    /// Whether nothing waits, is delayed or runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody works on this key, nor asked for it: a wish to look again at a late hour alone is none, unless it
    /// follows a failure.
    pub fn is_idle(&self, key: &K) -> bool {
        let (state, now) = (self.lock(), Instant::now());
        state.keys.get(key).is_none_or(|Entry { queued, running, due, failures, .. }| {
            queued.is_none() && running.is_none() && due.is_none_or(|at| *failures == 0 && at > now)
        })
    }

    /// How many adds there were so far.
    pub fn adds(&self) -> u64 {
        self.lock().added
    }

    /// Shows the queue's numbers from now on, under the name each key has; what waits already counts as added.
    pub fn measure(&self, metrics: &Metrics, prefix: String, name: fn(&K) -> &'static str)
    where
        K: Send + Sync + 'static,
    {
        let mut meter = Meter::new(metrics.clone(), prefix, name);
        let mut state = self.lock();
        let waiting = state.keys.iter().filter(|(_, entry)| entry.queued.is_some() || entry.dirty.is_some());
        waiting.for_each(|(key, _)| meter.added(key));
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
            let ready = state.ready.values().chain(state.begun.values()).map(name);
            let running = state.keys.iter().filter_map(|(key, entry)| Some((name(key), entry.running?.elapsed())));
            meter::show(&shown, ready, running);
            true
        });
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.state.lock().expect("no code panics while holding the queue")
    }
}

impl<K: Ord + Hash + Clone> State<K> {
    /// What a burst has taken is given back when it is over.
    fn remove(&mut self, key: &K) {
        self.keys.remove(key);
        if self.keys.capacity() > SPARE && self.keys.len() < self.keys.capacity() / 8 {
            self.keys.shrink_to(SPARE.max(2 * self.keys.len()));
        }
    }

    fn is_quiet(&self) -> bool {
        self.ready.is_empty() && self.begun.is_empty() && self.running == 0
    }

    fn push(&mut self, key: K, since: Instant, begun: bool) {
        self.last_place += 1;
        let place = self.last_place;
        self.keys.entry(key.clone()).or_default().queued = Some(Queued { since, place, begun });
        if begun {
            self.begun.insert(place, key)
        } else {
            self.ready.insert(place, key)
        };
    }

    fn pop(&mut self) -> Option<K> {
        if (self.taken_begun < FAIRNESS || self.ready.is_empty())
            && let Some((_, key)) = self.begun.pop_first()
        {
            self.taken_begun = self.taken_begun.saturating_add(1);
            return Some(key);
        }
        self.taken_begun = 0;
        self.ready.pop_first().map(|(_, key)| key)
    }

    fn enqueue(&mut self, key: K, now: Instant, begun: bool) -> bool {
        // Most keys that are added wait or run already.
        let entry = match self.keys.get_mut(&key) {
            Some(entry) => entry,
            None => self.keys.entry(key.clone()).or_default(),
        };
        if let Some(at) = entry.due.take() {
            self.delayed.remove(&(at, key.clone()));
        }
        let is_running = entry.running.is_some();
        let waits = match (is_running, &mut entry.dirty) {
            (true, Some((_, was_begun))) => {
                *was_begun |= begun;
                true
            }
            (true, dirty) => {
                *dirty = Some((now, begun));
                false
            }
            (false, _) => match &mut entry.queued {
                // Of two wishes the more urgent one counts.
                Some(queued) if begun && !queued.begun => {
                    queued.begun = true;
                    self.ready.remove(&queued.place);
                    self.begun.insert(queued.place, key);
                    return false;
                }
                queued => queued.is_some(),
            },
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
        self.push(key, now, begun);
        true
    }

    fn promote(&mut self, now: Instant) {
        while let Some((at, _)) = self.delayed.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.delayed.pop_first() {
                if let Some(entry) = self.keys.get_mut(&key) {
                    entry.due = None;
                }
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
    async fn a_key_that_waits_as_new_goes_first_once_it_is_known_to_be_begun() {
        let queue = queue();
        ["new", "newer", "begun"].into_iter().for_each(|key| queue.add(key));
        queue.go_on("begun");
        queue.go_on("begun");
        assert_eq!(queue.len(), 3);
        for key in ["begun", "new", "newer"] {
            assert_eq!(queue.next().await, key);
            queue.done(&key);
        }
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_quiet_when_nothing_is_ready_or_worked_on_whatever_is_delayed() {
        let queue = queue();
        queue.add_after("later", Duration::from_secs(60));
        queue.quiet().await;
        queue.add("a");
        let mut quiet = std::pin::pin!(queue.quiet());
        assert!(quiet.as_mut().now_or_never().is_none());
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.done(&"a");
        assert!(quiet.as_mut().now_or_never().is_none(), "it was added again");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert!(quiet.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_reminded_runs_again_unless_it_failed() {
        let queue = queue();
        queue.remind("a");
        assert_eq!(queue.next().await, "a", "nobody works on it");
        queue.remind("a");
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
        queue.remind("a");
        let delay = queue.retry(&"a");
        queue.done(&"a");
        let begin = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(begin.elapsed(), delay);
        let delay = queue.retry(&"a");
        queue.done(&"a");
        queue.remind("a");
        let begin = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(begin.elapsed(), delay);
        queue.forget(&"a");
        queue.done(&"a");
        assert!(queue.is_empty() && queue.lock().keys.is_empty());
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
        queue.measure(&metrics, String::new(), |key| if *key == "other" { "volumes" } else { "claims" });
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

    #[tokio::test(start_paused = true)]
    async fn a_key_is_idle_until_its_hour_unless_it_failed() {
        let queue = queue();
        queue.add_after("later", Duration::from_secs(60));
        queue.retry(&"failed");
        assert!(queue.is_idle(&"later") && queue.is_idle(&"never heard of") && !queue.is_idle(&"failed"));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(!queue.is_idle(&"later"), "nobody has taken it yet");
    }

    #[tokio::test(start_paused = true)]
    async fn to_be_done_with_a_key_that_nobody_works_on_changes_nothing() {
        let queue = queue();
        queue.add("a");
        queue.done(&"a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        assert!(queue.next().now_or_never().is_none(), "two workers on one key");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_keys_that_came_to_rest() {
        let queue: Queue<u64> = Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(4) });
        let mut dice = 7_u64;
        for _ in 0..20_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (dice >> 33) % 5000;
            match (dice >> 20) % 7 {
                0 | 1 => queue.add(key),
                2 => queue.go_on(key),
                3 => queue.add_after(key, Duration::from_secs(dice % 100)),
                4 => _ = queue.retry(&key),
                _ => {
                    if let Some(taken) = queue.next().now_or_never() {
                        queue.add_after(taken, Duration::from_secs(1));
                        queue.done(&taken);
                    }
                }
            }
        }
        while !queue.is_empty() {
            let key = queue.next().await;
            queue.forget(&key);
            queue.done(&key);
        }
        let state = queue.lock();
        assert!(state.keys.is_empty() && state.keys.capacity() <= 4 * SPARE, "{}", state.keys.capacity());
        assert!(state.ready.is_empty() && state.begun.is_empty() && state.delayed.is_empty());
    }
}

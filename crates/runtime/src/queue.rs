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
mod tests;

//! What people were told and how long they know it: said once, and again before the API server forgets it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};

use crate::events::Note;

/// API servers keep events for an hour: what still holds is told again before it is forgotten.
const AGAIN: SignedDuration = SignedDuration::from_mins(45);

/// When to try again what nobody could be told, because too many other events waited.
const UNTOLD: SignedDuration = SignedDuration::from_mins(1);

/// Fewer keys than this are never looked through.
const TIDY_AT: usize = 1 << 10;

#[derive(Debug, Clone, PartialEq)]
struct Telling<N> {
    said: N,
    again_at: Timestamp,
}

/// What people know about one key: per topic, what was said last.
#[derive(Debug, Clone, PartialEq)]
pub struct Known<T = (), N = Note>(BTreeMap<T, Telling<N>>);

impl<T, N> Default for Known<T, N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord, N: PartialEq> Known<T, N> {
    /// One thing, known until a moment.
    pub fn of(topic: T, said: N, again_at: Timestamp) -> Self {
        Self::default().and(topic, said, again_at)
    }

    /// The same, and one thing more.
    pub fn and(mut self, topic: T, said: N, again_at: Timestamp) -> Self {
        self.0.insert(topic, Telling { said, again_at });
        self
    }

    /// Until when people know just this; `None` when it is to be told.
    pub fn until(&self, topic: &T, said: &N, now: Timestamp) -> Option<Timestamp> {
        let telling = self.0.get(topic).filter(|telling| telling.said == *said)?;
        Some(telling.again_at).filter(|again_at| now < *again_at)
    }

    /// What people still know about a topic.
    pub fn said(&self, topic: &T, now: Timestamp) -> Option<&N> {
        self.0.get(topic).filter(|telling| now < telling.again_at).map(|telling| &telling.said)
    }

    /// When the first of it is to be told again.
    pub fn again_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.0.values().map(|telling| telling.again_at).filter(|again_at| now < *again_at).min()
    }

    /// Whether anything was ever told.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What one component told, by key and, where one key has several, by topic. Clones share it.
#[derive(Debug)]
pub struct Told<K, T = (), N = Note>(Arc<Mutex<Book<K, T, N>>>);

#[derive(Debug)]
struct Book<K, T, N> {
    keys: BTreeMap<K, Known<T, N>>,
    /// With so many keys, those of whom nobody knows anything any more go.
    tidy_at: usize,
}

impl<K: Ord, T: Ord, N: PartialEq> Book<K, T, N> {
    /// A word that was under way when its object went is noted after the object was forgotten.
    fn tidy(&mut self, now: Timestamp) {
        if self.keys.len() >= self.tidy_at {
            self.keys.retain(|_, known| known.again_at(now).is_some());
            self.tidy_at = 2 * self.keys.len().max(TIDY_AT / 2);
        }
    }
}

impl<K, T, N> Clone for Told<K, T, N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, T, N> Default for Told<K, T, N> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Book { keys: BTreeMap::new(), tidy_at: TIDY_AT })))
    }
}

impl<K: Ord, T: Ord + Clone, N: PartialEq + Clone> Told<K, T, N> {
    /// What people know about a key.
    pub fn known(&self, key: &K) -> Known<T, N> {
        self.lock().keys.get(key).cloned().unwrap_or_default()
    }

    /// Notes what was said; `is_taken` as the recorder answered, for what it could not take is tried again sooner.
    pub fn note(&self, key: K, topic: T, said: N, is_taken: bool, now: Timestamp) {
        let again_at = now.saturating_add(if is_taken { AGAIN } else { UNTOLD }).unwrap_or(Timestamp::MAX);
        let mut book = self.lock();
        book.tidy(now);
        let known = book.keys.entry(key).or_default();
        // What was due and was not said again does not hold any more.
        known.0.retain(|_, telling| now < telling.again_at);
        known.0.insert(topic, Telling { said, again_at });
    }

    /// Forgets the topics of a key that do not matter any more.
    pub fn retain(&self, key: &K, matters: impl Fn(&T) -> bool) {
        let keys = &mut self.lock().keys;
        if let Some(known) = keys.get_mut(key) {
            known.0.retain(|topic, _| matters(topic));
            if known.0.is_empty() {
                keys.remove(key);
            }
        }
    }

    /// Forgets a key: what it waited for has come, or it is gone.
    pub fn forget(&self, key: &K) {
        self.lock().keys.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, Book<K, T, N>> {
        self.0.lock().expect("no code panics while holding what was told")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn what_was_told_is_known_until_shortly_before_the_server_forgets_it() {
        let told: Told<&str, (), &str> = Told::default();
        assert!(told.known(&"a").is_empty());
        told.note("a", (), "it waits", true, at(0));
        let known = told.known(&"a");
        assert_eq!(known.until(&(), &"it waits", at(44)), Some(at(45)));
        assert_eq!(known.until(&(), &"it waits", at(45)), None);
        assert_eq!(known.until(&(), &"it failed", at(1)), None, "something else is news");
        assert_eq!((known.again_at(at(1)), known.again_at(at(50))), (Some(at(45)), None));
    }

    #[test]
    fn what_the_recorder_did_not_take_is_told_again_soon() {
        let told: Told<&str, (), &str> = Told::default();
        told.note("a", (), "it waits", false, at(0));
        assert_eq!(told.known(&"a").until(&(), &"it waits", at(0)), Some(at(1)));
    }

    #[test]
    fn topics_are_apart_and_those_that_are_due_or_do_not_matter_go() {
        let told: Told<&str, u8, &str> = Told::default();
        told.note("a", 1, "one", true, at(0));
        told.note("a", 2, "two", true, at(50));
        let known = told.known(&"a");
        assert_eq!((known.said(&1, at(51)), known.said(&2, at(51))), (None, Some(&"two")));
        told.retain(&"a", |topic| *topic != 2);
        assert!(told.known(&"a").is_empty() && told.lock().keys.is_empty());
    }

    #[test]
    fn what_was_told_about_objects_that_are_gone_does_not_gather() {
        let told: Told<usize, (), &str> = Told::default();
        for key in 0..10 * TIDY_AT {
            let minute = i64::try_from(key).unwrap() / 10;
            told.note(key, (), "late", true, at(minute));
        }
        assert!(told.lock().keys.len() < 2 * TIDY_AT, "{}", told.lock().keys.len());
    }
}

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One call at a time per volume; other volumes run in parallel.
#[derive(Debug, Clone, Default)]
pub struct Locks(Arc<Mutex<BTreeMap<String, Held>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// By a call that changes it.
    Alone,
    /// By so many calls that only read it.
    Shared(usize),
}

impl Locks {
    /// `None` if another call for this key is in progress: CSI wants ABORTED then, not a queue.
    pub fn try_lock(&self, key: &str) -> Option<Guard> {
        let mut busy = self.busy();
        if busy.contains_key(key) {
            return None;
        }
        busy.insert(key.to_owned(), Held::Alone);
        Some(self.guard(key))
    }

    /// `None` if a call that changes this is in progress; others may read it at the same time.
    pub fn try_share(&self, key: &str) -> Option<Guard> {
        let mut busy = self.busy();
        match busy.entry(key.to_owned()).or_insert(Held::Shared(0)) {
            Held::Alone => return None,
            Held::Shared(count) => *count += 1,
        }
        Some(self.guard(key))
    }

    /// Whether calls that only read this are in progress.
    pub fn is_shared(&self, key: &str) -> bool {
        matches!(self.busy().get(key), Some(Held::Shared(_)))
    }

    fn busy(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self, key: &str) -> Guard {
        Guard { locks: self.clone(), key: key.to_owned() }
    }
}

/// Releases its volume on drop.
#[derive(Debug)]
pub struct Guard {
    locks: Locks,
    key: String,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut busy = self.locks.busy();
        match busy.get_mut(&self.key) {
            Some(Held::Shared(count)) if *count > 1 => *count -= 1,
            _ => drop(busy.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_locked_alone_and_free_after_the_guard() {
        let locks = Locks::default();
        let guard = locks.try_lock("a").unwrap();
        assert!(locks.try_lock("a").is_none() && locks.try_share("a").is_none() && !locks.is_shared("a"));
        assert!(locks.try_lock("b").is_some());
        drop(guard);
        assert!(locks.try_lock("a").is_some());
    }

    #[test]
    fn several_may_read_what_nobody_changes_until_the_last_of_them_is_done() {
        let locks = Locks::default();
        let readers = (locks.try_share("a").unwrap(), locks.try_share("a").unwrap());
        drop(readers.0);
        assert!(locks.try_lock("a").is_none() && locks.is_shared("a"));
        drop(readers.1);
        assert!(!locks.is_shared("a") && locks.try_lock("a").is_some());
    }
}

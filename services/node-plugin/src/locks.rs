use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// One call at a time per volume; other volumes run in parallel.
#[derive(Debug, Clone, Default)]
pub struct Locks(Arc<Mutex<BTreeSet<String>>>);

impl Locks {
    /// `None` if another call for this key is in progress: CSI wants ABORTED then, not a queue.
    pub fn try_lock(&self, key: &str) -> Option<Guard> {
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        busy.insert(key.to_owned()).then(|| Guard { locks: self.clone(), key: key.to_owned() })
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
        self.locks.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_locked_alone_and_free_after_the_guard() {
        let locks = Locks::default();
        let guard = locks.try_lock("a").unwrap();
        assert!(locks.try_lock("a").is_none());
        assert!(locks.try_lock("b").is_some());
        drop(guard);
        assert!(locks.try_lock("a").is_some());
    }
}

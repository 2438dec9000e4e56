//! What is remembered of the last need for a source, where nobody else tells whose it is to free.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use super::Origin;

/// The last need for a source, as far as this run has seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// A record of ours named it, and has left the journal.
    pub was_ours: bool,
    /// Since when no record and no claim that could be ours or another node's was seen to name it.
    pub over_since: Option<Timestamp>,
}

/// By source, from the end of a need until the source is free or gone. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Needs(Arc<Mutex<BTreeMap<Origin, Need>>>);

impl Needs {
    pub fn get(&self, origin: &Origin) -> Need {
        self.lock().get(origin).copied().unwrap_or_default()
    }

    /// Our record of it has left the journal.
    pub fn left(&self, origin: Origin) {
        self.lock().entry(origin).or_default().was_ours = true;
    }

    /// Nobody is seen to need it; the first such moment counts.
    pub fn over(&self, origin: &Origin, now: Timestamp) {
        self.lock().entry(origin.clone()).or_default().over_since.get_or_insert(now);
    }

    /// Somebody needs it again.
    pub fn needed(&self, origin: &Origin) {
        if let Some(need) = self.lock().get_mut(origin) {
            need.over_since = None;
        }
    }

    pub fn forget(&self, origin: &Origin) {
        self.lock().remove(origin);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Origin, Need>> {
        self.0.lock().expect("no code panics while holding the needs")
    }
}

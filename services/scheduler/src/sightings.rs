//! When each node was last heard of, and since when a node is missing, by our own clock: clocks of nodes may differ.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

/// The last sign of life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    pub at: Timestamp,
    /// Whether it was a renewal we saw happen, not just the first look at an old record.
    pub renewed: bool,
}

#[derive(Debug, Default)]
struct State {
    heard: BTreeMap<String, Heard>,
    missing: BTreeMap<String, Timestamp>,
}

/// Written by changes of the view.
#[derive(Debug, Default)]
pub struct Sightings(Mutex<State>);

impl Sightings {
    /// The node's object appeared; it has its grace period from now.
    pub fn appeared(&self, node: &str, now: Timestamp) {
        let mut state = self.lock();
        state.missing.remove(node);
        state.heard.entry(node.to_owned()).or_insert(Heard { at: now, renewed: false });
    }

    /// The node renewed its Lease or reported its status.
    pub fn renewed(&self, node: &str, now: Timestamp) {
        self.lock().heard.insert(node.to_owned(), Heard { at: now, renewed: true });
    }

    /// The node's object is gone.
    pub fn disappeared(&self, node: &str, now: Timestamp) {
        let mut state = self.lock();
        state.heard.remove(node);
        state.missing.entry(node.to_owned()).or_insert(now);
    }

    /// The last sign of life, if the node was ever seen.
    pub fn heard(&self, node: &str) -> Option<Heard> {
        self.lock().heard.get(node).copied()
    }

    /// Since when the node is missing; from now on if nobody had noticed.
    pub fn missing_since(&self, node: &str, now: Timestamp) -> Timestamp {
        *self.lock().missing.entry(node.to_owned()).or_insert(now)
    }

    /// Nobody asks for a missing node any more.
    pub fn forget_missing(&self, node: &str) {
        self.lock().missing.remove(node);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while holding the sightings")
    }
}

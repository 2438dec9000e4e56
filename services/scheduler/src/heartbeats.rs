//! When each node was last heard of, and since when a node is missing, by our own clock: clocks of nodes may differ.
//! Moments are times since boot, so that a step of the wall clock makes no node silent.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The last sign of life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    pub at: Duration,
    /// Whether it was a renewal we saw happen, not just the first look at an old record.
    pub renewed: bool,
}

#[derive(Debug, Default)]
struct State {
    heard: BTreeMap<String, Heard>,
    missing: BTreeMap<String, Duration>,
}

/// Written by changes of the view.
#[derive(Debug, Default)]
pub struct Sightings(Mutex<State>);

impl Sightings {
    /// The node's object appeared; it has its grace period from now.
    pub fn appeared(&self, node: &str, now: Duration) {
        let mut state = self.lock();
        state.missing.remove(node);
        state.heard.entry(node.to_owned()).or_insert(Heard { at: now, renewed: false });
    }

    /// The node renewed its Lease or reported its status.
    pub fn renewed(&self, node: &str, now: Duration) {
        self.lock().heard.insert(node.to_owned(), Heard { at: now, renewed: true });
    }

    /// The node's object is gone; since when matters only to pods that are on it.
    pub fn disappeared(&self, node: &str, has_pods: bool, now: Duration) {
        let mut state = self.lock();
        state.heard.remove(node);
        if has_pods {
            state.missing.entry(node.to_owned()).or_insert(now);
        }
    }

    /// The last sign of life, if the node was ever seen.
    pub fn heard(&self, node: &str) -> Option<Heard> {
        self.lock().heard.get(node).copied()
    }

    /// Since when the node is missing; from now on if nobody had noticed.
    pub fn missing_since(&self, node: &str, now: Duration) -> Duration {
        *self.lock().missing.entry(node.to_owned()).or_insert(now)
    }

    /// Nobody asks for a missing node any more.
    pub fn forget_missing(&self, node: &str) {
        self.lock().missing.remove(node);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let state = self.lock();
        state.heard.len() + state.missing.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while holding the sightings")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With an autoscaler there was one entry for each node there ever was.
    #[test]
    fn nothing_is_kept_of_a_node_that_goes_after_its_pods() {
        let sightings = Sightings::default();
        let now = Duration::from_secs(7);
        sightings.appeared("a", now);
        sightings.renewed("a", now);
        sightings.disappeared("a", false, now);
        assert_eq!(sightings.len(), 0);
        sightings.appeared("b", now);
        sightings.disappeared("b", true, now);
        assert_eq!(sightings.missing_since("b", Duration::from_secs(9)), now);
        sightings.forget_missing("b");
        assert_eq!(sightings.len(), 0);
    }
}

//! When each node was last heard of, and since when a node is missing, by our own clock: clocks of nodes may differ.
//! Moments are times since boot, so that a step of the wall clock makes no node silent.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The last sign of life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    pub at: Duration,
    /// Whether it was a renewal we saw happen, not just the first look at an old record.
    pub renewed: bool,
}

#[derive(Debug, Default)]
struct State {
    last: BTreeMap<String, Heartbeat>,
    missing: BTreeMap<String, Duration>,
}

/// Written by changes of nodes and their Leases, and by decisions on pods whose node nobody has seen.
#[derive(Debug, Default)]
pub struct Heartbeats(Mutex<State>);

impl Heartbeats {
    /// The node's object appeared; it has its grace period from now.
    pub fn appeared(&self, node: &str, now: Duration) {
        let mut state = self.lock();
        state.missing.remove(node);
        state.last.entry(node.to_owned()).or_insert(Heartbeat { at: now, renewed: false });
    }

    /// The node renewed its Lease or reported its status.
    pub fn renewed(&self, node: &str, now: Duration) {
        self.lock().last.insert(node.to_owned(), Heartbeat { at: now, renewed: true });
    }

    /// The node's object is gone; since when matters only to pods that are on it.
    pub fn disappeared(&self, node: &str, has_pods: bool, now: Duration) {
        self.lock().last.remove(node);
        if has_pods {
            self.missed(node, now);
        }
    }

    /// A pod's node is missing: from now on, if nobody had noticed.
    pub fn missed(&self, node: &str, now: Duration) {
        self.lock().missing.entry(node.to_owned()).or_insert(now);
    }

    /// Nobody asks for a missing node any more.
    pub fn forget_missing(&self, node: &str) {
        self.lock().missing.remove(node);
    }

    /// The last sign of life, if the node was ever seen.
    pub fn last(&self, node: &str) -> Option<Heartbeat> {
        self.lock().last.get(node).copied()
    }

    /// Since when the node is missing, if somebody has noticed.
    pub fn missing_since(&self, node: &str) -> Option<Duration> {
        self.lock().missing.get(node).copied()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.last.len() + state.missing.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while holding the heartbeats")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With an autoscaler there was one entry for each node there ever was.
    #[test]
    fn nothing_is_kept_of_a_node_that_goes_after_its_pods() {
        let heartbeats = Heartbeats::default();
        let now = Duration::from_secs(7);
        heartbeats.appeared("a", now);
        heartbeats.renewed("a", now);
        heartbeats.disappeared("a", false, now);
        assert_eq!(heartbeats.len(), 0);
        heartbeats.appeared("b", now);
        heartbeats.disappeared("b", true, now);
        heartbeats.missed("b", Duration::from_secs(9));
        assert_eq!(heartbeats.missing_since("b"), Some(now));
        heartbeats.forget_missing("b");
        assert_eq!(heartbeats.len(), 0);
    }
}

//! Where making the volumes of claims has just failed, which the API does not say.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::Key;
use stowage_runtime::backoff::Backoff;

/// Between tries to have a volume made, as kube-scheduler waits between tries of a pod.
const RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(10) };

/// Nodes for which the provisioner gave a claim back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failures {
    count: u32,
    retry_at: Option<Timestamp>,
    /// When each node failed last, as a number that grows.
    nodes: BTreeMap<String, u64>,
}

impl Failures {
    /// Not to be tried again before this moment.
    pub fn retry_at(&self) -> Option<Timestamp> {
        self.retry_at
    }

    /// How recently the node failed: zero for never, and the more the later.
    pub fn recency(&self, node: &str) -> u64 {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    fn add(&mut self, node: &str, sequence: u64, now: Timestamp) {
        self.count = self.count.saturating_add(1);
        let delay = SignedDuration::try_from(RETRY.delay(self.count)).unwrap_or(SignedDuration::MAX);
        self.retry_at = Some(now.checked_add(delay).unwrap_or(Timestamp::MAX));
        self.nodes.insert(node.to_owned(), sequence);
    }

    /// The failures of several claims of one pod.
    pub fn merge(mut self, other: Self) -> Self {
        self.count = self.count.max(other.count);
        self.retry_at = self.retry_at.max(other.retry_at);
        for (node, sequence) in other.nodes {
            let known = self.nodes.entry(node).or_default();
            *known = sequence.max(*known);
        }
        self
    }
}

#[derive(Debug, Default)]
struct State {
    claims: BTreeMap<Key, Failures>,
    sequence: u64,
}

/// The failures of every claim that has no volume yet. Written by changes of claims.
#[derive(Debug, Default)]
pub struct FailuresByClaim(Mutex<State>);

impl FailuresByClaim {
    /// The provisioner gave the claim back.
    pub fn add(&self, claim: &Key, node: &str, now: Timestamp) {
        let mut state = self.lock();
        state.sequence += 1;
        let sequence = state.sequence;
        state.claims.entry(claim.clone()).or_default().add(node, sequence, now);
    }

    /// The claim has its volume, or is gone.
    pub fn forget(&self, claim: &Key) {
        self.lock().claims.remove(claim);
    }

    /// What is known about tries to provision the claim.
    pub fn of(&self, claim: &Key) -> Failures {
        self.lock().claims.get(claim).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while holding the failures")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_waits_longer_up_to_ten_seconds_and_success_forgets_them() {
        let failures = FailuresByClaim::default();
        let claim = Key::namespaced("default", "c");
        let mut waits = Vec::new();
        for _ in 0..6 {
            failures.add(&claim, "a", Timestamp::UNIX_EPOCH);
            waits.push(failures.of(&claim).retry_at().unwrap().as_second());
        }
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        failures.forget(&claim);
        assert_eq!(failures.of(&claim), Failures::default());
    }

    #[test]
    fn the_node_that_failed_last_is_the_most_recent() {
        let failures = FailuresByClaim::default();
        let claim = Key::namespaced("default", "c");
        for node in ["a", "b", "a"] {
            failures.add(&claim, node, Timestamp::UNIX_EPOCH);
        }
        let failures = failures.of(&claim);
        assert!(failures.recency("a") > failures.recency("b"));
        assert_eq!(failures.recency("c"), 0);
    }
}

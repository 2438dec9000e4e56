//! What the API does not say yet: where pods in flight are going, and where making their volumes has just failed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::Key;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::told::Told;

/// Between tries to have a volume made, as kube-scheduler waits between tries of a pod.
const RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(10) };

/// A pod that is going to a node but was not seen there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub uid: String,
    pub node: String,
}

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

    /// Counts one more failure.
    pub fn add(&mut self, node: &str, sequence: u64, now: Timestamp) {
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
    planned: BTreeMap<Key, Planned>,
    failures: BTreeMap<Key, Failures>,
    sequence: u64,
}

/// Written by the deciding task and by changes of the view, so that decisions that compete see each other.
#[derive(Debug, Default)]
pub struct Ledger {
    state: Mutex<State>,
    /// Why pods cannot be placed, as their users were told.
    pub told: Told<Key, (), String>,
}

impl Ledger {
    /// Notes where the pod's last decision sends it. Says whether an earlier plan was given up, which frees what it held.
    pub fn plan(&self, pod: &Key, plan: Option<Planned>) -> bool {
        let mut state = self.lock();
        match plan {
            Some(plan) => {
                let before = state.planned.insert(pod.clone(), plan.clone());
                before.is_some_and(|before| before != plan)
            }
            None => state.planned.remove(pod).is_some(),
        }
    }

    /// Where the pod is going.
    pub fn planned(&self, pod: &Key) -> Option<Planned> {
        self.lock().planned.get(pod).cloned()
    }

    /// Every pod in flight.
    pub fn all(&self) -> Vec<(Key, Planned)> {
        self.lock().planned.iter().map(|(key, plan)| (key.clone(), plan.clone())).collect()
    }

    /// The provisioner gave the claim back.
    pub fn failed(&self, claim: &Key, node: &str, now: Timestamp) {
        let mut state = self.lock();
        state.sequence += 1;
        let sequence = state.sequence;
        state.failures.entry(claim.clone()).or_default().add(node, sequence, now);
    }

    /// The claim has its volume, or is gone.
    pub fn settled(&self, claim: &Key) {
        self.lock().failures.remove(claim);
    }

    /// What is known about tries to provision the claim.
    pub fn failures(&self, claim: &Key) -> Failures {
        self.lock().failures.get(claim).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while holding the ledger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(node: &str) -> Option<Planned> {
        Some(Planned { uid: "u1".into(), node: node.into() })
    }

    #[test]
    fn only_a_plan_that_is_changed_or_dropped_frees_something() {
        let ledger = Ledger::default();
        let pod = Key::namespaced("default", "p");
        assert!(!ledger.plan(&pod, None));
        assert!(!ledger.plan(&pod, planned("a")));
        assert!(!ledger.plan(&pod, planned("a")));
        assert!(ledger.plan(&pod, planned("b")));
        assert!(ledger.plan(&pod, None));
        assert_eq!(ledger.all(), []);
    }

    #[test]
    fn each_failure_waits_longer_up_to_ten_seconds_and_success_forgets_them() {
        let ledger = Ledger::default();
        let claim = Key::namespaced("default", "c");
        let mut waits = Vec::new();
        for _ in 0..6 {
            ledger.failed(&claim, "a", Timestamp::UNIX_EPOCH);
            waits.push(ledger.failures(&claim).retry_at().unwrap().as_second());
        }
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        ledger.settled(&claim);
        assert_eq!(ledger.failures(&claim), Failures::default());
    }

    #[test]
    fn the_node_that_failed_last_is_the_most_recent() {
        let ledger = Ledger::default();
        let claim = Key::namespaced("default", "c");
        for node in ["a", "b", "a"] {
            ledger.failed(&claim, node, Timestamp::UNIX_EPOCH);
        }
        let failures = ledger.failures(&claim);
        assert!(failures.recency("a") > failures.recency("b"));
        assert_eq!(failures.recency("c"), 0);
    }
}

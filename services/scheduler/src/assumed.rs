//! Pods that are assumed to be on a node, in kube-scheduler's word: they are on their way, and the API does not say so
//! yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use stowage_model::object::Key;

/// Where a pod is going; a later pod of its name is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssumedPod {
    pub uid: String,
    pub node: String,
}

/// Written right after each decision and by changes of pods, so that decisions that compete see each other.
#[derive(Debug, Default)]
pub struct Assumed(Mutex<BTreeMap<Key, AssumedPod>>);

impl Assumed {
    /// Notes where the pod's last decision sends it. Says whether it was going elsewhere, which frees what it held there.
    pub fn assume(&self, key: &Key, pod: AssumedPod) -> bool {
        let mut pods = self.lock();
        pods.insert(key.clone(), pod.clone()).is_some_and(|before| before != pod)
    }

    /// The pod is not on its way. Says whether it was, which frees what it held.
    pub fn forget(&self, key: &Key) -> bool {
        self.lock().remove(key).is_some()
    }

    /// Where the pod is going.
    pub fn get(&self, key: &Key) -> Option<AssumedPod> {
        self.lock().get(key).cloned()
    }

    /// Every pod on its way.
    pub fn all(&self) -> Vec<(Key, AssumedPod)> {
        self.lock().iter().map(|(key, pod)| (key.clone(), pod.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, AssumedPod>> {
        self.0.lock().expect("no code panics while holding the assumed pods")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn going_to(node: &str) -> AssumedPod {
        AssumedPod { uid: "u1".into(), node: node.into() }
    }

    #[test]
    fn only_a_plan_that_is_changed_or_dropped_frees_something() {
        let assumed = Assumed::default();
        let pod = Key::namespaced("default", "p");
        assert!(!assumed.forget(&pod));
        assert!(!assumed.assume(&pod, going_to("a")));
        assert!(!assumed.assume(&pod, going_to("a")));
        assert!(assumed.assume(&pod, going_to("b")));
        assert!(assumed.forget(&pod));
        assert_eq!(assumed.all(), []);
    }
}

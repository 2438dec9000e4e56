//! Pods that are there for as long as somebody holds them.
//!
//! A pod of `stowage run` says by a label that it stands for a process of this machine. That process holds the pod by its
//! name before it makes it, so there is no moment at which it could be killed and leave the pod: one that is on this node and that nobody
//! holds is deleted, whoever has let go of it, and whenever.

use stowage_model::object::{Key as ObjectKey, Meta};

use crate::state::States;
use crate::watches::Key;

use super::VolumeManager;

/// The label of a pod that is to go when nobody holds it.
pub const RUN_LABEL: &str = "stowage.dev/run";

/// A pod's name that is held for as long as this is.
pub struct Hold {
    pod: ObjectKey,
    release: Box<dyn Fn(&ObjectKey) + Send + Sync>,
}

impl Hold {
    pub fn pod(&self) -> &ObjectKey {
        &self.pod
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        (self.release)(&self.pod);
    }
}

impl VolumeManager {
    /// Holds the pod of that name, whether it is there or is still to be made.
    pub fn hold(&self, pod: ObjectKey) -> Hold {
        self.state.with(|states| *states.held.entry(pod.clone()).or_default() += 1);
        let (state, pods, queue) = (std::sync::Arc::clone(&self.state), self.pods.clone(), self.queue.clone());
        let release = move |pod: &ObjectKey| {
            state.with(|states| {
                let holders = states.held.entry(pod.clone()).or_default();
                *holders = holders.saturating_sub(1);
                if *holders == 0 {
                    states.held.remove(pod);
                }
            });
            if let Some(pod) = pods.get(pod) {
                queue.add(Key::Pod(pod.meta.uid.clone()));
            }
        };
        Hold { pod, release: Box::new(release) }
    }
}

/// Whether a pod is to go because nobody holds it.
pub(crate) fn is_abandoned(states: &States, pod: &Meta) -> bool {
    let is_held = || states.held.contains_key(&ObjectKey::namespaced(pod.namespace.as_str(), pod.name.as_str()));
    pod.labels.contains_key(RUN_LABEL) && !is_held()
}

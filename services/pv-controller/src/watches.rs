//! Who is decided on again when something changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch as signal;

use stowage_model::object::{Key, Projection};
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::volume::ClaimRef;
use stowage_model::{AttributesClass, Claim, Pod, StorageClass, Volume, names};
use stowage_runtime::Context;
use stowage_runtime::cache::Change;
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;

use crate::decide::Subject;
use crate::metrics::Metrics;
use crate::mind::Memory;
use crate::recycler;
use crate::snapshot::{BY_RECYCLED, BY_USED_CLAIM, BY_VOLUME, Caches, WAITING, Work};

/// Whether a pod itself is decided on.
pub(crate) fn concerns(pod: &Pod) -> bool {
    pod.ephemeral_volumes().next().is_some() || recycler::task(pod).is_some()
}

/// Whether two versions of a claim mean the same to the volumes that it names or that refer to it.
fn is_same_for_volumes(before: &Arc<Claim>, after: &Arc<Claim>) -> bool {
    // A claim told again because it was unknown for a while is one of the same version.
    !Arc::ptr_eq(before, after)
        && before.meta.uid == after.meta.uid
        && before.meta.is_deleting() == after.meta.is_deleting()
        && before.spec.volume_name == after.spec.volume_name
        && before.spec.volume_mode == after.spec.volume_mode
}

/// Whether reclaiming two versions of a volume is the same [`Work`].
fn is_same_work(before: &Volume, after: &Volume) -> bool {
    let claims = [before, after].map(|volume| volume.spec.claim_ref.as_ref().map_or("", |held| held.uid.as_str()));
    before.meta.uid == after.meta.uid
        && before.spec.reclaim_policy == after.spec.reclaim_policy
        && claims[0] == claims[1]
}

/// Whether nothing is left to do for a volume whose claim is gone, of which there may be many for one name.
fn rests(volume: &Volume) -> bool {
    volume.spec.reclaim_policy == ReclaimPolicy::Retain
        && matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed)
}

/// Whether two versions of a claim mean the same to the pods that use it.
fn is_same_for_pods(before: &Arc<Claim>, after: &Arc<Claim>) -> bool {
    !Arc::ptr_eq(before, after)
        && before.meta.uid == after.meta.uid
        && before.meta.controller().map(|owner| &owner.uid) == after.meta.controller().map(|owner| &owner.uid)
}

/// Whether an object ended with this change, also where another has its name before anybody saw it go.
fn is_ended<T: Projection>(change: &Change<'_, T>) -> bool {
    match (change.before, change.after) {
        (Some(before), Some(after)) => before.meta().uid != after.meta().uid,
        (_, after) => after.is_none(),
    }
}

/// Everything that can change a decision adds its subject to the queue; a hang starts with a line missing here.
pub(crate) struct Wakes {
    pub(crate) queue: Queue<Subject>,
    pub(crate) caches: Caches,
    pub(crate) memory: Memory,
}

impl Wakes {
    pub(crate) fn subscribe(
        self,
        metrics: &Arc<Metrics>,
        operations: &Operations<Work, ()>,
        context: &Context,
        moved: signal::Sender<u64>,
    ) {
        let wakes = Arc::new(self);
        let caches = wakes.caches.clone();
        caches.claims.on_change({
            let (wakes, metrics) = (Arc::clone(&wakes), Arc::clone(metrics));
            move |change: &Change<'_, Claim>| {
                if is_ended(change) {
                    metrics.forget(&change.key.to_string());
                }
                wakes.claim(change);
            }
        });
        caches.volumes.on_change({
            let (wakes, metrics) = (Arc::clone(&wakes), Arc::clone(metrics));
            let (operations, clock) = (operations.clone(), Arc::clone(&context.clock));
            move |change: &Change<'_, Volume>| {
                if change.after.is_none() {
                    metrics.succeed(&change.key.name, clock.now());
                }
                if let Some(before) = change.before
                    && !change.after.is_some_and(|after| is_same_work(before, after))
                {
                    operations.forget(&Work::of(before));
                    // What was told of it was about that work.
                    wakes.memory.forget(&Subject::Volume(change.key.clone()));
                }
                wakes.volume(change);
            }
        });
        caches.classes.on_change({
            let wakes = Arc::clone(&wakes);
            move |change: &Change<'_, StorageClass>| {
                // Claims without any class wait for a default one under the empty name.
                let is_default = [change.before, change.after].into_iter().flatten().any(|class| class.is_default());
                for class in is_default.then_some("").into_iter().chain([change.key.name.as_str()]) {
                    for claim in wakes.caches.claims.by_index(WAITING, class) {
                        wakes.queue.add(Subject::Claim(claim.key()));
                    }
                }
            }
        });
        caches.pods.on_change({
            let wakes = Arc::clone(&wakes);
            move |change: &Change<'_, Pod>| wakes.pod(change, &moved)
        });
        caches.attributes_classes.on_change({
            let wakes = Arc::clone(&wakes);
            move |change: &Change<'_, AttributesClass>| wakes.queue.add(Subject::AttributesClass(change.key.clone()))
        });
    }

    fn wake(&self, claim: Option<Key>) {
        if let Some(claim) = claim {
            self.queue.add(Subject::Claim(claim));
        }
    }

    fn claim(&self, change: &Change<'_, Claim>) {
        let subject = Subject::Claim(change.key.clone());
        if is_ended(change) {
            self.memory.forget(&subject);
        }
        if change.after.is_none() {
            self.wake(self.caches.matchmaker.forget(change.key));
        }
        self.queue.add(subject);
        if !change.before.zip(change.after).is_some_and(|(before, after)| is_same_for_volumes(before, after)) {
            let versions = || [change.before, change.after].into_iter().flatten();
            let named = versions().filter(|claim| claim.names_volume());
            let named = named.map(|claim| Key::cluster(claim.spec.volume_name.clone()));
            let was_unknown = match (change.before, change.after) {
                (None, _) => true,
                (Some(before), after) => after.is_some_and(|after| Arc::ptr_eq(before, after)),
            };
            let claimed: Vec<Key> = if was_unknown {
                // It was absent, unreadable or unknown until now: all that rested on that, except what rests anyway.
                self.caches.matchmaker.claimed_by_name(change.key, |volume| !rests(volume))
            } else {
                let uids: BTreeSet<&str> = versions().map(|claim| claim.meta.uid.as_str()).collect();
                uids.into_iter().flat_map(|uid| self.caches.matchmaker.claimed_by(change.key, uid)).collect()
            };
            let concerned: BTreeSet<Key> = named.chain(claimed).collect();
            concerned.into_iter().for_each(|volume| self.queue.add(Subject::Volume(volume)));
        }
        if !change.before.zip(change.after).is_some_and(|(before, after)| is_same_for_pods(before, after)) {
            for pod in self.caches.pods.by_index(BY_USED_CLAIM, &change.key.to_string()) {
                if concerns(&pod) {
                    self.queue.add(Subject::Pod(pod.key()));
                }
            }
        }
        for class in change.before.iter().flat_map(|claim| claim.attributes_classes()) {
            self.queue.add(Subject::AttributesClass(Key::cluster(class)));
        }
    }

    /// Wakes whoever may want the volume: those that name it come before those that would take any, and before the volume
    /// itself, because what they write is mostly all that there is to do for it.
    fn offer(&self, volume: &Key, claim: Option<Key>) {
        let offered = self.caches.matchmaker.file(&self.caches.volumes, volume);
        self.wake(claim);
        for claim in self.caches.claims.by_index(BY_VOLUME, &volume.name) {
            self.queue.add(Subject::Claim(claim.key()));
        }
        self.wake(offered);
        self.queue.add(Subject::Volume(volume.clone()));
    }

    fn volume(&self, change: &Change<'_, Volume>) {
        let subject = Subject::Volume(change.key.clone());
        if is_ended(change) {
            self.memory.forget(&subject);
        }
        let claim_of = |volume: Option<&Arc<Volume>>| volume?.spec.claim_ref.as_ref().map(ClaimRef::key);
        let (before, after) = (claim_of(change.before), claim_of(change.after));
        self.wake(before.filter(|claim| after.as_ref() != Some(claim)));
        self.offer(change.key, after);
        let recycles = |volume: &&Arc<Volume>| volume.spec.reclaim_policy == ReclaimPolicy::Recycle;
        if change.before.is_none() || [change.before, change.after].iter().flatten().any(recycles) {
            // A recycler that nobody waits for any more has to go.
            for pod in self.caches.pods.by_index(BY_RECYCLED, &change.key.name) {
                self.queue.add(Subject::Pod(pod.key()));
            }
        }
        if let Some(class) = change.before.map(|volume| volume.attributes_class()).filter(|name| !name.is_empty()) {
            self.queue.add(Subject::AttributesClass(Key::cluster(class)));
        }
    }

    /// A pod that nobody could read is gone: it may have kept any of them.
    fn wake_deleted_claims(&self, namespace: &str) {
        for claim in self.caches.claims.list() {
            if claim.meta.namespace == namespace && claim.meta.is_deleting() {
                self.queue.add(Subject::Claim(claim.key()));
            }
        }
    }

    fn pod(&self, change: &Change<'_, Pod>, moved: &signal::Sender<u64>) {
        let subject = Subject::Pod(change.key.clone());
        if is_ended(change) {
            self.memory.forget(&subject);
        }
        if change.before.is_none() && change.after.is_none() {
            self.wake_deleted_claims(&change.key.namespace);
        }
        for pod in [change.before, change.after].into_iter().flatten() {
            // One of that name that somebody else made keeps ours from being made.
            if names::is_recycler_pod(&pod.meta.name) {
                moved.send_modify(|count| *count += 1);
            }
            if concerns(pod) {
                self.queue.add(subject.clone());
            }
            if let Some((volume, _)) = recycler::task(pod) {
                // One that has let go of it may have been all that it waited for.
                let volume = Key::cluster(volume);
                let held = self.caches.volumes.get(&volume).and_then(|volume| volume.spec.claim_ref.clone());
                self.offer(&volume, held.as_ref().map(ClaimRef::key));
            }
            for claim in pod.claims() {
                let recycled = |volume: &Volume| volume.spec.reclaim_policy == ReclaimPolicy::Recycle;
                for volume in self.caches.matchmaker.claimed_by_name(&claim, recycled) {
                    self.queue.add(Subject::Volume(volume));
                }
                self.queue.add(Subject::Claim(claim));
            }
        }
    }
}

//! Who is decided on again when something changes, in this order: a hang starts with a line missing here. What is
//! remembered of an object goes with it.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::object::{self, Projection};
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::volume::ClaimRef;
use stowage_model::{Claim, Pod, StorageClass, Volume, names};
use stowage_runtime::cache::Change;

use super::{BY_RECYCLED, BY_USED_CLAIM, BY_VOLUME, Key, WAITING};
use crate::controller::Controller;
use crate::recycler;
use crate::snapshot::Work;

/// Whether a pod itself is decided on.
pub(super) fn concerns(pod: &Pod) -> bool {
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

fn attributes_class(name: &str) -> Key {
    Key::AttributesClass(object::Key::cluster(name))
}

impl Controller {
    pub(super) fn claim_changed(&self, change: &Change<'_, Claim>) -> Vec<Key> {
        let key = Key::Claim(change.key.clone());
        if is_ended(change) {
            self.begun.forget(&change.key.to_string());
            self.told.forget(&key);
        }
        let mut woken = Vec::new();
        if change.after.is_none() {
            woken.extend(self.caches.matchmaker.forget(change.key).map(Key::Claim));
        }
        woken.push(key);
        if !change.before.zip(change.after).is_some_and(|(before, after)| is_same_for_volumes(before, after)) {
            woken.extend(self.volumes_of(change).into_iter().map(Key::Volume));
        }
        if !change.before.zip(change.after).is_some_and(|(before, after)| is_same_for_pods(before, after)) {
            let pods = self.caches.pods.by_index(BY_USED_CLAIM, &change.key.to_string());
            woken.extend(pods.into_iter().filter(|pod| concerns(pod)).map(|pod| Key::Pod(pod.key())));
        }
        woken.extend(change.before.iter().flat_map(|claim| claim.attributes_classes()).map(attributes_class));
        woken
    }

    /// The volumes that the claim names, and those that refer to it.
    fn volumes_of(&self, change: &Change<'_, Claim>) -> BTreeSet<object::Key> {
        let versions = || [change.before, change.after].into_iter().flatten();
        let named = versions().filter(|claim| claim.names_volume());
        let named = named.map(|claim| object::Key::cluster(claim.spec.volume_name.clone()));
        let was_unknown = match (change.before, change.after) {
            (None, _) => true,
            (Some(before), after) => after.is_some_and(|after| Arc::ptr_eq(before, after)),
        };
        let claimed: Vec<object::Key> = if was_unknown {
            // It was absent, unreadable or unknown until now: all that rested on that, except what rests anyway.
            self.caches.matchmaker.claimed_by_name(change.key, |volume| !rests(volume))
        } else {
            let uids: BTreeSet<&str> = versions().map(|claim| claim.meta.uid.as_str()).collect();
            uids.into_iter().flat_map(|uid| self.caches.matchmaker.claimed_by(change.key, uid)).collect()
        };
        named.chain(claimed).collect()
    }

    pub(super) fn volume_changed(&self, change: &Change<'_, Volume>) -> Vec<Key> {
        let key = Key::Volume(change.key.clone());
        if change.after.is_none() {
            self.begun.succeed(&change.key.name, self.context.clock.now());
        }
        if let Some(before) = change.before
            && !change.after.is_some_and(|after| is_same_work(before, after))
        {
            self.operations.forget(&Work::of(before));
            // What was told of it was about that work.
            self.told.forget(&key);
        }
        if is_ended(change) {
            self.told.forget(&key);
        }
        let claim_of = |volume: Option<&Arc<Volume>>| volume?.spec.claim_ref.as_ref().map(ClaimRef::key);
        let (before, after) = (claim_of(change.before), claim_of(change.after));
        let left = before.filter(|claim| after.as_ref() != Some(claim));
        let mut woken: Vec<Key> = left.map(Key::Claim).into_iter().collect();
        woken.extend(self.offer(change.key, after));
        let recycles = |volume: &&Arc<Volume>| volume.spec.reclaim_policy == ReclaimPolicy::Recycle;
        if change.before.is_none() || [change.before, change.after].iter().flatten().any(recycles) {
            // A recycler that nobody waits for any more has to go.
            let recyclers = self.caches.pods.by_index(BY_RECYCLED, &change.key.name);
            woken.extend(recyclers.into_iter().map(|pod| Key::Pod(pod.key())));
        }
        let left = change.before.map(|volume| volume.attributes_class()).filter(|name| !name.is_empty());
        woken.extend(left.map(attributes_class));
        woken
    }

    /// Whoever may want the volume: those that name it come before those that would take any, and before the volume
    /// itself, because what they write is mostly all that there is to do for it.
    fn offer(&self, volume: &object::Key, claim: Option<object::Key>) -> Vec<Key> {
        let offered = self.caches.matchmaker.file(&self.caches.volumes, volume);
        let naming = self.caches.claims.by_index(BY_VOLUME, &volume.name);
        let claims = claim.into_iter().chain(naming.into_iter().map(|claim| claim.key())).chain(offered);
        claims.map(Key::Claim).chain([Key::Volume(volume.clone())]).collect()
    }

    pub(super) fn class_changed(&self, change: &Change<'_, StorageClass>) -> Vec<Key> {
        // Claims without any class wait for a default one under the empty name.
        let is_default = [change.before, change.after].into_iter().flatten().any(|class| class.is_default());
        let names = is_default.then_some("").into_iter().chain([change.key.name.as_str()]);
        let waiting = names.flat_map(|name| self.caches.claims.by_index(WAITING, name));
        waiting.map(|claim| Key::Claim(claim.key())).collect()
    }

    pub(super) fn pod_changed(&self, change: &Change<'_, Pod>) -> Vec<Key> {
        let key = Key::Pod(change.key.clone());
        if is_ended(change) {
            self.told.forget(&key);
        }
        let mut woken = Vec::new();
        if change.before.is_none() && change.after.is_none() {
            woken.extend(self.deleted_claims(&change.key.namespace));
        }
        for pod in [change.before, change.after].into_iter().flatten() {
            // One of that name that somebody else made keeps ours from being made.
            if names::is_recycler_pod(&pod.meta.name) {
                self.pods_moved.send_modify(|count| *count += 1);
            }
            if concerns(pod) {
                woken.push(key.clone());
            }
            if let Some((volume, _)) = recycler::task(pod) {
                // One that has let go of it may have been all that it waited for.
                let volume = object::Key::cluster(volume);
                let held = self.caches.volumes.get(&volume).and_then(|volume| volume.spec.claim_ref.clone());
                woken.extend(self.offer(&volume, held.as_ref().map(ClaimRef::key)));
            }
            for claim in pod.claims() {
                let recycled = |volume: &Volume| volume.spec.reclaim_policy == ReclaimPolicy::Recycle;
                let volumes = self.caches.matchmaker.claimed_by_name(&claim, recycled);
                woken.extend(volumes.into_iter().map(Key::Volume));
                woken.push(Key::Claim(claim));
            }
        }
        woken
    }

    /// A pod that nobody could read is gone: it may have kept any of them.
    fn deleted_claims(&self, namespace: &str) -> impl Iterator<Item = Key> {
        let is_kept = move |claim: &Arc<Claim>| claim.meta.namespace == namespace && claim.meta.is_deleting();
        self.caches.claims.list().into_iter().filter(is_kept).map(|claim| Key::Claim(claim.key()))
    }
}

//! Free volumes and waiting claims, brought together: the one place where decisions that compete are prepared.
//!
//! A claim finds its volume in an index; a volume that becomes free is offered to the best waiting claim, and to the next
//! one if that claim takes another volume. So nobody waits for a resync, and nobody is woken in vain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use stowage_model::matching::{Index, Misfits, Place, Waiters, fits, smallest_fit};
use stowage_model::object::Key;
use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Volume};
use stowage_runtime::cache::Cache;

/// How a decision left a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It would take any fitting volume.
    Waits,
    /// It takes this one.
    Takes(String),
    /// It wants none, or one in particular.
    Leaves,
}

/// What may be done with a volume at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    Free,
    /// Somebody is writing to it.
    Busy,
    /// A write to it got no answer and it will be read again, or it is not to be had before a pod has let go of it.
    Unknown,
    /// It is there in a form that nobody can read.
    Unreadable,
}

/// What a claim can choose from, and at which state of the index that was.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub candidates: Vec<Arc<Volume>>,
    /// The volume to wait for: it fits and somebody is writing to it, or it is meant for the claim and unknown for the
    /// moment.
    pub held_up: Option<String>,
    pub misfits: Misfits,
    pub version: u64,
}

#[derive(Default)]
struct State {
    index: Index,
    waiters: Waiters,
    /// Volumes on offer, by the claim that was woken for them.
    offers: BTreeMap<Key, String>,
    /// The claims that each volume was refused to, until it changes.
    refused: BTreeMap<String, BTreeSet<Key>>,
    version: u64,
}

#[derive(Default)]
pub struct Matchmaker(Mutex<State>);

impl Matchmaker {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while holding the index")
    }

    /// Files the newest version of a volume; says which claim to wake.
    ///
    /// The cache is read under the lock: of two changes at the same time the last to file sees the newest version.
    pub fn file(&self, volumes: &Cache<Volume>, key: &Key) -> Option<Key> {
        let mut state = self.lock();
        state.version += 1;
        state.refused.remove(&key.name);
        match volumes.get(key) {
            Some(volume) => {
                if let Some(held) = &volume.spec.claim_ref
                    && state.offers.get(&held.key()) == Some(&key.name)
                {
                    state.offers.remove(&held.key());
                }
                state.index.insert(volume);
            }
            None => {
                state.index.remove(&key.name);
            }
        }
        state.offer(&key.name, None)
    }

    /// What the claim can choose from, and if that is nothing and somebody wants to know, why.
    pub fn choice(&self, claim: &Claim, place: Place<'_>, explained: bool, sight: impl Fn(&Volume) -> Sight) -> Choice {
        let state = self.lock();
        let version = state.version;
        // A volume that somebody has meant for this claim is not passed over because it is just being written.
        let may_take = |volume: &Volume| match sight(volume) {
            Sight::Free => true,
            Sight::Busy | Sight::Unknown => volume.spec.claim_ref.is_some(),
            Sight::Unreadable => false,
        };
        let mut candidates = state.index.candidates(claim, place, may_take);
        // One that has no claim was free a moment ago.
        let is_free = |volume: &Volume| volume.spec.claim_ref.is_none() || sight(volume) == Sight::Free;
        let best = smallest_fit(candidates.iter().map(AsRef::as_ref), claim, place).ok().flatten();
        if let Some(held_up) = best.filter(|best| !is_free(best)) {
            return Choice { held_up: Some(held_up.meta.name.clone()), version, ..Choice::default() };
        }
        candidates.retain(|volume| is_free(volume));
        let suits = |volume: &Arc<Volume>| fits(volume, claim, place).is_ok();
        if candidates.iter().any(suits) {
            return Choice { candidates, version, ..Choice::default() };
        }
        // Of free volumes only those that are written now: whoever waits for one that is unknown would not be told its fate.
        let is_there = |volume: &Volume| matches!(sight(volume), Sight::Free | Sight::Busy);
        let busy = state.index.candidates(claim, place, is_there).into_iter().find(suits);
        let misfits = if explained && busy.is_none() { state.index.explain(claim, place) } else { Misfits::default() };
        Choice { candidates, held_up: busy.map(|volume| volume.meta.name.clone()), misfits, version }
    }

    /// The volumes bound to or reserved for a claim.
    pub fn claimed_by(&self, claim: &Key, uid: &str) -> Vec<Key> {
        let state = self.lock();
        let volumes = state.index.claimed_by(claim, uid);
        volumes.map(|volume| Key::cluster(volume.meta.name.clone())).collect()
    }

    /// The volumes bound to or reserved for any claim of that name, of those that suit.
    pub fn claimed_by_name(&self, claim: &Key, suits: impl Fn(&Volume) -> bool) -> Vec<Key> {
        let state = self.lock();
        let volumes = state.index.claimed_by_name(claim).filter(|volume| suits(volume));
        volumes.map(|volume| Key::cluster(volume.meta.name.clone())).collect()
    }

    /// Notes how a claim was decided on at a version of the index; says which claim to wake.
    pub fn decided(&self, claim: &Claim, outcome: &Outcome, version: u64) -> Option<Key> {
        let key = claim.meta.key();
        let mut state = self.lock();
        state.waiters.remove(&key);
        let offered = state.offers.remove(&key);
        if *outcome == Outcome::Waits {
            // A volume that came between the decision and this note found no waiter. The claim is decided on again, and
            // keeps what it was offered until then.
            if state.version != version
                && !state.index.candidates(claim, Place::Anywhere, |volume| volume.spec.claim_ref.is_none()).is_empty()
            {
                offered.map(|volume| state.offers.insert(key.clone(), volume));
                return Some(key);
            }
            state.waiters.insert(claim);
        }
        match (offered, outcome) {
            // Until the volume is seen to be taken: the claim may still go, or be refused.
            (Some(volume), Outcome::Takes(taken)) if volume == *taken => {
                state.offers.insert(key, volume);
                None
            }
            (Some(volume), _) => state.offer(&volume, Some(&key)),
            (None, _) => None,
        }
    }

    /// The claim was refused the volume that it takes, and may be so for long; says which other to wake for it.
    pub fn refused(&self, claim: &Key, volume: &str) -> Option<Key> {
        let mut state = self.lock();
        if state.offers.get(claim).is_some_and(|offered| offered == volume) {
            state.offers.remove(claim);
        }
        // Each is asked once: the server may have a reason that concerns only some of them.
        state.refused.entry(volume.to_owned()).or_default().insert(claim.clone());
        state.offer(volume, None)
    }

    /// Forgets a claim that is gone; says which claim to wake instead.
    pub fn forget(&self, key: &Key) -> Option<Key> {
        let mut state = self.lock();
        state.waiters.remove(key);
        let offered = state.offers.remove(key)?;
        state.offer(&offered, None)
    }
}

impl State {
    /// Offers a free volume to the best waiting claim, which then waits no longer until it is decided on.
    fn offer(&mut self, volume: &str, except: Option<&Key>) -> Option<Key> {
        let refused = self.refused.get(volume);
        let volume = self.index.get(volume)?;
        let free = volume.spec.claim_ref.is_none()
            && volume.status.phase == VolumePhase::Available
            && !volume.meta.is_deleting();
        let is_refused = |claim: &Key| refused.is_some_and(|claims| claims.contains(claim));
        let best = free.then(|| self.waiters.best(volume, is_refused)).flatten()?;
        if except == Some(&best) {
            return None;
        }
        let name = volume.meta.name.clone();
        self.waiters.remove(&best);
        self.offers.insert(best.clone(), name);
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_is_offered_to_each_waiting_claim_until_one_is_not_refused() {
        let (volumes, matchmaker) = (Cache::<Volume>::new(), Matchmaker::default());
        let spec =
            |size: &str| json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } });
        let keys = ["a", "b", "c"].map(|name| {
            let meta = json!({ "namespace": "n", "name": name, "uid": name, "resourceVersion": "1" });
            let claim: Claim = serde_json::from_value(json!({ "metadata": meta, "spec": spec("1Gi") })).unwrap();
            assert_eq!(matchmaker.decided(&claim, &Outcome::Waits, 0), None);
            claim.meta.key()
        });
        let file = |revision: u64| {
            volumes.observe(
                serde_json::from_value(json!({
                    "metadata": { "name": "v", "uid": "v", "resourceVersion": revision.to_string() },
                    "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"] },
                    "status": { "phase": "Available" },
                }))
                .unwrap(),
            );
            matchmaker.file(&volumes, &Key::cluster("v"))
        };
        assert_eq!(file(1).as_ref(), Some(&keys[0]));
        assert_eq!(matchmaker.refused(&keys[0], "v").as_ref(), Some(&keys[1]));
        assert_eq!(matchmaker.refused(&keys[1], "v").as_ref(), Some(&keys[2]));
        assert_eq!(matchmaker.refused(&keys[0], "v"), None, "tried again by itself");
        assert_eq!(matchmaker.refused(&keys[2], "v"), None);
    }
}

//! Free volumes and waiting claims, brought together: the one place where decisions that compete are prepared.
//!
//! A claim finds its volume in an index; a volume that becomes free is offered to the best waiting claim, and to the next
//! one if that claim takes another volume. So nobody waits for a resync, and nobody is woken in vain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stowage_model::matching::{Index, Misfits, Place, Waiters, fits};
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

/// What a claim can choose from, and at which state of the index that was.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub candidates: Vec<Arc<Volume>>,
    /// Without any candidate: a fitting volume that somebody is writing to.
    pub busy: Option<String>,
    pub misfits: Misfits,
    pub version: u64,
}

#[derive(Default)]
struct State {
    index: Index,
    waiters: Waiters,
    /// Volumes on offer, by the claim that was woken for them.
    offers: BTreeMap<Key, String>,
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
        match volumes.get(key) {
            Some(volume) => state.index.insert(volume),
            None => {
                state.index.remove(&key.name);
            }
        }
        state.offer(&key.name, None)
    }

    /// What the claim can choose from, and if that is nothing and somebody wants to know, why.
    pub fn choice(
        &self,
        claim: &Claim,
        place: Place<'_>,
        explained: bool,
        is_known: impl Fn(&Volume) -> bool,
        is_busy: impl Fn(&Volume) -> bool,
    ) -> Choice {
        let state = self.lock();
        let version = state.version;
        let candidates = state.index.candidates(claim, place, |volume| !is_busy(volume) && is_known(volume));
        let suits = |volume: &Arc<Volume>| fits(volume, claim, place).is_ok();
        if candidates.iter().any(suits) {
            return Choice { candidates, version, ..Choice::default() };
        }
        let busy = state.index.candidates(claim, place, is_known).into_iter().find(suits);
        let misfits = if explained && busy.is_none() { state.index.explain(claim, place) } else { Misfits::default() };
        Choice { candidates, busy: busy.map(|volume| volume.meta.name.clone()), misfits, version }
    }

    /// The volumes bound to or reserved for a claim of that name.
    pub fn claimed_by(&self, claim: &Key) -> Vec<Key> {
        let state = self.lock();
        state.index.claimed_by(claim).map(|volume| Key::cluster(volume.meta.name.clone())).collect()
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
            (Some(volume), Outcome::Takes(taken)) if volume == *taken => None,
            (Some(volume), _) => state.offer(&volume, Some(&key)),
            (None, _) => None,
        }
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
        let volume = self.index.get(volume)?;
        let free = volume.spec.claim_ref.is_none()
            && volume.status.phase == VolumePhase::Available
            && !volume.meta.is_deleting();
        let best = free.then(|| self.waiters.best(volume)).flatten()?;
        if except == Some(&best) {
            return None;
        }
        let name = volume.meta.name.clone();
        self.waiters.remove(&best);
        self.offers.insert(best.clone(), name);
        Some(best)
    }
}

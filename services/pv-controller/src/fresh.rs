//! One fresh read before an action that cannot be taken back: what justifies it may only not have been seen yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stowage_model::object::Key;
use stowage_model::volume::ClaimRef;
use stowage_model::{Claim, Volume};
use stowage_runtime::api::{self, Api};
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Error;

use crate::controller::Controller;
use crate::decide::binder::volume::has_lost_its_claim;

/// Looks remembered: few names of classes mean nothing but themselves, and a look forgotten costs another.
const MISSING_CLASSES: usize = 1024;

/// How far claims and volumes were known.
#[derive(Debug, Clone, Copy)]
struct Moment {
    claims: u64,
    volumes: u64,
}

/// Classes that a look did not find, and when it began.
#[derive(Default)]
pub(crate) struct MissingClasses(Mutex<BTreeMap<Key, Moment>>);

impl MissingClasses {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Moment>> {
        self.0.lock().expect("no code panics while holding the looks")
    }

    fn covers(&self, class: &Key, claim: &Claim, volume: &Volume, now: Moment) -> bool {
        let knew_both = |began: &Moment| claim.meta.revision <= began.claims && volume.meta.revision <= began.volumes;
        // A server that was restored counts from before.
        let is_past = |began: &Moment| began.claims <= now.claims && began.volumes <= now.volumes;
        self.lock().get(class).is_some_and(|began| is_past(began) && knew_both(began))
    }

    fn note(&self, class: Key, began: Moment) {
        let mut looks = self.lock();
        if looks.len() >= MISSING_CLASSES {
            looks.clear();
        }
        looks.insert(class, began);
    }

    fn forget(&self, class: &Key) {
        self.lock().remove(class);
    }
}

/// The claim that a volume refers to, as it is now. A reference without a name refers to nothing.
pub async fn claim_of(api: &Api, claims: &Cache<Claim>, held: &ClaimRef) -> Result<Option<Arc<Claim>>, api::Error> {
    if held.name.is_empty() { Ok(None) } else { api.refresh(claims, &held.key()).await }
}

impl Controller {
    /// Releasing starts reclaiming, so the claim is looked up once more where it cannot be out of date.
    pub(crate) async fn look_for_claim(&self, volume: &Volume) -> Result<(), Error> {
        let held = volume.spec.claim_ref.as_ref().ok_or(Error::Stale("the volume's claim reference"))?;
        let found = claim_of(&self.context.api, &self.caches.claims, held).await.map_err(Error::read("the claim"))?;
        if has_lost_its_claim(volume, found.as_deref()) {
            Ok(())
        } else {
            Err(Error::Stale("whether the claim exists"))
        }
    }

    /// A class that only has not been seen yet may say to wait for a pod: what is chosen without it may be out of the
    /// pod's reach, and is not given back. A class that whoever made the claim or the volume could rely on is older than
    /// both, so one look serves for all pairs that were known when it began.
    pub(crate) async fn look_for_class(&self, claim: &Claim, volume: &Volume) -> Result<(), Error> {
        if claim.names_volume() || claim.class_name().is_empty() {
            return Ok(());
        }
        let key = Key::cluster(claim.class_name());
        let begin = Moment { claims: self.caches.claims.position(), volumes: self.caches.volumes.position() };
        if self.missing_classes.covers(&key, claim, volume, begin) && self.caches.classes.get(&key).is_none() {
            return Ok(());
        }
        let found = match self.caches.classes.get(&key) {
            Some(class) => Some(class),
            None => self.context.api.refresh(&self.caches.classes, &key).await.map_err(Error::read("the class"))?,
        };
        match found {
            Some(_) => {
                self.missing_classes.forget(&key);
                Err(Error::Stale("whether the class exists"))
            }
            None => {
                self.missing_classes.note(key, begin);
                Ok(())
            }
        }
    }

    /// People are told that data may be lost, so the volume is looked up once more where it cannot be out of date.
    pub(crate) async fn look_for_volume(&self, claim: &Claim, seen: u64) -> Result<(), Error> {
        if !claim.names_volume() {
            return Ok(());
        }
        let key = Key::cluster(claim.spec.volume_name.clone());
        let found = self.context.api.refresh(&self.caches.volumes, &key).await.map_err(Error::read("the volume"))?;
        if found.map_or(0, |volume| volume.meta.revision) == seen { Ok(()) } else { Err(Error::Stale("the volume")) }
    }

    pub(crate) async fn look_for_owner(&self, claim: &Claim) -> Result<(), Error> {
        let owner = claim.meta.controller().ok_or(Error::Stale("the claim's owner"))?;
        let key = Key::namespaced(claim.meta.namespace.clone(), owner.name.clone());
        let found = self.context.api.refresh(&self.caches.pods, &key).await.map_err(Error::read("the pod"))?;
        if found.is_some_and(|pod| pod.meta.uid == owner.uid) {
            Err(Error::Stale("whether the pod exists"))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_look_serves_for_the_pairs_that_were_known_when_it_began() {
        let looks = MissingClasses::default();
        let class = Key::cluster("manual");
        let now = std::cell::Cell::new(Moment { claims: 9, volumes: 9 });
        let covers = |claim: u64, volume: u64| {
            let meta = |revision: u64| json!({ "metadata": { "name": "x", "resourceVersion": revision.to_string() } });
            let claim = serde_json::from_value(meta(claim)).unwrap();
            looks.covers(&class, &claim, &serde_json::from_value(meta(volume)).unwrap(), now.get())
        };
        assert!(!covers(1, 1));
        looks.note(class.clone(), Moment { claims: 5, volumes: 7 });
        assert!(covers(5, 7));
        assert!(!covers(6, 7) && !covers(5, 8));
        now.set(Moment { claims: 4, volumes: 9 });
        assert!(!covers(3, 3), "the server was restored");
        now.set(Moment { claims: 9, volumes: 9 });
        looks.forget(&class);
        assert!(!covers(5, 7));
    }
}

//! One fresh read before a step that cannot be taken back: what justifies it may only not have been seen yet.

use std::sync::Arc;

use stowage_model::object::Key;
use stowage_model::volume::ClaimRef;
use stowage_model::{Claim, Volume};
use stowage_runtime::api::{self, Api};
use stowage_runtime::cache::Cache;

use crate::controller::Binder;
use crate::decide::volume::has_lost_its_claim;
use crate::error::Error;

/// The claim that a volume refers to, as it is now. A reference without a name refers to nothing.
pub async fn claim_of(api: &Api, claims: &Cache<Claim>, held: &ClaimRef) -> Result<Option<Arc<Claim>>, api::Error> {
    if held.name.is_empty() { Ok(None) } else { api.refresh(claims, &held.key()).await }
}

impl Binder {
    /// Releasing starts reclaiming, so the claim is looked up once more where it cannot be out of date.
    pub(crate) async fn look_for_claim(&self, volume: &Volume) -> Result<(), Error> {
        let held = volume.spec.claim_ref.as_ref().ok_or(Error::Stale("the volume lost its claim reference"))?;
        let found = claim_of(&self.context.api, &self.caches.claims, held).await.map_err(Error::Read)?;
        if has_lost_its_claim(volume, found.as_deref()) {
            Ok(())
        } else {
            Err(Error::Stale("the claim exists after all"))
        }
    }

    /// A class that only has not been seen yet may say to wait for a pod: what is chosen without it may be out of the
    /// pod's reach, and is not given back.
    pub(crate) async fn look_for_class(&self, claim: &Claim) -> Result<(), Error> {
        if claim.names_volume() || claim.class_name().is_empty() {
            return Ok(());
        }
        let key = Key::cluster(claim.class_name());
        let found = match self.caches.classes.get(&key) {
            Some(class) => Some(class),
            None => self.context.api.refresh(&self.caches.classes, &key).await.map_err(Error::Read)?,
        };
        if found.is_some() { Err(Error::Stale("the class exists after all")) } else { Ok(()) }
    }

    /// People are told that data may be lost, so the volume is looked up once more where it cannot be out of date.
    pub(crate) async fn look_for_volume(&self, claim: &Claim, seen: u64) -> Result<(), Error> {
        if !claim.names_volume() {
            return Ok(());
        }
        let key = Key::cluster(claim.spec.volume_name.clone());
        let found = self.context.api.refresh(&self.caches.volumes, &key).await.map_err(Error::Read)?;
        if found.map_or(0, |volume| volume.meta.revision) == seen {
            Ok(())
        } else {
            Err(Error::Stale("the volume is another than it was"))
        }
    }

    pub(crate) async fn look_for_owner(&self, claim: &Claim) -> Result<(), Error> {
        let owner = claim.meta.controller().ok_or(Error::Stale("the claim has no owner any more"))?;
        let key = Key::namespaced(claim.meta.namespace.clone(), owner.name.clone());
        let found = self.context.api.refresh(&self.caches.pods, &key).await.map_err(Error::Read)?;
        if found.is_some_and(|pod| pod.meta.uid == owner.uid) {
            Err(Error::Stale("the pod exists after all"))
        } else {
            Ok(())
        }
    }
}

//! The fresh looks before steps that cannot be taken back, as the service takes them.

use stowage_model::object::{Key, Projection, kinds};
use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, Pod, Volume};

use super::{Trouble, World};
use crate::decide::binder::volume::has_lost_its_claim;
use crate::decide::{ClaimAction, Seen, VolumeAction, status};

fn unless(stale: bool) -> Result<(), Trouble> {
    if stale { Err(Trouble::Stale) } else { Ok(()) }
}

impl World {
    pub(super) fn look_for_claim(&mut self, claim: &Claim, action: &ClaimAction, seen: Seen) -> Result<(), Trouble> {
        match action {
            ClaimAction::Unprotect => self.look_for_users(claim),
            ClaimAction::Collect => unless(self.has_owner(claim)),
            ClaimAction::Reserve { marked: true, .. } if seen.class == 0 => unless(self.has_class_after_all(claim)),
            ClaimAction::Status(change) if change.to.phase == ClaimPhase::Lost && claim.names_volume() => {
                unless(self.revision_of(&Key::cluster(claim.spec.volume_name.clone())) != seen.volume)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn look_for_volume(&self, volume: &Volume, action: &VolumeAction) -> Result<(), Trouble> {
        match action {
            VolumeAction::Release => unless(!self.is_without_claim(volume)),
            VolumeAction::Unprotect | VolumeAction::DeleteObject => {
                unless(self.revision_of(&volume.key()) != volume.meta.revision)
            }
            _ => Ok(()),
        }
    }

    fn look_for_users(&mut self, claim: &Claim) -> Result<(), Trouble> {
        let namespace = &claim.meta.namespace;
        self.log.push(format!("list pods {namespace}"));
        self.refuse(|world| &mut world.refused_lists)?;
        let pods: Vec<Pod> = self.all::<Pod>().into_iter().filter(|pod| pod.meta.namespace == *namespace).collect();
        pods.iter().for_each(|pod| self.refresh(kinds::POD, &pod.key()));
        unless(pods.iter().any(|pod| status::holds(pod, claim)))
    }

    fn has_owner(&self, claim: &Claim) -> bool {
        let Some(owner) = claim.meta.controller() else { return true };
        let key = Key::namespaced(claim.meta.namespace.clone(), owner.name.clone());
        self.refresh(kinds::POD, &key);
        self.read::<Pod>(&key).is_some_and(|pod| pod.meta.uid == owner.uid)
    }

    fn has_class_after_all(&self, claim: &Claim) -> bool {
        if claim.names_volume() {
            return false;
        }
        let found = self.get(kinds::STORAGE_CLASS, &Key::cluster(claim.class_name())).cloned();
        let is_there = found.is_some();
        found.into_iter().for_each(|tree| self.observe(kinds::STORAGE_CLASS, tree, false));
        is_there
    }

    /// The volume's version; 0 for one that is gone. The caches have it too, then.
    fn revision_of(&self, key: &Key) -> u64 {
        self.refresh(kinds::VOLUME, key);
        self.read::<Volume>(key).map(|volume| volume.meta.revision).unwrap_or_default()
    }

    /// Whether a fresh look at its claim, which the caches then have too, shows that the volume has lost it.
    pub(super) fn is_without_claim(&self, volume: &Volume) -> bool {
        let Some(held) = volume.spec.claim_ref.as_ref().map(|held| held.key()) else { return false };
        self.refresh(kinds::CLAIM, &held);
        has_lost_its_claim(volume, self.read::<Claim>(&held).as_ref())
    }
}

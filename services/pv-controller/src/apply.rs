//! Carries out one action: at most one write, guarded by the version that was decided on.

use serde_json::Value;

use stowage_model::object::{Key, Meta, Projection};
use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Pod, Volume, finalizers};
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::cache::Cache;

use crate::controller::Binder;
use crate::decide::claim;
use crate::decide::{ClaimAction, Subject, VolumeAction};
use crate::error::Error;
use crate::write;

impl Binder {
    pub(crate) async fn carry_out_for_claim(&self, key: &Key, action: ClaimAction) -> Result<(), Error> {
        let claims = &self.caches.claims;
        let claim = claims.get(key).ok_or(Error::Stale("the claim is gone"))?;
        match action {
            ClaimAction::Reserve { volume, marked } => self.reserve(&claim, &volume, marked).await,
            ClaimAction::Complete { volume, marked } => {
                self.patch(claims, &claim.meta, Part::Main, write::complete(&volume, marked)).await
            }
            ClaimAction::Status(status) => self.patch(claims, &claim.meta, Part::Status, write::status(&status)).await,
            ClaimAction::AskProvisioner { provisioner } => {
                self.patch(claims, &claim.meta, Part::Main, write::ask(&provisioner)).await
            }
            ClaimAction::AssignClass { class } => {
                self.patch(claims, &claim.meta, Part::Main, write::class(&class)).await
            }
            ClaimAction::Protect => self.add_finalizer(claims, &claim.meta, finalizers::CLAIM_PROTECTION).await,
            ClaimAction::Unprotect => self.unprotect_claim(&claim).await,
            ClaimAction::Tell(note) => {
                self.recorder.record(&claim.reference(), note.clone());
                self.told(Subject::Claim(key.clone()), note);
                Ok(())
            }
        }
    }

    pub(crate) async fn carry_out_for_volume(&self, key: &Key, action: VolumeAction) -> Result<(), Error> {
        let volumes = &self.caches.volumes;
        let volume = volumes.get(key).ok_or(Error::Stale("the volume is gone"))?;
        match action {
            VolumeAction::Phase { phase, message } => {
                self.patch(volumes, &volume.meta, Part::Status, write::phase(phase, &message)).await
            }
            VolumeAction::Release => self.release(&volume).await,
            VolumeAction::Unbind => self.patch(volumes, &volume.meta, Part::Main, write::unbind(&volume)).await,
            VolumeAction::Protect => self.add_finalizer(volumes, &volume.meta, finalizers::VOLUME_PROTECTION).await,
            VolumeAction::Unprotect => self.unprotect_volume(&volume).await,
            VolumeAction::Tell(note) => {
                self.recorder.record(&volume.reference(), note.clone());
                self.told(Subject::Volume(key.clone()), note);
                Ok(())
            }
            VolumeAction::TellClaim(note) => {
                let claim = volume.spec.claim_ref.as_ref().and_then(|held| self.caches.claims.get(&held.key()));
                if let Some(claim) = claim {
                    self.recorder.record(&claim.reference(), note);
                }
                Ok(())
            }
        }
    }

    async fn reserve(&self, claim: &Claim, volume: &str, marked: bool) -> Result<(), Error> {
        let volume = self.caches.volumes.get(&Key::cluster(volume)).ok_or(Error::Stale("the volume is gone"))?;
        let body = write::reserve(claim, marked);
        self.patch(&self.caches.volumes, &volume.meta, Part::Main, body).await
    }

    /// Releasing starts reclaiming, so the claim is looked up once more where it cannot be out of date.
    async fn release(&self, volume: &Volume) -> Result<(), Error> {
        let held = volume.spec.claim_ref.as_ref().ok_or(Error::Stale("the volume lost its claim reference"))?;
        let found = self.context.api.refresh(&self.caches.claims, &held.key()).await.map_err(Error::Read)?;
        if let Some(claim) = found
            && claim.meta.uid == held.uid
            && (claim.spec.volume_name.is_empty() || claim.spec.volume_name == volume.meta.name)
        {
            return Err(Error::Stale("the claim exists after all"));
        }
        let body = write::phase(VolumePhase::Released, "");
        self.patch(&self.caches.volumes, &volume.meta, Part::Status, body).await
    }

    async fn unprotect_claim(&self, claim: &Claim) -> Result<(), Error> {
        let pods = self.context.api.list::<Pod>(&claim.meta.namespace, "").await.map_err(Error::Read)?;
        let used = pods.iter().any(|pod| claim::uses(pod, claim));
        for pod in pods {
            self.caches.pods.observe(pod);
        }
        if used {
            return Err(Error::Stale("a pod uses the claim after all"));
        }
        self.remove_finalizer(&self.caches.claims, &claim.meta, finalizers::CLAIM_PROTECTION).await
    }

    async fn unprotect_volume(&self, volume: &Volume) -> Result<(), Error> {
        let fresh = self.context.api.refresh(&self.caches.volumes, &volume.key()).await.map_err(Error::Read)?;
        match fresh {
            Some(fresh) if fresh.meta.revision == volume.meta.revision => {
                self.remove_finalizer(&self.caches.volumes, &fresh.meta, finalizers::VOLUME_PROTECTION).await
            }
            _ => Err(Error::Stale("the volume changed")),
        }
    }

    async fn add_finalizer<T: Projection>(&self, cache: &Cache<T>, meta: &Meta, name: &str) -> Result<(), Error> {
        let Some(patch) = Patch::add_finalizer(meta, name) else { return Ok(()) };
        self.send(cache, meta, Part::Main, patch).await
    }

    async fn remove_finalizer<T: Projection>(&self, cache: &Cache<T>, meta: &Meta, name: &str) -> Result<(), Error> {
        let Some(patch) = Patch::remove_finalizer(meta, name) else { return Ok(()) };
        self.send(cache, meta, Part::Main, patch).await
    }

    async fn patch<T: Projection>(&self, cache: &Cache<T>, meta: &Meta, part: Part, body: Value) -> Result<(), Error> {
        self.send(cache, meta, part, Patch::Merge(body)).await
    }

    async fn send<T: Projection>(&self, cache: &Cache<T>, meta: &Meta, part: Part, patch: Patch) -> Result<(), Error> {
        let answer = self.context.api.patch(cache, &Target::exact(meta), part, patch).await;
        answer.map(|_| ()).map_err(Error::Write)
    }
}

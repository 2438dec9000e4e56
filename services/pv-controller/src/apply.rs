//! Carries out one action: the fresh read that an irreversible one needs, then its write.

pub(crate) mod ephemeral;
mod outcome;
mod pair;

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use stowage_model::object::{self, Projection, kinds};
use stowage_model::phase::{ClaimPhase, ReclaimPolicy};
use stowage_model::{Claim, Volume, migration};
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::operation::{Ended, Failure};

use crate::controller::Controller;
use crate::decide::status::Unbound;
use crate::decide::{Action, AttributesClassAction, ClaimAction, PodAction, Seen, Source, VolumeAction};
use crate::snapshot::Work;
use crate::users::look_for_users;
use crate::watches::{Caches, Key};
use crate::write::{self, Write};

impl Controller {
    /// Tells at once what is only told; writes on a task of its own, so that encoding and decoding use all cores and not
    /// only the engine's. The task ends with whoever waits for it.
    pub(crate) async fn carry_out_aside(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        if action.is_told() {
            return self.carry_out(&key, action).await;
        }
        let task = AbortOnDropHandle::new(tokio::spawn(async move { self.carry_out(&key, action).await }));
        match task.await {
            Ok(result) => result,
            Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            Err(stopped) => Err(Error::other(stopped)),
        }
    }

    pub(crate) async fn carry_out(&self, key: &Key, action: Action) -> Result<(), Error> {
        match action {
            Action::Claim(action, seen) => self.carry_out_for_claim(key.object(), action, seen).await,
            Action::Volume(action, seen) => self.carry_out_for_volume(key.object(), action, seen).await,
            Action::Pod(action) => self.carry_out_for_pod(key.object(), action).await,
            Action::AttributesClass(action, seen) => {
                self.carry_out_for_attributes_class(key.object(), action, seen).await
            }
        }
    }

    async fn carry_out_for_claim(&self, key: &object::Key, action: ClaimAction, seen: Seen) -> Result<(), Error> {
        let claim = self.caches.claims.get(key).ok_or(Error::Stale("the claim"))?;
        if let ClaimAction::Tell(source, note) = &action {
            if note.reason == "ProvisioningFailed" {
                self.begun.fail(&key.to_string());
            }
            if note.reason == "FailedBinding" && self.lacks_its_volume(&claim) {
                self.look_for_volume(&claim, 0).await?;
            }
            self.tell(*source, Key::Claim(key.clone()), &claim.reference(), note);
            return Ok(());
        }
        let claim = as_seen(claim, seen.claim)?;
        let volume = match &action {
            ClaimAction::Unprotect => match self.pod_lookups.take(key, seen.claim) {
                Some(pods) => {
                    pods.hold(&claim)?;
                    None
                }
                None => {
                    self.pod_lookups.ask(key, seen.claim);
                    return Err(Error::Begun("a look at the pods"));
                }
            },
            ClaimAction::Collect => {
                self.look_for_owner(&claim).await?;
                None
            }
            ClaimAction::Reserve { volume, marked } => {
                let chosen = as_seen(self.known_volume(volume)?, seen.volume)?;
                if *marked && seen.class == 0 {
                    self.look_for_class(&claim, &chosen).await?;
                }
                Some(chosen)
            }
            ClaimAction::Status(change)
                if change.to.phase == ClaimPhase::Lost || change.says(Unbound::VolumeNotFound) =>
            {
                self.look_for_volume(&claim, seen.volume).await?;
                None
            }
            ClaimAction::Bind(bind) => {
                let volume = as_seen(self.known_volume(&bind.volume)?, seen.volume)?;
                return self.finish_binding(key, &volume).await;
            }
            _ => None,
        };
        // Every fresh look is above: from here on is written what was seen, guarded by its version.
        let begin = self.context.clock.now();
        let mut result = self.send(write::of_claim(&action, &claim, volume.as_deref())).await;
        if result.as_ref().is_err_and(Error::is_uncertain) && self.is_done(&claim, &action) {
            result = Ok(());
        }
        if matches!(action, ClaimAction::Make { .. }) {
            // The plugin has nothing to do but to say what the volume is like, and that it can.
            let took = self.context.clock.now().duration_since(begin).as_secs_f64();
            self.metrics.called(migration::HOST_PATH, "volume_provision", true, took);
        }
        self.count_claim_write(&claim, &action, result.as_ref().err());
        result?;
        match volume {
            Some(reserved) => self.finish_binding(key, &reserved).await,
            None => Ok(()),
        }
    }

    fn lacks_its_volume(&self, claim: &Claim) -> bool {
        let name = || object::Key::cluster(claim.spec.volume_name.clone());
        claim.names_volume() && self.caches.volumes.get(&name()).is_none()
    }

    fn known_volume(&self, name: &str) -> Result<Arc<Volume>, Error> {
        self.caches.volumes.get(&object::Key::cluster(name)).ok_or(Error::Stale("the volume"))
    }

    async fn carry_out_for_volume(&self, key: &object::Key, action: VolumeAction, seen: u64) -> Result<(), Error> {
        let volume = self.caches.volumes.get(key).ok_or(Error::Stale("the volume"))?;
        let is_told = matches!(action, VolumeAction::Tell(_) | VolumeAction::TellClaim(_));
        let volume = if is_told { volume } else { as_seen(volume, seen)? };
        match &action {
            VolumeAction::Tell(note) => {
                self.tell(Source::Binder, Key::Volume(key.clone()), &volume.reference(), note);
            }
            VolumeAction::TellClaim(note) => {
                let claim = volume.spec.claim_ref.as_ref().and_then(|held| self.caches.claims.get(&held.key()));
                if let Some(claim) = claim {
                    self.recorders.get(Source::Binder).record(&claim.reference(), note.clone());
                }
            }
            VolumeAction::Recycle | VolumeAction::DeleteData => self.start_reclaiming(&volume),
            VolumeAction::Release => self.look_for_claim(&volume).await?,
            VolumeAction::Unprotect | VolumeAction::DeleteObject => {
                let fresh = self.context.objects(&self.caches.volumes).fresh(&volume.meta).await?;
                if fresh.meta.revision != volume.meta.revision {
                    return Err(Error::Stale("the volume"));
                }
            }
            _ => {}
        }
        self.send(write::of_volume(&action, &volume)).await
    }

    fn start_reclaiming(&self, volume: &Volume) {
        let work = Work::of(volume);
        let plugin = migration::plugin_of_source(volume).unwrap_or("N/A");
        let deletes = work.policy == ReclaimPolicy::Delete;
        let (clock, metrics, begun) = (self.context.clock.clone(), self.metrics.clone(), self.begun.clone());
        let turns = self.reclaimer.turns.of(volume, self.reclaimer.recycling.eraser);
        let (reclaimer, context, subject) = (self.reclaimer.clone(), self.context.clone(), work.clone());
        // A recycler pod may take hours, and goes on without us: a stop does not wait for it.
        let reclaim = async move {
            let stopped = || Failure { code: "Stopping".into(), message: "the service stops".into() };
            context.unless_shutdown(reclaimer.reclaim(subject)).await.unwrap_or_else(|| Ended::Uncertain(stopped()))
        };
        self.operations.start(work.clone(), async move {
            // Never closed.
            let _turn = match &turns {
                Some(turns) => turns.acquire().await.ok(),
                None => None,
            };
            let begin = clock.now();
            let ended = reclaim.await;
            let ok = matches!(ended, Ended::Done(()));
            // What was called off was never tried.
            if deletes && !matches!(ended, Ended::Uncertain(_)) {
                metrics.called(plugin, "volume_delete", ok, clock.now().duration_since(begin).as_secs_f64());
                if !ok {
                    begun.fail(&work.volume.name);
                }
            }
            ended
        });
    }

    async fn carry_out_for_pod(&self, key: &object::Key, action: PodAction) -> Result<(), Error> {
        let pod = self.caches.pods.get(key).ok_or(Error::Stale("the pod"))?;
        match action {
            PodAction::Tell(note) => {
                self.tell(Source::Ephemeral, Key::Pod(key.clone()), &pod.reference(), &note);
                Ok(())
            }
            PodAction::RemoveRecycler => {
                let target = Target::any_version(&pod.meta);
                let deleted = self.context.api.delete(&self.caches.pods, &target, Deletion::default()).await;
                deleted.map_err(Error::write("delete the recycler pod"))
            }
            PodAction::CreateClaim { volume, claim } => self.create_claim(&pod, &volume, &claim).await,
        }
    }

    async fn carry_out_for_attributes_class(
        &self,
        key: &object::Key,
        action: AttributesClassAction,
        seen: u64,
    ) -> Result<(), Error> {
        let class = self.caches.attributes_classes.get(key).ok_or(Error::Stale("the class"))?;
        let class = as_seen(class, seen)?;
        if action == AttributesClassAction::Unprotect {
            look_for_users(&self.context.api, &self.caches, &class).await?;
        }
        self.send(vec![write::of_attributes_class(action, &class)]).await
    }

    async fn send(&self, writes: Vec<Write>) -> Result<(), Error> {
        for write in writes {
            // Never closed; without a turn there would only be more writes at once.
            let _turn = self.writes.acquire().await;
            send(&self.context.api, &self.caches, write).await?;
        }
        Ok(())
    }
}

/// A write is made of what was decided on and guarded by its version; with another version it would undo what came
/// between.
fn as_seen<T: Projection>(object: Arc<T>, revision: u64) -> Result<Arc<T>, Error> {
    if object.meta().revision == revision { Ok(object) } else { Err(Error::Stale(T::KIND.kind)) }
}

async fn send(api: &Api, caches: &Caches, write: Write) -> Result<(), Error> {
    let (what, result) = match write {
        Write::Patch { kind: kinds::CLAIM, target, part, patch } => {
            ("change the claim", api.patch(&caches.claims, &target, part, patch).await.map(drop))
        }
        Write::Patch { kind: kinds::VOLUME, target, part, patch } => {
            ("change the volume", api.patch(&caches.volumes, &target, part, patch).await.map(drop))
        }
        Write::Patch { target, part, patch, .. } => {
            ("change the class", api.patch(&caches.attributes_classes, &target, part, patch).await.map(drop))
        }
        Write::Create { kind: kinds::CLAIM, body } => {
            ("create the claim", api.create(&caches.claims, body).await.map(drop))
        }
        Write::Create { body, .. } => ("create the volume", api.create(&caches.volumes, body).await.map(drop)),
        Write::Delete { kind: kinds::CLAIM, target } => {
            ("delete the claim", api.delete(&caches.claims, &target, Deletion::default()).await)
        }
        Write::Delete { target, .. } => {
            ("delete the volume", api.delete(&caches.volumes, &target, Deletion::default()).await)
        }
    };
    result.map_err(Error::write(what))
}

//! Reclaiming as an operation: a pod or this process erases the volume, or this process deletes its data.

mod relay;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch as signal};

use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::phase::{PodPhase, ReclaimPolicy};
use stowage_model::{Pod, Volume, migration, names};
use stowage_plugins::{self as plugins, Nfs, Permit, Plugins};
use stowage_runtime::api::{self, Api, Deletion, Target};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::events::Recorder;
use stowage_runtime::operation::{Ended, Failure};
use stowage_runtime::random::Random;

use crate::decide::binder::reclaim::deleting_plugin;
use crate::decide::binder::volume::has_lost_its_claim;
use crate::fresh::claim_of;
use crate::options::{Eraser, Recipe, Recycling};
use crate::snapshot::Work;
use crate::watches::Caches;

use relay::Relay;

/// Where recycler pods run unless a template says otherwise.
const NAMESPACE: &str = "default";
const VOLUME: &str = "stowage.dev/recycles-volume";
const CLAIM: &str = "stowage.dev/recycles-claim";
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
const ERASE: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\"";

/// The volume and the former claim that a recycler pod works on; none for any other pod.
pub fn task(pod: &Pod) -> Option<(&str, &str)> {
    Some((pod.meta.annotation(VOLUME)?, pod.meta.annotation(CLAIM)?))
}

/// What the operations of reclaiming need.
#[derive(Clone)]
pub struct Reclaimer {
    pub api: Api,
    pub caches: Caches,
    pub recycling: Recycling,
    pub plugins: Plugins,
    /// Asked before anything is removed here.
    pub permit: Permit,
    pub turns: Turns,
    /// Moves whenever a recycler pod does.
    pub pods_moved: signal::Receiver<u64>,
    /// Tells people about the volume what is told about its recycler pod.
    pub recorder: Recorder,
    pub random: Random,
}

/// How many volumes this process erases at once. An NFS server that hangs keeps nobody from removing directories.
#[derive(Clone)]
pub struct Turns {
    directories: Arc<Semaphore>,
    exports: Arc<Semaphore>,
}

impl Turns {
    pub fn new(at_once: usize) -> Self {
        Self { directories: Arc::new(Semaphore::new(at_once)), exports: Arc::new(Semaphore::new(at_once)) }
    }

    /// Where the volume's turn is taken; a pod that erases it needs none, and may wait for a node for long.
    pub fn of(&self, volume: &Volume, eraser: Eraser) -> Option<Arc<Semaphore>> {
        match (volume.spec.reclaim_policy, eraser) {
            (ReclaimPolicy::Delete, _) => Some(Arc::clone(&self.directories)),
            (_, Eraser::Plugin) if migration::plugin_of_source(volume) == Some(Nfs::NAME) => {
                Some(Arc::clone(&self.exports))
            }
            (_, Eraser::Plugin) => Some(Arc::clone(&self.directories)),
            (_, Eraser::Pod) => None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("look at the volume and its claim: {0}")]
    Look(api::Error),
    #[error("run the recycler pod: {0}")]
    Api(api::Error),
    #[error("{0}")]
    Plugin(plugins::Error),
    #[error("the volume is not released any more")]
    NotReleased,
    #[error("this process does not lead any more, or stops, or the volume was taken back")]
    Deposed,
    #[error("recycler pod {pod} ended as {phase}: {reason}")]
    Pod { pod: Key, phase: PodPhase, reason: String },
    #[error("an earlier pod {0} is being deleted and must be gone first")]
    PodInTheWay(Key),
    #[error("volumes of kind {0:?} are erased by a pod only: start with --pv-recycler=pod")]
    NeedsPod(&'static str),
    #[error("volumes of kind {0:?} are not deleted here: set persistentVolumeReclaimPolicy to Retain")]
    NotDeletable(&'static str),
}

impl Error {
    /// Whether nothing was tried, or nobody knows what came of it: people need not be told, it is decided on again.
    fn is_called_off(&self) -> bool {
        match self {
            Self::NotReleased | Self::Deposed => true,
            Self::Api(error) => !error.must_be_told(),
            Self::Look(_) => true,
            Self::Plugin(_) | Self::Pod { .. } | Self::PodInTheWay(_) | Self::NeedsPod(_) | Self::NotDeletable(_) => {
                false
            }
        }
    }
}

impl Reclaimer {
    /// Reclaims the volume by its policy, after a fresh look at it and its claim.
    pub async fn reclaim(self, work: Work) -> Ended<()> {
        match self.try_reclaim(&work).await {
            Ok(()) => Ended::Done(()),
            Err(error) if error.is_called_off() => {
                tracing::info!(volume = %work.volume, %error, "reclaiming is put off");
                Ended::Uncertain(Failure { code: "CalledOff".into(), message: error.to_string() })
            }
            Err(error) => Ended::Failed(Failure { code: "Failed".into(), message: error.to_string() }),
        }
    }

    async fn try_reclaim(mut self, work: &Work) -> Result<(), Error> {
        let id = ObjectId { kind: kinds::VOLUME, key: work.volume.clone() };
        let raw = self.api.get_raw(&id).await.map_err(Error::Look)?.ok_or(Error::NotReleased)?;
        let volume: Volume = serde_json::from_value(raw.clone()).map_err(|_| Error::NotReleased)?;
        self.caches.volumes.observe(volume.clone());
        let held = volume.spec.claim_ref.as_ref().ok_or(Error::NotReleased)?;
        let claim = claim_of(&self.api, &self.caches.claims, held).await.map_err(Error::Look)?;
        if Work::of(&volume) != *work || !has_lost_its_claim(&volume, claim.as_deref()) {
            return Err(Error::NotReleased);
        }
        self.permit = self.permit_for(work);
        // The looks may have taken longer than the lease lasts.
        if !self.permit.lasts() {
            return Err(Error::Deposed);
        }
        let kind = volume.spec.other_source.unwrap_or_default();
        match (work.policy, self.recycling.eraser) {
            (ReclaimPolicy::Delete, _) => {
                let plugin = deleting_plugin(&volume).and_then(|name| self.plugins.deletable(name));
                self.removed(plugin.ok_or(Error::NotDeletable(kind))?.delete(&raw, &self.permit).await)
            }
            (_, Eraser::Plugin) => {
                let plugin = migration::plugin_of_source(&volume).and_then(|name| self.plugins.recyclable(name));
                self.removed(plugin.ok_or(Error::NeedsPod(kind))?.recycle(&raw, &self.permit).await)
            }
            (_, Eraser::Pod) => self.run_pod(&raw, &volume, work).await,
        }
    }

    /// Somebody who takes the volume back, by its policy or its claim reference, keeps what is left.
    fn permit_for(&self, work: &Work) -> Permit {
        let (volumes, work) = (self.caches.volumes.clone(), work.clone());
        let is_ours = move || matches!(volumes.view(&work.volume), View::Known(volume) if Work::of(&volume) == work);
        self.permit.as_long_as(is_ours)
    }

    /// What became of it is not for a deposed leader to tell.
    fn removed(&self, result: Result<(), plugins::Error>) -> Result<(), Error> {
        match result {
            Err(plugins::Error::CalledOff) => Err(Error::Deposed),
            Err(_) if !self.permit.lasts() => Err(Error::Deposed),
            result => result.map_err(Error::Plugin),
        }
    }

    async fn run_pod(&mut self, raw: &Value, volume: &Volume, work: &Work) -> Result<(), Error> {
        let is_export = migration::plugin_of_source(volume) == Some(Nfs::NAME);
        let recipe = if is_export { &self.recycling.nfs } else { &self.recycling.host_path };
        let body = pod(recipe, raw, volume, work);
        let text = |field: &str| body["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = Key::namespaced(text("namespace"), text("name"));
        let pods = self.caches.pods.clone();
        let uid = match self.api.create(&pods, body).await {
            Ok(made) => made.meta.uid.clone(),
            // Of an earlier run, or of somebody who only calls it so: nobody knows what it does, and its end would prove
            // nothing. It must be gone before another can have the name, and that may take for ever.
            Err(error) if error.is_already_exists() => {
                let found = pods.get(&key).ok_or(Error::Api(error))?;
                let gone = self.api.delete(&pods, &Target::any_version(&found.meta), Deletion::default()).await;
                gone.map_err(Error::Api)?;
                return Err(Error::PodInTheWay(key));
            }
            Err(error) => return Err(Error::Api(error)),
        };
        let relay = Relay::new(self, &key, &uid, volume);
        // Another that has its name by then is none of ours.
        let is_ours = |pod: &&Pod| pod.meta.uid == uid;
        let has_ended = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.is_terminal() || pod.meta.is_deleting());
        tokio::select! {
            biased;
            () = self.until(&pods, &key, |pod| has_ended(pod.filter(is_ours))) => {}
            () = relay.follow() => {}
        }
        relay.finish().await;
        let ended = pods.get(&key).filter(|pod| is_ours(&&**pod));
        if let Some(ended) = &ended
            && let Err(error) = self.api.delete(&pods, &Target::any_version(&ended.meta), Deletion::default()).await
        {
            // What it did counts; as a stray it is removed later.
            tracing::info!(pod = %key, %error, "the recycler pod cannot be deleted yet");
        }
        match ended.map(|pod| (pod.status.phase, pod.status.reason.clone())) {
            Some((PodPhase::Succeeded, _)) => Ok(()),
            Some((phase, reason)) => Err(Error::Pod { pod: key, phase, reason }),
            None => Err(Error::Pod { pod: key, phase: PodPhase::Failed, reason: "deleted by somebody".into() }),
        }
    }

    async fn until(&mut self, pods: &Cache<Pod>, key: &Key, look: impl Fn(Option<&Pod>) -> bool) {
        loop {
            self.pods_moved.mark_unchanged();
            if look(pods.get(key).as_deref()) {
                return;
            }
            if self.pods_moved.changed().await.is_err() {
                return;
            }
        }
    }
}

/// The recycler pod: the template, with the volume to erase in it.
fn pod(recipe: &Recipe, raw: &Value, volume: &Volume, work: &Work) -> Value {
    let mut pod = recipe.template.clone().unwrap_or_else(|| {
        json!({
            "metadata": { "namespace": NAMESPACE },
            "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "pv-recycler",
                    "image": IMAGE,
                    "command": ["/bin/sh"],
                    "args": ["-c", ERASE],
                    "volumeMounts": [{ "name": "vol", "mountPath": "/scrub" }],
                }],
                "volumes": [{ "name": "vol" }],
            },
        })
    });
    if !pod["metadata"]["namespace"].is_string() {
        pod["metadata"]["namespace"] = NAMESPACE.into();
    }
    pod["metadata"]["name"] = names::recycler_pod(&work.volume.name).into();
    pod["metadata"]["annotations"][VOLUME] = work.volume.name.as_str().into();
    pod["metadata"]["annotations"][CLAIM] = work.claim.as_str().into();
    let member = volume.spec.other_source.unwrap_or("hostPath");
    pod["spec"]["volumes"][0] = json!({ "name": pod["spec"]["volumes"][0]["name"], member: raw["spec"][member] });
    let gi = volume.capacity().size().ok().and_then(|size| u64::try_from(size).ok()).unwrap_or(0) >> 30;
    pod["spec"]["activeDeadlineSeconds"] = recipe.minimum_seconds.max(gi * recipe.seconds_per_gi).into();
    pod
}

#[cfg(test)]
mod tests;

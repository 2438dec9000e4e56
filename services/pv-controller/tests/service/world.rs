//! The service over the embedded server, and the eyes to watch it with.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tower::Layer;

use stowage_model::object::{ObjectId, Projection, kinds};
use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Event, Pod, Volume};
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::metrics::Metrics;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};

use crate::wire::Wire;

pub struct World {
    pub api: Api,
    pub claims: Cache<Claim>,
    pub volumes: Cache<Volume>,
    pub pods: Cache<Pod>,
    pub events: Cache<Event>,
    pub metrics: Metrics,
    pub wire: Wire,
    running: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// A view of a kind, kept true from now on.
pub fn feed<T: Projection>(api: &Api) -> Cache<T> {
    let cache = Cache::new();
    tokio::spawn(watch::feed(api.clone(), cache.clone(), Scope::all(), Random::from_os()));
    cache
}

/// The first object that is as wanted, now or later.
pub async fn until<T: Projection>(cache: &Cache<T>, wanted: impl Fn(&T) -> bool + Send + Sync + 'static) -> Arc<T> {
    let (sender, mut receiver) = tokio::sync::watch::channel(None);
    cache.on_change(move |change| {
        if let Some(object) = change.after.filter(|object| wanted(object)) {
            sender.send_replace(Some(Arc::clone(object)));
        }
    });
    cache.replay();
    let found = receiver.wait_for(Option::is_some).await.unwrap();
    found.clone().unwrap()
}

/// Until there is no object of that name.
pub async fn until_gone<T: Projection>(cache: &Cache<T>, name: &'static str) {
    let (sender, mut gone) = tokio::sync::watch::channel(false);
    cache.on_change(move |change| {
        if change.key.name == name {
            sender.send_replace(change.after.is_none());
        }
    });
    if cache.keys().iter().all(|key| key.name != name) {
        return;
    }
    gone.wait_for(|gone| *gone).await.unwrap();
}

impl World {
    /// The service with its watches open.
    pub async fn start() -> Self {
        Self::start_with(pv_controller::Options::default()).await
    }

    pub async fn start_with(options: pv_controller::Options) -> Self {
        let server = stowage_apiserver::Server::in_memory(stowage_apiserver::Options::system());
        let api = Api::new(kube::Client::new(server.service(), "default"));
        let wire = Wire::default();
        let client = kube::Client::new(wire.layer(server.service()), "default");
        let context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "test");
        let metrics = context.metrics.clone();
        let running = tokio::spawn(async { pv_controller::run(context, options).await.unwrap() });
        for kind in ["/persistentvolumeclaims", "/persistentvolumes", "/storageclasses", "/pods"] {
            wire.asked("WATCH", kind, 1).await;
        }
        let (claims, volumes, pods, events) = (feed(&api), feed(&api), feed(&api), feed(&api));
        Self { claims, volumes, pods, events, metrics, wire, api, running }
    }

    pub async fn create<T: Projection>(&self, body: Value) -> T {
        serde_json::from_value(self.api.create_raw(T::KIND, body).await.unwrap()).unwrap()
    }

    /// Every phase that a volume has from now on.
    pub fn phases(&self) -> mpsc::UnboundedReceiver<VolumePhase> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.volumes.on_change(move |change| {
            change.after.map(|volume| sender.send(volume.status.phase));
        });
        receiver
    }

    #[track_caller]
    pub fn shows(&self, line: &str) {
        let text = self.metrics.encode();
        assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
    }

    #[track_caller]
    pub fn shows_no(&self, part: &str) {
        let text = self.metrics.encode();
        assert!(!text.contains(part), "{part:?} in\n{text}");
    }

    /// Ends a pod's grace, as its node would.
    pub async fn delete_now(&self, pod: &Pod) {
        let now = Deletion { grace_period_seconds: Some(0) };
        self.api.delete(&Cache::<Pod>::new(), &Target::any_version(&pod.meta), now).await.unwrap();
    }

    pub async fn raw_events(&self) -> Vec<Value> {
        let mut found = Vec::new();
        for key in self.events.keys() {
            let id = ObjectId { kind: kinds::EVENT, key };
            found.extend(self.api.get_raw(&id).await.unwrap());
        }
        found
    }
}

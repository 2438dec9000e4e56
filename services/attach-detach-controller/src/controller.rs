//! The loop: what is watched in which order, and what runs beside it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_model::object::Projection;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::{self, Reserved};
use stowage_runtime::events::Recorder;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::{Spawner, Tasks};
use stowage_runtime::told::Told;
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop};

use crate::caches::{Caches, Key};
use crate::decide::{Decision, Policy, Steps, Why, decide};
use crate::error::Error;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::notice::Notice;
use crate::report::Reports;
use crate::snapshot::gather;
use crate::wake;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Take a volume from a node that was not ready for `max_unmount_wait` even if it says the volume is in use.
    pub force_detach_on_timeout: bool,
    pub max_unmount_wait: Duration,
    /// Look at every volume this often besides what events ask for.
    pub reconcile_sync_period: Option<Duration>,
    /// Volumes worked on at the same time.
    pub parallel: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            force_detach_on_timeout: true,
            max_unmount_wait: Duration::from_secs(360),
            reconcile_sync_period: None,
            parallel: 64,
        }
    }
}

pub(crate) struct Controller {
    pub(crate) context: Context,
    pub(crate) caches: Arc<Caches>,
    pub(crate) memory: Memory,
    /// By volume and the pod's uid.
    pub(crate) told: Told<String, String, Notice>,
    pub(crate) reports: Reports,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Metrics,
    policy: Policy,
}

impl engine::Controller for Controller {
    type Key = Key;
    type Action = Steps;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "attach-detach-controller";

    fn decide(&self, key: &Key, now: Timestamp, _reserved: &Reserved) -> Decision {
        match gather(&self.caches, &self.memory, &self.told, key, now) {
            Some(snapshot) => decide(&snapshot, self.policy, now),
            None => Decision::rest(Why::default()),
        }
    }

    async fn apply(self: Arc<Self>, _key: Key, steps: Steps) -> Result<(), Error> {
        self.take(steps).await
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}

/// Runs the controller until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let spawner = tasks.spawner();
    let queue = Queue::new(Backoff::QUEUE);
    let caches = Arc::new(Caches::new());
    wake::subscribe(&caches, &queue);
    let metrics = context.metrics.own(Metrics::register);
    let controller = Arc::new(Controller {
        reports: Reports::new(context.api.clone(), caches.nodes.clone(), spawner.clone()),
        recorder: context.recorder("attachdetach-controller", &spawner),
        memory: Memory::default(),
        told: Told::default(),
        caches: Arc::clone(&caches),
        metrics,
        policy: Policy {
            force_detach_on_timeout: options.force_detach_on_timeout,
            max_unmount_wait: options.max_unmount_wait,
        },
        context: context.clone(),
    });
    if let Some(period) = options.reconcile_sync_period {
        let (caches, queue) = (Arc::clone(&caches), queue.clone());
        spawner.spawn(look_at_everything(caches, queue, period));
    }
    let synced = context.readiness.handle("attach-detach-controller caches");
    let work = async {
        tokio::select! {
            biased;
            () = context.shutdown.requested() => return Ok(()),
            () = sync(&context, &caches, &spawner) => synced.ready(),
        }
        engine::run(&context, controller, queue, options.parallel).await
    };
    context.supervise(tasks, work).await
}

/// What is attached is listed before what is wanted: a wish older than the attachment made for it would look as if it
/// had been withdrawn.
async fn sync(context: &Context, caches: &Caches, spawner: &Spawner) {
    feed(context, &caches.attachments, spawner);
    feed(context, &caches.nodes, spawner);
    feed(context, &caches.drivers, spawner);
    caches.attachments.synced().await;
    caches.nodes.synced().await;
    caches.drivers.synced().await;
    feed(context, &caches.volumes, spawner);
    feed(context, &caches.claims, spawner);
    feed(context, &caches.pods, spawner);
    caches.volumes.synced().await;
    caches.claims.synced().await;
    caches.pods.synced().await;
}

fn feed<T: Projection>(context: &Context, cache: &Cache<T>, spawner: &Spawner) {
    spawner.spawn(watch::feed(context.api.clone(), cache.clone(), Scope::all(), context.random.clone()));
}

async fn look_at_everything(caches: Arc<Caches>, queue: Queue<Key>, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        for key in caches.keys() {
            queue.add(key);
        }
    }
}

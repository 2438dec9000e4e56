//! The provisioner: stands in for external-provisioner, one per driver.
//!
//! Watches claims, PersistentVolumes, StorageClasses, VolumeAttachments where the driver attaches, and Nodes and CSINodes
//! where its volumes have places. Writes PersistentVolumes, their finalizer, the selected node of claims, events, and
//! the Leases of its intent journal. Calls CreateVolume for claims
//! that ask for this driver and DeleteVolume for released volumes. No CreateVolume starts before its record is
//! durable, so that a crash at any point, the claim deleted meanwhile, leaks nothing and doubles nothing.
#![forbid(unsafe_code)]

mod apply;
mod args;
mod calls;
mod controller;
mod decide;
mod driver;
mod error;
#[cfg(test)]
mod fixture;
mod intent;
mod journal;
mod options;
mod ownership;
mod request;
mod requirement;
mod secrets;
mod snapshot;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;

use stowage_model::object::Projection;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::Cache;
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::{Spawner, Tasks};
use stowage_runtime::told::Told;
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop, engine};
use tokio::sync::Semaphore;

use self::calls::Calls;
use self::controller::{Caches, Controller, Key};
use self::journal::{Change, Journal, Storage};
use self::ownership::Bids;

pub use self::args::Args;
pub use self::options::{NodeDeployment, Options};

/// Who stops us does not wait for long, and the lease is still to be given back.
const FLUSH: Duration = Duration::from_secs(5);

/// Provisions until asked to stop.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(context: Context, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(provision(context, options))
}

async fn provision(context: Context, options: Options) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let spawner = tasks.spawner();
    let shutdown = context.shutdown.clone();
    let work = async {
        let ready = tokio::select! {
            biased;
            () = shutdown.requested() => return Ok(()),
            ready = prepare(&context, &options, &spawner) => ready?,
        };
        let Ready { controller, queue } = ready;
        let journal = controller.calls.journal.clone();
        engine::run(&context, controller, queue, options.worker_threads).await?;
        // Calls under way are not waited for: their records stay and are replayed.
        let left = match tokio::time::timeout(FLUSH, journal.flush()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", FLUSH.as_secs()),
        };
        tracing::warn!(error = left, "finished intents stay in the journal and are settled at the next start");
        Ok(())
    };
    context.supervise(tasks, work).await
}

struct Ready {
    controller: Arc<Controller>,
    queue: Queue<Key>,
}

/// Meets the driver, reads the journal, and only then looks at claims.
async fn prepare(context: &Context, options: &Options, spawner: &Spawner) -> Result<Ready, Stop> {
    let unable = |reason: String| Stop::Unable { reason };
    let parts = ["driver", "journal", "claims", "volumes", "classes"].map(|part| context.readiness.handle(part));
    let [driver_ready, journal_ready, claims_ready, volumes_ready, classes_ready] = parts;

    let (channel, facts) = driver::introduce(context, options).await.map_err(|error| unable(error.to_string()))?;
    driver_ready.ready();
    let facts = Arc::new(facts);
    let queue = Queue::new(Backoff::QUEUE);
    let journal = open_journal(context, &facts, &queue, spawner).await.map_err(|error| unable(error.to_string()))?;
    journal_ready.ready();

    let component = format!("{}_{}_{}", facts.driver, context.identity, context.random.uuid());
    let unsettled = Counter::default();
    context.metrics.register(|registry| {
        let help = "Final CreateVolume answers that left open whether an earlier call had made the volume";
        registry.register("stowage_provisioner_unsettled_answers", help, unsettled.clone());
    });
    let turns = || Arc::new(Semaphore::new(options.worker_threads));
    let calls = Calls {
        context: context.clone(),
        channel,
        facts: Arc::clone(&facts),
        journal,
        recorder: context.recorder(component, spawner),
        creating: turns(),
        deleting: turns(),
        unsettled,
    };
    let controller = Arc::new(Controller {
        caches: Caches::new(),
        creations: operations(context, options, spawner, &queue, Key::Claim),
        rooms: operations(context, options, spawner, &queue, Key::Claim),
        cleanups: operations(context, options, spawner, &queue, Key::Claim),
        deletions: operations(context, options, spawner, &queue, Key::Volume),
        told: Told::default(),
        by_volume_name: Arc::default(),
        bids: Bids::default(),
        calls,
        facts,
    });
    controller.subscribe(&queue);
    let caches = &controller.caches;
    feed(context, spawner, &caches.claims);
    feed(context, spawner, &caches.volumes);
    feed(context, spawner, &caches.classes);
    if controller.facts.topology && controller.facts.node.is_none() {
        feed(context, spawner, &caches.nodes);
        feed(context, spawner, &caches.csi_nodes);
        caches.nodes.synced().await;
        caches.csi_nodes.synced().await;
    }
    if controller.facts.attaches {
        feed(context, spawner, &caches.attachments);
        caches.attachments.synced().await;
    }
    caches.claims.synced().await;
    claims_ready.ready();
    caches.volumes.synced().await;
    volumes_ready.ready();
    caches.classes.synced().await;
    classes_ready.ready();
    Ok(Ready { controller, queue })
}

async fn open_journal(
    context: &Context,
    facts: &driver::Facts,
    queue: &Queue<Key>,
    spawner: &Spawner,
) -> Result<Journal, journal::Error> {
    let queue = queue.clone();
    let on_change = move |change: Change<'_>| match change {
        Change::Adopted { uid } => queue.add(Key::Claim(uid.to_owned())),
        Change::Left { intent } => queue.add(Key::Volume(intent.volume.clone())),
    };
    if !facts.options.journal {
        return Ok(Journal::in_memory(on_change));
    }
    let storage = Storage::new(context.api.clone(), facts.options.namespace.clone(), &facts.journal_name());
    // Two runs never sign alike, not even on one machine in one millisecond.
    let run = format!("{}-{}", context.identity, context.random.uuid());
    Journal::open(storage, &run, spawner, on_change).await
}

fn operations<R: Clone + Send + 'static>(
    context: &Context,
    options: &Options,
    spawner: &Spawner,
    queue: &Queue<Key>,
    key: fn(String) -> Key,
) -> Operations<String, R> {
    let backoff = Backoff { base: options.retry_interval_start, max: options.retry_interval_max };
    let queue = queue.clone();
    Operations::new(spawner.clone(), Arc::clone(&context.clock), backoff, move |name: &String| {
        queue.add(key(name.clone()));
    })
}

fn feed<T: Projection>(context: &Context, spawner: &Spawner, cache: &Cache<T>) {
    spawner.spawn(watch::feed(context.api.clone(), cache.clone(), Scope::all(), context.random.clone()));
}

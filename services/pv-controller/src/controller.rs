//! The service as a controller: its state, its life, and its rooms.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch as signal};

use stowage_model::object::{self, ObjectId, ObjectRef, kinds};
use stowage_plugins::{Disk, LocalDisk, Permit, Plugins};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::{Note, Recorder};
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;
use stowage_runtime::{Context, Stop};

use crate::begun::Begun;
use crate::decide::{self, Action, ClaimAction, Decision, PodAction, Source, Why};
use crate::fresh::MissingClasses;
use crate::metrics::Metrics;
use crate::options::{Options, Rules};
use crate::pod_lookups::PodLookups;
use crate::recycler::{Reclaimer, Turns};
use crate::snapshot::{Snapshot, Sources, Told, Work};
use crate::watches::{Caches, Key};

/// Between attempts to reclaim a volume, as upstream has it.
const RECLAIM: Backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(122) };

/// One writer of events for each of upstream's components.
pub(crate) struct Recorders {
    binder: Recorder,
    expander: Recorder,
    ephemeral: Recorder,
}

impl Recorders {
    fn start(setup: &Setup<Key>) -> Self {
        let of = |source: Source| setup.recorder(source.component());
        Self { binder: of(Source::Binder), expander: of(Source::Expander), ephemeral: of(Source::Ephemeral) }
    }

    pub(crate) fn get(&self, source: Source) -> &Recorder {
        match source {
            Source::Binder => &self.binder,
            Source::Expander => &self.expander,
            Source::Ephemeral => &self.ephemeral,
        }
    }
}

/// The controller's state: caches, what people were told, operations under way.
pub struct Controller {
    pub(crate) context: Context,
    pub(crate) queue: Queue<Key>,
    pub(crate) caches: Caches,
    pub(crate) rules: Rules,
    pub(crate) told: Told,
    pub(crate) recorders: Recorders,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) begun: Arc<Begun>,
    pub(crate) operations: Operations<Work, ()>,
    pub(crate) reclaimer: Reclaimer,
    /// Moves whenever a recycler pod does.
    pub(crate) pods_moved: signal::Sender<u64>,
    pub(crate) pod_lookups: PodLookups,
    pub(crate) missing_classes: MissingClasses,
    ephemeral_parallel: Option<usize>,
    /// As many as decisions are applied at once: each write in flight is a connection, with its buffers.
    pub(crate) writes: Semaphore,
}

impl Controller {
    fn new(setup: &Setup<Key>, options: &Options, disk: &Arc<dyn Disk>) -> Self {
        let (context, queue) = (setup.context.clone(), setup.queue.clone());
        let caches = Caches::default();
        let recorders = Recorders::start(setup);
        let (pods_moved, moved) = signal::channel(0);
        let reclaimer = Reclaimer {
            api: context.api.clone(),
            caches: caches.clone(),
            recycling: options.recycling.clone(),
            plugins: Plugins::of(disk),
            permit: permit(&context),
            turns: Turns::new(options.parallel),
            pods_moved: moved,
            recorder: recorders.binder.clone(),
            random: context.random.clone(),
        };
        let wake = {
            let queue = queue.clone();
            move |claim| queue.add(Key::Claim(claim))
        };
        let metrics = Metrics::of(&context.metrics, options.controllers.binder.then_some(&caches));
        Self {
            begun: Arc::new(Begun::new(&metrics)),
            metrics,
            operations: setup.operations(RECLAIM, |work: &Work| [Key::Volume(work.volume.clone())]),
            pod_lookups: PodLookups::new(context.api.clone(), caches.pods.clone(), setup.spawner.clone(), wake),
            missing_classes: MissingClasses::default(),
            ephemeral_parallel: options.ephemeral_parallel,
            writes: Semaphore::new(options.parallel),
            rules: options.rules(),
            told: Told::default(),
            context,
            queue,
            caches,
            recorders,
            reclaimer,
            pods_moved,
        }
    }

    /// Where only so many claims may be made at once, each takes one of that many turns as if it were an object: whoever
    /// finds it taken waits outside, and keeps nobody else from being worked on.
    fn ephemeral_turn(&self, pod: &object::Key) -> Option<ObjectId> {
        let turns = self.ephemeral_parallel?.max(1);
        let sum = pod
            .namespace
            .bytes()
            .chain(pod.name.bytes())
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        Some(ObjectId { kind: kinds::POD, key: object::Key::cluster(format!("turn {}", sum % turns)) })
    }

    pub(crate) fn tell(&self, source: Source, key: Key, about: &ObjectRef, note: &Note) {
        let is_told = self.recorders.get(source).record(about, note.clone());
        self.told.note(key, source, note.clone(), is_told, self.context.clock.now());
    }
}

/// Binds claims until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    run_with(context, options, Arc::new(LocalDisk::default())).await
}

/// The same, with hostPath volumes on another disk.
pub async fn run_with(context: Context, options: Options, disk: Arc<dyn Disk>) -> Result<(), Stop> {
    let ended = engine::serve(context, options.parallel, async |setup| {
        let controller = Controller::new(setup, &options, &disk);
        if let Some(period) = options.sync_period.filter(|period| !period.is_zero()) {
            let (queue, caches) = (setup.queue.clone(), controller.caches.clone());
            setup.spawner.spawn(async move {
                loop {
                    tokio::time::sleep(period).await;
                    caches.keys().into_iter().for_each(|key| queue.add(key));
                }
            });
        }
        Ok(controller)
    })
    .await;
    // However it ended, before the lease is given to somebody who may give the volumes to others.
    disk.idle().await;
    ended
}

fn permit(context: &Context) -> Permit {
    let context = context.clone();
    Permit::new(move || context.may_call_driver() && !context.shutdown.is_triggered())
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "pv-controller";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.declare(watches);
    }

    fn gather(&self, key: &Key, reserved: &Reserved, _now: Timestamp) -> Snapshot {
        let (caches, told, rules) = (&self.caches, &self.told, self.rules);
        let record = &|work: &Work| self.operations.record(work);
        let is_pod_lookup_pending = &|claim: &object::Key| self.pod_lookups.is_pending(claim);
        let asked_since = &|claim: &object::Key| self.begun.since(&claim.to_string());
        Sources { caches, rules, told, reserved, record, is_pod_lookup_pending, asked_since }.gather(key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision<Action> {
        decide::decide(snapshot, now)
    }

    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision<Action>, now: Timestamp) {
        self.remember(key, snapshot, decision, now);
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        self.carry_out_aside(key, action).await
    }

    fn subject(key: &Key) -> Option<ObjectId> {
        Some(key.id())
    }

    fn touches(&self, key: &Key, actions: &[Action]) -> Vec<ObjectId> {
        let mut touched = vec![key.id()];
        let volume = |name: &str| ObjectId { kind: kinds::VOLUME, key: object::Key::cluster(name) };
        for action in actions {
            match action {
                Action::Claim(ClaimAction::Reserve { volume: name, .. }, _) => touched.push(volume(name)),
                Action::Claim(ClaimAction::Bind(bind), _) => touched.push(volume(&bind.volume)),
                Action::Pod(PodAction::CreateClaim { .. }) => touched.extend(self.ephemeral_turn(key.object())),
                Action::Claim(..) | Action::Volume(..) | Action::Pod(_) | Action::AttributesClass(..) => {}
            }
        }
        touched
    }

    fn queue_name(key: &Key) -> &'static str {
        match key {
            Key::Claim(_) => "claims",
            Key::Volume(_) => "volumes",
            Key::Pod(_) => "ephemeral_volume",
            Key::AttributesClass(_) => "vacprotection",
        }
    }

    fn is_work(action: &Action) -> bool {
        !action.is_told()
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}

#[cfg(test)]
mod tests;

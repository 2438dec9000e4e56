//! The loop: what changed, which subjects that concerns, and the engine that decides and applies.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch as signal};

use stowage_model::object::{Key, ObjectId, ObjectRef, Projection, kinds};
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{AttributesClass, Volume, migration};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::{self, Controller, Reserved};
use stowage_runtime::events::{Note, Recorder};
use stowage_runtime::operation::Operations;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::{Spawner, Tasks};
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop};

use crate::decide::{self, Action, ClaimAction, Decision, PodAction, Source, Subject, VolumeAction, Waiting, Why};
use crate::disk::{Disk, LocalDisk};
use crate::erase::Permit;
use crate::error::Error;
use crate::fresh::MissingClasses;
use crate::looking::Looking;
use crate::metrics::Metrics;
use crate::mind::{Memory, Mind, Seen};
use crate::options::{Options, Rules};
use crate::recycler::{Reclaimer, Turns};
use crate::snapshot::{Caches, Work};
use crate::wakes::{Wakes, concerns};

/// Between attempts to reclaim a volume, as upstream has it.
const RECLAIM: Backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(122) };

/// One writer of events for each of upstream's components.
pub(crate) struct Recorders {
    binder: Recorder,
    expander: Recorder,
    ephemeral: Recorder,
}

impl Recorders {
    fn start(context: &Context, spawner: &Spawner) -> Self {
        let of = |source: Source| context.recorder(source.component(), spawner);
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

/// An action with the versions that it was decided on.
#[derive(Debug)]
pub struct Step {
    pub(crate) action: Action,
    pub(crate) seen: Seen,
}

/// The controller's state: caches, what people were last told, operations under way.
pub struct Binder {
    pub(crate) context: Context,
    pub(crate) caches: Caches,
    pub(crate) recorders: Recorders,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) operations: Operations<Work, ()>,
    pub(crate) reclaimer: Reclaimer,
    pub(crate) looking: Looking,
    pub(crate) missing_classes: MissingClasses,
    ephemeral_parallel: Option<usize>,
    /// As many as decisions are applied at once: each write in flight is a connection, with its buffers.
    pub(crate) writes: Semaphore,
    pub(crate) queue: Queue<Subject>,
    memory: Memory,
    pub(crate) rules: Rules,
}

impl Binder {
    /// Provisioning and deleting are timed from the first decision in favour of them, whoever does the work.
    fn note_start(&self, subject: &Subject, why: &Why, now: Timestamp) {
        match (subject, why) {
            (Subject::Claim(key), Why::Provision | Why::Waiting(Waiting::Provisioner | Waiting::Class)) => {
                let claim = self.caches.claims.get(key);
                let class = claim.map(|claim| claim.class_name().to_owned()).unwrap_or_default();
                let plugin = self.plugin_of_class(&class);
                // Where there is a plugin that only cannot make this volume, it was begun.
                let is_begun = plugin == migration::HOST_PATH && self.rules.host_path_provisioner;
                if *why != Why::Waiting(Waiting::Class) || is_begun {
                    self.metrics.start(key.to_string(), &plugin, "provision", now);
                }
            }
            (
                Subject::Volume(key),
                Why::ClaimGone | Why::ClaimElsewhere | Why::Reclaim | Why::Phase(VolumePhase::Failed),
            ) => {
                let volume = self.caches.volumes.get(key);
                let deleted = |volume: &Arc<Volume>| {
                    volume.spec.reclaim_policy == ReclaimPolicy::Delete
                        && decide::reclaim::is_released(volume)
                        && volume.migrated_to().is_none_or(str::is_empty)
                };
                if let Some(volume) = volume.filter(deleted) {
                    let plugin = match migration::plugin_of_source(&volume) {
                        Some(plugin) if plugin == migration::HOST_PATH => plugin.to_owned(),
                        _ => self.plugin_of_class(volume.class_name()),
                    };
                    self.metrics.start(key.name.clone(), &plugin, "delete", now);
                }
            }
            _ => {}
        }
    }

    /// The class's provisioner, under the name of the driver that stands for it; never a volume's annotation, which
    /// could be anything.
    fn plugin_of_class(&self, class: &str) -> String {
        let class = self.caches.classes.get(&Key::cluster(class));
        class
            .map(|class| migration::driver_of(&class.provisioner).unwrap_or(&class.provisioner).to_owned())
            .unwrap_or_default()
    }

    /// Where only so many claims may be made at once, each takes one of that many turns as if it were an object: whoever
    /// finds it taken waits outside, and keeps nobody else from being worked on.
    fn ephemeral_turn(&self, subject: &Subject) -> Option<ObjectId> {
        let Subject::Pod(pod) = subject else { return None };
        let turns = self.ephemeral_parallel?.max(1);
        let sum = pod
            .namespace
            .bytes()
            .chain(pod.name.bytes())
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        Some(ObjectId { kind: kinds::POD, key: Key::cluster(format!("turn {}", sum % turns)) })
    }

    pub(crate) fn tell(&self, source: Source, subject: Subject, about: &ObjectRef, note: &Note) {
        let is_told = self.recorders.get(source).record(about, note.clone());
        self.memory.note(subject, source, note.clone(), is_told, self.context.clock.now());
    }
}

/// Binds claims until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    run_with(context, options, Arc::new(LocalDisk::default())).await
}

/// The same, with hostPath volumes on another disk.
pub async fn run_with(context: Context, options: Options, disk: Arc<dyn Disk>) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let spawner = tasks.spawner();
    let queue: Queue<Subject> = Queue::new(Backoff::QUEUE);
    let caches = Caches::default();
    let memory = Memory::default();
    let metrics = Metrics::of(&context.metrics, options.controllers.binder.then_some(&caches));
    let operations = Operations::new(spawner.clone(), Arc::clone(&context.clock), RECLAIM, {
        let queue = queue.clone();
        move |work: &Work| queue.add(Subject::Volume(work.volume.clone()))
    });
    let (moved, pods_moved) = signal::channel(0);
    let wakes = Wakes { queue: queue.clone(), caches: caches.clone(), memory: memory.clone() };
    wakes.subscribe(&metrics, &operations, &context, moved);
    feed(&context, &spawner, &caches.claims);
    feed(&context, &spawner, &caches.volumes);
    feed(&context, &spawner, &caches.classes);
    feed(&context, &spawner, &caches.pods);
    if options.controllers.attributes_class_protection {
        spawner.spawn(feed_attributes_classes(context.clone(), caches.attributes_classes.clone()));
    }
    if let Some(period) = options.sync_period.filter(|period| !period.is_zero()) {
        let (queue, caches) = (queue.clone(), caches.clone());
        spawner.spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                subjects(&caches).into_iter().for_each(|subject| queue.add(subject));
            }
        });
    }
    let ready = context.readiness.handle("pv-controller caches");
    let recorders = Recorders::start(&context, &spawner);
    let binder = Arc::new(Binder {
        reclaimer: Reclaimer {
            api: context.api.clone(),
            caches: caches.clone(),
            recycling: options.recycling.clone(),
            disk: Arc::clone(&disk),
            permit: permit(&context),
            turns: Turns::new(options.parallel),
            pods_moved,
            recorder: recorders.binder.clone(),
            random: context.random.clone(),
        },
        recorders,
        looking: Looking::new(context.api.clone(), caches.pods.clone(), spawner.clone(), {
            let queue = queue.clone();
            move |claim| queue.add(Subject::Claim(claim))
        }),
        missing_classes: MissingClasses::default(),
        context: context.clone(),
        caches: caches.clone(),
        writes: Semaphore::new(options.parallel),
        ephemeral_parallel: options.ephemeral_parallel,
        rules: options.rules(),
        queue: queue.clone(),
        metrics,
        operations,
        memory,
    });
    let work = async {
        let synced = async {
            caches.claims.synced().await;
            caches.volumes.synced().await;
            caches.classes.synced().await;
            caches.pods.synced().await;
        };
        // A shutdown must not wait for an API server that never answers.
        if context.unless_shutdown(synced).await.is_none() {
            return Ok(());
        }
        ready.ready();
        engine::run(&context, binder, queue, options.parallel).await
    };
    let ended = context.supervise(tasks, work).await;
    // Before the lease is given to somebody who may give the volumes to others.
    disk.idle().await;
    ended
}

fn permit(context: &Context) -> Permit {
    let context = context.clone();
    Permit::new(move || context.may_call_driver() && !context.shutdown.is_triggered())
}

fn feed<T: Projection>(context: &Context, spawner: &Spawner, cache: &Cache<T>) {
    spawner.spawn(watch::feed(context.api.clone(), cache.clone(), Scope::all(), context.random.clone()));
}

/// Servers of old do not serve the kind; then there is nothing to protect.
async fn feed_attributes_classes(context: Context, cache: Cache<AttributesClass>) {
    let probe = context.api.list::<AttributesClass>("", "limit=1").await;
    if probe.is_err_and(|error| error.is_not_found()) {
        tracing::info!("the API server has no VolumeAttributesClasses");
        return;
    }
    watch::feed(context.api.clone(), cache, Scope::all(), context.random.clone()).await;
}

fn subjects(caches: &Caches) -> Vec<Subject> {
    let claims = caches.claims.keys().into_iter().map(Subject::Claim);
    let volumes = caches.volumes.keys().into_iter().map(Subject::Volume);
    let pods = caches.pods.list().into_iter().filter(|pod| concerns(pod)).map(|pod| Subject::Pod(pod.key()));
    let classes = caches.attributes_classes.keys().into_iter().map(Subject::AttributesClass);
    claims.chain(volumes).chain(pods).chain(classes).collect()
}

impl Controller for Binder {
    type Key = Subject;
    type Action = Step;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "pv-controller";

    fn decide(&self, subject: &Subject, now: Timestamp, reserved: &Reserved) -> Decision<Step> {
        let record = |work: &Work| self.operations.record(work);
        let (caches, rules, memory) = (&self.caches, &self.rules, &self.memory);
        let mut thought = Mind { caches, rules, memory, record, reserved, now }.think(subject);
        if let Subject::Claim(key) = subject {
            let is_let_go = matches!(thought.decision.actions[..], [Action::Claim(ClaimAction::Unprotect)]);
            if !is_let_go {
                self.looking.forget(key);
            } else if self.looking.is_pending(key) {
                // Its end wakes the claim, which meanwhile takes no place from others.
                thought.decision = Decision::wait_half_way(Why::Protection);
            }
        }
        if let Some(claim) = thought.wake {
            self.queue.add(Subject::Claim(claim));
        }
        self.note_start(subject, &thought.decision.why, now);
        if let (Subject::Volume(key), Why::Gone) = (subject, &thought.decision.why)
            && caches.volumes.get(key).is_none()
        {
            // What was still running when the volume went leaves a record that nobody asks for.
            let first = Work::first_of(key.clone());
            let of_volume = self.operations.records_from(&first, |work| work.volume == *key);
            of_volume.iter().for_each(|(work, _)| self.operations.forget(work));
        }
        let seen = thought.seen;
        thought.decision.map(|action| Step { action, seen })
    }

    async fn apply(self: Arc<Self>, subject: Subject, step: Step) -> Result<(), Error> {
        self.take(subject, step).await
    }

    fn subject(subject: &Subject) -> Option<ObjectId> {
        let (kind, key) = match subject {
            Subject::Claim(key) => (kinds::CLAIM, key),
            Subject::Volume(key) => (kinds::VOLUME, key),
            Subject::Pod(key) => (kinds::POD, key),
            Subject::AttributesClass(key) => (kinds::ATTRIBUTES_CLASS, key),
        };
        Some(ObjectId { kind, key: key.clone() })
    }

    fn touches(&self, subject: &Subject, steps: &[Step]) -> Vec<ObjectId> {
        let mut touched: Vec<ObjectId> = Self::subject(subject).into_iter().collect();
        let volume = |name: &str| ObjectId { kind: kinds::VOLUME, key: Key::cluster(name) };
        for step in steps {
            match &step.action {
                Action::Claim(ClaimAction::Reserve { volume: name, .. }) => touched.push(volume(name)),
                Action::Claim(ClaimAction::Bind(step)) => touched.push(volume(&step.volume)),
                Action::Volume(VolumeAction::TellClaim(_)) | Action::Claim(_) | Action::Volume(_) => {}
                Action::Pod(PodAction::CreateClaim { .. }) => touched.extend(self.ephemeral_turn(subject)),
                Action::Pod(_) | Action::AttributesClass(_) => {}
            }
        }
        touched
    }

    fn queue_name(subject: &Subject) -> &'static str {
        match subject {
            Subject::Claim(_) => "claims",
            Subject::Volume(_) => "volumes",
            Subject::Pod(_) => "ephemeral_volume",
            Subject::AttributesClass(_) => "vacprotection",
        }
    }

    fn is_work(step: &Step) -> bool {
        !step.action.is_told()
    }

    fn keys(&self) -> Vec<Subject> {
        subjects(&self.caches)
    }
}

#[cfg(test)]
mod tests;

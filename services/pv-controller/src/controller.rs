//! The loop: what changed, which claims and volumes that concerns, and the engine that decides and applies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use stowage_model::matching::{self, Place};
use stowage_model::object::{Key, ObjectId, Projection, kinds};
use stowage_model::{Claim, Pod, StorageClass, Volume};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::{Cache, Change};
use stowage_runtime::engine::{self, Controller, Reserved};
use stowage_runtime::events::{Note, Recorder};
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop};

use crate::decide::{self, Action, ClaimAction, Decision, Subject, Why};
use crate::error::Error;
use crate::snapshot::{BY_CLAIM, BY_VOLUME, Caches, ClaimSnapshot, VolumeSnapshot, WAITING};

/// How the controller behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether claims of a class may get new volumes.
    pub provisioning: bool,
    /// Decisions applied side by side.
    pub parallel: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { provisioning: true, parallel: 64 }
    }
}

/// The binder's state: caches and what people were last told.
pub struct Binder {
    pub(crate) context: Context,
    pub(crate) caches: Caches,
    pub(crate) recorder: Recorder,
    options: Options,
    told: Arc<Mutex<BTreeMap<Subject, Note>>>,
}

impl Binder {
    pub(crate) fn told(&self, subject: Subject, note: Note) {
        lock(&self.told).insert(subject, note);
    }
}

fn lock(told: &Mutex<BTreeMap<Subject, Note>>) -> MutexGuard<'_, BTreeMap<Subject, Note>> {
    told.lock().expect("no code panics while holding the notes")
}

/// Binds claims until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let queue = Queue::new(Backoff::QUEUE);
    let caches = Caches::default();
    let told = Arc::new(Mutex::new(BTreeMap::new()));
    subscribe(&caches, &queue, &told);
    feed(&context, &tasks, &caches.claims);
    feed(&context, &tasks, &caches.volumes);
    feed(&context, &tasks, &caches.classes);
    feed(&context, &tasks, &caches.pods);
    let ready = context.readiness.handle("pv-controller caches");
    let recorder = context.recorder("persistentvolume-controller", &tasks.spawner());
    let parallel = options.parallel;
    let binder = Arc::new(Binder { context: context.clone(), caches: caches.clone(), recorder, options, told });
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
        engine::run(&context, binder, queue, parallel).await
    };
    context.supervise(tasks, work).await
}

fn feed<T: Projection>(context: &Context, tasks: &Tasks, cache: &Cache<T>) {
    let fed = watch::feed(context.api.clone(), cache.clone(), Scope::all(), context.random.clone());
    tasks.spawner().spawn(fed);
}

/// Everything that can change a decision adds its subject to the queue; a hang starts with a line missing here.
fn subscribe(caches: &Caches, queue: &Queue<Subject>, told: &Arc<Mutex<BTreeMap<Subject, Note>>>) {
    caches.claims.on_change({
        let (queue, volumes, told) = (queue.clone(), caches.volumes.clone(), Arc::clone(told));
        move |change: &Change<'_, Claim>| {
            let subject = Subject::Claim(change.key.clone());
            if change.after.is_none() {
                lock(&told).remove(&subject);
            }
            queue.add(subject);
            for claim in [change.before, change.after].into_iter().flatten().filter(|claim| claim.names_volume()) {
                queue.add(Subject::Volume(Key::cluster(claim.spec.volume_name.clone())));
            }
            for volume in volumes.by_index(BY_CLAIM, &change.key.to_string()) {
                queue.add(Subject::Volume(volume.key()));
            }
        }
    });
    caches.volumes.on_change({
        let (queue, claims, told) = (queue.clone(), caches.claims.clone(), Arc::clone(told));
        move |change: &Change<'_, Volume>| {
            let subject = Subject::Volume(change.key.clone());
            if change.after.is_none() {
                lock(&told).remove(&subject);
            }
            queue.add(subject);
            for volume in [change.before, change.after].into_iter().flatten() {
                if let Some(claim) = &volume.spec.claim_ref {
                    queue.add(Subject::Claim(claim.key()));
                }
            }
            for claim in claims.by_index(BY_VOLUME, &change.key.name) {
                queue.add(Subject::Claim(claim.key()));
            }
            if let Some(volume) = change.after {
                wake_fitting(&queue, &claims, volume);
            }
        }
    });
    caches.classes.on_change({
        let (queue, claims) = (queue.clone(), caches.claims.clone());
        move |change: &Change<'_, StorageClass>| {
            // Claims without any class wait for a default one under the empty name.
            for class in ["", &change.key.name] {
                for claim in claims.by_index(WAITING, class) {
                    queue.add(Subject::Claim(claim.key()));
                }
            }
        }
    });
    caches.pods.on_change({
        let queue = queue.clone();
        move |change: &Change<'_, Pod>| {
            for pod in [change.before, change.after].into_iter().flatten() {
                for claim in pod.claims() {
                    queue.add(Subject::Claim(claim));
                }
            }
        }
    });
}

/// A volume that became free wakes the waiting claims it fits, not all of them.
fn wake_fitting(queue: &Queue<Subject>, claims: &Cache<Claim>, volume: &Volume) {
    if volume.spec.claim_ref.is_some() {
        return;
    }
    for claim in claims.by_index(WAITING, volume.class_name()) {
        if matching::fits(volume, &claim, Place::Anywhere).is_ok() {
            queue.add(Subject::Claim(claim.key()));
        }
    }
}

impl Controller for Binder {
    type Key = Subject;
    type Action = Action;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "pv-controller";

    fn decide(&self, subject: &Subject, _now: Timestamp, reserved: &Reserved) -> Decision<Action> {
        let told = lock(&self.told).get(subject).cloned();
        match subject {
            Subject::Claim(key) => match self.caches.claim(key, reserved) {
                Some(snapshot) => {
                    let provisioning = self.options.provisioning;
                    decide::claim::decide(&ClaimSnapshot { told, provisioning, ..snapshot }).map(Action::Claim)
                }
                None => Decision::rest(Why::Gone),
            },
            Subject::Volume(key) => match self.caches.volume(key) {
                Some(snapshot) => decide::volume::decide(&VolumeSnapshot { told, ..snapshot }).map(Action::Volume),
                None => Decision::rest(Why::Gone),
            },
        }
    }

    async fn apply(self: Arc<Self>, subject: Subject, action: Action) -> Result<(), Error> {
        match (subject, action) {
            (Subject::Claim(key), Action::Claim(action)) => self.carry_out_for_claim(&key, action).await,
            (Subject::Volume(key), Action::Volume(action)) => self.carry_out_for_volume(&key, action).await,
            (Subject::Claim(_), Action::Volume(_)) | (Subject::Volume(_), Action::Claim(_)) => {
                Err(Error::Stale("an action reached a subject of the other kind"))
            }
        }
    }

    fn touches(&self, subject: &Subject, actions: &[Action]) -> Vec<ObjectId> {
        let mut touched = match subject {
            Subject::Claim(key) => vec![ObjectId { kind: kinds::CLAIM, key: key.clone() }],
            Subject::Volume(key) => vec![ObjectId { kind: kinds::VOLUME, key: key.clone() }],
        };
        for action in actions {
            if let Action::Claim(ClaimAction::Reserve { volume, .. }) = action {
                touched.push(ObjectId { kind: kinds::VOLUME, key: Key::cluster(volume.clone()) });
            }
        }
        touched
    }

    fn keys(&self) -> Vec<Subject> {
        let claims = self.caches.claims.keys().into_iter().map(Subject::Claim);
        claims.chain(self.caches.volumes.keys().into_iter().map(Subject::Volume)).collect()
    }
}

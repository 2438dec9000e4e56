//! The scheduler as a controller: its state, what it remembers of its decisions, and its rooms.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use stowage_model::object::{self, ObjectId};
use stowage_runtime::cache::View;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::queue::Queue;
use stowage_runtime::told::Told;
use stowage_runtime::{Context, Stop};

use crate::apply::touches;
use crate::assumed::{Assumed, AssumedPod};
use crate::decide::{Action, Decision, Why, decide};
use crate::failures::FailuresByClaim;
use crate::heartbeats::Heartbeats;
use crate::snapshot::{PlacedSnapshot, PodSnapshot, Snapshot, gather};
use crate::watches::{Caches, Key};

/// How the scheduler behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Pods that name this scheduler, or none, are placed.
    pub scheduler_name: String,
    /// How long a node may be silent before it is marked unreachable.
    pub silence: Duration,
    /// How long a new node may take to report for the first time.
    pub startup: Duration,
    /// How long a Node object must be missing before its pods are deleted.
    pub quarantine: Duration,
    /// Decisions applied side by side.
    pub parallel: usize,
    /// Whether the duties of kube-controller-manager for nodes and their pods are ours: marking silent nodes, collecting
    /// pods nobody ends, placing pods that name no scheduler.
    pub node_lifecycle: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler_name: "default-scheduler".to_owned(),
            silence: Duration::from_secs(40),
            startup: Duration::from_secs(60),
            quarantine: Duration::from_secs(40),
            parallel: 64,
            node_lifecycle: true,
        }
    }
}

pub(crate) struct Controller {
    pub(crate) context: Context,
    pub(crate) options: Options,
    pub(crate) caches: Caches,
    pub(crate) recorder: Recorder,
    pub(crate) assumed: Assumed,
    pub(crate) failures: FailuresByClaim,
    pub(crate) heartbeats: Heartbeats,
    /// Why pods cannot be placed, as their users were told.
    pub(crate) told: Told<object::Key, (), String>,
    queue: Queue<Key>,
}

/// Places pods and looks after nodes until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    engine::serve(context, options.parallel, async |setup| Ok(Controller::new(setup, options))).await
}

impl Controller {
    pub(crate) fn new(setup: &Setup<Key>, options: Options) -> Self {
        Self {
            context: setup.context.clone(),
            caches: Caches::default(),
            recorder: setup.recorder(options.scheduler_name.clone()).without_limit(),
            options,
            assumed: Assumed::default(),
            failures: FailuresByClaim::default(),
            heartbeats: Heartbeats::default(),
            told: Told::default(),
            queue: setup.queue.clone(),
        }
    }

    /// The next pod is decided on before this one's writes are seen, so it must know what this one will take.
    fn note_pod(&self, key: &object::Key, snapshot: &PodSnapshot, why: &Why) {
        if let PodSnapshot::Placed(PlacedSnapshot { pod, node: View::Absent, .. }) = snapshot {
            self.heartbeats.missed(&pod.spec.node_name, self.context.clock.boottime());
        }
        // Nobody knows what came of a write, so what the pod may have taken stays taken.
        if *why == Why::Unknown {
            return;
        }
        let freed = match (snapshot, why.heading_for()) {
            (PodSnapshot::Pending(pending), Some(node)) => {
                let uid = pending.pod.meta.uid.clone();
                self.assumed.assume(key, AssumedPod { uid, node: node.to_owned() })
            }
            _ => self.assumed.forget(key),
        };
        // One that arrived has what it held.
        let arrived = matches!(snapshot, PodSnapshot::Placed(_) | PodSnapshot::Foreign { placed: true });
        if freed && !arrived {
            self.wake_competing();
        }
    }

    /// Writes failed: until it is decided again the pod holds nothing, unless one of them may have been done.
    fn give_up(&self, key: &object::Key, errors: &[Error]) {
        if !errors.iter().any(Error::is_uncertain) && self.assumed.forget(key) {
            self.wake_competing();
        }
    }

    fn wake_competing(&self) {
        self.caches.competing().for_each(|key| self.queue.add(key));
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "scheduler";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        self.declare(watches);
    }

    fn gather(&self, key: &Key, reserved: &Reserved, now: Timestamp) -> Snapshot {
        gather(self, key, reserved, now)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision, _now: Timestamp) {
        if let (Key::Pod(key), Snapshot::Pod(snapshot)) = (key, snapshot) {
            self.note_pod(key, snapshot, &decision.why);
        }
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(&key.object(), action).await
    }

    fn touches(&self, _key: &Key, actions: &[Action]) -> Vec<ObjectId> {
        touches(actions)
    }

    fn failed(&self, key: &Key, errors: &[Error]) {
        if let Key::Pod(key) = key {
            self.give_up(key, errors);
        }
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }
}

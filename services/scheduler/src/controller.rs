//! The loop: caches, the memory of what is in flight, and the engine that decides and applies.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::Pod;
use stowage_model::object::{Key, ObjectId, Projection, kinds};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::engine::{self, Controller, Reserved};
use stowage_runtime::events::Recorder;
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{self, Scope};
use stowage_runtime::{Context, Stop};

use crate::decide::{self, Action, Decision, PodAction, Subject, Why};
use crate::error::Error;
use crate::assumed::{Ledger, Planned};
use crate::heartbeats::Sightings;
use crate::snapshot::{Caches, NodeSnapshot, PlacedSnapshot, PodSnapshot, is_ours};
use crate::watches::Wake;

/// Where nodes keep the Leases they renew.
const NODE_LEASES: &str = "kube-node-lease";

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

/// The scheduler's state.
pub struct Scheduler {
    pub(crate) context: Context,
    pub(crate) caches: Caches,
    pub(crate) recorder: Recorder,
    pub(crate) ledger: Arc<Ledger>,
    sightings: Arc<Sightings>,
    wake: Wake,
    options: Options,
}

/// Places pods and looks after nodes until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    let tasks = Tasks::new();
    let queue = Queue::new(Backoff::QUEUE);
    let caches = Caches::default();
    let ledger = Arc::new(Ledger::default());
    let sightings = Arc::new(Sightings::default());
    let wake = Wake {
        queue: queue.clone(),
        caches: caches.clone(),
        ledger: Arc::clone(&ledger),
        sightings: Arc::clone(&sightings),
        clock: Arc::clone(&context.clock),
    };
    wake.subscribe();
    feed(&context, &tasks, &caches.pods, Scope::all());
    feed(&context, &tasks, &caches.nodes, Scope::all());
    feed(&context, &tasks, &caches.claims, Scope::all());
    feed(&context, &tasks, &caches.volumes, Scope::all());
    feed(&context, &tasks, &caches.classes, Scope::all());
    feed(&context, &tasks, &caches.csi_nodes, Scope::all());
    feed(&context, &tasks, &caches.attachments, Scope::all());
    // Without the duty the right to read them is not asked for either.
    let node_lifecycle = options.node_lifecycle;
    if node_lifecycle {
        feed(&context, &tasks, &caches.leases, Scope::namespace(NODE_LEASES));
    }
    let ready = context.readiness.handle("scheduler caches");
    let recorder = context.recorder(options.scheduler_name.clone(), &tasks.spawner()).without_limit();
    let parallel = options.parallel;
    let scheduler =
        Scheduler { context: context.clone(), caches: caches.clone(), recorder, ledger, sightings, wake, options };
    let work = async {
        let synced = async {
            caches.pods.synced().await;
            caches.nodes.synced().await;
            caches.claims.synced().await;
            caches.volumes.synced().await;
            caches.classes.synced().await;
            caches.csi_nodes.synced().await;
            caches.attachments.synced().await;
            if node_lifecycle {
                caches.leases.synced().await;
            }
        };
        if context.unless_shutdown(synced).await.is_none() {
            return Ok(());
        }
        ready.ready();
        engine::run(&context, Arc::new(scheduler), queue, parallel).await
    };
    context.supervise(tasks, work).await
}

fn feed<T: Projection>(context: &Context, tasks: &Tasks, cache: &Cache<T>, scope: Scope) {
    tasks.spawner().spawn(watch::feed(context.api.clone(), cache.clone(), scope, context.random.clone()));
}

impl Scheduler {
    fn decide_pod(&self, key: &Key, now: Timestamp, reserved: &Reserved) -> Decision<PodAction> {
        let snapshot = match self.caches.pods.view(key) {
            View::Absent => PodSnapshot::Absent,
            View::Unknown => PodSnapshot::Unknown(key.clone()),
            View::Known(pod) if !self.is_our_duty(&pod) => PodSnapshot::Foreign { placed: pod.is_scheduled() },
            View::Known(pod) if pod.is_scheduled() => {
                let name = &pod.spec.node_name;
                let node = self.caches.nodes.view(&Key::cluster(name.clone()));
                let missing_since = match node {
                    View::Absent => {
                        let boottime = self.context.clock.boottime();
                        before(now, boottime.saturating_sub(self.sightings.missing_since(name, boottime)))
                    }
                    _ => now,
                };
                let quarantine = signed(self.options.quarantine);
                PodSnapshot::Placed(PlacedSnapshot { pod, node, missing_since, quarantine })
            }
            View::Known(pod) if is_ours(&pod, &self.options.scheduler_name) => {
                PodSnapshot::Pending(Box::new(self.caches.pending(pod, &self.ledger, reserved)))
            }
            View::Known(pod) => PodSnapshot::Other(pod),
        };
        let decision = decide::pod::decide(&snapshot, now);
        if decision.why != Why::Unknown {
            self.note_plan(key, &snapshot, decision.why.planned());
        }
        decision
    }

    /// Beside a kube-controller-manager only what names us is ours, and only until it has a node.
    fn is_our_duty(&self, pod: &Pod) -> bool {
        let ours = pod.spec.scheduler_name == self.options.scheduler_name && is_ours(pod, &self.options.scheduler_name);
        self.options.node_lifecycle || ours
    }

    /// The next pod is decided on before this one's writes are seen, so it must know what this one will take.
    fn note_plan(&self, key: &Key, snapshot: &PodSnapshot, node: Option<&str>) {
        let plan = match (snapshot, node) {
            (PodSnapshot::Pending(pending), Some(node)) => {
                Some(Planned { uid: pending.pod.meta.uid.clone(), node: node.to_owned() })
            }
            _ => None,
        };
        let arrived = matches!(snapshot, PodSnapshot::Placed(_) | PodSnapshot::Foreign { placed: true });
        if self.ledger.plan(key, plan) && !arrived {
            self.wake.freed();
        }
    }

    /// A step failed: until it is decided again the pod holds nothing, unless the step may have been done.
    pub(crate) fn give_up(&self, key: &Key, error: &Error) {
        if !error.is_uncertain() && self.ledger.plan(key, None) {
            self.wake.freed();
        }
    }

    fn decide_node(&self, name: &str, now: Timestamp) -> Decision<decide::NodeAction> {
        if !self.options.node_lifecycle {
            return Decision::rest(Why::NotOurs);
        }
        let heard = self.sightings.heard(name);
        let silent_for = heard.map(|heard| self.context.clock.boottime().saturating_sub(heard.at));
        let snapshot = NodeSnapshot {
            node: self.caches.nodes.view(&Key::cluster(name)),
            heard_at: before(now, silent_for.unwrap_or_default()),
            renewed: heard.is_some_and(|heard| heard.renewed),
            silence: signed(self.options.silence),
            startup: signed(self.options.startup),
        };
        decide::node::decide(&snapshot, now)
    }
}

/// A moment on the wall clock as it stands now: what passed since was measured by a clock that nobody sets.
fn before(now: Timestamp, passed: Duration) -> Timestamp {
    now.checked_sub(signed(passed)).unwrap_or(Timestamp::MIN)
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

impl Controller for Scheduler {
    type Key = Subject;
    type Action = Action;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "scheduler";

    fn decide(&self, subject: &Subject, now: Timestamp, reserved: &Reserved) -> Decision<Action> {
        match subject {
            Subject::Pod(key) => self.decide_pod(key, now, reserved).map(Action::Pod),
            Subject::Node(name) => self.decide_node(name, now).map(Action::Node),
        }
    }

    async fn apply(self: Arc<Self>, subject: Subject, action: Action) -> Result<(), Error> {
        match (subject, action) {
            (Subject::Pod(key), Action::Pod(action)) => self.carry_out_for_pod(&key, action).await,
            (Subject::Node(name), Action::Node(action)) => self.carry_out_for_node(&name, action).await,
            (Subject::Pod(_), Action::Node(_)) | (Subject::Node(_), Action::Pod(_)) => {
                Err(Error::Stale("an action reached a subject of the other kind"))
            }
        }
    }

    fn touches(&self, _subject: &Subject, actions: &[Action]) -> Vec<ObjectId> {
        let mut touched = Vec::new();
        for action in actions {
            if let Action::Pod(PodAction::Prepare { reserve, select, .. }) = action {
                for reservation in reserve {
                    touched.push(ObjectId { kind: kinds::VOLUME, key: reservation.volume.key.clone() });
                    touched.push(ObjectId { kind: kinds::CLAIM, key: reservation.claim.key.clone() });
                }
                touched.extend(select.iter().map(|claim| ObjectId { kind: kinds::CLAIM, key: claim.key.clone() }));
            }
        }
        touched
    }

    fn keys(&self) -> Vec<Subject> {
        let pods = self.caches.pods.keys().into_iter().map(Subject::Pod);
        pods.chain(self.caches.nodes.keys().into_iter().map(|key| Subject::Node(key.name))).collect()
    }
}

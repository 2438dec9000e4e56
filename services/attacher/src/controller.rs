//! The attacher as a controller: its state, and one line per room.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_runtime::caller::Caller;
use stowage_runtime::driver::{self, Driver};
use stowage_runtime::engine::{self, Reserved, Setup, Watches};
use stowage_runtime::tasks::Spawner;
use stowage_runtime::{Context, Stop};

use crate::calls::{Kind, Operation, Operations};
use crate::decide::{Action, Decision, Reason, Why, decide};
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::reconcile::{Doubts, Reconciler};
use crate::refusals::Refusals;
use crate::snapshot::{Facts, Snapshot};
use crate::watches::{Caches, Key};
use crate::written::Written;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub driver: driver::Options,
    /// File system type of volumes that name none.
    pub default_fs_type: String,
    /// How often what the driver lists is compared with the attachments.
    pub reconcile_sync: Duration,
    /// Entries of one page of that list; 0 leaves it to the driver.
    pub max_entries: i32,
    /// How often every decision is taken again, as a net under missed events; zero for never.
    pub resync: Duration,
    /// Whether an attach error says the gRPC code.
    pub error_codes: bool,
}

impl Default for Options {
    fn default() -> Self {
        let driver = driver::Options { timeout: Duration::from_secs(15), ..driver::Options::default() };
        Self {
            driver,
            default_fs_type: String::new(),
            reconcile_sync: Duration::from_secs(60),
            max_entries: 0,
            resync: Duration::from_secs(600),
            error_codes: true,
        }
    }
}

pub(crate) struct Controller {
    pub(crate) facts: Arc<Facts>,
    pub(crate) caches: Caches,
    pub(crate) operations: Operations,
    pub(crate) caller: Caller,
    pub(crate) lanes: Lanes,
    pub(crate) doubts: Doubts,
    pub(crate) refusals: Refusals,
    pub(crate) written: Written,
    /// None for a driver that cannot say where its volumes are published.
    reconciler: Option<Reconciler>,
    spawner: Spawner,
    resync: Duration,
}

/// Attaches and detaches until shutdown.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    Driver::serve(context, &options.driver.clone(), |context, driver| run_with(context, driver, options)).await
}

/// The same with a driver that was met already.
///
/// Boxed, so that it is compiled with this crate and not once more with the binary.
pub(crate) fn run_with(context: Context, driver: Driver, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    // Volumes that are written about at once, as many as can be called for: a call itself is waited for by none of them.
    let parallel = options.driver.workers.saturating_mul(Kind::ALL.len());
    let (retry, make) =
        (options.driver.retry, async move |setup: &Setup<Key>| Ok(Controller::new(setup, &driver, &options)));
    Box::pin(engine::serve_with(context, parallel, retry, make))
}

impl Controller {
    pub(crate) fn new(setup: &Setup<Key>, driver: &Driver, options: &Options) -> Self {
        let (facts, caches) = (Arc::new(Facts::of(driver, options)), Caches::new(driver.name.clone()));
        let caller = driver.caller(setup.context.clone(), options.driver.timeout);
        let lanes = Lanes::new(options.driver.workers, setup.queue.clone(), Arc::clone(&setup.context.clock));
        let metrics = setup.context.metrics.own(Metrics::register);
        setup.context.metrics.before_encoding(metrics.watch(&lanes));
        let doubts = Doubts::default();
        let compares = [Call::PublishUnpublishVolume, Call::ListVolumes, Call::ListVolumesPublishedNodes];
        let can_compare = compares.into_iter().all(|call| facts.can(call));
        let reconciler = can_compare.then(|| Reconciler {
            caller: caller.clone(),
            caches: caches.clone(),
            doubts: doubts.clone(),
            queue: setup.queue.clone(),
            period: options.reconcile_sync,
            max_entries: options.max_entries,
        });
        Self {
            facts,
            caches,
            operations: setup.operations(options.driver.retry, |call: &Operation| [Key::Handle(call.handle.clone())]),
            caller,
            lanes,
            doubts,
            refusals: Refusals::default(),
            written: Written::default(),
            reconciler,
            spawner: setup.spawner.clone(),
            resync: options.resync,
        }
    }
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "attacher";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        // Nobody needs a node's id who calls no driver, and the role of such a sidecar may not have the right to it.
        self.caches.declare(self.facts.can(Call::PublishUnpublishVolume), watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        self.gather(key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide(snapshot, now)
    }

    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision, _now: Timestamp) {
        if let Key::Handle(handle) = key {
            self.written.note(handle, &decision.why.written_up_to);
            for kind in Kind::ALL {
                let begun = decision.actions.iter().filter(|action| action.calls() == Some(kind)).count();
                let turns = decision.why.turns.iter().filter(|(waiting, _)| *waiting == kind);
                let waiting: Vec<&str> = turns.map(|(_, uid)| uid.as_str()).collect();
                self.lanes.settle(kind, handle, begun, &waiting);
            }
        }
        for (case, (_, reason)) in snapshot.attachments.iter().zip(&decision.why.attachments) {
            // What was refused is not wanted any more, or was done all the same.
            if case.refused.is_some() && !matches!(reason, Reason::Writing | Reason::Unknown) {
                self.refusals.remove(&case.attachment.meta.uid);
            }
            // Saved, though the answer to that may have been lost: if it comes to be doubted, the driver is called again.
            if let (Key::Handle(handle), Reason::Attached, Some(_)) = (key, reason, &case.publish) {
                self.forget(handle, &case.attachment.meta, &Kind::ALL);
            }
        }
        // Their attachments went while the calls were under way, and nobody asks for them any more.
        snapshot.abandoned.iter().for_each(|operation| self.operations.forget(operation));
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), engine::Error> {
        self.carry_out(key.handle(), action).await
    }

    fn queue_name(_key: &Key) -> &'static str {
        "csi-attacher-va"
    }

    fn keys(&self) -> Vec<Key> {
        self.caches.keys()
    }

    fn resync(&self) -> Duration {
        self.resync
    }

    fn begin(&self) {
        if let Some(reconciler) = &self.reconciler {
            self.spawner.spawn(reconciler.clone().keep_comparing());
        }
    }
}

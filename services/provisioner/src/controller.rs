//! The provisioner as a controller: its state, its life, and where each room is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use stowage_model::claim::Claim;
use stowage_model::names::VolumeHandle;
use stowage_model::object::{Key as ObjectKey, ObjectId, kinds};
use stowage_runtime::api::Api;
use stowage_runtime::driver::Driver;
use stowage_runtime::engine::{self, Error, Reserved, Setup, Watches};
use stowage_runtime::events::Recorder;
use stowage_runtime::operation::{Operations, Running};
use stowage_runtime::queue::Queue;
use stowage_runtime::told::Told;
use stowage_runtime::{Context, Process, Stop};

use crate::atlas::Atlas;
use crate::calls::Calls;
use crate::capacity::{self, Signals};
use crate::csi::Csi;
use crate::decide::{self, Action, Decision, Why};
use crate::facts::Facts;
use crate::holders::Holders;
use crate::intent::Made;
use crate::journal::{self, Change, Journal, Storage};
use crate::library::Provisioner;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::ownership::Bids;
use crate::requirement::Cluster;
use crate::snapshot::{self, LookedUp, Snapshot};
use crate::source::{Look, Needs, Origin};
use crate::watches::{self, Caches, VolumeNames};

/// Who stops us does not wait for long, and the lease is still to be given back.
const FLUSH: Duration = Duration::from_secs(5);

/// So long the record of a call that certainly made nothing stays on its page: a claim that fails again and again is mostly taken up
/// from there without a write. Shorter than the longest wait between its tries, so that a crash finds few.
const REST: Duration = Duration::from_secs(60);

/// Between two words about records that nobody settles.
const REMIND: Duration = Duration::from_secs(3600);

/// Claims and volumes worked on at the same time: most of them wait for the journal, which writes them together.
const ROUNDS: usize = 256;

/// Requests to the API server at the same time, for the last step of a claim and for everything else; the journal's and the
/// events' are apart. Each has a connection of its own.
const TURNS: usize = 16;

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A claim and the record it may have left, by the claim's uid.
    Claim(String),
    /// A PersistentVolume, by name.
    Volume(String),
    /// What volumes are made from.
    Source(Origin),
}

pub struct Controller {
    pub facts: Arc<Facts>,
    pub caches: Caches,
    pub names: VolumeNames,
    atlas: Atlas,
    pub calls: Calls,
    /// CreateVolume, by claim uid.
    pub creations: Operations<String, Made>,
    /// GetCapacity before a claim is taken, by claim uid; the result is whether there is room.
    pub rooms: Operations<String, bool>,
    /// DeleteVolume of volumes without an owner, by claim uid; the result is the handle.
    pub cleanups: Operations<String, VolumeHandle>,
    /// DeleteVolume of released volumes, by name; the result is the object's uid.
    pub deletions: Operations<String, String>,
    /// Live looks at VolumeSnapshots and their contents, by the snapshot's key.
    pub looks: Operations<ObjectKey, Look>,
    /// Live looks at VolumeAttributesClasses, by claim uid.
    pub attributes: Operations<String, LookedUp>,
    pub holders: Holders,
    /// Whether the server was found not to serve the kind; as the original, a run finds that once.
    pub attributes_unserved: Arc<AtomicBool>,
    pub told: Told<Key>,
    pub bids: Bids,
    pub needs: Needs,
    pub turns: Semaphore,
    /// For the last step of a claim.
    pub last_turns: Semaphore,
    /// Tells of volumes that somebody else fills, under the name that the original has for that.
    pub populator_recorder: Recorder,
    /// The calls under way.
    running: Running,
    /// Whether the role does not let snapshots be held.
    protecting_forbidden: AtomicBool,
}

/// Provisions until asked to stop.
pub async fn run(context: Context, options: Options) -> Result<(), Stop> {
    Driver::serve(context, &options.driver.clone(), |context, driver| run_with(context, driver, options)).await
}

/// The same with a driver that was met already.
///
/// Boxed, so that it is compiled with this crate and not once more with the binary.
pub fn run_with(context: Context, driver: Driver, options: Options) -> BoxFuture<'static, Result<(), Stop>> {
    run_limited(context, driver, options, None)
}

/// The same, and what is published of the driver's room goes through this connection where one is given.
pub fn run_limited(
    context: Context,
    driver: Driver,
    options: Options,
    publishing: Option<Api>,
) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(serve_driver(context, driver, options, publishing))
}

async fn serve_driver(context: Context, driver: Driver, options: Options, publishing: Option<Api>) -> Result<(), Stop> {
    let found = context.unless_shutdown(Facts::of(&driver, &context, options)).await;
    let Some(facts) = found.transpose()?.map(Arc::new) else { return Ok(()) };
    let (known, met, process) = (Arc::clone(&facts), driver.clone(), Process::clone(&context));
    tokio::select! {
        biased;
        ended = serve_facts(context, driver, facts, publishing) => ended,
        stop = known.moves(&process, &met) => Err(stop),
    }
}

async fn serve_facts(context: Context, driver: Driver, facts: Arc<Facts>, publishing: Option<Api>) -> Result<(), Stop> {
    let provisioner = Arc::new(Csi(driver.caller(context.clone(), facts.options.driver.timeout)));
    let Some(capacity) = facts.options.capacity.clone() else { return serve(context, facts, provisioner).await };
    let (caches, signals) = (Caches::new(), Signals::default());
    let parts = capacity::Parts {
        facts: Arc::clone(&facts),
        driver,
        classes: caches.classes.clone(),
        nodes: caches.nodes.clone(),
        csi_nodes: caches.csi_nodes.clone(),
        signals: signals.clone(),
    };
    let claims = serve_with(context.clone(), facts, provisioner, caches, signals);
    let context = Context { api: publishing.unwrap_or_else(|| context.api.clone()), ..context };
    tokio::try_join!(claims, capacity::serve(context, parts, capacity)).map(drop)
}

/// The same with whoever makes and deletes the volumes.
pub async fn serve(context: Context, facts: Arc<Facts>, provisioner: Arc<dyn Provisioner>) -> Result<(), Stop> {
    serve_with(context, facts, provisioner, Caches::new(), Signals::default()).await
}

async fn serve_with(
    context: Context,
    facts: Arc<Facts>,
    provisioner: Arc<dyn Provisioner>,
    caches: Caches,
    signals: Signals,
) -> Result<(), Stop> {
    let make = async move |setup: &Setup<Key>| Controller::new(setup, facts, provisioner, caches, signals).await;
    engine::serve(context, ROUNDS, make).await
}

impl Controller {
    /// Reads and signs the journal; only after that are claims looked at, so that none with a record of an earlier run
    /// begins anew.
    pub async fn new(
        setup: &Setup<Key>,
        facts: Arc<Facts>,
        provisioner: Arc<dyn Provisioner>,
        caches: Caches,
        signals: Signals,
    ) -> Result<Self, Stop> {
        let context = &setup.context;
        let retry = facts.options.driver.retry;
        let journal_ready = context.readiness.handle("provisioner journal");
        let needs = Needs::default();
        let metrics = context.metrics.own(Metrics::register);
        let journal = open_journal(setup, &facts, &needs, &metrics).await;
        let journal = journal.map_err(|error| Stop::Unable { reason: error.to_string() })?;
        journal_ready.ready();
        setup.spawner.spawn(clean_when_quiet(journal.clone(), setup.queue.clone()));
        setup.spawner.spawn(clean_of_failures(journal.clone()));
        let component = format!("{}_{}_{}", facts.driver, context.identity, context.random.uuid());
        let recorder = setup.recorder(component);
        let calls = Calls::new(context.clone(), Arc::clone(&facts), provisioner, journal, recorder, metrics, signals);
        let of_claim = |uid: &String| [Key::Claim(uid.clone())];
        let claims = caches.claims.clone();
        Ok(Self {
            atlas: Atlas::new(&facts.driver, &caches.nodes, &caches.csi_nodes),
            looks: setup.operations(retry, move |key: &ObjectKey| watches::looked(&claims, key)),
            caches,
            names: VolumeNames::default(),
            creations: setup.operations(retry, of_claim),
            rooms: setup.operations(retry, of_claim),
            cleanups: setup.operations(retry, of_claim),
            deletions: setup.operations(retry, |name: &String| [Key::Volume(name.clone())]),
            attributes: setup.operations(retry, of_claim),
            holders: Holders::default(),
            attributes_unserved: Arc::default(),
            told: Told::default(),
            bids: Bids::default(),
            needs,
            turns: Semaphore::new(TURNS),
            last_turns: Semaphore::new(TURNS),
            populator_recorder: setup.recorder("external-provisioner"),
            running: setup.running.clone(),
            protecting_forbidden: AtomicBool::new(false),
            calls,
            facts,
        })
    }

    pub fn context(&self) -> &Context {
        &self.calls.context
    }

    pub fn journal(&self) -> &Journal {
        &self.calls.journal
    }

    pub fn is_protecting_forbidden(&self) -> bool {
        self.protecting_forbidden.load(Ordering::Relaxed)
    }

    /// Says whether that was known.
    pub fn forbid_protecting(&self) -> bool {
        self.protecting_forbidden.swap(true, Ordering::Relaxed)
    }

    /// What a request for the claim has to know of the nodes; nothing where its volume's place does not depend on them.
    pub fn cluster(&self, claim: &Claim) -> Cluster {
        if self.facts.topology && self.facts.node.is_none() { self.atlas.around(claim) } else { Cluster::default() }
    }

    fn drop_bid(&self, uid: &String) {
        self.bids.drop(uid);
        self.rooms.forget(uid);
    }
}

/// Removals ride on the next write; when nothing is left to do there may be none for long, and a crash would bring the
/// records back.
async fn clean_when_quiet(journal: Journal, queue: Queue<Key>) {
    loop {
        journal.left().await;
        queue.quiet().await;
        // What stays would be found by the next run as if it were at work.
        while let Err(error) = journal.flush().await {
            tracing::debug!(%error, "finished intents stay in the journal until its next write");
            tokio::time::sleep(REST).await;
        }
    }
}

/// Whoever comes after a crash asks the driver for what a record says, as it says it, whatever the claim and its class say by
/// then: so one whose call made nothing does not stay for long.
async fn clean_of_failures(journal: Journal) {
    loop {
        journal.rested().await;
        tokio::time::sleep(REST).await;
        while let Err(error) = journal.flush().await {
            tracing::debug!(%error, "intents of calls that failed stay in the journal until its next write");
            tokio::time::sleep(REST).await;
        }
    }
}

async fn open_journal(
    setup: &Setup<Key>,
    facts: &Facts,
    needs: &Needs,
    metrics: &Metrics,
) -> Result<Journal, journal::Error> {
    let (context, queue, needs) = (&setup.context, setup.queue.clone(), needs.clone());
    let in_memory = metrics.intents_in_memory.clone();
    let on_change = move |change: Change<'_>| match change {
        Change::Adopted { uid } => queue.add(Key::Claim(uid.to_owned())),
        Change::Left { intent } | Change::Released { intent } => {
            queue.add(Key::Volume(intent.volume.clone()));
            if let Some(source) = &intent.request.source {
                needs.left(source.origin());
                queue.add(Key::Source(source.origin()));
            }
        }
        Change::Storing(is_stored) => drop(in_memory.set(i64::from(!is_stored))),
    };
    let storage = Storage::new(context.api.clone(), facts.options.namespace.clone(), &facts.journal_name());
    if !facts.options.journal {
        setup.spawner.spawn(warn_of_records(storage));
        return Ok(Journal::in_memory(on_change));
    }
    let storage = storage.owned_by(node_of(context, facts).await);
    // Two runs never sign alike, not even on one machine in one millisecond.
    let run = format!("{}-{}", context.identity, context.random.uuid());
    Journal::open(storage, &run, &setup.spawner, on_change).await
}

/// What an earlier run recorded is not looked at with the journal off, and knows nothing of what becomes of its volumes meanwhile.
async fn warn_of_records(storage: Storage) {
    loop {
        match storage.count().await {
            Ok(0) => return,
            Ok(records) => tracing::warn!(
                leases = %storage.key(0),
                records,
                "the intent journal is off and these Leases hold records of volumes that may exist: run without \
                 --intent-journal=false until they hold none, or see that the driver has no such volumes and delete the \
                 Leases; before the journal is on again, or what was made meanwhile and kept without an object can be deleted"
            ),
            Err(error) => tracing::debug!(%error, "whether the intent journal has records is not known"),
        }
        tokio::time::sleep(REMIND).await;
    }
}

/// In node deployment the Node that the journal is of, as an owner reference. Where there is none yet, or it may not be
/// read, the journal stays when the node is gone.
async fn node_of(context: &Context, facts: &Facts) -> Option<Value> {
    let name = &facts.node.as_ref()?.name;
    let id = ObjectId { kind: kinds::NODE, key: ObjectKey::cluster(name) };
    let read =
        context.api.get_raw(&id).await.inspect_err(|error| tracing::warn!(node = name, %error, "reading the node"));
    let uid = read.ok().flatten()?["metadata"]["uid"].as_str()?.to_owned();
    Some(json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid }))
}

impl engine::Controller for Controller {
    type Key = Key;
    type Snapshot = Snapshot;
    type Action = Action;
    type Why = Why;

    const NAME: &'static str = "provisioner";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        watches::declare(self, watches);
    }

    fn gather(&self, key: &Key, _reserved: &Reserved, _now: Timestamp) -> Snapshot {
        snapshot::gather(self, key)
    }

    fn decide(snapshot: &Snapshot, now: Timestamp) -> Decision {
        decide::decide(snapshot, now)
    }

    /// What was kept for a claim or a volume goes with it, and a bid when its race is over.
    fn note(&self, key: &Key, snapshot: &Snapshot, decision: &Decision, now: Timestamp) {
        let is_gone = decision.why == Why::Gone;
        if is_gone {
            self.told.forget(key);
        }
        if let Key::Source(origin) = key {
            match decision.why {
                Why::Gone | Why::Unprotected => self.needs.forget(origin),
                Why::LeftOver => self.needs.over(origin, now),
                Why::InUse => self.needs.needed(origin),
                _ => {}
            }
        }
        match (key, snapshot) {
            (Key::Claim(uid), _) if is_gone => {
                self.creations.forget(uid);
                self.attributes.forget(uid);
                self.drop_bid(uid);
            }
            (Key::Claim(uid), Snapshot::Claim(s)) if s.is_race_over() => self.drop_bid(uid),
            (Key::Volume(name), _) if is_gone => self.deletions.forget(name),
            (Key::Source(origin), Snapshot::Source(s)) if s.is_done_with(&decision.why) => {
                self.looks.forget(&origin.key);
            }
            _ => {}
        }
    }

    async fn apply(self: Arc<Self>, key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(key, action).await
    }

    /// The original frees sources by a queue of claims, too.
    fn queue_name(key: &Key) -> &'static str {
        match key {
            Key::Claim(_) | Key::Source(_) => "claims",
            Key::Volume(_) => "volumes",
        }
    }

    /// Holding a source, calling for a volume from it and letting it go are never under way together.
    fn touches(&self, _key: &Key, actions: &[Action]) -> Vec<ObjectId> {
        let source = |action: &Action| match action {
            Action::Create { intent, .. } => intent.request.source.as_ref().map(|source| source.origin().id()),
            Action::Protect(source) => Some(source.origin().id()),
            Action::Unprotect { origin, .. } => Some(origin.id()),
            _ => None,
        };
        actions.iter().filter_map(source).collect()
    }

    fn subject(key: &Key) -> Option<ObjectId> {
        match key {
            Key::Source(origin) => Some(origin.id()),
            Key::Claim(_) | Key::Volume(_) => None,
        }
    }

    fn keys(&self) -> Vec<Key> {
        watches::keys(self)
    }

    /// Removals ride on the next write, and there will be none. What certainly was not made is not left for the next run, which
    /// would ask for it as it was.
    async fn end(&self) {
        self.journal().forget_unmade();
        self.flush().await;
        // Those that end yet may end so, too.
        if tokio::time::timeout(FLUSH, self.running.none()).await.is_ok() {
            self.journal().forget_unmade();
            self.flush().await;
        }
    }
}

impl Controller {
    async fn flush(&self) {
        let left = match tokio::time::timeout(FLUSH, self.journal().flush()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", FLUSH.as_secs()),
        };
        tracing::warn!(error = left, "finished intents stay in the journal and are settled at the next start");
    }
}

#[cfg(test)]
mod tests;

//! The server: the store behind a lock, who waits for it, and where it is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::access::Access;
use crate::auth::User;
use crate::changed::{self, Changed};
use crate::durable::{File, Journal, OpenStore};
use crate::http::{Caller, Service};
use crate::kind::Kind;
use crate::metrics::Metrics;
use crate::object::text;
use crate::rbac::{self, Policy};
use crate::status::Status;
use crate::store::{Action, Answer, Applied, Event, PERMANENT_NAMESPACES, Store, Subresource, Write};
use crate::tokens::TokenKey;

/// What the server takes from outside, so that a test can decide it.
pub struct Options {
    /// The time of writes.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Where uids and generated names come from.
    pub ids: Box<dyn FnMut() -> u128 + Send>,
    /// How many events of each kind are kept for watches.
    pub window: usize,
    /// How often a quiet watch that asked for bookmarks gets one.
    pub bookmark_interval: Duration,
}

impl Options {
    /// The machine's clock and randomness.
    pub fn system() -> Self {
        let mut random = StdRng::from_os_rng();
        Self {
            clock: Arc::new(Timestamp::now),
            ids: Box::new(move || random.random()),
            window: 4096,
            bookmark_interval: Duration::from_secs(60),
        }
    }
}

/// How far the outside may see, or why it does not see more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    published: u64,
    failure: Option<Failure>,
    /// Revisions that were given out, never told, and undone: first and last of each stretch.
    lost: Vec<(u64, u64)>,
}

impl Progress {
    fn has_lost(&self, revision: u64) -> bool {
        self.lost.iter().any(|(first, last)| (*first..=*last).contains(&revision))
    }
}

/// Why nothing becomes durable at the moment.
#[derive(Debug, Clone)]
struct Failure {
    why: String,
    /// The newest ticket of the journal that was there when the last try in vain began.
    served: u64,
}

impl Failure {
    fn status(&self) -> Status {
        let mut status = Status::internal(self.why.clone());
        status.details.retry_after_seconds = Some(1);
        status
    }
}

struct State {
    store: Store,
    ids: Box<dyn FnMut() -> u128 + Send>,
}

/// What requests, watches and the journal's thread share.
pub(crate) struct Core {
    state: Mutex<State>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    progress: watch::Sender<Progress>,
    /// Made when somebody first waits: kinds come and go.
    changes: Mutex<BTreeMap<(&'static str, &'static str), Changed>>,
    closing: watch::Sender<bool>,
    pub bookmark_interval: Duration,
    pub access: Access,
    pub metrics: Metrics,
    /// Large bodies are worked on one after the other: each takes much memory and a processor for a while.
    large: Semaphore,
}

pub(crate) struct Shared {
    pub core: Arc<Core>,
    journal: Option<Journal>,
}

/// An API server; clones are the same server.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

impl Server {
    /// A server that forgets everything when it is dropped.
    pub fn in_memory(mut options: Options) -> Self {
        let mut store = Store::new(options.window);
        bootstrap(&mut store, &mut options);
        store.publish(store.head());
        let core = Arc::new(Core::new(store, options));
        Self { shared: Arc::new(Shared { core, journal: None }) }
    }

    /// A server that keeps its objects in `directory`: an answered write survives a crash.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenStore> {
        Self::restart(File::in_directory(directory)?, options)
    }

    /// Like [`Server::open`], over any storage; `name` stands for it in messages. `open` is called at the start and
    /// again after every failure.
    pub fn open_storage<B: redb::StorageBackend>(
        name: &Path,
        mut open: impl FnMut() -> std::io::Result<B> + Send + 'static,
        options: Options,
    ) -> Result<Self, OpenStore> {
        Self::restart(File::over(name, Box::new(move |builder| builder.create_with_backend(open()?))), options)
    }

    fn restart(mut file: File, mut options: Options) -> Result<Self, OpenStore> {
        let (database, mut store) = file.load(options.window)?;
        let events = bootstrap(&mut store, &mut options);
        file.commit_first(&database, &events)?;
        store.publish(store.head());
        let core = Arc::new(Core::new(store, options));
        let path = file.path.clone();
        let journal =
            Journal::start(file, database, core.clone()).map_err(|source| OpenStore::Access { path, source })?;
        Ok(Self { shared: Arc::new(Shared { core, journal: Some(journal) }) })
    }

    /// The whole API as a tower service; its callers are administrators.
    pub fn service(&self) -> Service {
        self.service_as(User::in_process())
    }

    /// The whole API as a tower service for one user, with that user's rights.
    pub fn service_as(&self, user: User) -> Service {
        let caller = Caller::InProcess(Arc::new(user));
        Service::new(self.shared.clone(), caller, self.shared.core.closing.subscribe())
    }

    /// Lets roles and bindings decide who may do what, and makes those that are there from the beginning.
    ///
    /// Without it everyone who is known may do everything.
    pub async fn enable_rbac(&self) -> Result<(), Status> {
        let core = &self.shared.core;
        let mut last = 0;
        for (kind, body) in rbac::bootstrap::objects() {
            let kind = Kind::named(kind);
            if core.read(|store| store.is_taken(kind, "", text(&body, "/metadata/name"))) {
                continue;
            }
            let write = own_write(kind, "", Action::Create(body), core.next_id());
            last = self.shared.submit(write, &User::in_process())?.revision;
        }
        // Waited for once: they share a commit or two.
        if self.shared.journal.is_some() {
            core.wait_for(last).await?;
        }
        core.access.let_roles_decide();
        Ok(())
    }

    /// Signs service-account tokens with `key`, so that they outlive this process; the first key stays.
    pub fn use_token_key(&self, key: TokenKey) {
        self.shared.core.access.use_token_key(key);
    }

    /// Admits pods by their service accounts: from now on each gets its account's token and the certificate of `authority`
    /// as files, unless it or its account does without. Each namespace has that certificate as `kube-root-ca.crt`.
    pub fn mount_tokens(&self, authority: impl Into<String>) {
        let now = self.shared.core.now();
        let mut state = self.shared.core.lock();
        let events = state.store.mount_tokens(authority.into(), now);
        if !events.is_empty() {
            self.shared.settle(state, &events);
        }
    }

    /// How long an event stays after it was last written; an hour unless told otherwise.
    ///
    /// Events go with the next write after their time, and while the server is served, within a minute.
    pub fn keep_events_for(&self, duration: Duration) {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        self.shared.core.lock().store.keep_events_for(duration);
    }

    /// How many commits the data file has seen, and how many changes were made durable by them.
    pub fn commits(&self) -> (u64, u64) {
        let metrics = &self.shared.core.metrics;
        (metrics.commits.get(), metrics.committed_changes.get())
    }

    /// Ends the watches of [`Server::service`]; requests are still answered.
    pub fn close(&self) {
        self.shared.core.closing.send_replace(true);
    }

    /// The newest revision that requests can see.
    pub fn revision(&self) -> u64 {
        self.shared.core.read(Store::published)
    }
}

/// Bytes from which on a body is a large one.
const LARGE: usize = 256 << 10;

/// How often a write is thought through beside the store before it is done inside of it, where nobody can come between.
const PLANS: usize = 5;

/// A write of the server's own.
fn own_write(kind: &'static Kind, name: &str, action: Action, id: u128) -> Write {
    Write {
        kind,
        namespace: String::new(),
        name: name.to_owned(),
        subresource: Subresource::Main,
        action,
        id,
        dry_run: false,
        strict: false,
    }
}

/// Makes the namespaces that are always there, unless they are there.
fn bootstrap(store: &mut Store, options: &mut Options) -> Vec<Arc<Event>> {
    let namespaces = Kind::named("Namespace");
    let mut events = Vec::new();
    for name in PERMANENT_NAMESPACES {
        if store.is_taken(namespaces, "", name) {
            continue;
        }
        let body = json!({"metadata": {"name": name}});
        let write = own_write(namespaces, "", Action::Create(body), (options.ids)());
        let applied = store.apply(write, (options.clock)()).expect("the name is valid and free");
        events.extend(applied.events);
    }
    events.extend(store.complete_namespaces((options.clock)()));
    events
}

impl Shared {
    /// Takes out the events whose time is over.
    pub fn expire_events(&self) {
        let now = self.core.now();
        let mut state = self.core.lock();
        let events = state.store.expire(now);
        if !events.is_empty() {
            self.settle(state, &events);
        }
    }

    /// Makes what was just done durable and visible: at once, or when the journal has it.
    fn settle(&self, mut state: MutexGuard<'_, State>, events: &[Arc<Event>]) {
        match &self.journal {
            None => {
                let last = state.store.head();
                state.store.publish(last);
                drop(state);
                self.core.announce(events);
            }
            // Queued under the store's lock: the journal's order is the revisions' order.
            Some(journal) => journal.enqueue(events),
        }
    }

    /// Does a write for `user` and waits until its answer may be told; with it come the warnings for the writer.
    ///
    /// `turn` is held until the write is done, and not while others are waited for.
    pub async fn write_as(
        &self,
        write: Write,
        user: &User,
        turn: Option<SemaphorePermit<'_>>,
    ) -> Result<(Answer, Vec<String>), Status> {
        if let Some(journal) = &self.journal {
            self.core.recovered(journal).await?;
        }
        // A small patch of a large object is as much work, and would lose its race against others again and again.
        let turn = match turn {
            None => self.core.turn(self.core.read(|store| store.size_of(&write))).await,
            turn => turn,
        };
        let Applied { answer, revision, warnings, .. } = self.submit(write, user)?;
        drop(turn);
        if self.journal.is_some() {
            self.core.wait_for(revision).await?;
        }
        Ok((answer, warnings))
    }

    /// Does a write; its answer must not be told before its revision is published.
    fn submit(&self, write: Write, user: &User) -> Result<Applied, Status> {
        let core = &*self.core;
        let now = core.now();
        let grants = core.access.roles_decide() && write.kind.group == rbac::GROUP;
        let policy = (grants && !user.is_master()).then(|| core.policy());
        if policy.is_none() && write.can_be_planned() {
            for _ in 0..PLANS {
                let ground = core.read(|store| store.ground(&write))?;
                let planned = ground.plan(&write, now)?;
                let mut state = core.lock();
                if let Some(applied) = state.store.keep(&ground, &write, planned, now) {
                    return Ok(self.finish(state, changes_rules(&write), applied, now));
                }
            }
        }
        let mut state = core.lock();
        if let Some(policy) = policy {
            check_grant(&mut state.store, &write, user, &policy, now)?;
        }
        let rules_change = changes_rules(&write);
        let applied = state.store.apply(write, now)?;
        Ok(self.finish(state, rules_change, applied, now))
    }

    /// Adds what follows from a write beside the store's own rules, and lets it become visible.
    fn finish(
        &self,
        mut state: MutexGuard<'_, State>,
        rules_change: bool,
        mut applied: Applied,
        now: Timestamp,
    ) -> Applied {
        if rules_change {
            applied.events.extend(aggregate(&mut state.store, now));
        }
        self.settle(state, &applied.events);
        applied
    }
}

/// Whether roles that others are aggregated from may be others after this write.
fn changes_rules(write: &Write) -> bool {
    *write.kind == *Kind::named("ClusterRole") && !write.dry_run
}

/// Tries a write to a role or binding, and refuses it if it would grant what `user` does not have.
fn check_grant(store: &mut Store, write: &Write, user: &User, policy: &Policy, now: Timestamp) -> Result<(), Status> {
    if !matches!(write.action, Action::Create(_) | Action::Update(_) | Action::Patch(_)) {
        return Ok(());
    }
    let old = store.newest(write.kind, &write.namespace, &write.name).map(|object| object.tree());
    let trial = Write { dry_run: true, ..write.clone() };
    match store.apply(trial, now)?.answer {
        Answer::Created(new) | Answer::Object(new) => {
            rbac::check_escalation(policy, store, user, write.kind, &new.tree(), old.as_ref())
        }
        _ => Ok(()),
    }
}

/// Brings the rules of aggregated cluster roles up to date; one may be a part of another.
fn aggregate(store: &mut Store, now: Timestamp) -> Vec<Arc<Event>> {
    let kind = Kind::named("ClusterRole");
    let mut events = Vec::new();
    // No chain of roles is longer than there are roles.
    for _ in 0..store.count(kind) {
        let all: Vec<Value> = store.newest_all(kind).map(|(_, object)| object.tree()).collect();
        let stale = all.iter().find_map(|role| Some((role.clone(), rbac::aggregated(role, &all)?)));
        let Some((mut role, rules)) = stale else { break };
        role["rules"] = rules.into();
        let name = text(&role, "/metadata/name").to_owned();
        match store.apply(own_write(kind, &name, Action::Update(role), 0), now) {
            Ok(applied) => events.extend(applied.events),
            Err(error) => {
                tracing::error!(role = name, %error, "cannot bring an aggregated role up to date");
                break;
            }
        }
    }
    events
}

impl Core {
    fn new(store: Store, options: Options) -> Self {
        let published = store.published();
        Self {
            state: Mutex::new(State { store, ids: options.ids }),
            clock: options.clock,
            changes: Mutex::default(),
            progress: watch::Sender::new(Progress { published, ..Progress::default() }),
            closing: watch::Sender::new(false),
            bookmark_interval: options.bookmark_interval,
            access: Access::default(),
            metrics: Metrics::default(),
            large: Semaphore::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the store.
    pub fn read<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.lock().store)
    }

    /// Waits for the turn of a body of this size; small ones need not wait.
    pub async fn turn(&self, size: usize) -> Option<SemaphorePermit<'_>> {
        if size < LARGE {
            return None;
        }
        // It is never closed.
        self.large.acquire().await.ok()
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn next_id(&self) -> u128 {
        (self.lock().ids)()
    }

    /// Tells when a kind changed; read the store only after marking what there is as seen.
    pub fn changes_of(&self, kind: &Kind) -> changed::Receiver {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.entry(kind.resource()).or_insert_with(|| Changed::new(0)).subscribe()
    }

    /// Makes journalled events visible.
    pub fn publish(&self, events: &[Arc<Event>]) {
        let Some(last) = events.last() else { return };
        self.lock().store.publish(last.revision);
        self.announce(events);
        self.metrics.commits.inc();
        self.metrics.committed_changes.inc_by(events.len() as u64);
        self.progress.send_modify(|p| p.published = last.revision);
    }

    /// Says that nothing becomes durable at the moment, to all who asked with a ticket up to `served`.
    pub fn fail(&self, why: String, served: u64) {
        self.progress.send_modify(|p| p.failure = Some(Failure { why, served }));
    }

    /// Undoes what did not become durable and accepts writes again. `drain` forgets what is queued.
    pub fn recover(&self, drain: impl FnOnce()) {
        let mut state = self.lock();
        // Under the store's lock nothing is added to the queue.
        drain();
        let lost = state.store.discard_unpublished();
        drop(state);
        self.progress.send_modify(|p| {
            p.failure = None;
            p.lost.extend(lost);
        });
    }

    fn announce(&self, events: &[Arc<Event>]) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            self.access.saw(event);
            if let Some(changed) = changes.get(&event.kind.resource()) {
                changed.announce(event.revision);
            }
        }
    }

    /// If writes fail, has the journal try again and waits for the outcome.
    async fn recovered(&self, journal: &Journal) -> Result<(), Status> {
        let Some(failure) = self.progress.borrow().failure.clone() else { return Ok(()) };
        let mut progress = self.progress.subscribe();
        let Some(ticket) = journal.retry() else { return Err(failure.status()) };
        // A try that was under way already may have met the disk as it was before.
        let tried = |p: &Progress| p.failure.as_ref().is_none_or(|f| f.served >= ticket);
        match progress.wait_for(tried).await {
            Ok(now) => now.failure.as_ref().map_or(Ok(()), |f| Err(f.status())),
            Err(_) => Err(failure.status()),
        }
    }

    async fn wait_for(&self, revision: u64) -> Result<(), Status> {
        let mut progress = self.progress.subscribe();
        // A failure may come and go while this one is not running; that its write was undone stays known.
        let settled = |p: &Progress| p.published >= revision || p.failure.is_some() || p.has_lost(revision);
        match progress.wait_for(settled).await {
            // The numbers of undone writes are never given out again, so going past them says nothing about them.
            Ok(now) if now.has_lost(revision) => {
                Err(Status::internal("the write was undone, because the data file could not be written for a while"))
            }
            Ok(now) if now.published >= revision => Ok(()),
            Ok(now) => Err(now.failure.as_ref().map_or_else(|| Status::internal(""), Failure::status)),
            Err(_) => Err(Status::internal("the server is stopping; the write may or may not have been kept")),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_writer_that_was_not_looking_while_its_write_was_undone_is_told_at_once() {
        let core = Server::in_memory(Options::system()).shared.core.clone();
        let body = json!({"metadata": {"name": "lost"}});
        let write = own_write(Kind::named("Namespace"), "", Action::Create(body), core.next_id());
        let revision = core.lock().store.apply(write, core.now()).unwrap().revision;
        let mut waiting = std::pin::pin!(core.wait_for(revision));
        assert!(waiting.as_mut().now_or_never().is_none());
        // On a busy machine both happen before the writer runs again.
        core.fail("no space left".to_owned(), 0);
        core.recover(|| {});
        let refused = waiting.now_or_never().expect("nothing else has to happen").unwrap_err();
        assert_eq!(refused.code, 500, "{refused}");
        let late = core.wait_for(revision).now_or_never().expect("nor for one that asks later");
        assert!(late.is_err());
    }
}

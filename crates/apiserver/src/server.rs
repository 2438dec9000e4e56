//! The server: the store behind a lock, who waits for it, and where it is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::Database;
use serde_json::json;
use tokio::sync::watch;

use crate::changed::{self, Changed};
use crate::durable::{self, Journal, OpenStore};
use crate::http::{Caller, Service};
use crate::kind::{KINDS, Kind};
use crate::status::Status;
use crate::store::{Action, Answer, Event, PERMANENT_NAMESPACES, Store, Subresource, Write};

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

/// How far the outside may see, or why it will not see more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub published: u64,
    pub failure: Option<String>,
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
    changes: BTreeMap<(&'static str, &'static str), Changed>,
    closing: watch::Sender<bool>,
    pub bookmark_interval: Duration,
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
        let (database, store) = durable::open(directory, options.window)?;
        Self::restart(&directory.join(durable::FILE), database, store, options)
    }

    /// Like [`Server::open`], over any storage; `name` stands for it in messages.
    pub fn open_backend(name: &Path, backend: impl redb::StorageBackend, options: Options) -> Result<Self, OpenStore> {
        let (database, store) = durable::open_backend(name, backend, options.window)?;
        Self::restart(name, database, store, options)
    }

    fn restart(path: &Path, database: Database, mut store: Store, mut options: Options) -> Result<Self, OpenStore> {
        let events = bootstrap(&mut store, &mut options);
        durable::commit_first(path, &database, &events)?;
        store.publish(store.head());
        let core = Arc::new(Core::new(store, options));
        let journal = Journal::start(database, core.clone())
            .map_err(|source| OpenStore::Access { path: path.to_owned(), source })?;
        Ok(Self { shared: Arc::new(Shared { core, journal: Some(journal) }) })
    }

    /// The whole API as a tower service; its callers are administrators.
    pub fn service(&self) -> Service {
        Service::new(self.shared.clone(), Caller::InProcess, self.shared.core.closing.subscribe())
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

/// Makes the namespaces that are always there, unless they are there.
fn bootstrap(store: &mut Store, options: &mut Options) -> Vec<Arc<Event>> {
    let namespaces = Kind::named("Namespace");
    let mut events = Vec::new();
    for name in PERMANENT_NAMESPACES {
        if store.newest(namespaces, "", name).is_some() {
            continue;
        }
        let write = Write {
            kind: namespaces,
            namespace: String::new(),
            name: String::new(),
            subresource: Subresource::Main,
            action: Action::Create(json!({"metadata": {"name": name}})),
            id: (options.ids)(),
            dry_run: false,
            strict: false,
        };
        let applied = store.apply(write, (options.clock)()).expect("the name is valid and free");
        events.extend(applied.events);
    }
    events
}

impl Shared {
    /// Does a write and waits until its answer may be told.
    pub async fn write(&self, write: Write) -> Result<Answer, Status> {
        let (answer, revision) = self.submit(write)?;
        if self.journal.is_some() {
            self.core.wait_for(revision).await?;
        }
        Ok(answer)
    }

    /// Does a write; its answer must not be told before the returned revision is published.
    fn submit(&self, write: Write) -> Result<(Answer, u64), Status> {
        let core = &*self.core;
        core.check_failure()?;
        let now = core.now();
        let mut state = core.lock();
        let applied = state.store.apply(write, now)?;
        match &self.journal {
            None => {
                state.store.publish(applied.revision);
                drop(state);
                core.announce(&applied.events);
            }
            // Queued under the store's lock: the journal's order is the revisions' order.
            Some(journal) => journal.enqueue(&applied.events),
        }
        Ok((applied.answer, applied.revision))
    }
}

impl Core {
    fn new(store: Store, options: Options) -> Self {
        let published = store.published();
        Self {
            state: Mutex::new(State { store, ids: options.ids }),
            clock: options.clock,
            progress: watch::Sender::new(Progress { published, failure: None }),
            changes: KINDS.iter().map(|k| ((k.group, k.plural), Changed::new(published))).collect(),
            closing: watch::Sender::new(false),
            bookmark_interval: options.bookmark_interval,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the store.
    pub fn read<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.lock().store)
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn next_id(&self) -> u128 {
        (self.lock().ids)()
    }

    /// Tells when a kind changed; read the store only after marking what there is as seen.
    pub fn changes_of(&self, kind: &Kind) -> Option<changed::Receiver> {
        self.changes.get(&(kind.group, kind.plural)).map(Changed::subscribe)
    }

    /// Makes journalled events visible.
    pub fn publish(&self, events: &[Arc<Event>]) {
        let Some(last) = events.last() else { return };
        self.lock().store.publish(last.revision);
        self.announce(events);
        self.progress.send_modify(|p| p.published = last.revision);
    }

    /// Says that nothing more will become durable.
    pub fn fail(&self, why: String) {
        self.progress.send_modify(|p| p.failure = Some(why));
    }

    fn announce(&self, events: &[Arc<Event>]) {
        for event in events {
            if let Some(changed) = self.changes.get(&(event.kind.group, event.kind.plural)) {
                changed.announce(event.revision);
            }
        }
    }

    fn check_failure(&self) -> Result<(), Status> {
        match &self.progress.borrow().failure {
            None => Ok(()),
            Some(why) => Err(Status::internal(why.clone())),
        }
    }

    async fn wait_for(&self, revision: u64) -> Result<(), Status> {
        let mut progress = self.progress.subscribe();
        let reached = progress.wait_for(|p| p.published >= revision || p.failure.is_some()).await;
        match reached {
            Ok(state) if state.published >= revision => Ok(()),
            Ok(state) => Err(Status::internal(state.failure.clone().unwrap_or_default())),
            Err(_) => Err(Status::internal("the server is stopping; the write may or may not have been kept")),
        }
    }
}

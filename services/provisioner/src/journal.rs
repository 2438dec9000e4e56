//! The intent journal (rule 5 of the design): no CreateVolume before its record is durable.
//!
//! Records live in Lease objects of the provisioner's namespace, a kind the original's role already lets us write. One
//! task writes; a batch is what gathered while the previous write was in flight, and removals ride on the next write.
//! Each run signs the pages at its start, so a run that was deposed cannot write any more and so cannot begin a
//! CreateVolume that its successor does not know of.

mod book;
mod pages;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, oneshot};

use stowage_model::object::Key;
use stowage_runtime::engine;
use stowage_runtime::tasks::Spawner;

use self::book::{Book, Stage};
use self::pages::{Failure, Pages};
use crate::intent::Intent;

/// Why a record could not be made durable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot record the intent: {source}")]
    Enter { source: book::Refused },
    #[error("cannot write the intent journal {lease}: {reason}")]
    Write { lease: String, reason: String },
    #[error(
        "may not write the intent journal {lease}: {reason}; grant get, list, create and update of leases in its namespace, \
         meanwhile it is tried again"
    )]
    Allow { lease: String, reason: String },
    #[error("cannot read the intent journal in namespace {namespace:?}: {reason}")]
    Read { namespace: String, reason: String },
    #[error(
        "the intent journal {lease} was taken over by {by:?}; run one provisioner for the driver, \
         or several with --leader-election"
    )]
    Deposed { lease: String, by: String },
    #[error("the intent journal's writer has stopped")]
    Stopped,
}

impl From<Error> for engine::Error {
    fn from(error: Error) -> Self {
        match error {
            // A successor has our records: whatever we did now, it would not know of.
            Error::Deposed { .. } => Self::Ended { reason: error.to_string() },
            error => Self::other(error),
        }
    }
}

/// What a decision needs to know about a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    pub intent: Arc<Intent>,
    /// Whether the record is certainly stored, and stays so.
    pub durable: bool,
    /// Whether the driver may have made the volume.
    pub maybe_made: bool,
    /// Whether an earlier run left it: nobody knows what has happened since it was written.
    pub inherited: bool,
}

/// What is left of the record of a volume's making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trace {
    /// Nothing.
    None,
    /// It is not needed any more and goes with the next write.
    Leaving,
    /// The record is at work.
    Live,
}

/// A clonable handle to the journal.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

type OnChange = Box<dyn Fn(Change<'_>) + Send + Sync>;

/// What others may have to decide on again.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// A record nobody here wrote was found.
    Adopted { uid: &'a str },
    /// A record is leaving or gone.
    Left { intent: &'a Intent },
    /// A record goes on without holding its source.
    Released { intent: &'a Intent },
    /// Whether records reach the API server from now on.
    Storing(bool),
}

struct Shared {
    state: Mutex<State>,
    work: Notify,
    /// A record has left since it was last asked.
    left: Notify,
    /// A record rests since it was last asked.
    rested: Notify,
    on_change: OnChange,
}

type Waiter = oneshot::Sender<Result<(), Error>>;

struct State {
    book: Book,
    /// Records that somebody waits for, by claim.
    waiting: BTreeMap<String, Vec<Waiter>>,
    flushing: Vec<Waiter>,
    /// Whether records reach the API server at all.
    stored: bool,
}

impl Journal {
    /// A journal that reads and signs its pages before it returns; without the right to, it stays in memory until there is one.
    pub async fn open(
        pages: Pages,
        run: &str,
        spawner: &Spawner,
        on_change: impl Fn(Change<'_>) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let journal = Self::new(run, true, on_change);
        match writer::take_over(&journal, &pages).await {
            Ok(()) => {
                journal.settle();
                spawner.spawn(writer::run(journal.clone(), pages));
            }
            Err(Failure::Forbidden(error)) => {
                tracing::warn!(
                    %error,
                    "no right to write Leases: intents stay in memory, so a crash can leak a volume; grant get, list, create \
                     and update of leases in this namespace, which is tried every minute, or pass --intent-journal=false"
                );
                journal.stay_in_memory();
                spawner.spawn(writer::run_once_allowed(journal.clone(), pages));
            }
            Err(Failure::Lost(error)) => return Err(error),
        }
        Ok(journal)
    }

    /// A journal without storage: what the original does.
    pub fn in_memory(on_change: impl Fn(Change<'_>) + Send + Sync + 'static) -> Self {
        on_change(Change::Storing(false));
        Self::new("", false, on_change)
    }

    fn new(run: &str, stored: bool, on_change: impl Fn(Change<'_>) + Send + Sync + 'static) -> Self {
        let state = State { book: Book::new(run), waiting: BTreeMap::new(), flushing: Vec::new(), stored };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            work: Notify::new(),
            left: Notify::new(),
            rested: Notify::new(),
            on_change: Box::new(on_change),
        }))
    }

    /// Makes the intent durable; resolves when it is.
    pub async fn record(&self, intent: Arc<Intent>) -> Result<(), Error> {
        let written = {
            let mut state = self.lock();
            let uid = intent.claim.uid.clone();
            state.book.enter(intent).map_err(|source| Error::Enter { source })?;
            if !state.stored {
                state.book.give_up_storing();
            }
            // Nobody writes what is stored still.
            if state.book.get(&uid).is_some_and(|entry| entry.stage == Stage::Stored) {
                return Ok(());
            }
            let (sender, written) = oneshot::channel();
            state.waiting.entry(uid).or_default().push(sender);
            written
        };
        self.0.work.notify_one();
        written.await.unwrap_or(Err(Error::Stopped))
    }

    /// The record goes on, and holds its source no more.
    pub async fn release(&self, intent: Arc<Intent>) -> Result<(), Error> {
        self.record(Arc::clone(&intent)).await?;
        (self.0.on_change)(Change::Released { intent: &intent });
        Ok(())
    }

    /// The record is no longer needed; its removal rides on the next write.
    pub fn forget(&self, uid: &str) {
        let intent = {
            let mut state = self.lock();
            let intent = state.book.get(uid).map(|entry| Arc::clone(&entry.intent));
            match state.stored {
                true => state.book.leave(uid),
                false => drop(state.book.remove(uid)),
            }
            intent
        };
        if let Some(intent) = intent {
            (self.0.on_change)(Change::Left { intent: &intent });
            self.0.left.notify_one();
        }
    }

    /// Resolves when a record has left and its removal waits for a write.
    pub async fn left(&self) {
        self.0.left.notified().await;
    }

    /// Resolves when a record rests, and stays on its page until a write.
    pub async fn rested(&self) {
        self.0.rested.notified().await;
    }

    /// Nobody will try again: what certainly was not made is not to be found by whoever comes next, nor are its places.
    pub fn forget_unmade(&self) {
        let mut state = self.lock();
        if state.stored {
            for uid in state.book.unmade() {
                state.book.leave(&uid);
            }
        }
    }

    /// Writes the removals that have nothing to ride on.
    pub async fn flush(&self) -> Result<(), Error> {
        let flushed = {
            let mut state = self.lock();
            if !state.stored || state.book.pages_to_clean().is_empty() {
                return Ok(());
            }
            let (sender, flushed) = oneshot::channel();
            state.flushing.push(sender);
            flushed
        };
        self.0.work.notify_one();
        flushed.await.unwrap_or(Err(Error::Stopped))
    }

    /// The live record of a claim.
    pub fn get(&self, uid: &str) -> Option<Recorded> {
        let state = self.lock();
        let entry = state.book.get(uid).filter(|entry| entry.stage != Stage::Leaving)?;
        Some(Recorded {
            intent: Arc::clone(&entry.intent),
            durable: entry.stage == Stage::Stored,
            maybe_made: entry.maybe_made,
            inherited: entry.inherited,
        })
    }

    /// What is left of the record of the making of the volume with this name, whatever claim its object names now.
    pub fn trace(&self, volume: &str) -> Trace {
        let state = self.lock();
        let traces = state.book.about(volume).map(|entry| match entry.stage {
            Stage::Leaving => Trace::Leaving,
            Stage::Wanted | Stage::Stored | Stage::Resting | Stage::Fading | Stage::Kept => Trace::Live,
        });
        traces.max().unwrap_or(Trace::None)
    }

    /// The claims that have a live record.
    pub fn uids(&self) -> Vec<String> {
        let state = self.lock();
        let live = |uid: &String| state.book.get(uid).is_some_and(|entry| entry.stage != Stage::Leaving);
        state.book.uids().into_iter().filter(live).collect()
    }

    /// The claims for which a volume is being made from the object with this uid, as far as this journal knows, in order. One
    /// that was made counts until its record is gone: what is replayed after a crash must find its source.
    pub fn users(&self, source: &str) -> Vec<Key> {
        let state = self.lock();
        let uses = |intent: &Intent| {
            let used = intent.request.source.as_ref();
            used.is_some_and(|used| used.uid == source && !used.released)
        };
        let users = state.book.all().filter(|entry| uses(&entry.intent)).map(|entry| entry.intent.claim.key());
        let mut users: Vec<Key> = users.collect();
        users.sort();
        users
    }

    /// A call is about to be sent: from now on the volume may exist. Returns whether it might have before; `None` where the
    /// record is not certainly stored, so that no call may be sent.
    pub fn call_sent(&self, uid: &str) -> Option<bool> {
        let book = &mut self.lock().book;
        let is_stored = book.get(uid).is_some_and(|entry| entry.stage == Stage::Stored);
        is_stored.then(|| book.set_maybe_made(uid, true))
    }

    /// Nobody was there to take the call: as much is known as before it.
    pub fn call_not_taken(&self, uid: &str, maybe_made_before: bool) {
        if maybe_made_before {
            self.lock().book.set_maybe_made(uid, true);
        } else {
            self.certainly_not_made(uid);
        }
    }

    /// It is certain that there is no volume: whoever finds the record after a restart need not ask for it.
    pub fn certainly_not_made(&self, uid: &str) {
        let rests = {
            let mut state = self.lock();
            state.book.set_maybe_made(uid, false);
            state.stored && state.book.rest(uid)
        };
        if rests {
            self.0.rested.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no code panics while holding the journal")
    }
}

pub use book::RECORD;
pub use pages::Pages as Storage;

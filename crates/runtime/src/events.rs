//! Events people read in `kubectl describe`: written beside the work, repeated ones counted instead of repeated.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use stowage_model::object::{Key, ObjectId, ObjectRef, kinds};

use crate::api::Api;
use crate::clock::Clock;
use crate::random::Random;
use crate::tasks::Spawner;

/// Events waiting to be written; more are refused, because events are a courtesy and the work is not. Enough for
/// something to tell about each object of a large cluster at once.
const WAITING: usize = 1 << 16;

/// Events taken from the waiting at once, to count repetitions among them.
const BATCH: usize = 1024;

/// Series remembered for counting repetitions.
const SERIES: usize = 4096;

/// Normal or Warning, as Kubernetes has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// For information.
    Normal,
    /// Somebody may have to look.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What is told about an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Normal or Warning.
    pub severity: Severity,
    /// Machine-readable, CamelCase.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Note {
    /// Something went as it should.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Normal, reason, message: message.into() }
    }

    /// Something needs attention.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, reason, message: message.into() }
    }
}

type Series = (Key, String, Note);

/// Writes events for one component.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Entry>,
    clock: Arc<dyn Clock>,
}

/// What is told, about what, and when it was so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    about: ObjectRef,
    note: Note,
    at: Timestamp,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Recorder {
    /// Starts the writer under the given owner.
    pub fn start(
        api: Api,
        clock: Arc<dyn Clock>,
        random: Random,
        component: impl Into<String>,
        host: impl Into<String>,
        spawner: &Spawner,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let source = json!({ "component": component.into(), "host": host.into() });
        let (known, ages) = (BTreeMap::new(), BTreeMap::new());
        spawner.spawn(Writer { api, random, source, known, ages, begun: 0 }.run(receiver));
        Self { sender, clock }
    }

    /// Tells something about an object; never waits. Says whether it will be written: not while too many wait.
    pub fn record(&self, about: &ObjectRef, note: Note) -> bool {
        tracing::debug!(object = %about.key, reason = note.reason, message = note.message, "event");
        let taken = self.sender.try_send(Entry { about: about.clone(), note, at: self.clock.now() }).is_ok();
        if !taken {
            tracing::debug!(object = %about.key, "too many events, one was dropped");
        }
        taken
    }
}

struct Known {
    id: ObjectId,
    count: u64,
    /// Its place in `Writer::ages`.
    age: u64,
}

struct Writer {
    api: Api,
    random: Random,
    source: Value,
    known: BTreeMap<Arc<Series>, Known>,
    /// The same series, the oldest first.
    ages: BTreeMap<u64, Arc<Series>>,
    begun: u64,
}

impl Writer {
    async fn run(mut self, mut receiver: mpsc::Receiver<Entry>) {
        let mut gathered = Vec::new();
        // A batch is what gathered while the previous write was in flight.
        while receiver.recv_many(&mut gathered, BATCH).await > 0 {
            for (entry, times) in counted(gathered.drain(..)) {
                // The work goes first: a claim is better bound than told that it waits.
                self.api.traffic().let_pass().await;
                self.write(entry, times).await;
            }
        }
    }

    async fn write(&mut self, Entry { about, note, at: now }: Entry, times: u64) {
        let series = (about.key.clone(), about.uid.clone(), note.clone());
        let repeated = match self.known.get_mut(&series) {
            Some(known) => {
                known.count += times;
                let body = json!({ "count": known.count, "lastTimestamp": seconds(now) });
                Some(self.api.patch_raw(&known.id, body).await.map(|_| ()))
            }
            None => None,
        };
        let result = match repeated {
            // Events expire after an hour: a repetition then begins a new series.
            Some(Err(error)) if error.is_not_found() => self.create(about, note, times, now, series.clone()).await,
            Some(result) => result,
            None => self.create(about, note, times, now, series.clone()).await,
        };
        if let Err(error) = result {
            self.forget(&series);
            tracing::debug!(%error, "event not written");
        }
    }

    async fn create(
        &mut self,
        about: ObjectRef,
        note: Note,
        times: u64,
        now: Timestamp,
        series: Series,
    ) -> Result<(), crate::api::Error> {
        // Events of cluster-scoped objects live in `default`.
        let namespace = if about.key.namespace.is_empty() { "default" } else { &about.key.namespace };
        let name = format!("{}.{:016x}", about.key.name, self.random.number());
        let mut involved = json!({
            "apiVersion": about.kind.api_version(), "kind": about.kind.kind, "name": about.key.name, "uid": about.uid,
        });
        if !about.key.namespace.is_empty() {
            involved["namespace"] = about.key.namespace.as_str().into();
        }
        let body = json!({
            "metadata": { "name": name, "namespace": namespace },
            "involvedObject": involved,
            "reason": note.reason,
            "message": note.message,
            "type": note.severity.as_str(),
            "source": self.source,
            "reportingComponent": self.source["component"],
            "reportingInstance": "",
            "firstTimestamp": seconds(now),
            "lastTimestamp": seconds(now),
            "count": times,
        });
        self.api.create_raw(kinds::EVENT, body).await?;
        self.forget(&series);
        if self.known.len() >= SERIES
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.known.remove(&oldest);
        }
        let id = ObjectId { kind: kinds::EVENT, key: Key::namespaced(namespace, name) };
        let series = Arc::new(series);
        self.ages.insert(self.begun, Arc::clone(&series));
        self.known.insert(series, Known { id, count: times, age: self.begun });
        self.begun += 1;
        Ok(())
    }

    fn forget(&mut self, series: &Series) {
        if let Some(known) = self.known.remove(series) {
            self.ages.remove(&known.age);
        }
    }
}

/// The same told several times is one entry, as it was told last, at the place where it was told first.
fn counted(gathered: impl Iterator<Item = Entry>) -> Vec<(Entry, u64)> {
    let mut counted: Vec<(Entry, u64)> = Vec::new();
    let mut places: BTreeMap<(ObjectRef, Note), usize> = BTreeMap::new();
    for entry in gathered {
        let place = *places.entry((entry.about.clone(), entry.note.clone())).or_insert(counted.len());
        match counted.get_mut(place) {
            Some((told, times)) => {
                told.at = entry.at;
                *times += 1;
            }
            None => counted.push((entry, 1)),
        }
    }
    counted
}

/// Kubernetes timestamps carry whole seconds.
pub fn seconds(at: Timestamp) -> String {
    at.round(jiff::Unit::Second).unwrap_or(at).to_string()
}

//! Writes what was told: repeated ones counted, unanswered ones tried again.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use stowage_model::object::{Key, ObjectId, ObjectRef, kinds};

use super::body::{self, event_name, number};
use super::{Entry, Note, seconds};
use crate::api::{self, Api};
use crate::backoff::Backoff;
use crate::random::Random;

/// Events taken from the waiting at once, to count repetitions among them.
const BATCH: usize = 1024;

/// Events that wait for another try after a write without an answer; with so many no more are taken from the waiting.
const LATE: usize = 1024;

/// Tries of one event: an outage of several minutes is outlasted, then nobody asks any more.
const TRIES: u32 = 12;

/// Between the tries of one event.
const AGAIN: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) };

/// How far apart, at most, two components are put that would give events of one object the same name.
const APART: u64 = 1 << 10;

/// Series remembered for counting repetitions.
const SERIES: usize = 4096;

type Series = (Key, String, Note);

impl Entry {
    fn series(&self) -> Series {
        (self.about.key.clone(), self.about.uid.clone(), self.note.clone())
    }
}

/// A series as it is remembered, without its texts. One in 2^52 new ones is taken for one that is remembered, and counted there.
type Fingerprint = u64;

fn fingerprint(series: &Series) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    series.hash(&mut hasher);
    hasher.finish()
}

struct Known {
    key: Key,
    count: u64,
    /// Its place in `Writer::ages`.
    age: u64,
}

/// An entry as it was told last, since when and how often it was told, and what came of writing it so far.
struct Telling {
    entry: Entry,
    first: Timestamp,
    times: u64,
    /// What the event was to be called: a create whose answer was lost may have been done.
    name: Option<String>,
    failures: u32,
    due: Instant,
}

impl Telling {
    fn new(entry: Entry) -> Self {
        Self { first: entry.at, entry, times: 1, name: None, failures: 0, due: Instant::now() }
    }

    fn add(&mut self, later: &Telling) {
        self.entry.at = later.entry.at;
        self.times += later.times;
    }
}

pub(super) struct Writer {
    api: Api,
    random: Random,
    source: Value,
    known: BTreeMap<Fingerprint, Known>,
    /// The same series, the oldest first.
    ages: BTreeMap<u64, Fingerprint>,
    begun: u64,
    /// The number in the name of the last event.
    last: u64,
    /// What waits for another try.
    late: BTreeMap<Series, Telling>,
}

impl Writer {
    pub(super) fn new(api: Api, random: Random, source: Value) -> Self {
        let (known, ages, late) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { api, random, source, known, ages, begun: 0, last: 0, late }
    }

    pub(super) async fn run(mut self, mut receiver: mpsc::Receiver<Entry>) {
        let mut gathered = Vec::new();
        loop {
            let due = self.late.values().map(|late| late.due).min();
            let due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = due => {
                    self.write_late().await;
                    // New ones have their turn, however many late ones are due.
                    while gathered.len() < BATCH && self.late.len() < LATE && let Ok(entry) = receiver.try_recv() {
                        gathered.push(entry);
                    }
                    self.tell_all(&mut gathered).await;
                }
                // A batch is what gathered while the previous write was in flight.
                received = receiver.recv_many(&mut gathered, BATCH), if self.late.len() < LATE => {
                    if received == 0 {
                        return;
                    }
                    self.tell_all(&mut gathered).await;
                }
            }
        }
    }

    async fn tell_all(&mut self, gathered: &mut Vec<Entry>) {
        for telling in counted(gathered.drain(..)) {
            self.tell(telling).await;
        }
    }

    /// Writes one event that is due again.
    async fn write_late(&mut self) {
        let now = Instant::now();
        let due = self.late.iter().filter(|(_, late)| late.due <= now).min_by_key(|(_, late)| late.due);
        let series = due.map(|(series, _)| series.clone());
        if let Some(late) = series.and_then(|series| self.late.remove(&series)) {
            self.write(late).await;
        }
    }

    async fn tell(&mut self, telling: Telling) {
        match self.late.get_mut(&telling.entry.series()) {
            Some(late) => late.add(&telling),
            None => self.write(telling).await,
        }
    }

    async fn write(&mut self, mut telling: Telling) {
        // The work goes first: a claim is better bound than told that it waits.
        self.api.traffic().let_pass().await;
        let Err(error) = self.try_write(&mut telling).await else { return };
        let series = telling.entry.series();
        telling.failures += 1;
        // A server that is not up yet has not said no.
        if !error.is_unanswered() && error.retry_after().is_none() {
            self.forget(&series);
            tracing::debug!(%error, "event refused");
        } else if telling.failures < TRIES {
            telling.due = Instant::now() + AGAIN.delay(telling.failures);
            tracing::debug!(%error, "event not written yet");
            self.late.insert(series, telling);
        } else {
            self.forget(&series);
            tracing::info!(object = %series.0, reason = series.2.reason, %error, "event given up");
        }
    }

    async fn try_write(&mut self, telling: &mut Telling) -> Result<(), api::Error> {
        let series = telling.entry.series();
        if let Some(known) = self.known.get_mut(&fingerprint(&series)) {
            let count = known.count + telling.times;
            let id = ObjectId { kind: kinds::EVENT, key: known.key.clone() };
            match repeat(&self.api, &id, count, telling.entry.at).await {
                // Events expire after an hour: a repetition then begins a new series.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    known.count = count;
                    return Ok(());
                }
            }
        }
        self.create(telling, series).await
    }

    async fn create(&mut self, telling: &mut Telling, series: Series) -> Result<(), api::Error> {
        let Telling { entry: Entry { about, note, at: now }, first, times, name: tried, .. } = telling;
        let namespace = body::namespace(about);
        let is_tried = tried.is_some();
        let name = match tried {
            Some(name) => name.clone(),
            None => {
                self.last = number(*now, self.last);
                tried.insert(event_name(&about.key.name, self.last)).clone()
            }
        };
        let body = body::body(about, note, &self.source, &name, (*first, *now), *times);
        let id = ObjectId { kind: kinds::EVENT, key: Key::namespaced(namespace, name) };
        match self.api.create_raw(kinds::EVENT, body).await {
            // The answer that was lost: it may have been told again since.
            Err(error) if is_tried && error.is_already_exists() => repeat(&self.api, &id, *times, *now).await?,
            // Another component told something about the object at the same instant.
            Err(error) if error.is_already_exists() => {
                self.last += self.random.number() % APART;
                *tried = None;
                return Box::pin(self.create(telling, series)).await;
            }
            created => drop(created?),
        }
        self.forget(&series);
        if self.known.len() >= SERIES
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.known.remove(&oldest);
        }
        let fingerprint = fingerprint(&series);
        self.ages.insert(self.begun, fingerprint);
        self.known.insert(fingerprint, Known { key: id.key, count: *times, age: self.begun });
        self.begun += 1;
        Ok(())
    }

    fn forget(&mut self, series: &Series) {
        if let Some(known) = self.known.remove(&fingerprint(series)) {
            self.ages.remove(&known.age);
        }
    }
}

async fn repeat(api: &Api, id: &ObjectId, count: u64, at: Timestamp) -> Result<(), api::Error> {
    let body = json!({ "count": count, "lastTimestamp": seconds(at) });
    api.patch_raw(id, body).await.map(drop)
}

/// The same told several times is one entry, as it was told last, at the place where it was told first.
fn counted(gathered: impl Iterator<Item = Entry>) -> Vec<Telling> {
    let mut counted: Vec<Telling> = Vec::new();
    let mut places: BTreeMap<(ObjectRef, Note), usize> = BTreeMap::new();
    for entry in gathered {
        let place = *places.entry((entry.about.clone(), entry.note.clone())).or_insert(counted.len());
        let telling = Telling::new(entry);
        match counted.get_mut(place) {
            Some(told) => told.add(&telling),
            None => counted.push(telling),
        }
    }
    counted
}

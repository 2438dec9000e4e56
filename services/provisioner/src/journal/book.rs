//! The journal as plain data: which records there are, on which page each stands, and how a page's Lease is edited.
//!
//! A page is one Lease object; each record is one of its annotations. Nothing here waits or writes.

mod shelf;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::shelf::Shelf;
use crate::intent::{self, Intent};
use crate::places::{self, Places};

pub use self::shelf::PLACES;

/// Annotations that start so are records; the claim's uid follows.
pub const RECORD: &str = "intent.provisioner.stowage.dev/";

/// Annotation that says which run of the provisioner writes the page.
pub const WRITER: &str = "provisioner.stowage.dev/writer";

/// Annotation with the uid of the Lease that the page is. A backup that is put back, here or elsewhere, has another uid.
const STAMP: &str = "provisioner.stowage.dev/page-uid";

/// What records become that are on a copy of their page: nobody settles them.
const COPY: &str = "copied-intent.provisioner.stowage.dev/";

/// A page takes no new record beyond this. Kubernetes allows 256 KiB of annotations on an object, but each write sends the
/// whole page and has it checked, and all who wait for a record wait for that.
const PAGE_BYTES: usize = 32 * 1024;

/// A record alone may fill a page up to this: a class's parameters can be that large.
const RECORD_BYTES: usize = 250 * 1024;

/// Where a record stands between memory and the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// To be written; it may be stored already if a write got no answer.
    Wanted,
    /// Certainly stored.
    Stored,
    /// Still stored, and certainly nothing was made: the next write of its page takes it off, and until then it can be taken up
    /// again without one.
    Resting,
    /// The same, and a write that takes it off may have been done.
    Fading,
    /// Certainly not stored, and kept here for who tries again; its places stay where they are.
    Kept,
    /// No longer needed; goes with the next write of its page.
    Leaving,
}

/// One record.
#[derive(Debug, Clone)]
pub struct Entry {
    pub intent: Arc<Intent>,
    /// The record as stored. Kept as it was read, so that fields we do not know survive.
    text: String,
    page: usize,
    pub stage: Stage,
    /// Whether the driver may have made the volume: a call was sent and no final failure was answered since.
    pub maybe_made: bool,
    /// Whether an earlier run made or may have made the volume, at whatever time.
    pub inherited: bool,
    /// The lists of places that the record named before, and names where it is stored until it is written anew.
    held: Vec<Places>,
    /// Distinguishes a record from its successor for the same claim.
    generation: u64,
}

/// All records of one driver.
#[derive(Debug)]
pub struct Book {
    writer: String,
    entries: BTreeMap<String, Entry>,
    /// Claims by the name of the volume their record is about: the object may name another claim by now, or none.
    by_volume: BTreeMap<String, BTreeSet<String>>,
    /// The pages that have records.
    pages: BTreeMap<usize, Fill>,
    /// Bytes of what others put on a page, and of records that cannot be read.
    foreign: BTreeMap<usize, usize>,
    /// Records that outgrew their page, with the page that still has what they said before.
    moved: BTreeMap<String, usize>,
    /// Records that cannot be read, by claim, with the pages they are on.
    unreadable: BTreeMap<String, BTreeSet<usize>>,
    shelf: Shelf,
    /// Records found before their lists of places, by claim and page; none once all pages were read.
    waiting: Option<BTreeMap<(String, usize), String>>,
    /// Nothing new stands on a page before this one.
    first: usize,
    generation: u64,
}

/// What is on a page.
#[derive(Debug, Default)]
struct Fill {
    records: usize,
    /// Those that are yet to be written.
    wanted: usize,
    /// Bytes of the records that stay, and of those that are to go from the page.
    live: usize,
    leaving: usize,
    /// Parts of lists of places; they stand apart from records.
    parts: usize,
}

impl Stage {
    /// Whether it counts among what stays on its page.
    fn is_live(self) -> bool {
        matches!(self, Self::Wanted | Self::Stored)
    }
}

impl Fill {
    fn add(&mut self, stage: Stage, bytes: usize) {
        self.records += usize::from(stage != Stage::Kept);
        self.wanted += usize::from(stage == Stage::Wanted);
        if let Some(sum) = self.of(stage) {
            *sum += bytes;
        }
    }

    fn take(&mut self, stage: Stage, bytes: usize) {
        self.records -= usize::from(stage != Stage::Kept);
        self.wanted -= usize::from(stage == Stage::Wanted);
        if let Some(sum) = self.of(stage) {
            *sum -= bytes;
        }
    }

    fn of(&mut self, stage: Stage) -> Option<&mut usize> {
        match stage {
            Stage::Wanted | Stage::Stored => Some(&mut self.live),
            Stage::Resting | Stage::Fading | Stage::Leaving => Some(&mut self.leaving),
            Stage::Kept => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.records == 0 && self.parts == 0
    }
}

/// What an edit of a page did, to be confirmed once the write is answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Another run of the provisioner writes this page; nothing was edited.
    pub deposed_by: Option<String>,
    put: Vec<(String, u64)>,
    dropped: Vec<(String, u64)>,
    /// Records that rest and are not on the page any more.
    rested: Vec<(String, u64)>,
    /// Records that went to another page, and the page they left.
    moved: Vec<(String, usize)>,
    /// Claims whose records were found on the page and not known before.
    pub adopted: Vec<String>,
    parts_put: Vec<(String, u64)>,
    parts_dropped: Vec<(String, u64)>,
}

/// Why a record cannot be written at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the record has {bytes} bytes, a Lease holds {RECORD_BYTES}; shorten the parameters of the StorageClass")]
    TooLarge { bytes: usize },
    #[error("one place has {bytes} bytes, a Lease holds {RECORD_BYTES}; let the driver name places by fewer keys")]
    LongPlaces { bytes: usize },
    #[error(
        "two lists of places have the hash {name}; it is tried again, and works when no volume needs the other one"
    )]
    SameHash { name: String },
    #[error(
        "annotation {RECORD}{uid} of the Lease that ends in -intents-{page} tells of an earlier call and cannot be read; run the \
         provisioner that wrote it, or see that the driver has no volume of this claim, remove the annotation and restart"
    )]
    Unreadable { uid: String, page: usize },
}

impl Book {
    /// An empty book written by this run.
    pub fn new(writer: impl Into<String>) -> Self {
        Self {
            writer: writer.into(),
            entries: BTreeMap::new(),
            by_volume: BTreeMap::new(),
            pages: BTreeMap::new(),
            foreign: BTreeMap::new(),
            moved: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            shelf: Shelf::default(),
            waiting: Some(BTreeMap::new()),
            first: 0,
            generation: 0,
        }
    }

    pub fn get(&self, uid: &str) -> Option<&Entry> {
        self.entries.get(uid)
    }

    /// The records about the volume of this name.
    pub fn about(&self, volume: &str) -> impl Iterator<Item = &Entry> {
        self.by_volume.get(volume).into_iter().flatten().filter_map(|uid| self.entries.get(uid))
    }

    /// All records, those that are leaving too.
    pub fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub fn uids(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    /// Records of which certainly nothing was made, wherever they stand.
    pub fn unmade(&self) -> Vec<String> {
        self.entries.iter().filter(|(_, entry)| !entry.maybe_made).map(|(uid, _)| uid.clone()).collect()
    }

    /// Enters or replaces a record; it is durable only once a write of its page is confirmed, unless the very same is stored
    /// still.
    pub fn enter(&mut self, intent: Arc<Intent>) -> Result<(), Refused> {
        let uid = intent.claim.uid.clone();
        // Only the request that it tells of finds the volume that may be there: written over, or beside it, that is lost.
        if let Some(page) = self.unreadable.get(&uid).and_then(BTreeSet::first).copied() {
            return Err(Refused::Unreadable { uid, page });
        }
        let text = intent.encode();
        let bytes = bytes_of(&uid, &text);
        if bytes > RECORD_BYTES {
            return Err(Refused::TooLarge { bytes });
        }
        self.check_parts(intent.parts())?;
        let known = self.entries.get(&uid);
        let rests = known.filter(|entry| entry.stage == Stage::Resting && entry.intent == intent);
        // Others may have been promised its room since.
        if rests.is_some_and(|entry| self.fits(entry.page, &uid, bytes_of(&uid, &entry.text))) {
            self.restage(&uid, Stage::Stored);
            return Ok(());
        }
        let maybe_made = known.is_some_and(|entry| entry.maybe_made);
        let inherited = known.is_some_and(|entry| entry.inherited);
        let on_page = known.filter(|entry| entry.stage != Stage::Kept);
        let held = on_page.map(|entry| entry.lists_besides(&intent)).unwrap_or_default();
        let page = match on_page.map(|entry| entry.page) {
            Some(page) if self.fits(page, &uid, bytes) => page,
            Some(page) => {
                self.moved.entry(uid.clone()).or_insert(page);
                self.page_with_room(bytes)
            }
            None => self.page_with_room(bytes),
        };
        self.generation += 1;
        let generation = self.generation;
        let stage = Stage::Wanted;
        self.insert(uid, Entry { intent, text, page, stage, maybe_made, inherited, held, generation });
        Ok(())
    }

    fn insert(&mut self, uid: String, entry: Entry) {
        // Before its parts look for a page: they stand on none that has a record.
        self.pages.entry(entry.page).or_default().add(entry.stage, bytes_of(&uid, &entry.text));
        // Before the former goes: what both name stays as it is.
        self.hold(entry.intent.parts());
        entry.held.iter().for_each(|places| self.hold(places.parts()));
        self.remove(&uid);
        self.by_volume.entry(entry.intent.volume.clone()).or_default().insert(uid.clone());
        self.entries.insert(uid, entry);
    }

    /// Whether the page can hold a record of this claim that has so many bytes.
    fn fits(&self, page: usize, uid: &str, bytes: usize) -> bool {
        let live = self.pages.get(&page).map_or(0, |fill| fill.live);
        let own = self.entries.get(uid).filter(|entry| entry.page == page && entry.stage.is_live());
        let own = own.map_or(0, |entry| bytes_of(uid, &entry.text));
        live - own + self.foreign_on(page) + bytes <= RECORD_BYTES
    }

    fn foreign_on(&self, page: usize) -> usize {
        self.foreign.get(&page).copied().unwrap_or_default()
    }

    /// Prefers the page that is to be written anyway, so that a batch is one write; then the one that has most to remove, so
    /// that removals ride on a write soon; then the first with room.
    fn page_with_room(&self, bytes: usize) -> usize {
        let is_free = |page: &usize| !self.pages.contains_key(page) && self.foreign_on(*page) + bytes <= RECORD_BYTES;
        let free = (self.first..).find(is_free).unwrap_or_default();
        let has_room = |page: usize, fill: &Fill| {
            page >= self.first && fill.parts == 0 && fill.live + self.foreign_on(page) + bytes <= PAGE_BYTES
        };
        let fitting = self.pages.iter().filter(|(page, fill)| has_room(**page, fill));
        let best = fitting.max_by_key(|(page, fill)| (fill.wanted > 0, fill.leaving, std::cmp::Reverse(**page)));
        best.map_or(free, |(page, _)| *page)
    }

    /// The record is no longer needed.
    pub fn leave(&mut self, uid: &str) {
        match self.entries.get(uid).map(|entry| entry.stage) {
            Some(Stage::Kept) => drop(self.remove(uid)),
            _ => self.restage(uid, Stage::Leaving),
        }
    }

    /// Nothing was made, and nothing is under way: whoever finds the record after a crash need not ask the driver. Says
    /// whether a write is to take it off its page.
    pub fn rest(&mut self, uid: &str) -> bool {
        // One that moves from page to page is left alone.
        let may_rest = self.entries.get(uid).is_some_and(|entry| entry.stage == Stage::Stored && !entry.maybe_made);
        let may_rest = may_rest && !self.moved.contains_key(uid);
        if may_rest {
            self.restage(uid, Stage::Resting);
        }
        may_rest
    }

    fn restage(&mut self, uid: &str, stage: Stage) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let (fill, bytes) = (self.pages.entry(entry.page).or_default(), bytes_of(uid, &entry.text));
        fill.take(entry.stage, bytes);
        fill.add(stage, bytes);
        entry.stage = stage;
        if fill.is_empty() {
            self.pages.remove(&entry.page);
        }
    }

    /// The record is gone for good.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<Intent>> {
        let Entry { intent, text, page, stage, held, .. } = self.entries.remove(uid)?;
        if let Some(fill) = self.pages.get_mut(&page) {
            fill.take(stage, bytes_of(uid, &text));
            if fill.is_empty() {
                self.pages.remove(&page);
            }
        }
        self.release(intent.parts());
        held.iter().for_each(|places| self.release(places.parts()));
        if let Some(uids) = self.by_volume.get_mut(&intent.volume) {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_volume.remove(&intent.volume);
            }
        }
        Some(intent)
    }

    /// Remembers whether the driver may have made the volume; returns what was remembered before.
    pub fn set_maybe_made(&mut self, uid: &str, maybe_made: bool) -> bool {
        self.entries.get_mut(uid).is_some_and(|entry| {
            // What is made from now on is of this run.
            entry.inherited &= maybe_made;
            std::mem::replace(&mut entry.maybe_made, maybe_made)
        })
    }

    /// The page to be written next for a record: those of its places come first, and one that it has to leave comes before
    /// the one where it is to stand, so that never two records speak for one claim.
    pub fn page_of(&self, uid: &str) -> Option<usize> {
        let entry = self.entries.get(uid);
        let wanted = entry.filter(|entry| entry.stage == Stage::Wanted);
        let missing = wanted.and_then(|entry| self.shelf.page_of_missing(entry.intent.parts()));
        missing.or_else(|| self.moved.get(uid).copied()).or_else(|| entry.map(|entry| entry.page))
    }

    /// Pages from which records are to go.
    pub fn pages_to_clean(&self) -> BTreeSet<usize> {
        let leaving = self.pages.iter().filter(|(_, fill)| fill.leaving > 0).map(|(page, _)| *page);
        leaving.chain(self.moved.values().copied()).collect()
    }

    /// A page that does not exist yet.
    pub fn new_page(&self, namespace: &str, name: &str, labels: Value) -> Value {
        json!({
            "metadata": {
                "namespace": namespace, "name": name, "labels": labels, "annotations": { WRITER: self.writer },
            },
            "spec": {},
        })
    }

    /// Brings the page's Lease to what the book says, leaving everything that is not ours as it is.
    ///
    /// `take` makes this run the page's writer; otherwise a page taken by another run is left alone.
    pub fn edit(&mut self, page: usize, lease: &mut Value, take: bool) -> Edit {
        let mut edit = Edit::default();
        if !lease["metadata"]["annotations"].is_object() {
            lease["metadata"]["annotations"] = json!({});
        }
        let lease_uid = lease["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let annotations = lease["metadata"]["annotations"].as_object_mut().expect("made an object just now");
        let writer = annotations.get(WRITER).and_then(Value::as_str).unwrap_or_default();
        if writer != self.writer && !take {
            edit.deposed_by = Some(writer.to_owned());
            return edit;
        }
        annotations.insert(WRITER.into(), self.writer.as_str().into());
        if !lease_uid.is_empty() {
            disown_copies(page, &lease_uid, annotations);
            annotations.insert(STAMP.into(), lease_uid.into());
        }
        self.forget_unreadable(page, |uid| annotations.contains_key(&format!("{RECORD}{uid}")));
        self.adopt_parts(page, annotations);
        for (key, value) in annotations.iter() {
            if let Some(uid) = key.strip_prefix(RECORD) {
                self.adopt(uid, value.as_str().unwrap_or_default(), page, &mut edit);
            }
        }
        let is_moved = |key: &str| key.strip_prefix(RECORD).is_some_and(|uid| self.moved.get(uid) == Some(&page));
        annotations.retain(|key, _| !is_moved(key));
        edit.moved.extend(self.moved.iter().filter(|(_, from)| **from == page).map(|(uid, _)| (uid.clone(), page)));
        let is_here = |uid: &str| self.entries.get(uid).is_some_and(|entry| entry.page == page);
        let is_record = |key: &str| key.strip_prefix(RECORD).is_some_and(is_here);
        let is_ours = |key: &str| is_record(key) || self.shelf.has(key);
        let foreign = annotations.iter().filter(|(key, _)| !is_ours(key));
        let foreign: usize = foreign.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        self.foreign.insert(page, foreign);
        self.edit_parts(page, annotations, &mut edit);
        let is_ready = |entry: &Entry| entry.stage != Stage::Wanted || self.shelf.has_stored(entry.intent.parts());
        let stands = |uid: &str, entry: &Entry| entry.page == page && !self.moved.contains_key(uid) && is_ready(entry);
        for (uid, entry) in self.entries.iter().filter(|(uid, entry)| stands(uid, entry)) {
            let (key, version) = (format!("{RECORD}{uid}"), (uid.clone(), entry.generation));
            match entry.stage {
                Stage::Leaving => {
                    annotations.remove(&key);
                    edit.dropped.push(version);
                }
                Stage::Resting | Stage::Fading => {
                    annotations.remove(&key);
                    edit.rested.push(version);
                }
                // Somebody put it back.
                Stage::Kept => drop(annotations.remove(&key)),
                Stage::Wanted | Stage::Stored => {
                    if entry.stage == Stage::Wanted || !annotations.contains_key(&key) {
                        annotations.insert(key, entry.text.as_str().into());
                    }
                    edit.put.push(version);
                }
            }
        }
        // From here on it is not known to be stored, whatever comes of the write.
        edit.rested.iter().for_each(|(uid, _)| self.restage(uid, Stage::Fading));
        edit
    }

    fn adopt(&mut self, uid: &str, text: &str, page: usize, edit: &mut Edit) {
        let is_on_page = |pages: &BTreeSet<usize>| pages.contains(&page);
        let is_known = self.entries.get(uid).is_some_and(|entry| entry.page == page)
            || self.moved.get(uid) == Some(&page)
            || self.unreadable.get(uid).is_some_and(is_on_page);
        if is_known {
            return;
        }
        match Intent::decode(text, |parts| self.shelf.join(parts)) {
            Ok(intent) if intent.claim.uid != uid => {
                tracing::error!(uid, other = intent.claim.uid, "an intent record is filed under another claim's uid");
                self.leave_alone(uid, page);
            }
            // It is read once the one on another page is gone.
            Ok(_) if self.entries.contains_key(uid) => {}
            Ok(intent) => {
                // Who wrote it may have called the driver before it died.
                let entry = Entry {
                    intent: Arc::new(intent),
                    text: text.into(),
                    page,
                    stage: Stage::Stored,
                    maybe_made: true,
                    inherited: true,
                    held: Vec::new(),
                    generation: 0,
                };
                self.insert(uid.into(), entry);
                edit.adopted.push(uid.into());
            }
            Err(intent::Error::ReadPlaces { source: places::Error::Find { .. } }) if self.waiting.is_some() => {
                self.waiting.get_or_insert_default().insert((uid.into(), page), text.into());
            }
            Err(error) => {
                tracing::error!(uid, %error, "an intent record cannot be read and is left alone");
                self.leave_alone(uid, page);
            }
        }
    }

    fn leave_alone(&mut self, uid: &str, page: usize) {
        self.unreadable.entry(uid.into()).or_default().insert(page);
    }

    /// Somebody took care of those that are not on the page any more.
    fn forget_unreadable(&mut self, page: usize, is_there: impl Fn(&str) -> bool) {
        self.unreadable.retain(|uid, pages| {
            if !is_there(uid) {
                pages.remove(&page);
            }
            !pages.is_empty()
        });
    }

    /// Every page was read: records whose places were found after them are taken in now. Returns their claims, and whether
    /// there are parts of lists that nobody names.
    pub fn settle(&mut self) -> (Vec<String>, bool) {
        let mut edit = Edit::default();
        for ((uid, page), text) in self.waiting.take().into_iter().flatten() {
            self.adopt(&uid, &text, page, &mut edit);
            let is_here = self.entries.get(&uid).is_some_and(|entry| entry.page == page);
            if let Some(foreign) = self.foreign.get_mut(&page).filter(|_| is_here) {
                *foreign = foreign.saturating_sub(bytes_of(&uid, &text));
            }
        }
        self.shelf.forget_joined();
        self.first = 0;
        (edit.adopted, self.clear_left_parts())
    }

    /// The edit is stored. Returns the claims whose records are durable now, and the intents whose records are gone.
    pub fn confirm(&mut self, edit: &Edit) -> (Vec<String>, Vec<Arc<Intent>>) {
        self.confirm_parts(edit);
        let (mut durable, mut outdated) = (Vec::new(), Vec::new());
        for (uid, generation) in &edit.put {
            if let Some(entry) = self.entries.get_mut(uid).filter(|entry| entry.generation == *generation) {
                outdated.append(&mut entry.held);
                // Left meanwhile: stored, and to be removed by a later write.
                if entry.stage == Stage::Wanted {
                    self.restage(uid, Stage::Stored);
                }
                durable.push(uid.clone());
            }
        }
        outdated.iter().for_each(|places| self.release(places.parts()));
        for (uid, generation) in &edit.rested {
            let fades = |entry: &Entry| entry.generation == *generation && entry.stage == Stage::Fading;
            if self.entries.get(uid).is_some_and(fades) {
                self.restage(uid, Stage::Kept);
            }
        }
        for (uid, from) in &edit.moved {
            if self.moved.get(uid) == Some(from) {
                self.moved.remove(uid);
            }
        }
        let mut gone = Vec::new();
        for (uid, generation) in &edit.dropped {
            if self.entries.get(uid).is_some_and(|entry| entry.generation == *generation) {
                gone.extend(self.remove(uid));
            }
        }
        (durable, gone)
    }

    /// Nothing can be stored: every record counts as good as it gets, and those leaving are gone.
    pub fn give_up_storing(&mut self) -> Vec<Arc<Intent>> {
        let leaving: Vec<String> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.stage == Stage::Leaving)
            .map(|(uid, _)| uid.clone())
            .collect();
        let gone = leaving.iter().filter_map(|uid| self.remove(uid)).collect();
        let others = self.entries.iter().filter(|(_, entry)| entry.stage != Stage::Stored);
        let others: Vec<String> = others.map(|(uid, _)| uid.clone()).collect();
        others.iter().for_each(|uid| self.restage(uid, Stage::Stored));
        self.shelf.clear();
        self.pages.retain(|_, fill| fill.records > 0);
        self.pages.values_mut().for_each(|fill| fill.parts = 0);
        gone
    }

    /// What could not be stored is to be, on pages from this one on: those before are not read yet. Returns the claims.
    pub fn store_from(&mut self, first: usize) -> Vec<String> {
        self.first = first;
        let entries = std::mem::take(&mut self.entries);
        self.by_volume.clear();
        self.pages.clear();
        self.moved.clear();
        self.shelf.clear();
        for (uid, entry) in entries {
            let page = self.page_with_room(bytes_of(&uid, &entry.text));
            self.generation += 1;
            let generation = self.generation;
            self.insert(uid, Entry { page, stage: Stage::Wanted, held: Vec::new(), generation, ..entry });
        }
        self.uids()
    }
}

impl Entry {
    /// The lists of places that are named where the record is stored, besides that of its successor.
    fn lists_besides(&self, successor: &Intent) -> Vec<Places> {
        let own = self.intent.request.places.iter().map(|places| &places.requisite);
        let mut lists: Vec<Places> = Vec::new();
        for list in self.held.iter().chain(own).filter(|list| list.parts() != successor.parts()) {
            if !lists.iter().any(|known| known.parts() == list.parts()) {
                lists.push(list.clone());
            }
        }
        lists
    }
}

/// A copy tells of the time when it was taken: what it would find may long be somebody's, or another cluster's.
fn disown_copies(page: usize, lease_uid: &str, annotations: &mut Map<String, Value>) {
    let stamp = annotations.get(STAMP).and_then(Value::as_str).unwrap_or(lease_uid);
    if stamp == lease_uid {
        return;
    }
    let uids: Vec<String> = annotations.keys().filter_map(|key| key.strip_prefix(RECORD)).map(str::to_owned).collect();
    for uid in &uids {
        if let Some(text) = annotations.remove(&format!("{RECORD}{uid}")) {
            annotations.insert(format!("{COPY}{uid}"), text);
        }
    }
    tracing::error!(
        page,
        claims = uids.join(","),
        "a Lease of the intent journal is a copy, as a backup puts it back: the records of these claims are not settled and \
         stay as annotations {COPY}..., delete those once the driver has no volumes of them that nobody wants"
    );
}

/// What a record takes of its page.
fn bytes_of(uid: &str, text: &str) -> usize {
    RECORD.len() + uid.len() + text.len()
}

#[cfg(test)]
mod tests;

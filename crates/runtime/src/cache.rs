//! The newest known view of a kind: watch events and answers to our own writes, merged by uid and revision.
//!
//! Rule 2 of the design lives here: an answer is decided on at once, a late watch event never takes it back,
//! a write without an answer makes the object unknown until one fresh read, and no wait can hang.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tokio::sync::{Notify, watch};

use stowage_model::object::{Key, Meta, Projection};

use index::{Index, Values};

/// What the cache can say about one object.
#[derive(Debug, Clone, PartialEq)]
pub enum View<T> {
    /// No such object as far as we know.
    Absent,
    /// The newest version seen.
    Known(Arc<T>),
    /// A write of ours got no answer; nobody may decide on it until a fresh read.
    Unknown,
}

/// One change of the view.
#[derive(Debug)]
pub struct Change<'a, T> {
    /// Which object.
    pub key: &'a Key,
    /// What was known before.
    pub before: Option<&'a Arc<T>>,
    /// What is known now; `None` when the object is gone.
    pub after: Option<&'a Arc<T>>,
    /// Nothing has changed but that the object is known again: for those who rested meanwhile. Who wrote and heard nothing
    /// decides again by that error.
    pub is_reminder: bool,
}

impl<'a, T> Change<'a, T> {
    /// What was known, and what is known now.
    pub fn new(key: &'a Key, before: Option<&'a Arc<T>>, after: Option<&'a Arc<T>>) -> Self {
        Self { key, before, after, is_reminder: false }
    }

    /// The object before and after, as far as there was and is one.
    pub fn both(&self) -> impl Iterator<Item = &T> {
        self.before.into_iter().chain(self.after).map(AsRef::as_ref)
    }
}

type Subscriber<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// A clonable handle to the view of one kind.
pub struct Cache<T>(Arc<Inner<T>>);

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<T> {
    state: Mutex<State<T>>,
    subscribers: Mutex<Arc<Vec<Arc<Subscriber<T>>>>>,
    /// Announces `State::reached` to those who wait for it.
    progress: watch::Sender<u64>,
    /// Announces a key in `State::unread`.
    unread: Notify,
    /// Takes from each object what nobody here looks at.
    trim: OnceLock<fn(&mut T)>,
}

struct State<T> {
    objects: BTreeMap<Key, Arc<T>>,
    /// A write of ours got no answer, and no fresh read since.
    unknown: BTreeMap<Key, Silence>,
    /// Unknown keys that whoever feeds the cache must read.
    unread: BTreeSet<Key>,
    /// Objects that exist in a form we cannot read.
    unreadable: BTreeSet<Key>,
    /// Uids that an answer said are gone, until the watch says so too: its late events must not bring them back.
    gone: BTreeMap<Key, String>,
    /// Revision the watch has reached; 0 before the first list. Everything of the kind up to it has been seen.
    reached: u64,
    followed: bool,
    indexes: Vec<Index<T>>,
}

/// What was not answered.
#[derive(Clone, Copy, PartialEq)]
enum Silence {
    /// A write; who wrote is reading.
    Write,
    /// The fresh read after it too: who wrote rests like all others.
    Read,
}

impl<T: Projection> Cache<T> {
    /// An empty, unsynced cache without indexes.
    pub fn new() -> Self {
        Self::indexed(&[])
    }

    /// An empty cache that also finds objects by computed values.
    pub fn indexed(indexes: &[(&'static str, Values<T>)]) -> Self {
        let indexes = indexes.iter().map(|(name, values)| Index::new(name, *values)).collect();
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                objects: BTreeMap::new(),
                unknown: BTreeMap::new(),
                unread: BTreeSet::new(),
                unreadable: BTreeSet::new(),
                gone: BTreeMap::new(),
                reached: 0,
                followed: false,
                indexes,
            }),
            subscribers: Mutex::default(),
            progress: watch::Sender::new(0),
            unread: Notify::new(),
            trim: OnceLock::new(),
        }))
    }

    /// The same, and `trim` takes from each object what this service never looks at, so that it takes no memory. To be said
    /// before anything is in it.
    pub fn trimmed(self, trim: fn(&mut T)) -> Self {
        // Said once, where the cache is made.
        let _ = self.0.trim.set(trim);
        self
    }

    /// The object as it is kept here.
    pub(crate) fn kept(&self, mut object: T) -> Arc<T> {
        if let Some(trim) = self.0.trim.get() {
            trim(&mut object);
        }
        Arc::new(object)
    }

    /// Calls `f` after every change of the view; it must not block.
    pub fn on_change(&self, f: impl Fn(&Change<'_, T>) + Send + Sync + 'static) {
        let mut subscribers = self.0.subscribers.lock().expect("subscribers do not panic");
        Arc::make_mut(&mut subscribers).push(Arc::new(Box::new(f)));
    }

    /// The newest version seen, even if unknown by now.
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.lock().objects.get(key).cloned()
    }

    /// What may be decided on.
    pub fn view(&self, key: &Key) -> View<T> {
        let state = self.lock();
        if state.is_unknown(key) {
            return View::Unknown;
        }
        state.objects.get(key).cloned().map_or(View::Absent, View::Known)
    }

    /// Every object that is known, in key order.
    pub fn list(&self) -> Vec<Arc<T>> {
        let state = self.lock();
        state.objects.iter().filter(|(key, _)| !state.is_unknown(key)).map(|(_, object)| object.clone()).collect()
    }

    /// Whether the object exists in a form that cannot be read.
    pub fn is_unreadable(&self, key: &Key) -> bool {
        self.lock().unreadable.contains(key)
    }

    /// Whether some object exists in a form that cannot be read.
    pub fn has_unreadable(&self) -> bool {
        !self.lock().unreadable.is_empty()
    }

    /// Keys of every object, unknown ones included.
    pub fn keys(&self) -> Vec<Key> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Objects whose index value is `value`, in key order; the index must have been declared.
    pub fn by_index(&self, index: &'static str, value: &str) -> Vec<Arc<T>> {
        let state = self.lock();
        let declared = state.indexes.iter().find(|candidate| candidate.name == index);
        declared.map(|index| index.with(value)).unwrap_or_default()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes in the answer to a write or a fresh read; older versions are ignored. Says whether the view changed.
    ///
    /// An object that the watch, which is already past that version, does not show was deleted meanwhile: its late
    /// answer does not bring it back.
    pub fn observe(&self, object: T) -> bool {
        self.observe_shared(self.kept(object))
    }

    /// The same, for an answer that others hold too.
    pub fn observe_shared(&self, object: Arc<T>) -> bool {
        let key = object.key();
        let mut state = self.lock();
        let silence = state.unknown.remove(&key);
        if !state.objects.contains_key(&key) && object.meta().revision <= state.reached {
            drop(state);
            self.known_again(&key, silence);
            return false;
        }
        let changed = self.take(state, key.clone(), object);
        self.known_again(&key, silence);
        changed
    }

    /// Whoever rested because the object was unknown must decide again, even if nothing changed, or nothing that would
    /// concern them otherwise.
    fn known_again(&self, key: &Key, silence: Option<Silence>) {
        if let Some(silence) = silence {
            let object = self.get(key);
            let is_reminder = silence == Silence::Write;
            self.publish(&Change { key, before: object.as_ref(), after: object.as_ref(), is_reminder });
        }
    }

    fn take(&self, mut state: MutexGuard<'_, State<T>>, key: Key, object: Arc<T>) -> bool {
        let meta = object.meta();
        if state.gone.get(&key) == Some(&meta.uid) {
            return false;
        }
        let before = state.objects.get(&key).cloned();
        if before.as_ref().is_some_and(|known| known.meta().revision >= meta.revision) {
            return false;
        }
        state.unreadable.remove(&key);
        state.insert(key, Arc::clone(&object));
        // Told without the lock: whoever hears of a change looks into the cache to find the keys that it wakes.
        drop(state);
        self.publish(&Change::new(&object.key(), before.as_ref(), Some(&object)));
        true
    }

    /// Takes in an answer that says the object with this uid is gone.
    pub fn observe_gone(&self, key: &Key, uid: &str) -> bool {
        let mut state = self.lock();
        let silence = state.unknown.remove(key);
        let present = state.objects.get(key).is_some_and(|known| known.meta().uid == uid);
        if present {
            state.gone.insert(key.clone(), uid.to_owned());
        }
        let changed = self.drop_object(state, key, uid);
        if !changed {
            self.known_again(key, silence);
        }
        changed
    }

    fn drop_object(&self, mut state: MutexGuard<'_, State<T>>, key: &Key, uid: &str) -> bool {
        if state.objects.get(key).is_some_and(|known| known.meta().uid != uid) {
            return false;
        }
        let was_unreadable = state.unreadable.remove(key);
        let Some(before) = state.remove(key) else {
            drop(state);
            // Nobody ever saw it, but somebody may rest because it could not be read.
            if was_unreadable {
                self.publish(&Change::new(key, None, None));
            }
            return false;
        };
        drop(state);
        self.publish(&Change::new(key, Some(&before), None));
        true
    }

    /// Takes in a fresh read that found nothing under this key; `known` is the uid that was known when it was sent.
    pub fn observe_absent(&self, key: &Key, known: Option<&str>) -> bool {
        let is_known = |uid: &&str| self.get(key).is_some_and(|object| object.meta().uid == *uid);
        match known.filter(is_known) {
            Some(uid) => self.observe_gone(key, uid),
            None => {
                let silence = self.lock().unknown.remove(key);
                self.known_again(key, silence);
                false
            }
        }
    }

    /// A write got no answer: nobody decides on this object until a fresh read is observed.
    pub fn mark_unknown(&self, key: &Key) {
        self.lock().unknown.entry(key.clone()).or_insert(Silence::Write);
    }

    /// The fresh read of an unknown object failed too: whoever feeds the cache goes on trying.
    pub fn leave_unread(&self, key: &Key) {
        let mut state = self.lock();
        state.unknown.insert(key.clone(), Silence::Read);
        state.unread.insert(key.clone());
        drop(state);
        self.0.unread.notify_one();
    }

    /// The fresh read failed again: it is tried once more, unless the object has come to be known otherwise.
    pub fn read_later(&self, key: &Key) {
        let mut state = self.lock();
        if state.unknown.contains_key(key) {
            state.unread.insert(key.clone());
        }
    }

    /// The next unknown object to be read, in turn: that after the last one. Cancel safe.
    pub async fn next_unread(&self, last: Option<&Key>) -> Key {
        loop {
            if let Some(key) = self.lock().take_unread(last) {
                return key;
            }
            self.0.unread.notified().await;
        }
    }

    /// An event or list has the object in a form we cannot read: it exists, and nobody may decide on it.
    pub fn mark_unreadable(&self, key: Key) {
        self.lock().unreadable.insert(key);
    }

    /// A watch event said the object is gone.
    pub fn watched_deletion(&self, meta: &Meta) {
        let key = meta.key();
        let mut state = self.lock();
        state.reached = state.reached.max(meta.revision);
        // The watch has caught up with this uid's end, so no later event can mention it.
        if state.gone.get(&key) == Some(&meta.uid) {
            state.gone.remove(&key);
        }
        self.drop_object(state, &key, &meta.uid);
        self.announce();
    }

    /// A watch event carried a version.
    pub fn watched(&self, object: T) {
        let mut state = self.lock();
        state.reached = state.reached.max(object.meta().revision);
        let object = self.kept(object);
        self.take(state, object.key(), object);
        // After the object is in: who waits for this revision looks for it next.
        self.announce();
    }

    /// The watch has reached this revision.
    pub fn advance(&self, revision: u64) {
        let mut state = self.lock();
        state.reached = state.reached.max(revision);
        drop(state);
        self.announce();
    }

    fn announce(&self) {
        let reached = self.lock().reached;
        self.0.progress.send_if_modified(|announced| std::mem::replace(announced, reached) != reached);
    }

    /// Replaces the view by a finished list at a revision.
    ///
    /// Objects missing from it are gone unless an answer newer than the list made them. A list older than what the
    /// watch had reached means the server was restored from a backup: then the list alone is true.
    pub fn relist(&self, objects: Vec<T>, revision: u64) {
        self.relist_with(objects.into_iter().map(|object| self.kept(object)).collect(), BTreeSet::new(), revision);
    }

    /// The same, where some objects of the list cannot be read: they exist, but are not known.
    pub fn relist_with(&self, objects: Vec<Arc<T>>, unreadable: BTreeSet<Key>, revision: u64) {
        let listed: BTreeMap<Key, Arc<T>> = objects.into_iter().map(|object| (object.key(), object)).collect();
        let (restored, missing, never_seen) = {
            let mut state = self.lock();
            let restored = revision < state.reached;
            state.gone.clear();
            if restored {
                state.unknown.clear();
                state.reached = 0;
            }
            let missing = state.objects.iter().filter(|(key, known)| {
                !listed.contains_key(*key)
                    && !unreadable.contains(*key)
                    && (restored || known.meta().revision <= revision)
            });
            let missing: Vec<(Key, String)> =
                missing.map(|(key, known)| (key.clone(), known.meta().uid.clone())).collect();
            let unread = std::mem::replace(&mut state.unreadable, unreadable);
            let gone = |key: &Key| {
                !listed.contains_key(key) && !state.unreadable.contains(key) && !state.objects.contains_key(key)
            };
            let never_seen: Vec<Key> = unread.into_iter().filter(gone).collect();
            (restored, missing, never_seen)
        };
        for key in never_seen {
            self.publish(&Change::new(&key, None, None));
        }
        for (key, uid) in missing {
            self.drop_object(self.lock(), &key, &uid);
        }
        if let Some(listed) = self.fill(listed) {
            for (key, object) in listed {
                if restored {
                    self.forget_version(&key, &object);
                }
                self.take(self.lock(), key, object);
            }
        }
        // Last, so that who waits for the list finds all of it. Even an empty collection at revision 0 counts as listed.
        self.advance(revision.max(1));
    }

    /// Takes the list as it is where nothing is known yet; else gives it back. A map that is made at once takes half of the memory
    /// of one that grows in order.
    fn fill(&self, listed: BTreeMap<Key, Arc<T>>) -> Option<BTreeMap<Key, Arc<T>>> {
        let mut state = self.lock();
        if !state.objects.is_empty() {
            return Some(listed);
        }
        let objects: Vec<Arc<T>> = listed.values().cloned().collect();
        state.objects = listed;
        for index in &mut state.indexes {
            objects.iter().for_each(|object| index.change(None, Some(object)));
        }
        drop(state);
        for object in &objects {
            self.publish(&Change::new(&object.key(), None, Some(object)));
        }
        None
    }

    fn forget_version(&self, key: &Key, listed: &T) {
        let mut state = self.lock();
        let newer = state.objects.get(key).is_some_and(|known| known.meta().revision >= listed.meta().revision);
        if newer {
            state.remove(key);
        }
    }

    /// The revision that the watch has reached: every change of the kind up to it has been seen.
    pub fn position(&self) -> u64 {
        self.lock().reached
    }

    /// Whether changes are told of by themselves: a watch was let in, and none was refused since.
    pub fn is_followed(&self) -> bool {
        self.lock().followed
    }

    /// The server let a watch in, or refused one.
    pub fn set_followed(&self, followed: bool) {
        self.lock().followed = followed;
    }

    /// Whether the first list has arrived.
    pub fn is_synced(&self) -> bool {
        self.lock().reached > 0
    }

    /// Resolves when the first list has arrived.
    pub async fn synced(&self) {
        self.reached(1).await;
    }

    /// Resolves when an event, bookmark or list of this kind is at or past the revision.
    ///
    /// So waiting for an own write ends however the object fares: changed again, deleted, or missing from a relist.
    pub async fn reached(&self, revision: u64) {
        let mut progress = self.0.progress.subscribe();
        // The sender lives in self, so the wait cannot fail.
        let _ = progress.wait_for(|reached| *reached >= revision).await;
    }

    /// Tells every subscriber about every object again; used by the slow resync.
    pub fn replay(&self) {
        for object in self.list() {
            self.publish(&Change::new(&object.key(), Some(&object), Some(&object)));
        }
    }

    fn publish(&self, change: &Change<'_, T>) {
        let subscribers = Arc::clone(&self.0.subscribers.lock().expect("subscribers do not panic"));
        for subscriber in subscribers.iter() {
            subscriber(change);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock().expect("no code panics while holding the cache")
    }
}

impl<T: Projection> Default for Cache<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Projection> State<T> {
    fn is_unknown(&self, key: &Key) -> bool {
        self.unknown.contains_key(key) || self.unreadable.contains(key)
    }

    fn take_unread(&mut self, last: Option<&Key>) -> Option<Key> {
        let after = last.and_then(|last| self.unread.range((Bound::Excluded(last), Bound::Unbounded)).next());
        let key = after.or_else(|| self.unread.first())?.clone();
        self.unread.remove(&key);
        Some(key)
    }

    fn insert(&mut self, key: Key, object: Arc<T>) {
        let before = self.objects.insert(key, Arc::clone(&object));
        for index in &mut self.indexes {
            index.change(before.as_ref(), Some(&object));
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<T>> {
        let removed = self.objects.remove(key)?;
        for index in &mut self.indexes {
            index.change(Some(&removed), None);
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests;

//! The objects of one kind and the recent past of that kind.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::kind::Kind;
use crate::object::{Key, Object};

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// Kind of the object.
    pub kind: &'static Kind,
    /// What happened to it.
    pub event_type: EventType,
    /// The revision of the change.
    pub revision: u64,
    /// Which object.
    pub key: Key,
    /// The object after the change; for a deletion its last state, at the deletion's revision.
    pub object: Arc<Object>,
    /// The object before the change.
    pub previous: Option<Arc<Object>>,
}

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// A new object.
    Added,
    /// An existing object.
    Modified,
    /// An object that is gone.
    Deleted,
}

/// Objects by key, and the last events of the kind, with which older states are shown by undoing.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub objects: BTreeMap<Key, Arc<Object>>,
    pub window: VecDeque<Arc<Event>>,
    /// Events up to this revision are no longer kept.
    pub compacted: u64,
    /// Size of the JSON in `window`.
    bytes: usize,
}

/// What the events of one kind may hold in memory beside the objects themselves: few large objects must not add up to
/// more than many small ones.
const MAX_WINDOW_BYTES: usize = 64 << 20;

impl Table {
    pub fn new(compacted: u64) -> Self {
        Self { compacted, ..Self::default() }
    }

    /// Notes what happened last.
    pub fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.object.json.len();
        self.window.push_back(event);
    }

    /// Drops the oldest events above `limit`, but none that is yet to be published: it is needed to show the state before.
    pub fn forget_beyond(&mut self, limit: usize, published: u64) {
        let too_much = |table: &Self| table.window.len() > limit || table.bytes > MAX_WINDOW_BYTES;
        while too_much(self) && self.window.front().is_some_and(|e| e.revision <= published) {
            if let Some(event) = self.window.pop_front() {
                self.compacted = event.revision;
                self.bytes -= event.object.json.len();
            }
        }
    }

    /// Takes back the newest event if it is newer than `published`.
    pub fn pop_unpublished(&mut self, published: u64) -> Option<Arc<Event>> {
        let event = self.window.pop_back_if(|event| event.revision > published)?;
        self.bytes -= event.object.json.len();
        Some(event)
    }

    /// One object as it was at `revision`.
    pub fn get_at(&self, key: &Key, revision: u64) -> Option<Arc<Object>> {
        let later = self.window.iter().rev().take_while(|e| e.revision > revision);
        match later.filter(|e| e.key == *key).last() {
            Some(first_change) => first_change.previous.clone(),
            None => self.objects.get(key).cloned(),
        }
    }

    /// Calls `visit` with every object of `namespace` (all if empty) behind `after` as it was at `revision`, in order.
    pub fn visit_at(
        &self,
        namespace: &str,
        after: Option<&Key>,
        revision: u64,
        mut visit: impl FnMut(&Key, &Arc<Object>),
    ) {
        let mut undone: BTreeMap<&Key, Option<&Arc<Object>>> = BTreeMap::new();
        for event in self.window.iter().rev().take_while(|e| e.revision > revision) {
            undone.insert(&event.key, event.previous.as_ref());
        }
        let begin = Key::new(namespace, "");
        let begin = match after {
            Some(key) if *key > begin => Bound::Excluded(key),
            _ => Bound::Included(&begin),
        };
        let inside = |key: &Key| namespace.is_empty() || *key.namespace == *namespace;
        let mut older = undone.range::<Key, _>((begin, Bound::Unbounded)).take_while(|(key, _)| inside(key)).peekable();
        let newest = self.objects.range::<Key, _>((begin, Bound::Unbounded)).take_while(|(key, _)| inside(key));
        for (key, object) in newest {
            // Objects that are gone since then come in at their place.
            while let Some((gone, previous)) = older.next_if(|(k, _)| **k < key) {
                if let Some(previous) = previous {
                    visit(gone, previous);
                }
            }
            match older.next_if(|(k, _)| **k == key) {
                Some((_, Some(previous))) => visit(key, previous),
                Some((_, None)) => {}
                None => visit(key, object),
            }
        }
        for (gone, previous) in older {
            if let Some(previous) = previous {
                visit(gone, previous);
            }
        }
    }
}

//! The state of the API as a plain state machine: one write in, one answer and its events out.
//!
//! Nothing here waits, reads a clock or draws a random number. Two revisions matter: the *head*, which the next write is
//! checked against, and the *published* one, up to which the outside may see. In memory they are the same; with a data
//! directory the published one follows when the disk has confirmed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::crd::Definition;
use crate::kind::{Kind, Kinds};
use crate::object::{Key, Object};
use crate::patch::Patch;
use crate::rules::schema;
use crate::selector::Selector;
use crate::status::Status;

mod aside;
mod candidates;
mod cascade;
mod create;
mod definition;
mod delete;
mod expiry;
mod ground;
mod namespace;
mod owners;
pub(crate) use namespace::{DEFAULT_ACCOUNT, PERMANENT as PERMANENT_NAMESPACES, ROOT_AUTHORITY};
mod rollback;
mod table;
#[cfg(test)]
mod tests;
mod update;

use aside::Aside;
pub use aside::Unreadable;
use expiry::Expiry;
pub(crate) use ground::Ground;
use owners::Dependents;
use table::Table;
pub use table::{Event, EventType};

/// A part of an object with a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself.
    Main,
    /// Its `status`.
    Status,
    /// A pod's binding to a node.
    Binding,
}

/// What a write does.
#[derive(Debug, Clone)]
pub enum Action {
    /// Makes a new object.
    Create(Value),
    /// Replaces an object.
    Update(Value),
    /// Changes part of an object.
    Patch(Patch),
    /// Deletes an object, or begins to.
    Delete(DeleteOptions),
    /// Deletes all selected objects of a kind, or begins to.
    DeleteCollection(DeleteOptions, Selector),
}

/// How to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds the object gets to end by itself; `None` leaves it to its kind.
    pub grace_period_seconds: Option<i64>,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must be at this revision.
    pub resource_version: Option<String>,
    /// What becomes of the objects that it owns; `None` leaves it to the object's finalizers.
    pub propagation: Option<Propagation>,
}

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay and lose their owner.
    Orphan,
}

/// One write, complete: the store adds nothing of its own but the revision.
#[derive(Debug, Clone)]
pub struct Write {
    /// What kind of object.
    pub kind: &'static Kind,
    /// In which namespace; empty for cluster-wide kinds.
    pub namespace: String,
    /// Which object; empty for a creation by body and for collections.
    pub name: String,
    /// Which part of it.
    pub subresource: Subresource,
    /// What to do.
    pub action: Action,
    /// Source of the new object's uid and generated name; 0 in an update that must not make what is not there.
    pub id: u128,
    /// Whether to answer as if done, without doing it.
    pub dry_run: bool,
    /// Whether fields that the kind does not have are refused rather than kept.
    pub strict: bool,
}

impl Write {
    /// Checks the types of `new` and finds the unknown fields that it has and `old` has not: refused in a strict write,
    /// else returned as warnings.
    fn check_fields(&self, new: &Value, old: Option<&Value>) -> Result<Vec<String>, Status> {
        let unknown = schema::unknown_fields(self.kind, new)?;
        if unknown.is_empty() {
            return Ok(Vec::new());
        }
        let known = old.map(|old| schema::unknown_fields(self.kind, old)).transpose()?.unwrap_or_default();
        let known: BTreeSet<String> = known.into_iter().collect();
        self.judge_unknown(unknown.into_iter().filter(|field| !known.contains(field)).collect())
    }

    /// Refuses unknown fields in a strict write, else makes warnings of them.
    fn judge_unknown(&self, fields: Vec<String>) -> Result<Vec<String>, Status> {
        let sentences: Vec<String> = fields.iter().map(|field| format!("unknown field {field:?}")).collect();
        if !self.strict || sentences.is_empty() {
            return Ok(sentences);
        }
        Err(Status::strict_decoding(self.kind, &sentences))
    }

    fn is_patch(&self) -> bool {
        matches!(self.action, Action::Patch(_))
    }
}

/// What a write is answered with.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The object was made.
    Created(Arc<Object>),
    /// The object as it now is, or last was.
    Object(Arc<Object>),
    /// A `Status` that says the object is gone, with its uid.
    Deleted {
        /// The deleted object's uid.
        uid: String,
    },
    /// A pod was bound.
    Bound,
    /// The objects that a collection's deletion touched.
    Collection(Vec<Arc<Object>>),
}

/// A write that was accepted.
#[derive(Debug)]
pub struct Applied {
    /// What to answer once `revision` is published.
    pub answer: Answer,
    /// What happened, in order; empty when nothing changed.
    pub events: Vec<Arc<Event>>,
    /// The revision the answer shows; not to be told before it is published.
    pub revision: u64,
    /// What the writer should know: fields that its kind does not have.
    pub warnings: Vec<String>,
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    /// The revision the whole list is of.
    pub revision: u64,
    /// The objects of this page, by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// Where the next page begins, and how many objects are left; none on the last page.
    pub rest: Option<(Key, usize)>,
}

/// Where a list begins, ends, and of what it is.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Only this namespace; all when empty.
    pub namespace: String,
    /// Only these objects.
    pub selector: Selector,
    /// At most this many objects.
    pub limit: Option<usize>,
    /// Go on after this key, at this revision.
    pub after: Option<(u64, Key)>,
    /// Show the objects as they were at exactly this revision.
    pub at: Option<u64>,
}

/// The newer of the two groups that have events, with stricter rules.
const EVENTS: &str = "events.k8s.io";

/// Group and plural.
type Resource = (&'static str, &'static str);

/// All objects of all kinds, and the recent past of each kind.
#[derive(Debug)]
pub struct Store {
    tables: BTreeMap<Resource, Table>,
    kinds: Arc<Kinds>,
    definitions: BTreeMap<Resource, Arc<Definition>>,
    dependents: Dependents,
    expiry: Expiry,
    aside: Aside,
    head: u64,
    published: u64,
    window: usize,
    /// The certificate of the authority that pods are told of; none where they get no token.
    root_authority: Option<String>,
}

impl Store {
    /// An empty store that keeps the last `window` events of each kind for watches.
    pub fn new(window: usize) -> Self {
        let kinds = Arc::new(Kinds::default());
        let tables = kinds.kept().map(|kind| (kind.resource(), Table::new(0))).collect();
        Self {
            tables,
            kinds,
            definitions: BTreeMap::new(),
            dependents: Dependents::default(),
            expiry: Expiry::default(),
            aside: Aside::default(),
            head: 0,
            published: 0,
            window,
            root_authority: None,
        }
    }

    /// A store of these objects, each with its resource as [`Kind::group_resource`] writes it. Watches from before
    /// `revision` must list again. What cannot be read, or is of no kind that is known, is set aside.
    pub fn restored(
        revision: u64,
        objects: Vec<(String, Key, Object)>,
        unreadable: Vec<Unreadable>,
        window: usize,
    ) -> Self {
        let mut store = Self::new(window);
        (store.head, store.published) = (revision, revision);
        for table in store.tables.values_mut() {
            *table = Table::new(revision);
        }
        // Definitions first: they say of what kind others are.
        let definitions = Kind::named("CustomResourceDefinition");
        let (first, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|(resource, ..)| *resource == definitions.group_resource());
        for (_, key, object) in first {
            store.restore_one(definitions, key, object);
        }
        store.read_definitions();
        let kinds: BTreeMap<String, &'static Kind> =
            store.kinds.kept().map(|kind| (kind.group_resource(), kind)).collect();
        for (resource, key, object) in others {
            match kinds.get(&resource) {
                Some(kind) => store.restore_one(kind, key, object),
                None => store.aside.add(Unreadable { resource, key, why: "its resource is unknown".to_owned() }),
            }
        }
        unreadable.into_iter().for_each(|row| store.aside.add(row));
        store.read_expiry();
        store
    }

    fn restore_one(&mut self, kind: &'static Kind, key: Key, object: Object) {
        self.dependents.change(kind.resource(), &key, None, Some(&object));
        self.tables.entry(kind.resource()).or_default().objects.insert(key, Arc::new(object));
    }

    /// The kinds there are now.
    pub fn kinds(&self) -> Arc<Kinds> {
        self.kinds.clone()
    }

    /// The newest revision, published or not.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The newest revision that may be shown.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Lets everything up to `revision` be seen.
    pub fn publish(&mut self, revision: u64) {
        self.published = self.published.max(revision);
        for table in self.tables.values_mut() {
            table.forget_beyond(self.window, self.published);
        }
        self.aside.publish(self.published);
    }

    /// Does one write and what follows from it, or refuses it and changes nothing.
    pub fn apply(&mut self, write: Write, now: Timestamp) -> Result<Applied, Status> {
        let applied = match &write.action {
            _ if write.can_be_planned() => {
                let planned = self.ground(&write)?.plan(&write, now)?;
                Ok(self.perform(planned))
            }
            Action::Create(body) => self.bind(&write, body, now),
            Action::Update(_) | Action::Patch(_) => {
                Err(Status::method_not_allowed("a binding is made once and not changed"))
            }
            Action::Delete(options) => self.delete(&write, options, now),
            Action::DeleteCollection(options, selector) => self.delete_collection(&write, options, selector, now),
        }?;
        Ok(self.follow_up(applied, now))
    }

    /// Does what follows from a write.
    fn follow_up(&mut self, mut applied: Applied, now: Timestamp) -> Applied {
        if !applied.events.is_empty() {
            self.settle(&mut applied.events, now);
            applied.revision = self.head;
        }
        applied
    }

    /// The published version of one object.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>, Status> {
        self.table(kind)
            .and_then(|t| t.get_at(&Key::new(namespace, name), self.published))
            .ok_or_else(|| self.missing(kind, namespace, name))
    }

    /// The published objects of a kind.
    pub fn list(&self, kind: &Kind, query: &Query) -> Result<Page, Status> {
        self.candidates(kind, query).map(|candidates| candidates.page(query))
    }

    /// The published events of a kind after `revision`, oldest first, or 410 if some of them are no longer kept.
    pub fn events_after(&self, kind: &Kind, revision: u64) -> Result<Vec<Arc<Event>>, Status> {
        let Some(table) = self.table(kind) else { return Ok(Vec::new()) };
        if revision < table.compacted {
            return Err(Status::expired(format!("too old resource version: {revision} ({})", table.compacted)));
        }
        let start = table.window.partition_point(|e| e.revision <= revision);
        Ok(table.window.range(start..).take_while(|e| e.revision <= self.published).cloned().collect())
    }

    /// The definition that brought a kind, for kinds that are not built in.
    pub(crate) fn definition(&self, kind: &Kind) -> Option<&Definition> {
        self.definitions.get(&kind.resource()).map(|definition| &**definition)
    }

    /// How many objects of a kind there are.
    pub fn count(&self, kind: &Kind) -> usize {
        self.table(kind).map_or(0, |t| t.objects.len())
    }

    fn table(&self, kind: &Kind) -> Option<&Table> {
        self.tables.get(&kind.resource())
    }

    /// The newest version of one object, published or not: what writes are checked against.
    pub(crate) fn newest(&self, kind: &Kind, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.table(kind)?.objects.get(&Key::new(namespace, name))
    }

    /// The newest versions of all objects of a kind.
    pub(crate) fn newest_all(&self, kind: &Kind) -> impl Iterator<Item = (&Key, &Arc<Object>)> {
        self.table(kind).into_iter().flat_map(|t| t.objects.iter())
    }

    /// Puts `tree` in as the next revision.
    fn put(&mut self, kind: &'static Kind, key: Key, tree: Value) -> Arc<Event> {
        self.head += 1;
        let object = Arc::new(Object::encode(tree, self.head));
        let table = self.tables.entry(kind.resource()).or_default();
        let previous = table.objects.insert(key.clone(), object.clone());
        let event_type = if previous.is_some() { EventType::Modified } else { EventType::Added };
        self.dependents.change(kind.resource(), &key, previous.as_deref(), Some(&object));
        self.record(Event { kind, event_type, revision: self.head, key, object, previous })
    }

    /// Takes an object out; `tree` is its last state.
    fn remove(&mut self, kind: &'static Kind, key: Key, tree: Value) -> Arc<Event> {
        self.head += 1;
        let object = Arc::new(Object::encode(tree, self.head));
        let table = self.tables.entry(kind.resource()).or_default();
        let previous = table.objects.remove(&key);
        self.dependents.change(kind.resource(), &key, previous.as_deref(), None);
        self.record(Event { kind, event_type: EventType::Deleted, revision: self.head, key, object, previous })
    }

    fn record(&mut self, event: Event) -> Arc<Event> {
        let event = Arc::new(event);
        let table = self.tables.entry(event.kind.resource()).or_default();
        table.push(event.clone());
        if *event.kind == *Kind::named("CustomResourceDefinition") {
            self.read_definitions();
        }
        event
    }
}

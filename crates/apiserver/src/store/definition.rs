//! CustomResourceDefinitions in the store: the kinds they bring, and their end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::delete::{Outcome, mark};
use super::table::Table;
use super::{DeleteOptions, Event, Resource, Store};
use crate::crd::{self, Definition};
use crate::kind::{KINDS, Kind, Kinds};
use crate::object::{Key, Object, add_finalizer, drop_finalizer, is_deleting};

/// Holds a definition until its last object has gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Store {
    /// Reads all definitions again: what kinds there are, and by which rules.
    pub(super) fn read_definitions(&mut self) {
        // By the revision of the object each was read from: what has not changed stays, with its compiled patterns.
        let known: BTreeMap<u64, Arc<Definition>> = std::mem::take(&mut self.definitions)
            .into_values()
            .map(|definition| (definition.revision, definition))
            .collect();
        let read = |object: &Object| match known.get(&object.revision) {
            Some(definition) => Some(definition.clone()),
            None => Definition::read(&object.tree(), object.revision).map(Arc::new),
        };
        let objects = self.newest_all(Kind::named("CustomResourceDefinition"));
        let definitions: Vec<Arc<Definition>> = objects.filter_map(|(_, object)| read(object)).collect();
        let served = definitions.iter().flat_map(|d| d.kinds.iter().copied()).collect();
        let unserved = definitions.iter().filter(|d| !d.kinds.contains(&d.kept)).map(|d| d.kept).collect();
        self.kinds = Arc::new(Kinds::with(served, unserved));
        self.definitions = definitions.into_iter().map(|d| (d.resource, d)).collect();
        // What a kind that is gone has left: watches of it end or begin again, and its name may never come back. Its last
        // events stay until the next change of any definition, for watches to see.
        let (definitions, published) = (&self.definitions, self.published);
        let built_in: BTreeSet<Resource> = KINDS.iter().map(Kind::resource).collect();
        self.tables.retain(|resource, table| {
            let told = table.window.back().is_none_or(|event| event.revision <= published);
            built_in.contains(resource) || definitions.contains_key(resource) || !table.objects.is_empty() || !told
        });
        for resource in self.definitions.keys() {
            self.tables.entry(*resource).or_insert_with(|| Table::new(self.head));
        }
    }

    /// Whether there is no object of the kind that this definition brings.
    pub(super) fn is_unused(&self, definition: &Value) -> bool {
        self.table_of(definition).is_none_or(|table| table.objects.is_empty())
    }

    fn table_of(&self, definition: &Value) -> Option<&Table> {
        self.tables.get(&Definition::read(definition, 0)?.resource)
    }

    /// Marks a definition that is in use, deletes its objects, and removes it if none is left.
    pub(super) fn delete_definition(
        &mut self,
        key: Key,
        current: Arc<Object>,
        events: &mut Vec<Arc<Event>>,
        now: Timestamp,
    ) -> Outcome {
        let mut tree = current.tree();
        if is_deleting(&tree) {
            return Outcome::Unchanged(current);
        }
        mark(&mut tree, 0, now);
        add_finalizer(&mut tree, CLEANUP);
        crd::set_condition(
            &mut tree,
            "Terminating",
            true,
            "InstanceDeletionInProgress",
            "objects are being deleted",
            now,
        );
        let marked = self.put(Kind::named("CustomResourceDefinition"), key, tree);
        events.push(marked.clone());
        let kept = Definition::read(&marked.object.tree(), 0).map(|d| d.kept);
        if let Some(kind) = kept {
            let all: Vec<(Key, Arc<Object>)> =
                self.newest_all(kind).map(|(key, object)| (key.clone(), object.clone())).collect();
            for (key, object) in all {
                self.delete_object(kind, key, object, &DeleteOptions::default(), events, now);
            }
            self.remove_all_unreadable(kind, "", events);
        }
        Outcome::Waiting(marked.object.clone())
    }

    /// Removes the definition of `kind` if it waited for what has just been removed.
    pub(super) fn finish_definition(&mut self, kind: &Kind, events: &mut Vec<Arc<Event>>) {
        if !kind.custom {
            return;
        }
        let definitions = Kind::named("CustomResourceDefinition");
        let name = kind.group_resource();
        let Some(object) = self.newest(definitions, "", &name) else { return };
        let mut tree = object.tree();
        if !is_deleting(&tree) || !self.is_unused(&tree) {
            return;
        }
        drop_finalizer(&mut tree, CLEANUP);
        let key = Key::new("", &name);
        let event = if self.may_end(definitions, &key, &tree) {
            self.remove(definitions, key, tree)
        } else {
            self.put(definitions, key, tree)
        };
        events.push(event);
    }
}

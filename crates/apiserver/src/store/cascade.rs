//! What follows from a write: dependents of what is gone go too, and what waited for it ends.
//!
//! Upstream this is the work of controllers that watch the API; here it happens in the write itself, so that nobody
//! sees the state between and no order is left to chance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::owners::{may_have_owners, owner_references};
use super::{DeleteOptions, Event, EventType, Propagation, Resource, Store};
use crate::kind::Kind;
use crate::object::{Key, Object, drop_finalizer, finalizers, is_deleting, metadata_mut, text};

/// Holds an object until the dependents that ask for it are gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Says that dependents stay.
pub(super) const ORPHAN: &str = "orphan";

/// An owner as its dependents see it.
enum Owner {
    /// It is there and stays; or it is of a kind that is not served here, and nobody can know.
    Solid,
    /// It waits for its dependents to go.
    Waiting,
    /// There is no object of this uid.
    Gone,
}

impl Store {
    /// Goes through `events` and appends those that they lead to, until nothing follows any more.
    pub(super) fn settle(&mut self, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let mut next = 0;
        while let Some(event) = events.get(next).cloned() {
            next += 1;
            self.complete_namespace(&event, events, now);
            self.note_expiry(&event, now);
            if event.event_type == EventType::Deleted {
                self.collect_dependents_of(&event, events, now);
                self.finish_namespace(&event.key.namespace, events);
                self.finish_definition(event.kind, events);
            } else if may_have_owners(&event.object) {
                self.collect_if_ownerless(event.kind, &event.key, events, now);
            }
            if let Some(previous) = event.previous.as_deref().filter(|p| may_have_owners(p)) {
                self.release_owners(&event.key, &previous.tree(), events);
            }
        }
        // Nobody owns or is owned by an expired event: nothing follows from its end.
        events.extend(self.expire(now));
    }

    fn collect_dependents_of(&mut self, event: &Event, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        if self.dependents.is_empty() {
            return;
        }
        let tree = event.object.tree();
        for (resource, key) in self.dependents.of(text(&tree, "/metadata/uid")) {
            if let Some(kind) = self.kept_kind(resource) {
                self.collect_if_ownerless(kind, &key, events, now);
            }
        }
    }

    fn kept_kind(&self, resource: Resource) -> Option<&'static Kind> {
        self.kinds.kept().find(|kind| kind.resource() == resource)
    }

    /// Deletes an object all of whose owners are gone or waiting; else forgets the owners that are gone.
    fn collect_if_ownerless(&mut self, kind: &'static Kind, key: &Key, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let Some(object) = self.newest(kind, &key.namespace, &key.name).cloned() else { return };
        let mut tree = object.tree();
        let owners = self.owners(&key.namespace, owner_references(&tree));
        let gone = owners.iter().filter(|o| matches!(o, Owner::Gone)).count();
        let waiting = owners.iter().filter(|o| matches!(o, Owner::Waiting)).count();
        if gone + waiting == 0 {
            return;
        }
        if gone + waiting == owners.len() {
            let uid = text(&tree, "/metadata/uid").to_owned();
            // The whole tree below an owner that waits goes from its leaves.
            let foreground = waiting > 0 && !self.dependents.of(&uid).is_empty();
            let propagation = foreground.then_some(Propagation::Foreground);
            let options = DeleteOptions { propagation, ..DeleteOptions::default() };
            self.delete_object(kind, key.clone(), object, &options, events, now);
            return;
        }
        if gone > 0 {
            let mut kept = owners.iter().map(|o| !matches!(o, Owner::Gone));
            if let Some(list) = metadata_mut(&mut tree).get_mut("ownerReferences").and_then(Value::as_array_mut) {
                list.retain(|_| kept.next().unwrap_or(true));
            }
            events.push(self.put(kind, key.clone(), tree));
        }
    }

    /// Each of the owners; one that is named many times is looked at once.
    fn owners(&self, namespace: &str, references: &[Value]) -> Vec<Owner> {
        let mut looked_at = BTreeMap::new();
        let owner = |reference| {
            // The uid of what is there, and whether it waits.
            let look = || {
                let (_, found) = self.find_owner(namespace, reference)?;
                let waits = |owner: &Value| is_deleting(owner) && finalizers(owner).any(|f| f == FOREGROUND);
                Some(found.map(|owner| (text(&owner, "/metadata/uid").to_owned(), waits(&owner))))
            };
            match looked_at.entry(named_by(reference)).or_insert_with(look) {
                None => Owner::Solid,
                Some(Some((uid, waits))) if uid == text(reference, "/uid") => {
                    if *waits {
                        Owner::Waiting
                    } else {
                        Owner::Solid
                    }
                }
                Some(_) => Owner::Gone,
            }
        };
        references.iter().map(owner).collect()
    }

    /// The kind that a reference names and the object of that name, if there is one; nothing for kinds not served here.
    fn find_owner(&self, namespace: &str, reference: &Value) -> Option<(&'static Kind, Option<Value>)> {
        let api_version = text(reference, "/apiVersion");
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = self.kinds.kept().find(|k| k.group == group && k.kind == text(reference, "/kind"))?;
        // A cluster-wide object cannot have an owner in a namespace; upstream leaves such objects alone.
        if kind.namespaced && namespace.is_empty() {
            return None;
        }
        let namespace = if kind.namespaced { namespace } else { "" };
        Some((kind, self.newest(kind, namespace, text(reference, "/name")).map(|o| o.tree())))
    }

    /// Lets owners go that waited for this object, which is gone or has changed.
    fn release_owners(&mut self, key: &Key, previous: &Value, events: &mut Vec<Arc<Event>>) {
        let mut seen = BTreeSet::new();
        for reference in owner_references(previous).iter().filter(|reference| seen.insert(named_by(reference))) {
            let Some((kind, Some(owner))) = self.find_owner(&key.namespace, reference) else { continue };
            let namespace = if kind.namespaced { &*key.namespace } else { "" };
            self.finish_foreground(kind, Key::new(namespace, text(&owner, "/metadata/name")), events);
        }
    }

    /// Takes the finalizer off an object that waits for dependents, if none of them blocks it any more.
    pub(super) fn finish_foreground(&mut self, kind: &'static Kind, key: Key, events: &mut Vec<Arc<Event>>) {
        let Some(object) = self.newest(kind, &key.namespace, &key.name) else { return };
        let mut tree = object.tree();
        if !is_deleting(&tree) || !finalizers(&tree).any(|f| f == FOREGROUND) || self.is_blocked(&tree) {
            return;
        }
        drop_finalizer(&mut tree, FOREGROUND);
        let event =
            if self.may_end(kind, &key, &tree) { self.remove(kind, key, tree) } else { self.put(kind, key, tree) };
        events.push(event);
    }

    fn is_blocked(&self, owner: &Value) -> bool {
        let uid = text(owner, "/metadata/uid");
        let blocks = |object: &Arc<Object>| {
            let tree = object.tree();
            owner_references(&tree)
                .iter()
                .any(|o| text(o, "/uid") == uid && o.get("blockOwnerDeletion") == Some(&Value::Bool(true)))
        };
        self.dependents.of(uid).into_iter().any(|(resource, key)| {
            self.tables.get(&resource).and_then(|table| table.objects.get(&key)).is_some_and(blocks)
        })
    }

    /// Deletes all dependents of an object that waits for them.
    pub(super) fn delete_dependents(&mut self, uid: &str, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        for (resource, key) in self.dependents.of(uid) {
            if let Some(kind) = self.kept_kind(resource) {
                self.collect_if_ownerless(kind, &key, events, now);
            }
        }
    }

    /// Takes the owner of this uid off all its dependents.
    pub(super) fn orphan_dependents(&mut self, uid: &str, events: &mut Vec<Arc<Event>>) {
        for (resource, key) in self.dependents.of(uid) {
            let Some(kind) = self.kept_kind(resource) else { continue };
            let Some(object) = self.newest(kind, &key.namespace, &key.name) else { continue };
            let mut tree = object.tree();
            let metadata = metadata_mut(&mut tree);
            if let Some(list) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
                list.retain(|owner| text(owner, "/uid") != uid);
                if list.is_empty() {
                    metadata.remove("ownerReferences");
                }
            }
            events.push(self.put(kind, key, tree));
        }
    }
}

/// What of a reference says which object it is about, whatever its uid.
fn named_by(reference: &Value) -> [&str; 3] {
    ["/apiVersion", "/kind", "/name"].map(|part| text(reference, part))
}

//! A namespace's life: the account it begins with, and its end, before which its content goes.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::delete::{Outcome, mark};
use super::{DeleteOptions, Event, EventType, Store};
use crate::kind::Kind;
use crate::object::{Key, Object, finalizers, is_deleting, member_mut, text, timestamp, uid};

/// Namespaces that are there from the start.
pub(crate) const PERMANENT: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Those of them that cannot be deleted, as upstream.
pub(super) const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The account of pods that name none.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";

impl Store {
    /// Every namespace that stays has its default account, as upstream's controller sees to.
    pub(super) fn complete_namespace(&mut self, event: &Event, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let accounts = Kind::named("ServiceAccount");
        if *event.kind == *Kind::named("Namespace") && event.event_type == EventType::Added {
            self.make_default_account(&event.key.name, events, now);
        } else if *event.kind == *accounts
            && event.event_type == EventType::Deleted
            && *event.key.name == *DEFAULT_ACCOUNT
        {
            self.make_default_account(&event.key.namespace, events, now);
        }
    }

    /// Makes the default accounts that are missing, for data written before there were any.
    pub(crate) fn complete_namespaces(&mut self, now: Timestamp) -> Vec<Arc<Event>> {
        let names: Vec<Key> = self.newest_all(Kind::named("Namespace")).map(|(key, _)| key.clone()).collect();
        let mut events = Vec::new();
        for key in names {
            self.make_default_account(&key.name, &mut events, now);
        }
        events
    }

    fn make_default_account(&mut self, namespace: &str, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let kind = Kind::named("ServiceAccount");
        let Some(owner) = self.newest(Kind::named("Namespace"), "", namespace).map(|o| o.tree()) else { return };
        if is_deleting(&owner) || self.is_taken(kind, namespace, DEFAULT_ACCOUNT) {
            return;
        }
        // No identity comes in with the write that leads here; this one is as unique as the namespace and the revision.
        let digest = Sha256::digest(format!("{}/{}", text(&owner, "/metadata/uid"), self.head + 1));
        let id = digest.first_chunk::<16>().map_or(0, |bytes| u128::from_be_bytes(*bytes));
        let account: Value = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {
                "name": DEFAULT_ACCOUNT, "namespace": namespace, "uid": uid(id), "creationTimestamp": timestamp(now),
            },
        });
        events.push(self.put(kind, Key::new(namespace, DEFAULT_ACCOUNT), account));
    }

    /// Marks the namespace, deletes its content, and removes it if nothing is left.
    pub(super) fn delete_namespace(
        &mut self,
        name: &str,
        current: Arc<Object>,
        events: &mut Vec<Arc<Event>>,
        now: Timestamp,
    ) -> Outcome {
        let mut tree = current.tree();
        if is_deleting(&tree) {
            return Outcome::Unchanged(current);
        }
        mark(&mut tree, 0, now);
        member_mut(&mut tree, "status").insert("phase".to_owned(), "Terminating".into());
        let marked = self.put(Kind::named("Namespace"), Key::new("", name), tree);
        events.push(marked.clone());
        let kinds = self.kinds();
        for content in kinds.kept().filter(|k| k.namespaced) {
            let inside: Vec<(Key, Arc<Object>)> = self
                .newest_all(content)
                .filter(|(key, _)| *key.namespace == *name)
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect();
            for (key, object) in inside {
                self.delete_object(content, key, object, &DeleteOptions::default(), events, now);
            }
            self.remove_all_unreadable(content, name, events);
        }
        self.finish_namespace(name, events);
        Outcome::Waiting(marked.object.clone())
    }

    /// Removes the namespace if it waited for what has just been removed from it.
    pub(super) fn finish_namespace(&mut self, name: &str, events: &mut Vec<Arc<Event>>) {
        let kind = Kind::named("Namespace");
        let Some(object) = self.newest(kind, "", name) else { return };
        let tree = object.tree();
        if is_deleting(&tree) && finalizers(&tree).next().is_none() && self.is_empty_namespace(name) {
            events.push(self.remove(kind, Key::new("", name), tree));
        }
    }

    pub(super) fn is_empty_namespace(&self, namespace: &str) -> bool {
        let begin = Key::new(namespace, "");
        self.kinds
            .kept()
            .filter(|k| k.namespaced)
            .filter_map(|k| self.table(k))
            .all(|table| table.objects.range(&begin..).next().is_none_or(|(key, _)| *key.namespace != *namespace))
    }
}

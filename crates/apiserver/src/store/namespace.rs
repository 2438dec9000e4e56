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

/// The ConfigMap by which pods know the authority of this server's certificate.
pub(crate) const ROOT_AUTHORITY: &str = "kube-root-ca.crt";

impl Store {
    /// From now on each namespace has the authority's certificate, and pods get a token of their account.
    pub(crate) fn mount_tokens(&mut self, authority: String, now: Timestamp) -> Vec<Arc<Event>> {
        self.root_authority = Some(authority);
        self.complete_namespaces(now)
    }

    pub(super) fn mounts_tokens(&self) -> bool {
        self.root_authority.is_some()
    }

    /// Every namespace that stays has its default account, as upstream's controller sees to.
    pub(super) fn complete_namespace(&mut self, event: &Event, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let accounts = Kind::named("ServiceAccount");
        if *event.kind == *Kind::named("Namespace") && event.event_type == EventType::Added {
            self.make_default_account(&event.key.name, events, now);
            self.make_root_authority(&event.key.name, events, now);
        } else if *event.kind == *accounts
            && event.event_type == EventType::Deleted
            && *event.key.name == *DEFAULT_ACCOUNT
        {
            self.make_default_account(&event.key.namespace, events, now);
        } else if *event.kind == *Kind::named("ConfigMap") && *event.key.name == *ROOT_AUTHORITY {
            self.make_root_authority(&event.key.namespace, events, now);
        }
    }

    /// Makes the default accounts that are missing, for data written before there were any.
    pub(crate) fn complete_namespaces(&mut self, now: Timestamp) -> Vec<Arc<Event>> {
        let names: Vec<Key> = self.newest_all(Kind::named("Namespace")).map(|(key, _)| key.clone()).collect();
        let mut events = Vec::new();
        for key in names {
            self.make_default_account(&key.name, &mut events, now);
            self.make_root_authority(&key.name, &mut events, now);
        }
        events
    }

    fn make_default_account(&mut self, namespace: &str, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let kind = Kind::named("ServiceAccount");
        let Some(owner) = self.newest(Kind::named("Namespace"), "", namespace).map(|o| o.tree()) else { return };
        if is_deleting(&owner) || self.is_taken(kind, namespace, DEFAULT_ACCOUNT) {
            return;
        }
        let id = self.next_id(&owner);
        let account: Value = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {
                "name": DEFAULT_ACCOUNT, "namespace": namespace, "uid": uid(id), "creationTimestamp": timestamp(now),
            },
        });
        events.push(self.put(kind, Key::new(namespace, DEFAULT_ACCOUNT), account));
    }

    /// Makes the ConfigMap with the authority, or mends it.
    fn make_root_authority(&mut self, namespace: &str, events: &mut Vec<Arc<Event>>, now: Timestamp) {
        let Some(authority) = self.root_authority.clone() else { return };
        let kind = Kind::named("ConfigMap");
        let Some(owner) = self.newest(Kind::named("Namespace"), "", namespace).map(|o| o.tree()) else { return };
        if is_deleting(&owner) {
            return;
        }
        let data = json!({ "ca.crt": authority });
        let map = match self.newest(kind, namespace, ROOT_AUTHORITY).map(|o| o.tree()) {
            Some(found) if is_deleting(&found) || found.get("data") == Some(&data) => return,
            Some(mut found) => {
                if let Some(members) = found.as_object_mut() {
                    members.insert("data".to_owned(), data);
                }
                found
            }
            None if self.is_taken(kind, namespace, ROOT_AUTHORITY) => return,
            None => json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": ROOT_AUTHORITY, "namespace": namespace, "uid": uid(self.next_id(&owner)),
                    "creationTimestamp": timestamp(now),
                    "annotations": { "kubernetes.io/description": "The certificate of the authority that signs this API server's." },
                },
                "data": data,
            }),
        };
        events.push(self.put(kind, Key::new(namespace, ROOT_AUTHORITY), map));
    }

    /// No identity comes in with the write that leads here; this one is as unique as the namespace and the revision.
    fn next_id(&self, namespace: &Value) -> u128 {
        let digest = Sha256::digest(format!("{}/{}", text(namespace, "/metadata/uid"), self.head + 1));
        digest.first_chunk::<16>().map_or(0, |bytes| u128::from_be_bytes(*bytes))
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

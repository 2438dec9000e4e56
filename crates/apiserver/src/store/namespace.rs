//! The end of a namespace: its content goes first, then the namespace itself.

use std::sync::Arc;

use jiff::Timestamp;

use super::delete::{Outcome, mark};
use super::{DeleteOptions, Event, Store};
use crate::kind::Kind;
use crate::object::{Key, Object, finalizers, is_deleting, member_mut};

/// Namespaces that are there from the start.
pub(crate) const PERMANENT: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Those of them that cannot be deleted, as upstream.
pub(super) const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Store {
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

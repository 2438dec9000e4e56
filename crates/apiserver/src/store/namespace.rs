//! The end of a namespace: its content goes first, then the namespace itself.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Answer, Applied, Event, Store};
use crate::kind::{KINDS, Kind};
use crate::object::{Key, Object, finalizers, is_deleting, member_mut, metadata_mut, timestamp};
use crate::status::Status;

/// Namespaces that are there from the start and cannot be deleted.
pub(crate) const PERMANENT: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

impl Store {
    /// Marks the namespace, deletes its content, and removes it if nothing is left.
    pub(super) fn delete_namespace(
        &mut self,
        name: &str,
        current: Arc<Object>,
        now: Timestamp,
    ) -> Result<Applied, Status> {
        let kind = Kind::named("Namespace");
        if PERMANENT[..3].contains(&name) {
            return Err(Status::forbidden(kind, name, "this namespace may not be deleted"));
        }
        let mut tree = current.tree();
        if is_deleting(&tree) {
            return Ok(Applied { revision: current.revision, answer: Answer::Object(current), events: Vec::new() });
        }
        let metadata = metadata_mut(&mut tree);
        metadata.insert("deletionTimestamp".to_owned(), timestamp(now).into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        member_mut(&mut tree, "status").insert("phase".to_owned(), "Terminating".into());
        let marked = self.put(kind, Key::new("", name), tree);
        let answer = Answer::Object(marked.object.clone());
        let mut events = vec![marked];
        for content in KINDS.iter().filter(|k| k.namespaced) {
            let inside: Vec<(Key, Arc<Object>)> = self
                .newest_all(content)
                .filter(|(key, _)| *key.namespace == *name)
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect();
            for (key, object) in inside {
                events.extend(self.begin_delete(content, key, object, now));
            }
        }
        self.after_removal(name, &mut events);
        Ok(Applied { answer, revision: self.head, events })
    }

    /// Whether an object that nothing holds back may be removed: a namespace only when it is empty.
    pub(super) fn may_go(&self, kind: &Kind, name: &str) -> bool {
        *kind != *Kind::named("Namespace") || self.is_empty(name)
    }

    /// Removes the namespace if it was waiting for what has just been removed from it.
    pub(super) fn after_removal(&mut self, namespace: &str, events: &mut Vec<Arc<Event>>) {
        let kind = Kind::named("Namespace");
        let Some(object) = self.newest(kind, "", namespace) else { return };
        let tree = object.tree();
        if is_deleting(&tree) && finalizers(&tree).next().is_none() && self.is_empty(namespace) {
            events.push(self.remove(kind, Key::new("", namespace), tree));
        }
    }

    fn is_empty(&self, namespace: &str) -> bool {
        let begin = Key::new(namespace, "");
        KINDS
            .iter()
            .filter(|k| k.namespaced)
            .filter_map(|k| self.table(k))
            .all(|table| table.objects.range(&begin..).next().is_none_or(|(key, _)| *key.namespace != *namespace))
    }
}

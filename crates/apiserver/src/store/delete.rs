//! Deleting: at once, after a grace period, or when the last finalizer has gone.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Answer, Applied, DeleteOptions, Event, Store, Write};
use crate::kind::Kind;
use crate::object::{Key, Object, finalizers, is_deleting, metadata_mut, text, timestamp};
use crate::selector::Selector;
use crate::status::Status;

/// What one deletion came to.
enum Outcome {
    Gone(Arc<Event>),
    Waiting(Arc<Event>),
    /// It was being deleted already and nothing new was asked.
    Unchanged(Arc<Object>),
}

impl Store {
    pub(super) fn delete(&mut self, write: &Write, options: &DeleteOptions, now: Timestamp) -> Result<Applied, Status> {
        let kind = write.kind;
        let name = write.name.as_str();
        let current = self.newest(kind, &write.namespace, name).ok_or_else(|| Status::not_found(kind, name))?.clone();
        let tree = current.tree();
        check_preconditions(kind, name, options, &tree, current.revision)?;
        let uid = text(&tree, "/metadata/uid").to_owned();
        if write.dry_run {
            return Ok(Applied { answer: Answer::Object(current), events: Vec::new(), revision: self.published });
        }
        let mut events = Vec::new();
        if *kind == *Kind::named("Namespace") {
            return self.delete_namespace(name, current, now);
        }
        let answer = match self.delete_one(kind, Key::new(&write.namespace, name), current, options, now) {
            Outcome::Gone(event) => {
                let answer =
                    if kind.returns_deleted { Answer::Object(event.object.clone()) } else { Answer::Deleted { uid } };
                events.push(event);
                self.after_removal(&write.namespace, &mut events);
                answer
            }
            Outcome::Waiting(event) => {
                let answer = Answer::Object(event.object.clone());
                events.push(event);
                answer
            }
            Outcome::Unchanged(object) => {
                return Ok(Applied { revision: object.revision, answer: Answer::Object(object), events });
            }
        };
        Ok(Applied { answer, revision: self.head, events })
    }

    pub(super) fn delete_collection(
        &mut self,
        write: &Write,
        options: &DeleteOptions,
        selector: &Selector,
        now: Timestamp,
    ) -> Result<Applied, Status> {
        let kind = write.kind;
        if *kind == *Kind::named("Namespace") {
            return Err(Status::method_not_allowed("namespaces are deleted one by one, by name"));
        }
        let selected: Vec<(Key, Arc<Object>)> = self
            .newest_all(kind)
            .filter(|(key, _)| write.namespace.is_empty() || *key.namespace == *write.namespace)
            .filter(|(key, object)| selector.matches(key, object))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        let mut events = Vec::new();
        let mut touched = Vec::new();
        let mut revision = self.published;
        // All or nothing: a refused write changes nothing.
        for (key, object) in &selected {
            check_preconditions(kind, &key.name, options, &object.tree(), object.revision)?;
        }
        for (key, object) in selected {
            if write.dry_run {
                touched.push(object);
                continue;
            }
            match self.delete_one(kind, key, object, options, now) {
                Outcome::Gone(event) | Outcome::Waiting(event) => {
                    touched.push(event.object.clone());
                    events.push(event);
                }
                Outcome::Unchanged(object) => {
                    revision = revision.max(object.revision);
                    touched.push(object);
                }
            }
        }
        if !events.is_empty() {
            self.after_removal(&write.namespace, &mut events);
            revision = self.head;
        }
        Ok(Applied { answer: Answer::Collection(touched), events, revision })
    }

    /// Deletes or begins to delete one object that exists and may be deleted.
    pub(super) fn begin_delete(
        &mut self,
        kind: &'static Kind,
        key: Key,
        object: Arc<Object>,
        now: Timestamp,
    ) -> Option<Arc<Event>> {
        match self.delete_one(kind, key, object, &DeleteOptions::default(), now) {
            Outcome::Gone(event) | Outcome::Waiting(event) => Some(event),
            Outcome::Unchanged(_) => None,
        }
    }

    fn delete_one(
        &mut self,
        kind: &'static Kind,
        key: Key,
        object: Arc<Object>,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Outcome {
        let mut tree = object.tree();
        let grace = grace_period(kind, &tree, options);
        let held = finalizers(&tree).next().is_some();
        if grace == 0 && !held {
            return Outcome::Gone(self.remove(kind, key, tree));
        }
        if is_deleting(&tree) {
            let left = tree.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
            // A second request may shorten the grace period, never lengthen it.
            if grace >= left {
                return Outcome::Unchanged(object);
            }
        }
        let at = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
        let metadata = metadata_mut(&mut tree);
        metadata.insert("deletionTimestamp".to_owned(), timestamp(at).into());
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        Outcome::Waiting(self.put(kind, key, tree))
    }
}

/// Only pods that a node may be running get time to end.
fn grace_period(kind: &Kind, tree: &Value, options: &DeleteOptions) -> i64 {
    if kind.kind != "Pod" || text(tree, "/spec/nodeName").is_empty() {
        return 0;
    }
    if matches!(text(tree, "/status/phase"), "Succeeded" | "Failed") {
        return 0;
    }
    let asked = options.grace_period_seconds;
    let own = || tree.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
    match asked.unwrap_or_else(own) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

fn check_preconditions(
    kind: &Kind,
    name: &str,
    options: &DeleteOptions,
    tree: &Value,
    revision: u64,
) -> Result<(), Status> {
    let found = text(tree, "/metadata/uid");
    if let Some(asked) = options.uid.as_deref().filter(|asked| *asked != found) {
        let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {found}");
        return Err(Status::conflict(kind, name, why));
    }
    if let Some(asked) = options.resource_version.as_deref().filter(|asked| asked.parse() != Ok(revision)) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {asked}, ResourceVersion in object meta: {revision}"
        );
        return Err(Status::conflict(kind, name, why));
    }
    Ok(())
}

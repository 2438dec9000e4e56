//! Deleting: at once, after a grace period, or when the last finalizer has gone.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::cascade::{FOREGROUND, ORPHAN};
use super::namespace::UNDELETABLE;
use super::{Action, Answer, Applied, DeleteOptions, Event, Propagation, Store, Write};
use crate::kind::Kind;
use crate::object::{
    Key, Object, add_finalizer, drop_finalizer, finalizers, is_deleting, metadata_mut, text, timestamp,
};
use crate::selector::Selector;
use crate::status::Status;

/// What one deletion came to.
pub(super) enum Outcome {
    Gone(Arc<Object>),
    Waiting(Arc<Object>),
    /// It was being deleted already and nothing new was asked.
    Unchanged(Arc<Object>),
}

impl Store {
    pub(super) fn delete(&mut self, write: &Write, options: &DeleteOptions, now: Timestamp) -> Result<Applied, Status> {
        let kind = self.kinds.kept_as(write.kind);
        let name = write.name.as_str();
        let Some(current) = self.newest(kind, &write.namespace, name).cloned() else {
            return self.delete_unreadable(write, kind);
        };
        check_preconditions(kind, name, options, &current)?;
        if *kind == *Kind::named("Namespace") && UNDELETABLE.contains(&name) {
            return Err(Status::forbidden(kind, name, "this namespace may not be deleted"));
        }
        let mut applied = Applied {
            answer: Answer::Object(current.clone()),
            events: Vec::new(),
            revision: self.published,
            warnings: Vec::new(),
        };
        if write.dry_run {
            return Ok(applied);
        }
        let key = Key::new(&write.namespace, name);
        let uid = text(&current.tree(), "/metadata/uid").to_owned();
        match self.delete_object(kind, key, current, options, &mut applied.events, now) {
            Outcome::Gone(_) if !kind.returns_deleted => {
                applied.answer = Answer::Deleted { uid };
            }
            Outcome::Gone(object) | Outcome::Waiting(object) | Outcome::Unchanged(object) => {
                applied.revision = object.revision;
                applied.answer = Answer::Object(object);
            }
        }
        Ok(applied)
    }

    /// Nothing can be said about what cannot be read but that it is gone, so that preconditions are not met.
    fn delete_unreadable(&mut self, write: &Write, kind: &'static Kind) -> Result<Applied, Status> {
        let Action::Delete(options) = &write.action else { return Err(Status::not_found(kind, &write.name)) };
        let unconditional = options.uid.is_none() && options.resource_version.is_none();
        let key = Key::new(&write.namespace, &write.name);
        if !unconditional || !self.is_taken(kind, &write.namespace, &write.name) {
            return Err(self.missing(write.kind, &write.namespace, &write.name));
        }
        let mut applied = Applied {
            answer: Answer::Deleted { uid: String::new() },
            events: Vec::new(),
            revision: self.published,
            warnings: Vec::new(),
        };
        if !write.dry_run {
            applied.events.extend(self.remove_unreadable(kind, &key));
        }
        Ok(applied)
    }

    pub(super) fn delete_collection(
        &mut self,
        write: &Write,
        options: &DeleteOptions,
        selector: &Selector,
        now: Timestamp,
    ) -> Result<Applied, Status> {
        let kind = self.kinds.kept_as(write.kind);
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
            check_preconditions(kind, &key.name, options, object)?;
        }
        for (key, object) in selected {
            if write.dry_run {
                touched.push(object);
                continue;
            }
            match self.delete_object(kind, key, object, options, &mut events, now) {
                Outcome::Gone(object) | Outcome::Waiting(object) | Outcome::Unchanged(object) => {
                    revision = revision.max(object.revision);
                    touched.push(object);
                }
            }
        }
        if !write.dry_run && selector.is_everything() {
            self.remove_all_unreadable(kind, &write.namespace, &mut events);
        }
        Ok(Applied { answer: Answer::Collection(touched), events, revision, warnings: Vec::new() })
    }

    /// Deletes or begins to delete one object that exists and may be deleted.
    pub(super) fn delete_object(
        &mut self,
        kind: &'static Kind,
        key: Key,
        object: Arc<Object>,
        options: &DeleteOptions,
        events: &mut Vec<Arc<Event>>,
        now: Timestamp,
    ) -> Outcome {
        if *kind == *Kind::named("Namespace") {
            return self.delete_namespace(&key.name, object, events, now);
        }
        if *kind == *Kind::named("CustomResourceDefinition") && !self.is_unused(&object.tree()) {
            return self.delete_definition(key, object, events, now);
        }
        let mut tree = object.tree();
        let uid = text(&tree, "/metadata/uid").to_owned();
        let propagation = options.propagation.unwrap_or_else(|| propagation_by_finalizers(&tree));
        let waits_already = is_deleting(&tree) && finalizers(&tree).any(|f| f == FOREGROUND);
        match propagation {
            Propagation::Background => {}
            Propagation::Foreground => add_finalizer(&mut tree, FOREGROUND),
            Propagation::Orphan => {
                self.orphan_dependents(&uid, events);
                drop_finalizer(&mut tree, ORPHAN);
            }
        }
        let grace = grace_period(kind, &tree, options);
        let held = finalizers(&tree).next().is_some();
        if grace == 0 && !held {
            let event = self.remove(kind, key, tree);
            events.push(event.clone());
            return Outcome::Gone(event.object.clone());
        }
        if is_deleting(&tree) {
            let left = tree.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
            let begins_to_wait = propagation == Propagation::Foreground && !waits_already;
            // A second request may shorten the grace period, never lengthen it.
            if grace >= left && !begins_to_wait {
                return Outcome::Unchanged(object);
            }
        }
        mark(&mut tree, grace, now);
        let event = self.put(kind, key.clone(), tree);
        events.push(event.clone());
        if propagation == Propagation::Foreground {
            self.delete_dependents(&uid, events, now);
            self.finish_foreground(kind, key, events);
        }
        Outcome::Waiting(event.object.clone())
    }

    /// Whether nothing holds back an object that is being deleted.
    pub(super) fn may_end(&self, kind: &Kind, key: &Key, tree: &Value) -> bool {
        is_deleting(tree)
            && finalizers(tree).next().is_none()
            && tree.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) == 0
            && (*kind != *Kind::named("Namespace") || self.is_empty_namespace(&key.name))
    }
}

/// Writes down that the object is being deleted.
pub(super) fn mark(tree: &mut Value, grace: i64, now: Timestamp) {
    let at = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
    let metadata = metadata_mut(tree);
    metadata.insert("deletionTimestamp".to_owned(), timestamp(at).into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    // Upstream counts the mark as a change of what is wanted.
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

/// What the object itself says becomes of its dependents.
fn propagation_by_finalizers(tree: &Value) -> Propagation {
    finalizers(tree)
        .find_map(|finalizer| match finalizer {
            ORPHAN => Some(Propagation::Orphan),
            FOREGROUND => Some(Propagation::Foreground),
            _ => None,
        })
        .unwrap_or(Propagation::Background)
}

/// Only pods that a node may be running get time to end.
fn grace_period(kind: &Kind, tree: &Value, options: &DeleteOptions) -> i64 {
    if *kind != *Kind::named("Pod") || text(tree, "/spec/nodeName").is_empty() {
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

fn check_preconditions(kind: &Kind, name: &str, options: &DeleteOptions, object: &Object) -> Result<(), Status> {
    let revision = object.revision;
    // Reading a large object takes long, and others wait meanwhile.
    if let Some(asked) = &options.uid {
        let tree = object.tree();
        let found = text(&tree, "/metadata/uid");
        if asked != found {
            let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {found}");
            return Err(Status::conflict(kind, name, why));
        }
    }
    if let Some(asked) = options.resource_version.as_deref().filter(|asked| asked.parse() != Ok(revision)) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {asked}, ResourceVersion in object meta: {revision}"
        );
        return Err(Status::conflict(kind, name, why));
    }
    Ok(())
}

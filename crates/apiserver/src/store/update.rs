//! Replacing and patching objects.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::{Answer, Applied, Store, Subresource, Write};
use crate::object::{Key, Object, finalizers, is_deleting, metadata_mut, restore, text};
use crate::patch::Patch;
use crate::rules;
use crate::status::{Faults, Status};

impl Store {
    pub(super) fn patch(&mut self, write: &Write, patch: &Patch, now: Timestamp) -> Result<Applied, Status> {
        let kind = write.kind;
        let current =
            self.newest(kind, &write.namespace, &write.name).ok_or_else(|| Status::not_found(kind, &write.name))?;
        let patched = patch.apply(current.tree())?;
        self.update(write, patched, now)
    }

    pub(super) fn update(&mut self, write: &Write, mut new: Value, now: Timestamp) -> Result<Applied, Status> {
        let kind = write.kind;
        let name = write.name.as_str();
        rules::metadata::identify(kind, &write.namespace, &mut new)?;
        let named = text(&new, "/metadata/name");
        if named != name {
            return Err(Status::bad_request(format!(
                "the name of the object ({named}) does not match the name on the URL ({name})"
            )));
        }
        let current = self.newest(kind, &write.namespace, name).ok_or_else(|| Status::not_found(kind, name))?.clone();
        let old = current.tree();
        check_identity(write, &new, &old, current.revision)?;
        rules::schema::spell_quantities(kind, &mut new);
        write.check_fields(&new, Some(&old))?;
        carry_over(write, &mut new, &old);
        rules::update(self, write.subresource, kind, &mut new, &old, now)?;
        let mut faults = Faults::default();
        rules::metadata::validate(kind, &new, &mut faults);
        rules::metadata::validate_update(&new, &old, &mut faults);
        if write.subresource == Subresource::Main {
            rules::validate(kind, &new, &mut faults);
            rules::validate_update(kind, &new, &old, &mut faults);
        }
        faults.into_result(kind, name)?;
        if new == old {
            return Ok(unchanged(current));
        }
        if write.dry_run {
            let revision = self.published;
            return Ok(Applied { answer: Answer::Object(Object::unsaved(new).into()), events: Vec::new(), revision });
        }
        let key = Key::new(&write.namespace, name);
        let mut events = Vec::new();
        // The last finalizer has gone: the object goes with it, and watchers see only the deletion.
        if is_deleting(&new) && finalizers(&new).next().is_none() && grace_is_over(&new) && self.may_go(kind, name) {
            events.push(self.remove(kind, key, new));
            self.after_removal(&write.namespace, &mut events);
        } else {
            events.push(self.put(kind, key, new));
        }
        let revision = self.head;
        Ok(Applied { answer: Answer::Object(events[0].object.clone()), revision, events })
    }
}

/// A write that changes nothing is answered with what is there, once that may be shown.
fn unchanged(current: Arc<Object>) -> Applied {
    Applied { revision: current.revision, answer: Answer::Object(current), events: Vec::new() }
}

fn grace_is_over(tree: &Value) -> bool {
    tree.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) == 0
}

/// uid and resourceVersion of the body are preconditions.
fn check_identity(write: &Write, new: &Value, old: &Value, revision: u64) -> Result<(), Status> {
    let (kind, name) = (write.kind, write.name.as_str());
    let (asked, found) = (text(new, "/metadata/uid"), text(old, "/metadata/uid"));
    if !asked.is_empty() && asked != found {
        let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {found}");
        return Err(Status::conflict(kind, name, why));
    }
    match text(new, "/metadata/resourceVersion") {
        "" if kind.unconditional_update || write.is_patch() => Ok(()),
        "" => {
            let mut faults = Faults::default();
            faults.invalid("metadata.resourceVersion", 0, "must be specified for an update");
            faults.into_result(kind, name)
        }
        version => match version.parse::<u64>() {
            Ok(version) if version == revision => Ok(()),
            Ok(_) => Err(Status::conflict(
                kind,
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            )),
            Err(_) => Err(Status::bad_request(format!("metadata.resourceVersion {version:?} is not a number"))),
        },
    }
}

/// Puts back what the writer of this part of the object does not own.
fn carry_over(write: &Write, new: &mut Value, old: &Value) {
    let old_metadata = old.get("metadata").and_then(Value::as_object);
    let metadata = metadata_mut(new);
    for name in ["uid", "resourceVersion", "creationTimestamp", "generation", "generateName", "selfLink"] {
        restore(metadata, old_metadata, name);
    }
    for name in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if !metadata.contains_key(name) {
            restore(metadata, old_metadata, name);
        }
    }
    let status_write = write.subresource == Subresource::Status;
    if status_write && write.kind.status_keeps_metadata {
        for name in ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"] {
            restore(metadata, old_metadata, name);
        }
    }
    for empty in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let is_empty = |v: &Value| {
            v.is_null() || v.as_object().is_some_and(|o| o.is_empty()) || v.as_array().is_some_and(Vec::is_empty)
        };
        if metadata.get(empty).is_some_and(is_empty) {
            metadata.remove(empty);
        }
    }
    let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object()) else { return };
    if status_write {
        let parts: Vec<String> = new.keys().chain(old.keys()).cloned().collect();
        for part in parts.iter().filter(|p| !matches!(p.as_str(), "metadata" | "status" | "kind" | "apiVersion")) {
            restore(new, Some(old), part);
        }
    } else if write.kind.status {
        restore(new, Some(old), "status");
    }
    if write.kind.generation && new.get("spec") != old.get("spec") {
        let generation = old.get("metadata").and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0);
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("generation".to_owned(), (generation + 1).into());
        }
    }
}

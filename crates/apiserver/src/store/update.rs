//! Replacing and patching objects.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Answer, Applied, EVENTS, Store, Subresource, Write};
use crate::bounds;
use crate::object::{Key, Object, drop_empty, metadata_mut, restore, text};
use crate::patch::Patch;
use crate::rules;
use crate::status::{Faults, Status};

impl Store {
    pub(super) fn patch(&mut self, write: &Write, patch: &Patch, now: Timestamp) -> Result<Applied, Status> {
        let current = self
            .newest(write.kind, &write.namespace, &write.name)
            .ok_or_else(|| self.missing(write.kind, &write.namespace, &write.name))?;
        if write.kind.custom && matches!(patch, Patch::Strategic(_)) {
            return Err(Status::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json (strategic merge patches are for built-in \
                 kinds)",
            ));
        }
        let patched = patch.apply(write.kind.shown(current.tree()))?;
        self.update(write, patched, now)
    }

    pub(super) fn update(&mut self, write: &Write, mut new: Value, now: Timestamp) -> Result<Applied, Status> {
        let kind = self.kinds.kept_as(write.kind);
        let name = write.name.as_str();
        rules::metadata::identify(write.kind, &write.namespace, &mut new)?;
        let named = text(&new, "/metadata/name");
        if named != name {
            return Err(Status::bad_request(format!(
                "the name of the object ({named}) does not match the name on the URL ({name})"
            )));
        }
        let Some(current) = self.newest(kind, &write.namespace, name).cloned() else {
            return self.create_by_update(write, new, now);
        };
        let old = current.tree();
        check_identity(write, &new, &old, current.revision)?;
        rules::schema::tidy(kind, &mut new);
        let mut warnings = write.check_fields(&new, Some(&write.kind.shown(old.clone())))?;
        if let Some(definition) = self.definition(kind) {
            warnings.extend(write.judge_unknown(definition.shape(write.kind, &mut new)?)?);
        }
        let mut new = write.kind.kept(new);
        if write.subresource == Subresource::Main {
            rules::complete(kind, &mut new);
        }
        carry_over(write, &mut new, &old);
        rules::update(self, write.subresource, kind, &mut new, &old, now)?;
        let mut faults = Faults::default();
        rules::metadata::validate(kind, &new, &mut faults);
        rules::metadata::validate_update(&new, &old, &mut faults);
        if write.subresource == Subresource::Main {
            rules::validate(kind, &new, &mut faults);
            rules::validate_update(kind, &new, &old, &mut faults);
            if kind.kind == "Event" && !kind.custom {
                rules::event::validate(write.kind, &new, &mut faults);
                if write.kind.group == EVENTS {
                    rules::event::validate_strict_update(&new, &old, &mut faults);
                }
            }
        } else {
            rules::validate_status(kind, &new, &mut faults);
        }
        if let Some(definition) = self.definition(kind) {
            definition.validate(write.kind, &new, &mut faults);
        }
        faults.into_result(kind, name)?;
        if new == old {
            return Ok(Applied { warnings, ..unchanged(current) });
        }
        bounds::check_result(&new, Some((&old, current.json.len())))?;
        if write.dry_run {
            let answer = Answer::Object(Object::unsaved(new).into());
            return Ok(Applied { answer, events: Vec::new(), revision: self.published, warnings });
        }
        let key = Key::new(&write.namespace, name);
        // The last finalizer has gone: the object goes with it, and watchers see only the deletion.
        let event = if self.may_end(kind, &key, &new) { self.remove(kind, key, new) } else { self.put(kind, key, new) };
        Ok(Applied { answer: Answer::Object(event.object.clone()), revision: self.head, events: vec![event], warnings })
    }

    /// Some kinds are made by an update where there is nothing to update; a uid still names an object that must be there.
    fn create_by_update(&mut self, write: &Write, mut new: Value, now: Timestamp) -> Result<Applied, Status> {
        let allowed = write.kind.create_on_update && write.subresource == Subresource::Main && write.id != 0;
        if !allowed || write.is_patch() || self.is_taken(write.kind, &write.namespace, &write.name) {
            return Err(self.missing(write.kind, &write.namespace, &write.name));
        }
        let asked = text(&new, "/metadata/uid");
        if !asked.is_empty() {
            let why = format!("Precondition failed: UID in precondition: {asked}, UID in object meta: ");
            return Err(Status::conflict(write.kind, &write.name, why));
        }
        metadata_mut(&mut new).remove("resourceVersion");
        self.create(write, new, now)
    }
}

/// A write that changes nothing is answered with what is there, once that may be shown.
fn unchanged(current: Arc<Object>) -> Applied {
    Applied { revision: current.revision, answer: Answer::Object(current), events: Vec::new(), warnings: Vec::new() }
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
    // Nobody keeps account here of who set which field.
    metadata.remove("managedFields");
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
    drop_empty(metadata);
    let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object()) else { return };
    if status_write {
        let parts: Vec<String> = new.keys().chain(old.keys()).cloned().collect();
        for part in parts.iter().filter(|p| !matches!(p.as_str(), "metadata" | "status" | "kind" | "apiVersion")) {
            restore(new, Some(old), part);
        }
    } else if write.kind.status {
        restore(new, Some(old), "status");
    }
    if write.kind.generation && is_wanted_otherwise(write, new, old) {
        let generation = old.get("metadata").and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0);
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("generation".to_owned(), (generation + 1).into());
        }
    }
}

/// Whether the write changes what `metadata.generation` counts: the spec, or of custom kinds all but metadata and status.
fn is_wanted_otherwise(write: &Write, new: &Map<String, Value>, old: &Map<String, Value>) -> bool {
    if !write.kind.custom {
        return new.get("spec") != old.get("spec");
    }
    let counted = |name: &str| name != "metadata" && !(name == "status" && write.kind.status);
    new.keys().chain(old.keys()).any(|name| counted(name) && new.get(name) != old.get(name))
}

//! Replacing and patching objects.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::ground::{Ground, Outcome, Planned};
use super::{Answer, EVENTS, Subresource, Write};
use crate::bounds;
use crate::object::{Object, drop_empty, metadata_mut, restore, text};
use crate::patch::Patch;
use crate::rules;
use crate::status::{Faults, Status};

impl Ground {
    /// The object that is there, or why there is none.
    fn current(&self, write: &Write) -> Result<&Arc<Object>, Status> {
        let absent = || self.missing.clone().unwrap_or_else(|| Status::not_found(write.kind, &write.name));
        self.current.as_ref().ok_or_else(absent)
    }

    pub(super) fn patch(&self, write: &Write, patch: &Patch, now: Timestamp) -> Result<Planned, Status> {
        let current = self.current(write)?;
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

    pub(super) fn update(&self, write: &Write, mut new: Value, now: Timestamp) -> Result<Planned, Status> {
        let kind = self.kind;
        let name = write.name.as_str();
        rules::metadata::identify(write.kind, &write.namespace, &mut new)?;
        let named = text(&new, "/metadata/name");
        if named != name {
            return Err(Status::bad_request(format!(
                "the name of the object ({named}) does not match the name on the URL ({name})"
            )));
        }
        let Some(current) = &self.current else {
            return self.create_by_update(write, new, now);
        };
        let old = current.tree();
        check_identity(write, &new, &old, current.revision)?;
        rules::schema::tidy(kind, &mut new);
        let mut warnings = write.check_fields(&new, Some(&write.kind.shown(old.clone())))?;
        if let Some(definition) = &self.definition {
            warnings.extend(write.judge_unknown(definition.shape(write.kind, &mut new)?)?);
        }
        let mut new = write.kind.kept(new);
        if write.subresource == Subresource::Main {
            rules::complete(kind, &mut new);
        }
        carry_over(write, &mut new, &old);
        rules::update(self, write.subresource, kind, &mut new, &old, now)?;
        warnings.extend(self.validate_update(write, &new, &old)?);
        if new == old {
            // Answered with what is there, once that may be shown.
            let outcome = Outcome::Answer(Answer::Object(current.clone()), current.revision);
            return Ok(self.planned(write, outcome, warnings));
        }
        bounds::check_result(&new, Some((&old, current.json.len())))?;
        let outcome = if write.dry_run {
            Outcome::Answer(Answer::Object(Object::unsaved(new).into()), self.published)
        } else {
            Outcome::Replace(new)
        };
        Ok(self.planned(write, outcome, warnings))
    }

    /// Returns what is wrong but was so before.
    fn validate_update(&self, write: &Write, new: &Value, old: &Value) -> Result<Vec<String>, Status> {
        let kind = self.kind;
        let mut faults = Faults::default();
        rules::metadata::validate(kind, new, &mut faults);
        rules::metadata::validate_update(new, old, &mut faults);
        if write.subresource == Subresource::Main {
            rules::validate(kind, new, &mut faults);
            rules::validate_update(kind, new, old, &mut faults);
            if kind.kind == "Event" && !kind.custom {
                rules::event::validate(write.kind, new, &mut faults);
                if write.kind.group == EVENTS {
                    rules::event::validate_strict_update(new, old, &mut faults);
                }
            }
        } else {
            rules::validate_status(kind, new, &mut faults);
        }
        let warnings = match &self.definition {
            Some(definition) => definition.validate(write.kind, new, Some(old), &mut faults),
            None => Vec::new(),
        };
        faults.into_result(kind, &write.name)?;
        Ok(warnings)
    }

    /// Some kinds are made by an update where there is nothing to update; a uid still names an object that must be there.
    fn create_by_update(&self, write: &Write, mut new: Value, now: Timestamp) -> Result<Planned, Status> {
        let allowed = write.kind.create_on_update && write.subresource == Subresource::Main && write.id != 0;
        if !allowed || write.is_patch() || self.taken {
            self.current(write)?;
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

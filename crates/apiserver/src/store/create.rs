//! Creating objects, and binding pods.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::ground::{Ground, Outcome, Planned};
use super::{Answer, Applied, EVENTS, Store, Write};
use crate::bounds;
use crate::object::{Key, Object, drop_empty, is_deleting, member_mut, metadata_mut, text, timestamp, uid};
use crate::rules;
use crate::status::{Faults, Status};

impl Ground {
    pub(super) fn create(&self, write: &Write, mut tree: Value, now: Timestamp) -> Result<Planned, Status> {
        let kind = self.kind;
        rules::metadata::identify(write.kind, &write.namespace, &mut tree)?;
        rules::schema::tidy(kind, &mut tree);
        let mut warnings = write.check_fields(&tree, None)?;
        if let Some(definition) = &self.definition {
            definition.check_open()?;
            warnings.extend(write.judge_unknown(definition.shape(write.kind, &mut tree)?)?);
        }
        let mut tree = write.kind.kept(tree);
        if !text(&tree, "/metadata/resourceVersion").is_empty() {
            return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
        }
        self.check_namespace(&write.namespace, text(&tree, "/metadata/name"))?;
        let name = self.name.as_str();
        if name.is_empty() {
            let mut faults = Faults::default();
            faults.required("metadata.name", "name or generateName is required");
            faults.into_result(write.kind, "")?;
        }
        if self.taken {
            return Err(Status::already_exists(kind, name));
        }
        let metadata = metadata_mut(&mut tree);
        for server_owned in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "managedFields"]
        {
            metadata.remove(server_owned);
        }
        drop_empty(metadata);
        metadata.insert("name".to_owned(), name.into());
        metadata.insert("uid".to_owned(), uid(write.id).into());
        metadata.insert("creationTimestamp".to_owned(), timestamp(now).into());
        if kind.generation {
            metadata.insert("generation".to_owned(), 1.into());
        }
        if kind.status && !kind.status_on_create {
            tree.as_object_mut().map(|o| o.remove("status"));
        }
        rules::complete(kind, &mut tree);
        rules::create(self, kind, &mut tree, now)?;
        let mut faults = Faults::default();
        rules::metadata::validate(kind, &tree, &mut faults);
        rules::validate(kind, &tree, &mut faults);
        if kind.kind == "Event" && !kind.custom {
            rules::event::validate(write.kind, &tree, &mut faults);
            if write.kind.group == EVENTS {
                rules::event::validate_strict(&tree, &mut faults);
            }
        }
        if let Some(definition) = &self.definition {
            warnings.extend(definition.validate(write.kind, &tree, None, &mut faults));
        }
        faults.into_result(kind, name)?;
        bounds::check_result(&tree, None)?;
        let outcome = if write.dry_run {
            Outcome::Answer(Answer::Created(Object::unsaved(tree).into()), self.published)
        } else {
            Outcome::Create(tree)
        };
        Ok(self.planned(write, outcome, warnings))
    }

    fn check_namespace(&self, namespace: &str, name: &str) -> Result<(), Status> {
        let Some(found) = &self.namespace else { return Ok(()) };
        let object = found.as_ref().map_err(Clone::clone)?;
        if is_deleting(&object.tree()) {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            return Err(Status::forbidden(self.kind, name, why)
                .because("NamespaceTerminating", format!("namespace {namespace} is being terminated")));
        }
        Ok(())
    }
}

impl Store {
    pub(super) fn bind(&mut self, write: &Write, binding: &Value, now: Timestamp) -> Result<Applied, Status> {
        let kind = write.kind;
        let pod = self
            .newest(kind, &write.namespace, &write.name)
            .ok_or_else(|| self.missing(kind, &write.namespace, &write.name))?
            .tree();
        let node = text(binding, "/target/name");
        let target_kind = text(binding, "/target/kind");
        let mut faults = Faults::default();
        if !target_kind.is_empty() && target_kind != "Node" {
            faults.unsupported("target.kind", target_kind, &["Node", "<empty>"]);
        }
        if node.is_empty() {
            faults.required("target.name", "");
        }
        rules::metadata::subdomain("target.name", node, &mut faults);
        faults.into_result(kind, &write.name)?;
        let wanted_uid = text(binding, "/metadata/uid");
        if !wanted_uid.is_empty() && wanted_uid != text(&pod, "/metadata/uid") {
            let found = text(&pod, "/metadata/uid");
            let why = format!("Precondition failed: UID in precondition: {wanted_uid}, UID in object meta: {found}");
            return Err(Status::conflict(kind, &write.name, why));
        }
        if is_deleting(&pod) {
            let why = format!("pod {} is being deleted, cannot be assigned to a host", write.name);
            return Err(Status::conflict(kind, &write.name, why));
        }
        let bound = text(&pod, "/spec/nodeName");
        if !bound.is_empty() {
            let why = format!("pod {} is already assigned to node {bound:?}", write.name);
            return Err(Status::conflict(kind, &write.name, why));
        }
        let mut pod = pod;
        member_mut(&mut pod, "spec").insert("nodeName".to_owned(), node.into());
        if let Some(annotations) = binding.pointer("/metadata/annotations").and_then(Value::as_object) {
            let metadata = metadata_mut(&mut pod);
            let slot = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(existing) = slot.as_object_mut() {
                existing.extend(annotations.clone());
            }
        }
        let mut faults = Faults::default();
        rules::metadata::validate(kind, &pod, &mut faults);
        faults.into_result(kind, &write.name)?;
        rules::pod::mark_scheduled(&mut pod, now);
        bounds::check_result(&pod, None)?;
        if write.dry_run {
            return Ok(Applied {
                answer: Answer::Bound,
                events: Vec::new(),
                revision: self.published,
                warnings: Vec::new(),
            });
        }
        let event = self.put(kind, Key::new(&write.namespace, &write.name), pod);
        Ok(Applied { answer: Answer::Bound, revision: event.revision, events: vec![event], warnings: Vec::new() })
    }
}

//! Patches of the fields we own, and their guards.

use serde_json::{Value, json};

use stowage_model::object::{Key, Meta};

/// The object a write is meant for; a namesake is never written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Namespace and name.
    pub key: Key,
    /// Only the object with this uid.
    pub uid: String,
    /// Only this version, where that matters.
    pub revision: Option<u64>,
}

/// What to change.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// RFC 7396; `null` removes a member.
    Merge(Value),
    /// RFC 6902; its `test` operations guard it, besides uid and revision.
    Json(Vec<Value>),
}

impl Patch {
    /// Removes one finalizer, leaving those of others alone; `None` when it is not there.
    pub fn remove_finalizer(meta: &Meta, finalizer: &str) -> Option<Self> {
        let index = meta.finalizers.iter().position(|present| present == finalizer)?;
        let path = format!("/metadata/finalizers/{index}");
        Some(Self::Json(vec![
            json!({ "op": "test", "path": path, "value": finalizer }),
            json!({ "op": "remove", "path": path }),
        ]))
    }

    /// Adds one finalizer, leaving those of others alone; `None` when it is there.
    pub fn add_finalizer(meta: &Meta, finalizer: &str) -> Option<Self> {
        if meta.has_finalizer(finalizer) {
            return None;
        }
        Some(Self::Json(if meta.finalizers.is_empty() {
            vec![
                json!({ "op": "test", "path": "/metadata/finalizers", "value": null }),
                json!({ "op": "add", "path": "/metadata/finalizers", "value": [finalizer] }),
            ]
        } else {
            vec![
                json!({ "op": "test", "path": "/metadata/finalizers", "value": meta.finalizers }),
                json!({ "op": "add", "path": "/metadata/finalizers/-", "value": finalizer }),
            ]
        }))
    }
}

impl Target {
    pub(super) fn guard(&self, mut body: Value) -> Value {
        if body["metadata"].is_null() {
            body["metadata"] = json!({});
        }
        body["metadata"]["uid"] = self.uid.as_str().into();
        if let Some(revision) = self.revision {
            body["metadata"]["resourceVersion"] = revision.to_string().into();
        }
        body
    }

    pub(super) fn guard_operations(&self, operations: Vec<Value>) -> Value {
        let mut guarded = vec![json!({ "op": "test", "path": "/metadata/uid", "value": self.uid })];
        if let Some(revision) = self.revision {
            guarded.push(json!({ "op": "test", "path": "/metadata/resourceVersion", "value": revision.to_string() }));
        }
        guarded.extend(operations);
        guarded.into()
    }
}

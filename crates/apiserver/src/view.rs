//! How a client sees objects: whole, their metadata only, or as rows of a table.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::Object;
use crate::status::Status;
use crate::store::Store;
use crate::table::{self, Column, Include};

/// In what form answers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whole objects.
    Objects,
    /// `PartialObjectMetadata`.
    Metadata,
    /// Rows, with so much of each object.
    Table(Include),
}

impl Form {
    /// The first form of an `Accept` header that this server has.
    pub fn asked(accept: Option<&str>, include: &str) -> Result<Self, Status> {
        let include = match include {
            "" | "Metadata" => Include::Metadata,
            "Object" => Include::Object,
            "None" => Include::None,
            other => {
                return Err(Status::bad_request(format!(
                    "includeObject={other:?} is not known; the values are None, Metadata and Object"
                )));
            }
        };
        let Some(accept) = accept else { return Ok(Self::Objects) };
        let known = accept.split(',').find_map(|one| {
            let mut parts = one.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*" | "")) {
                return None;
            }
            let parameters: Vec<&str> = parts.collect();
            let is = |wanted: &str| parameters.contains(&wanted);
            let named = parameters.iter().find_map(|p| p.strip_prefix("as="));
            match named {
                None => Some(Self::Objects),
                Some("Table") if is("g=meta.k8s.io") && is("v=v1") => Some(Self::Table(include)),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") if is("g=meta.k8s.io") && is("v=v1") => {
                    Some(Self::Metadata)
                }
                Some(_) => None,
            }
        });
        known.ok_or_else(|| {
            let message = format!("only application/json can be served, the request accepts {accept:?}");
            Status::new(406, "NotAcceptable", message)
        })
    }
}

/// What follows the last item of a list.
pub(crate) const LIST_END: &[u8] = b"]}";

/// One client's view of the objects of one kind.
#[derive(Debug)]
pub(crate) struct View {
    kind: &'static Kind,
    form: Form,
    columns: Vec<Column>,
}

impl View {
    pub fn new(store: &Store, kind: &'static Kind, form: Form) -> Self {
        let columns = match form {
            Form::Table(_) => table::columns(store, kind),
            Form::Objects | Form::Metadata => Vec::new(),
        };
        Self { kind, form, columns }
    }

    /// One object.
    pub fn object(&self, object: &Object, now: Timestamp) -> Bytes {
        match self.form {
            Form::Table(_) => self.list([object], &json!({"resourceVersion": object.revision.to_string()}), now),
            Form::Objects | Form::Metadata => self.item(object, now),
        }
    }

    /// A list with this metadata.
    pub fn list<'a>(&self, objects: impl IntoIterator<Item = &'a Object>, metadata: &Value, now: Timestamp) -> Bytes {
        let mut body = self.head(metadata).into_bytes();
        for (index, object) in objects.into_iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(&self.item(object, now));
        }
        body.extend_from_slice(LIST_END);
        body.into()
    }

    /// A list with this metadata, up to its first item.
    pub fn head(&self, metadata: &Value) -> String {
        let (kind, api_version) = match self.form {
            Form::Objects => (format!("{}List", self.kind.kind), self.kind.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            Form::Table(_) => return table::head(&self.columns, metadata),
        };
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
    }

    /// One item of a list; those that are kept as they are shown are not decoded for it.
    pub fn item(&self, object: &Object, now: Timestamp) -> Bytes {
        match self.form {
            Form::Objects => self.kind.present(object),
            Form::Metadata => partial(&object.tree()).to_string().into(),
            Form::Table(include) => table::row(&self.columns, self.kind.shown(object.tree()), include, now).into(),
        }
    }

    /// The object of a bookmark.
    pub fn bookmark(&self, revision: u64, initial_events_end: bool) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.form {
            Form::Objects => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Form::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Form::Table(_) => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": revision.to_string()}, "columnDefinitions": null,
                "rows": [{"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                }}],
            }),
        }
    }
}

/// An object's metadata, as an object of its own.
pub(crate) fn partial(tree: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": tree.get("metadata")})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_can_be_served_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        for (accept, form) in [
            (None, Form::Objects),
            (Some("application/json"), Form::Objects),
            (Some("*/*"), Form::Objects),
            (Some("application/vnd.kubernetes.protobuf,application/json"), Form::Objects),
            (Some(table), Form::Table(Include::Metadata)),
            (Some(metadata), Form::Metadata),
        ] {
            assert_eq!(Form::asked(accept, "").unwrap(), form, "{accept:?}");
        }
        let protobuf_only = Some("application/vnd.kubernetes.protobuf");
        assert_eq!(Form::asked(protobuf_only, "").unwrap_err().code, 406);
        assert_eq!(Form::asked(None, "All").unwrap_err().code, 400);
    }
}

//! Bodies of answers: objects, lists, deletions.

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::Object;
use crate::store::{Answer, Page};
use crate::table;

use super::{Body, json as json_response};

pub(super) fn object(object: &Object) -> Response<Body> {
    json_response(StatusCode::OK, object.json.clone())
}

pub(super) fn written(kind: &Kind, name: &str, answer: Answer, revision: u64) -> Response<Body> {
    match answer {
        Answer::Created(made) => json_response(StatusCode::CREATED, made.json.clone()),
        Answer::Object(found) => object(&found),
        Answer::Deleted { uid } => json_response(
            StatusCode::OK,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {"name": name, "group": kind.group, "kind": kind.plural, "uid": uid},
            })
            .to_string(),
        ),
        Answer::Bound => json_response(
            StatusCode::CREATED,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}).to_string(),
        ),
        Answer::Collection(items) => list(kind, &Page { revision, items, rest: None }, None),
    }
}

/// The list as kubectl prints it.
pub(super) fn table(kind: &Kind, page: &Page, next: Option<String>, now: Timestamp) -> Response<Body> {
    let objects = page.items.iter().map(|item| &**item);
    json_response(StatusCode::OK, table::table(kind, objects, list_metadata(page, next), now))
}

fn list_metadata(page: &Page, next: Option<String>) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let (Some(next), Some((_, left))) = (next, &page.rest) {
        metadata["continue"] = next.into();
        metadata["remainingItemCount"] = (*left).into();
    }
    metadata
}

/// A list, put together from the encoded objects without decoding them.
pub(super) fn list(kind: &Kind, page: &Page, next: Option<String>) -> Response<Body> {
    let metadata = list_metadata(page, next);
    let head = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        kind.kind,
        kind.api_version()
    );
    let size = page.items.iter().map(|item| item.json.len() + 1).sum::<usize>();
    let mut body = Vec::with_capacity(head.len() + size + 2);
    body.extend_from_slice(head.as_bytes());
    for (index, item) in page.items.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&item.json);
    }
    body.extend_from_slice(b"]}");
    json_response(StatusCode::OK, Bytes::from(body))
}

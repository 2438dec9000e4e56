//! Bodies of answers: objects, lists, deletions.

use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::Object;
use crate::store::{Answer, Page};
use crate::view::View;

use super::{Body, json as json_response};

const WARNING: HeaderName = HeaderName::from_static("warning");
/// Upstream's limit on one warning and on all of an answer.
const MAX_WARNING: usize = 256;
const MAX_WARNINGS: usize = 4096;

pub(super) fn object(view: &View, object: &Object, now: Timestamp) -> Response<Body> {
    json_response(StatusCode::OK, view.object(object, now))
}

/// The answer to a write of the object `name`, or of a collection, at `revision`.
pub(super) fn written(
    kind: &Kind,
    view: &View,
    name: &str,
    answer: Answer,
    revision: u64,
    now: Timestamp,
) -> Response<Body> {
    match answer {
        Answer::Created(made) => json_response(StatusCode::CREATED, view.object(&made, now)),
        Answer::Object(found) => object(view, &found, now),
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
        Answer::Collection(items) => list(view, &Page { revision, items, rest: None }, None, now),
    }
}

/// Where a list goes on, and how many objects are left, where that is told.
pub(super) struct Next {
    pub token: String,
    pub left: Option<usize>,
}

pub(super) fn list(view: &View, page: &Page, next: Option<Next>, now: Timestamp) -> Response<Body> {
    let objects = page.items.iter().map(|item| &**item);
    json_response(StatusCode::OK, view.list(objects, list_metadata(page, next), now))
}

fn list_metadata(page: &Page, next: Option<Next>) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = next {
        metadata["continue"] = next.token.into();
        if let Some(left) = next.left {
            metadata["remainingItemCount"] = left.into();
        }
    }
    metadata
}

/// Adds one `Warning` header for each sentence, as far as there is room.
pub(super) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    let mut room = MAX_WARNINGS;
    for warning in warnings {
        let mut sentence: String = warning.chars().filter(|c| !c.is_control()).collect();
        if sentence.len() > MAX_WARNING {
            sentence = sentence.chars().take(MAX_WARNING / 4).collect();
        }
        let escaped = sentence.replace('\\', "\\\\").replace('"', "\\\"");
        let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) else { continue };
        let Some(left) = room.checked_sub(value.len()) else { break };
        room = left;
        response.headers_mut().append(WARNING, value);
    }
}

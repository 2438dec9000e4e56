//! Bodies of answers: objects, lists, deletions.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::Object;
use crate::status::Status;
use crate::store::{Answer, Page};
use crate::view::{LIST_END, View};

use super::{Body, Hold, Meter, json as json_response};

const WARNING: HeaderName = HeaderName::from_static("warning");
/// Upstream's limit on one warning and on all of an answer.
const MAX_WARNING: usize = 256;
const MAX_WARNINGS: usize = 4096;
/// Lists are written out in pieces of about this size.
const PIECE: usize = 256 << 10;

pub(super) fn object(view: &View, object: &Object, now: Timestamp) -> Response<Body> {
    json_response(StatusCode::OK, view.object(object, now))
}

/// The answer to a write of the object `name`, or of a collection, at `revision`.
pub(super) fn written(
    kind: &Kind,
    view: View,
    name: &str,
    answer: Answer,
    revision: u64,
    now: Timestamp,
    meter: &Meter,
) -> Response<Body> {
    match answer {
        Answer::Created(made) => json_response(StatusCode::CREATED, view.object(&made, now)),
        Answer::Object(found) => object(&view, &found, now),
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
        Answer::Collection(items) => {
            // What is done is told, room or not.
            let held = meter.hold_always(items.len() * size_of::<Arc<Object>>());
            in_pieces(view, Page { revision, items, rest: None }, None, now, held)
        }
    }
}

/// Where a list goes on, and how many objects are left, where that is told.
pub(super) struct Next {
    pub token: String,
    pub left: Option<usize>,
}

/// A list: a small one whole, a large one piece by piece as it is sent, so that only the objects that the store holds
/// anyway are held for it.
pub(super) fn list(
    view: View,
    page: Page,
    next: Option<Next>,
    now: Timestamp,
    meter: &Meter,
) -> Result<Response<Body>, Status> {
    let held = meter.hold(page.items.len() * size_of::<Arc<Object>>())?;
    Ok(in_pieces(view, page, next, now, held))
}

fn in_pieces(view: View, page: Page, next: Option<Next>, now: Timestamp, held: Option<Hold>) -> Response<Body> {
    let metadata = list_metadata(page.revision, next);
    let estimate: usize = page.items.iter().map(|item| item.json.len()).sum();
    if estimate < PIECE {
        let objects = page.items.iter().map(|item| &**item);
        return json_response(StatusCode::OK, view.list(objects, &metadata, now));
    }
    let out = view.head(&metadata).into_bytes();
    let items = Items { view, items: page.items.into_iter(), begun: false, ended: false, out, now, held };
    let mut response = json_response(StatusCode::OK, Bytes::new());
    *response.body_mut() = StreamBody::new(stream::unfold(items, |mut items| async move {
        let piece = items.piece()?;
        Some((Ok(Frame::data(piece)), items))
    }))
    .boxed_unsync();
    response.extensions_mut().insert(Estimate(estimate));
    response
}

/// Marks the answer to a write that was only tried: nothing was done that would have to be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct DryRun;

/// About how large a body is that is made while it is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate(pub usize);

/// A list's items that are still to be sent.
struct Items {
    view: View,
    items: std::vec::IntoIter<Arc<Object>>,
    begun: bool,
    ended: bool,
    out: Vec<u8>,
    now: Timestamp,
    held: Option<Hold>,
}

impl Items {
    fn piece(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if let Some(held) = &mut self.held {
            held.renew();
        }
        while self.out.len() < PIECE {
            let Some(item) = self.items.next() else {
                self.out.extend_from_slice(LIST_END);
                self.ended = true;
                break;
            };
            if std::mem::replace(&mut self.begun, true) {
                self.out.push(b',');
            }
            self.out.extend_from_slice(&self.view.item(&item, self.now));
        }
        Some(std::mem::take(&mut self.out).into())
    }
}

fn list_metadata(revision: u64, next: Option<Next>) -> Value {
    let mut metadata = json!({"resourceVersion": revision.to_string()});
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

//! Lists and watches: from parameters to the store's question.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;

use crate::kind::LIST_OPTIONS;
use crate::object::Key;
use crate::selector::Selector;
use crate::server::Shared;
use crate::status::{Faults, Status};
use crate::store::{Query, Store};
use crate::view::{Form, View};
use crate::watch::{self, Start};

use super::answer::Next;
use super::query::Parameters;
use super::route::Target;
use super::{Body, Session, answer as answers};

/// Checks the parameters that lists and watches share.
fn validate(parameters: &Parameters, watching: bool) -> Result<(), Status> {
    let mut faults = Faults::default();
    let (version, rule) = (parameters.text("resourceVersion"), parameters.text("resourceVersionMatch"));
    let initial = parameters.has("sendInitialEvents");
    if initial && !watching {
        faults.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if initial && watching && rule != "NotOlderThan" {
        faults.forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if !rule.is_empty() {
        if watching && !initial {
            faults.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        if !watching && version.is_empty() {
            faults.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if !parameters.text("continue").is_empty() {
            faults.forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(rule, "Exact" | "NotOlderThan") {
            faults.unsupported("resourceVersionMatch", rule, &["Exact", "NotOlderThan", ""]);
        }
        if rule == "Exact" && version == "0" {
            faults.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
    }
    faults.into_result(&LIST_OPTIONS, "")
}

pub(super) fn selector(target: &Target, parameters: &Parameters) -> Result<Selector, Status> {
    Selector::parse(target.kind, parameters.text("labelSelector"), parameters.text("fieldSelector"))
}

pub(super) fn list(
    shared: &Arc<Shared>,
    target: &Target,
    parameters: &Parameters,
    form: Form,
    session: &Session,
) -> Result<Response<Body>, Status> {
    validate(parameters, false)?;
    let after = match parameters.text("continue") {
        "" => None,
        token => Some(decode_continue(token)?),
    };
    let limit = parameters.number::<usize>("limit")?.filter(|limit| *limit > 0);
    let version = parameters.number::<u64>("resourceVersion")?;
    if after.is_some() && version.is_some_and(|version| version != 0) {
        return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
    }
    check_reached(shared, version)?;
    // As upstream: a page of a named revision is of exactly that revision, unless told otherwise.
    let exact = match parameters.text("resourceVersionMatch") {
        "Exact" => true,
        "" => limit.is_some(),
        _ => false,
    };
    let at = version.filter(|version| exact && *version != 0);
    let query =
        Query { namespace: target.namespace.clone(), selector: selector(target, parameters)?, limit, after, at };
    let (page, view) = shared.core.read(|store| {
        store.check_complete(target.kind, &target.namespace)?;
        Ok((store.candidates(target.kind, &query)?, View::new(store, target.kind, form)))
    })?;
    let page = page.page(&query);
    let next = page.rest.as_ref().map(|(last, left)| Next {
        token: encode_continue(page.revision, last),
        // As upstream: what a selector leaves is not counted.
        left: query.selector.is_everything().then_some(*left),
    });
    answers::list(view, page, next, shared.core.now(), &session.meter)
}

/// A revision that is not there yet is not waited for: no other server could bring it.
fn check_reached(shared: &Arc<Shared>, version: Option<u64>) -> Result<(), Status> {
    let published = shared.core.read(Store::published);
    match version.filter(|version| *version > published) {
        Some(version) => Err(Status::too_large_revision(version, published)),
        None => Ok(()),
    }
}

pub(super) fn watch(
    shared: &Arc<Shared>,
    target: Target,
    parameters: &Parameters,
    form: Form,
    session: Session,
) -> Result<Response<Body>, Status> {
    validate(parameters, true)?;
    let version = parameters.number::<u64>("resourceVersion")?.unwrap_or(0);
    let bookmarks = parameters.flag("allowWatchBookmarks");
    let published = shared.core.read(Store::published);
    let start = match parameters.has("sendInitialEvents") {
        false if version == 0 => Start::Everything { marked: false },
        false => Start::After(version),
        true if !parameters.flag("sendInitialEvents") => Start::After(if version == 0 { published } else { version }),
        true => {
            check_reached(shared, Some(version))?;
            Start::Everything { marked: bookmarks }
        }
    };
    if let Start::Everything { .. } = start {
        shared.core.read(|store| store.check_complete(target.kind, &target.namespace))?;
    }
    let mut fields = parameters.text("fieldSelector").to_owned();
    if !target.name.is_empty() {
        if !fields.is_empty() {
            fields.push(',');
        }
        fields.push_str("metadata.name=");
        fields.push_str(&target.name);
    }
    let request = watch::Request {
        kind: target.kind,
        selector: Selector::parse(target.kind, parameters.text("labelSelector"), &fields)?,
        namespace: target.namespace,
        start,
        form,
        bookmarks,
        timeout: parameters.number::<u64>("timeoutSeconds")?.filter(|t| *t > 0).map(Duration::from_secs),
    };
    let stream = watch::start(shared.core.clone(), request, session.closing, &session.meter)?;
    let mut response = super::json(http::StatusCode::OK, Bytes::new());
    *response.body_mut() = StreamBody::new(stream).boxed_unsync();
    Ok(response)
}

fn encode_continue(revision: u64, last: &Key) -> String {
    URL_SAFE_NO_PAD.encode(json!([revision, last.namespace, last.name]).to_string())
}

fn decode_continue(token: &str) -> Result<(u64, Key), Status> {
    let bad = || Status::bad_request("the continue parameter is not one this server gave out; start a new list");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
    let (revision, namespace, name): (u64, String, String) = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    Ok((revision, Key::new(&namespace, &name)))
}

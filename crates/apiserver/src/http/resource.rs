//! Requests about objects: from method, path and parameters to the store and back.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response};
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};

use crate::object::{Key, text};
use crate::patch::Patch;
use crate::selector::Selector;
use crate::server::Shared;
use crate::status::Status;
use crate::store::{Action, DeleteOptions, Page, Query, Subresource, Write};
use crate::table::Form;
use crate::watch::{self, Start};

use super::query::Parameters;
use super::route::Target;
use super::{Body, answer as answers};

/// Becomes true when watches must end.
type Closing = tokio::sync::watch::Receiver<bool>;

pub(super) async fn answer(
    shared: &Arc<Shared>,
    target: Target,
    parts: &Parts,
    body: Bytes,
    closing: Closing,
) -> Result<Response<Body>, Status> {
    let parameters = Parameters::parse(parts.uri.query());
    let form = accepted_form(&parts.headers)?;
    let collection = target.name.is_empty();
    let not_allowed =
        || Status::method_not_allowed(format!("the server does not allow {} on the requested resource", parts.method));
    let action = match parts.method {
        Method::GET if target.subresource == Subresource::Binding => return Err(not_allowed()),
        Method::GET if parameters.flag("watch") => return start_watch(shared, target, &parameters, form, closing),
        Method::GET if collection => return list(shared, &target, &parameters, form),
        Method::GET => {
            let found = shared.core.read(|store| store.get(target.kind, &target.namespace, &target.name))?;
            return Ok(match form {
                Form::Objects => answers::object(&found),
                Form::Table => {
                    let page = Page { revision: found.revision, items: vec![found], rest: None };
                    answers::table(target.kind, &page, None, shared.core.now())
                }
            });
        }
        Method::POST if collection == (target.subresource == Subresource::Main) => {
            if target.kind.namespaced && target.namespace.is_empty() {
                return Err(not_allowed());
            }
            Action::Create(read_json(&parts.headers, &body)?)
        }
        Method::PUT if !collection && target.subresource != Subresource::Binding => {
            Action::Update(read_json(&parts.headers, &body)?)
        }
        Method::PATCH if !collection && target.subresource != Subresource::Binding => {
            Action::Patch(Patch::parse(media_type(&parts.headers), &body)?)
        }
        Method::DELETE if target.subresource != Subresource::Main => return Err(not_allowed()),
        Method::DELETE if collection && target.kind.namespaced && target.namespace.is_empty() => {
            return Err(not_allowed());
        }
        Method::DELETE => {
            let options = if body.is_empty() { json!({}) } else { read_json(&parts.headers, &body)? };
            let dry_run = options.get("dryRun").is_some_and(|d| *d == json!(["All"])) || parameters.dry_run()?;
            let delete = delete_options(&options, &parameters)?;
            let action = if collection {
                Action::DeleteCollection(delete, selector(&target, &parameters)?)
            } else {
                Action::Delete(delete)
            };
            return write(shared, target, action, Manner { dry_run, strict: false }).await;
        }
        _ => return Err(not_allowed()),
    };
    let strict = match parameters.text("fieldValidation") {
        "" | "Ignore" | "Warn" => false,
        "Strict" => true,
        other => {
            return Err(Status::bad_request(format!(
                "fieldValidation={other:?} is not known; the values are Ignore, Warn and Strict"
            )));
        }
    };
    let manner = Manner { dry_run: parameters.dry_run()?, strict };
    write(shared, target, action, manner).await
}

/// How a write is to be done.
struct Manner {
    dry_run: bool,
    strict: bool,
}

async fn write(shared: &Arc<Shared>, target: Target, action: Action, manner: Manner) -> Result<Response<Body>, Status> {
    let id = if matches!(action, Action::Create(_)) { shared.core.next_id() } else { 0 };
    let Target { kind, namespace, name, subresource } = target;
    let write = Write {
        kind,
        namespace,
        name: name.clone(),
        subresource,
        action,
        id,
        dry_run: manner.dry_run,
        strict: manner.strict,
    };
    let answer = shared.write(write).await?;
    let revision = shared.core.read(crate::store::Store::published);
    Ok(answers::written(kind, &name, answer, revision))
}

fn list(shared: &Arc<Shared>, target: &Target, parameters: &Parameters, form: Form) -> Result<Response<Body>, Status> {
    let after = match parameters.text("continue") {
        "" => None,
        token => Some(decode_continue(token)?),
    };
    let limit = parameters.number::<usize>("limit")?.filter(|limit| *limit > 0);
    check_list_version(shared, parameters, after.is_some())?;
    let query = Query { namespace: target.namespace.clone(), selector: selector(target, parameters)?, limit, after };
    let page = shared.core.read(|store| store.list(target.kind, &query))?;
    let next = page.rest.as_ref().map(|(last, _)| encode_continue(page.revision, last));
    Ok(match form {
        Form::Objects => answers::list(target.kind, &page, next),
        Form::Table => answers::table(target.kind, &page, next, shared.core.now()),
    })
}

/// A list always shows the newest revision; asking for exactly an older one cannot be done.
fn check_list_version(shared: &Arc<Shared>, parameters: &Parameters, continued: bool) -> Result<(), Status> {
    let Some(version) = parameters.number::<u64>("resourceVersion")? else { return Ok(()) };
    if continued && version != 0 {
        return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
    }
    let published = shared.core.read(crate::store::Store::published);
    if version > published {
        let message = format!("Too large resource version: {version}, current: {published}");
        let mut status =
            Status::new(504, "Timeout", message).because("ResourceVersionTooLarge", "Too large resource version");
        status.details.retry_after_seconds = Some(1);
        return Err(status);
    }
    if parameters.text("resourceVersionMatch") == "Exact" && version != published {
        return Err(Status::expired(format!(
            "the list at resource version {version} is no longer kept; list the newest"
        )));
    }
    Ok(())
}

fn start_watch(
    shared: &Arc<Shared>,
    target: Target,
    parameters: &Parameters,
    form: Form,
    closing: Closing,
) -> Result<Response<Body>, Status> {
    let version = parameters.number::<u64>("resourceVersion")?.unwrap_or(0);
    let send_initial = parameters.text("sendInitialEvents");
    if !send_initial.is_empty() && parameters.text("resourceVersionMatch") != "NotOlderThan" {
        return Err(Status::bad_request(
            "sendInitialEvents is set; resourceVersionMatch must be set to NotOlderThan along with it",
        ));
    }
    let published = shared.core.read(crate::store::Store::published);
    let start = match send_initial {
        "" if version == 0 => Start::Everything { marked: false },
        "" => Start::After(version),
        _ if !parameters.flag("sendInitialEvents") => Start::After(if version == 0 { published } else { version }),
        _ => Start::Everything { marked: true },
    };
    let mut selector_text = parameters.text("fieldSelector").to_owned();
    if !target.name.is_empty() {
        if !selector_text.is_empty() {
            selector_text.push(',');
        }
        selector_text.push_str("metadata.name=");
        selector_text.push_str(&target.name);
    }
    let request = watch::Request {
        kind: target.kind,
        selector: Selector::parse(target.kind, parameters.text("labelSelector"), &selector_text)?,
        namespace: target.namespace,
        start,
        form,
        bookmarks: parameters.flag("allowWatchBookmarks"),
        timeout: parameters.number::<u64>("timeoutSeconds")?.filter(|t| *t > 0).map(Duration::from_secs),
    };
    let stream = watch::start(shared.core.clone(), request, closing)?;
    let mut response = super::json(http::StatusCode::OK, Bytes::new());
    *response.body_mut() = StreamBody::new(stream).boxed_unsync();
    Ok(response)
}

fn selector(target: &Target, parameters: &Parameters) -> Result<Selector, Status> {
    Selector::parse(target.kind, parameters.text("labelSelector"), parameters.text("fieldSelector"))
}

fn delete_options(body: &Value, parameters: &Parameters) -> Result<DeleteOptions, Status> {
    let policy = match text(body, "/propagationPolicy") {
        "" => parameters.text("propagationPolicy"),
        policy => policy,
    };
    let orphan = body.get("orphanDependents").and_then(Value::as_bool) == Some(true);
    match policy {
        "" | "Background" if !orphan => {}
        "" | "Background" | "Orphan" | "Foreground" => {
            return Err(Status::not_implemented(format!(
                "propagationPolicy {policy:?} is not part of this API server yet; use \"Background\" (kubectl delete \
                 --cascade=background) and delete dependents yourself"
            )));
        }
        other => return Err(Status::bad_request(format!("propagationPolicy {other:?} is not known"))),
    }
    let grace = match body.get("gracePeriodSeconds") {
        None | Some(Value::Null) => parameters.number("gracePeriodSeconds")?,
        Some(value) => Some(value.as_i64().ok_or_else(|| {
            Status::bad_request(format!("gracePeriodSeconds {value} is not a whole number of seconds"))
        })?),
    };
    let precondition =
        |name: &str| Some(text(body, &format!("/preconditions/{name}")).to_owned()).filter(|s| !s.is_empty());
    Ok(DeleteOptions {
        grace_period_seconds: grace,
        uid: precondition("uid"),
        resource_version: precondition("resourceVersion"),
    })
}

fn media_type(headers: &HeaderMap) -> &str {
    let whole = headers.get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    whole.split(';').next().unwrap_or_default().trim()
}

fn read_json(headers: &HeaderMap, body: &[u8]) -> Result<Value, Status> {
    match media_type(headers) {
        "" | "application/json" => serde_json::from_slice(body)
            .map_err(|error| Status::bad_request(format!("the body of the request is not readable JSON: {error}"))),
        other => Err(Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format ({other:?}); this server reads application/json"
        ))),
    }
}

/// Objects or tables; a client that takes nothing but protobuf cannot be served.
fn accepted_form(headers: &HeaderMap) -> Result<Form, Status> {
    let Some(accept) = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()) else {
        return Ok(Form::Objects);
    };
    let takes_json = accept.split(',').any(|one| {
        matches!(one.split(';').next().unwrap_or_default().trim(), "application/json" | "application/*" | "*/*" | "")
    });
    if takes_json {
        return Ok(Form::asked(accept));
    }
    Err(Status::new(
        406,
        "NotAcceptable",
        format!("only application/json can be served, the request accepts {accept:?}"),
    ))
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

//! Requests about objects: from method, path and parameters to the store and back.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use crate::auth::User;
use crate::kind::Kind;
use crate::object::text;
use crate::patch::Patch;
use crate::rbac::Request;
use crate::selector::Selector;
use crate::server::Shared;
use crate::status::Status;
use crate::store::{Action, DeleteOptions, Propagation, Query, Store, Subresource, Write};
use crate::view::{Form, View};
use crate::wire::{self, Content};

use super::answer::DryRun;
use super::list::{list, selector, watch};
use super::query::Parameters;
use super::route::Target;
use super::{Body, Session, answer as answers};

/// What is done about fields that a kind does not have, or that are there twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// How a write is to be done.
struct Manner {
    dry_run: bool,
    fields: FieldValidation,
    form: Form,
    /// What is to be said about the request itself.
    warnings: Vec<String>,
}

pub(super) async fn answer(
    shared: &Arc<Shared>,
    target: Target,
    user: &User,
    parts: &Parts,
    body: Bytes,
    session: Session,
) -> Result<Response<Body>, Status> {
    let kind = target.kind;
    let mut response = perform(shared, target, user, parts, body, session).await?;
    if kind.custom {
        let read = |store: &Store| store.definition(kind)?.deprecation(kind).map(str::to_owned);
        answers::warn(&mut response, shared.core.read(read).as_slice());
    }
    Ok(response)
}

async fn perform(
    shared: &Arc<Shared>,
    target: Target,
    user: &User,
    parts: &Parts,
    body: Bytes,
    session: Session,
) -> Result<Response<Body>, Status> {
    let parameters = Parameters::parse(parts.uri.query());
    let accept = parts.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok());
    let form = Form::asked(accept, parameters.text("includeObject"))?;
    let collection = target.name.is_empty();
    let turn = shared.core.turn(body.len()).await;
    let not_allowed =
        || Status::method_not_allowed(format!("the server does not allow {} on the requested resource", parts.method));
    let content = match parts.method {
        Method::GET if target.subresource == Subresource::Binding => return Err(not_allowed()),
        Method::GET if parameters.flag("watch") => return watch(shared, target, &parameters, form, session),
        Method::GET if collection => return list(shared, &target, &parameters, form, &session),
        Method::GET => return get(shared, &target, form),
        Method::DELETE if target.subresource != Subresource::Main => return Err(not_allowed()),
        Method::DELETE => return delete(shared, target, user, parts, &body, &parameters, &session).await,
        Method::POST if collection == (target.subresource == Subresource::Main) => {
            if target.kind.namespaced && target.namespace.is_empty() {
                return Err(not_allowed());
            }
            wire::read(&parts.headers, &body)?
        }
        Method::PUT if !collection && target.subresource != Subresource::Binding => wire::read(&parts.headers, &body)?,
        Method::PATCH if !collection && target.subresource != Subresource::Binding => Content::default(),
        _ => return Err(not_allowed()),
    };
    let fields = match parameters.text("fieldValidation") {
        "Ignore" => FieldValidation::Ignore,
        "" | "Warn" => FieldValidation::Warn,
        "Strict" => FieldValidation::Strict,
        other => {
            return Err(Status::bad_request(format!(
                "fieldValidation={other:?} is not known; the values are Ignore, Warn and Strict"
            )));
        }
    };
    let (action, duplicates) = match parts.method {
        Method::POST => (Action::Create(content.tree), content.duplicates),
        Method::PUT => (Action::Update(content.tree), content.duplicates),
        _ => {
            let (patch, duplicates) = Patch::parse(wire::media_type(&parts.headers), &body)?;
            (Action::Patch(patch), duplicates)
        }
    };
    let duplicates: Vec<String> = duplicates.iter().map(|field| format!("duplicate field {field:?}")).collect();
    if fields == FieldValidation::Strict && !duplicates.is_empty() {
        return Err(Status::strict_decoding(target.kind, &duplicates));
    }
    let manner = Manner { dry_run: parameters.dry_run()?, fields, form, warnings: duplicates };
    write(shared, target, user, action, manner, turn, &session).await
}

fn get(shared: &Arc<Shared>, target: &Target, form: Form) -> Result<Response<Body>, Status> {
    let (found, view) = shared.core.read(|store| {
        let found = store.get(target.kind, &target.namespace, &target.name);
        (found, View::new(store, target.kind, form))
    });
    Ok(answers::object(&view, &*found?, shared.core.now()))
}

async fn delete(
    shared: &Arc<Shared>,
    target: Target,
    user: &User,
    parts: &Parts,
    body: &[u8],
    parameters: &Parameters,
    session: &Session,
) -> Result<Response<Body>, Status> {
    let collection = target.name.is_empty();
    if collection && target.kind.namespaced && target.namespace.is_empty() {
        return Err(Status::method_not_allowed("a collection is deleted in one namespace at a time"));
    }
    let options = if body.is_empty() { json!({}) } else { wire::read(&parts.headers, body)?.tree };
    let dry_run = match options.get("dryRun") {
        None | Some(Value::Null) => parameters.dry_run()?,
        Some(list) if *list == json!([]) => parameters.dry_run()?,
        Some(list) if *list == json!(["All"]) => true,
        Some(other) => {
            return Err(Status::bad_request(format!("dryRun {other} is not supported; the only value is \"All\"")));
        }
    };
    let delete = delete_options(&options, parameters)?;
    if collection && dry_run && delete.uid.is_none() && delete.resource_version.is_none() {
        return try_to_delete(shared, &target, selector(&target, parameters)?, session);
    }
    let action = if collection {
        Action::DeleteCollection(delete, selector(&target, parameters)?)
    } else {
        Action::Delete(delete)
    };
    let manner = Manner { dry_run, fields: FieldValidation::Ignore, form: Form::Objects, warnings: Vec::new() };
    write(shared, target, user, action, manner, None, session).await
}

/// What a collection's deletion would touch: found beside the store, as a list is.
fn try_to_delete(
    shared: &Arc<Shared>,
    target: &Target,
    selector: Selector,
    session: &Session,
) -> Result<Response<Body>, Status> {
    if *target.kind == *Kind::named("Namespace") {
        return Err(Status::method_not_allowed("namespaces are deleted one by one, by name"));
    }
    let query = Query { namespace: target.namespace.clone(), selector, ..Query::default() };
    let (candidates, view) = shared
        .core
        .read(|store| Ok((store.candidates(target.kind, &query)?, View::new(store, target.kind, Form::Objects))))?;
    let mut response = answers::list(view, candidates.page(&query), None, shared.core.now(), &session.meter)?;
    response.extensions_mut().insert(DryRun);
    Ok(response)
}

async fn write(
    shared: &Arc<Shared>,
    target: Target,
    user: &User,
    action: Action,
    manner: Manner,
    turn: Option<SemaphorePermit<'_>>,
    session: &Session,
) -> Result<Response<Body>, Status> {
    let Target { kind, namespace, name, subresource } = target;
    let creation = Request::Resource {
        verb: "create",
        group: kind.group,
        resource: kind.plural,
        subresource: "",
        namespace: &namespace,
        name: &name,
    };
    // An update that makes an object needs the right to create it as well.
    let by_update = matches!(action, Action::Update(_)) && kind.create_on_update && subresource == Subresource::Main;
    let may_create = by_update.then(|| shared.core.authorize(user, &creation));
    let makes = matches!(action, Action::Create(_)) || matches!(may_create, Some(Ok(())));
    let id = if makes { shared.core.next_id() } else { 0 };
    let write = Write {
        kind,
        name: name.clone(),
        namespace: namespace.clone(),
        subresource,
        action,
        id,
        dry_run: manner.dry_run,
        strict: manner.fields == FieldValidation::Strict,
    };
    let (answer, unknown) = shared.write_as(write, user, turn).await.map_err(|status| match may_create {
        Some(Err(forbidden)) if status.code == 404 => forbidden,
        _ => status,
    })?;
    let (revision, view) = shared.core.read(|store| (Store::published(store), View::new(store, kind, manner.form)));
    let mut response = answers::written(kind, view, &name, answer, revision, shared.core.now(), &session.meter);
    if manner.fields != FieldValidation::Ignore {
        let mut warnings = manner.warnings;
        warnings.extend(unknown);
        answers::warn(&mut response, &warnings);
    }
    if manner.dry_run {
        response.extensions_mut().insert(DryRun);
    }
    Ok(response)
}

fn delete_options(body: &Value, parameters: &Parameters) -> Result<DeleteOptions, Status> {
    let policy = match text(body, "/propagationPolicy") {
        "" => parameters.text("propagationPolicy"),
        policy => policy,
    };
    let orphans = body.get("orphanDependents").and_then(Value::as_bool);
    let propagation = match (policy, orphans) {
        ("", None) => None,
        ("", Some(true)) | ("Orphan", None) => Some(Propagation::Orphan),
        ("", Some(false)) | ("Background", None) => Some(Propagation::Background),
        ("Foreground", None) => Some(Propagation::Foreground),
        (_, Some(_)) => {
            return Err(Status::bad_request("orphanDependents and propagationPolicy cannot be both set"));
        }
        (other, None) => {
            return Err(Status::bad_request(format!(
                "propagationPolicy {other:?} is not known; the values are Background, Foreground and Orphan"
            )));
        }
    };
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
        propagation,
    })
}

//! Tokens of service accounts: asking for one, and asking whose one is.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::{text, timestamp, uid};
use crate::server::{Core, Shared};
use crate::status::{Faults, Status};
use crate::tokens::{Bound, Claims, ISSUER, Reference, after, subject};

/// An hour, as upstream.
const DEFAULT_SECONDS: i64 = 3600;
/// Ten minutes, as upstream.
const SHORTEST_SECONDS: i64 = 600;
const LONGEST_SECONDS: i64 = 1 << 32;

/// Issues a token for a service account.
pub(crate) fn request(shared: &Arc<Shared>, namespace: &str, name: &str, mut body: Value) -> Result<Value, Status> {
    let core = &shared.core;
    let accounts = Kind::named("ServiceAccount");
    let account = core.read(|store| store.get(accounts, namespace, name))?.tree();
    let Some(members) = body.as_object_mut() else {
        return Err(Status::bad_request("the body of the request is not a JSON object"));
    };
    for (field, wanted) in [("kind", "TokenRequest"), ("apiVersion", "authentication.k8s.io/v1")] {
        if *members.entry(field).or_insert_with(|| wanted.into()) != *wanted {
            return Err(Status::bad_request(format!("the body of the request is not of {field} {wanted}")));
        }
    }
    let spec = members.get("spec").cloned().unwrap_or(Value::Null);
    let seconds = match spec.get("expirationSeconds") {
        None | Some(Value::Null) => DEFAULT_SECONDS,
        Some(value) => value.as_i64().ok_or_else(|| {
            Status::bad_request(format!("spec.expirationSeconds {value} is not a whole number of seconds"))
        })?,
    };
    let mut faults = Faults::default();
    if seconds < SHORTEST_SECONDS {
        faults.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > LONGEST_SECONDS {
        faults.invalid("spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds");
    }
    faults.into_result(accounts, name)?;
    let asked = spec.get("audiences").and_then(Value::as_array).into_iter().flatten();
    let mut audiences: Vec<String> = asked.filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let named = text(&body, "/metadata/name");
    if !named.is_empty() && named != name {
        return Err(Status::bad_request(format!("the name of the object ({named}) does not match the URL ({name})")));
    }
    let account = Reference { name: name.to_owned(), uid: text(&account, "/metadata/uid").to_owned() };
    let bound = bind(core, namespace, account, &spec)?;
    let now = core.now();
    let claims = Claims {
        iss: ISSUER.to_owned(),
        sub: subject(namespace, name),
        aud: audiences.clone(),
        iat: now.as_second(),
        nbf: now.as_second(),
        exp: now.as_second() + seconds,
        jti: uid(core.next_id()),
        bound,
    };
    body["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": timestamp(now)});
    let mut shown = if spec.is_object() { spec } else { json!({}) };
    shown["audiences"] = json!(audiences);
    shown["expirationSeconds"] = seconds.into();
    body["spec"] = shown;
    body["status"] = json!({
        "token": core.token_key().sign(&claims), "expirationTimestamp": timestamp(after(now, seconds)),
    });
    Ok(body)
}

fn bind(core: &Core, namespace: &str, account: Reference, spec: &Value) -> Result<Bound, Status> {
    let mut bound =
        Bound { namespace: namespace.to_owned(), serviceaccount: account, pod: None, secret: None, node: None };
    let Some(asked) = spec.get("boundObjectRef").filter(|reference| !reference.is_null()) else { return Ok(bound) };
    let (kind, name) = (text(asked, "/kind"), text(asked, "/name"));
    let (slot, of) = match (kind, text(asked, "/apiVersion")) {
        ("Pod", "v1") => (&mut bound.pod, namespace),
        ("Secret", "v1") => (&mut bound.secret, namespace),
        ("Node", "v1") => (&mut bound.node, ""),
        (_, version) => {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to object of apiVersion {version:?} and kind {kind:?}; use a v1 \
                 Pod, Secret or Node",
                bound.serviceaccount.name
            )));
        }
    };
    let kind = Kind::named(kind);
    let found = core.read(|store| store.get(kind, of, name))?.tree();
    let (asked_uid, found_uid) = (text(asked, "/uid"), text(&found, "/metadata/uid"));
    if !asked_uid.is_empty() && asked_uid != found_uid {
        let why = format!(
            "the UID in the bound object reference ({asked_uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(Status::conflict(kind, name, why));
    }
    // A pod that names no account runs as `default`.
    let other = Some(text(&found, "/spec/serviceAccountName")).filter(|name| !name.is_empty()).unwrap_or("default");
    if kind.kind == "Pod" && other != bound.serviceaccount.name {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount {other:?}",
            bound.serviceaccount.name
        )));
    }
    *slot = Some(Reference { name: name.to_owned(), uid: found_uid.to_owned() });
    Ok(bound)
}

/// The status of a review of `spec.token`.
pub(super) fn review(core: &Core, spec: &Value) -> Result<Value, Status> {
    let token = text(spec, "/token");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let asked = spec.get("audiences").and_then(Value::as_array).into_iter().flatten();
    let audiences: Vec<String> = asked.filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(match core.token_key().check(core, token, &audiences) {
        Ok(checked) => json!({
            "authenticated": true, "user": super::user_info(&checked.user), "audiences": checked.audiences,
        }),
        // A static token is this server's own and for nobody else.
        Err(why) => match core.static_user(token).filter(|_| audiences.is_empty()) {
            Some(user) => json!({"authenticated": true, "user": super::user_info(&user)}),
            None => json!({"authenticated": false, "user": {}, "error": format!("invalid bearer token: {why}")}),
        },
    })
}

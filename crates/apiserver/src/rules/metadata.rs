//! Rules of `metadata`, the same for every kind.

use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::Value;

use crate::kind::Kind;
use crate::object::{filled, finalizers, is_deleting, metadata_mut, text};
use crate::status::{Faults, Status};

// The sentences of upstream's validation, which people search for.
pub(crate) const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
     and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
pub(crate) const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
     '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
pub(crate) const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
     and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
     and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
     validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// How many of a list's elements are shown in a sentence about them.
const MAX_SHOWN: usize = 10;
const LONG_LABEL: &str = "must be no more than 63 characters";
const LONG_SUBDOMAIN: &str = "must be no more than 253 characters";

/// Checks that the body is of the kind and namespace of the request, and fills both in.
pub(crate) fn identify(kind: &Kind, namespace: &str, tree: &mut Value) -> Result<(), Status> {
    let api_version = kind.api_version();
    let Some(members) = tree.as_object_mut() else {
        return Err(Status::bad_request("the body of the request is not a JSON object"));
    };
    for (name, wanted) in [("apiVersion", api_version.as_str()), ("kind", kind.kind)] {
        match members.get(name).and_then(Value::as_str) {
            None | Some("") => {
                members.insert(name.to_owned(), wanted.into());
            }
            Some(found) if found == wanted => {}
            Some(found) => {
                return Err(Status::bad_request(format!(
                    "the object provided is of {name} {found:?}, the URL is of {name} {wanted:?}"
                )));
            }
        }
    }
    if members.get("metadata").is_some_and(|m| !m.is_object() && !m.is_null()) {
        return Err(Status::bad_request("metadata is not a JSON object"));
    }
    let metadata = metadata_mut(tree);
    match metadata.get("namespace").and_then(Value::as_str) {
        None | Some("") if kind.namespaced => {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        None | Some("") => {
            metadata.remove("namespace");
        }
        Some(found) if found == namespace => {}
        Some(_) => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}

/// Names, labels, annotations, finalizers and owners.
pub(crate) fn validate(kind: &Kind, tree: &Value, faults: &mut Faults) {
    let name = text(tree, "/metadata/name");
    let is_label = kind.kind == "Namespace";
    if is_label && !is_dns_label(name) {
        faults.invalid("metadata.name", format!("{name:?}"), if name.len() > 63 { LONG_LABEL } else { LABEL });
    } else if kind.group == "rbac.authorization.k8s.io" {
        // Names such as `system:masters` are usual there.
        if matches!(name, "." | "..") || name.contains(['/', '%']) {
            faults.invalid("metadata.name", format!("{name:?}"), "may not be '.' or '..' nor contain '/' or '%'");
        }
    } else if !is_dns_subdomain(name) {
        let why = if name.len() > 253 { LONG_SUBDOMAIN } else { SUBDOMAIN };
        faults.invalid("metadata.name", format!("{name:?}"), why);
    }
    for (key, value) in members(tree, "/metadata/labels") {
        if !is_qualified_name(key) {
            faults.invalid("metadata.labels", format!("{key:?}"), QUALIFIED);
        }
        if !value.as_str().is_some_and(is_label_value) {
            let long = value.as_str().is_some_and(|value| value.len() > 63);
            faults.invalid("metadata.labels", value, if long { LONG_LABEL } else { LABEL_VALUE });
        }
    }
    for (key, value) in members(tree, "/metadata/annotations") {
        if !is_qualified_name(&key.to_lowercase()) {
            faults.invalid("metadata.annotations", format!("{key:?}"), QUALIFIED);
        }
        if !value.is_string() {
            faults.invalid("metadata.annotations", value, "an annotation value is a string");
        }
    }
    for finalizer in finalizers(tree).filter(|f| !is_qualified_name(f)) {
        faults.invalid("metadata.finalizers", format!("{finalizer:?}"), "name is not a qualified name");
    }
    let owners = tree.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    for (index, owner) in owners.into_iter().flatten().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if filled(owner, &format!("/{field}")).is_none() {
                faults.required(format!("metadata.ownerReferences[{index}].{field}"), "must not be empty");
            }
        }
    }
    let mut managing = owners.into_iter().flatten().filter(|owner| owner.get("controller") == Some(&Value::Bool(true)));
    if let (Some(first), Some(second)) = (managing.next(), managing.next()) {
        let shown = |owner| format!("{}/{}", text(owner, "/kind"), text(owner, "/name"));
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            shown(first),
            shown(second)
        );
        faults.invalid("metadata.ownerReferences", tree.pointer("/metadata/ownerReferences").unwrap_or(second), &why);
    }
}

/// What a write may not do to `metadata`.
pub(crate) fn validate_update(new: &Value, old: &Value, faults: &mut Faults) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        let pointer = format!("/metadata/{field}");
        super::immutable(&format!("metadata.{field}"), &pointer, new, old, faults);
    }
    if is_deleting(old) {
        let before: BTreeSet<&str> = finalizers(old).collect();
        let added: Vec<&str> = finalizers(new).filter(|f| !before.contains(f)).take(MAX_SHOWN).collect();
        if !added.is_empty() {
            faults.forbidden(
                "metadata.finalizers",
                &format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
                ),
            );
        }
    }
}

fn members<'a>(tree: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    tree.pointer(pointer).and_then(Value::as_object).into_iter().flatten()
}

/// Checks a name of another object, which may be left out.
pub(crate) fn subdomain(field: impl Display, name: &str, faults: &mut Faults) {
    if !name.is_empty() && !is_dns_subdomain(name) {
        let why = if name.len() > 253 { LONG_SUBDOMAIN } else { SUBDOMAIN };
        faults.invalid(field, format_args!("{name:?}"), why);
    }
}

pub(crate) fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_word)
}

pub(crate) fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_word(name)
}

fn is_dns_word(word: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    word.bytes().all(|b| plain(b) || b == b'-')
        && word.bytes().next().is_some_and(plain)
        && word.bytes().last().is_some_and(plain)
}

pub(crate) fn is_qualified_name(name: &str) -> bool {
    let (prefix, name) = name.split_once('/').map_or((None, name), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

pub(crate) fn is_label_value(value: &str) -> bool {
    value.len() <= 63
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && value.bytes().next().is_none_or(|b| b.is_ascii_alphanumeric())
        && value.bytes().last().is_none_or(|b| b.is_ascii_alphanumeric())
}

//! Events: the lax rules of the core group, and the strict ones of events.k8s.io.

use serde_json::Value;

use super::{immutable, metadata};
use crate::kind::Kind;
use crate::object::{filled, text};
use crate::status::Faults;

const MAX_WORD: usize = 128;
const MAX_MESSAGE: usize = 1024;

/// Checks an event, in the form in which it is kept, that came in as `kind`.
pub(crate) fn validate(kind: &Kind, tree: &Value, faults: &mut Faults) {
    let (namespace, about) = (text(tree, "/metadata/namespace"), text(tree, "/involvedObject/namespace"));
    let is_new = filled(tree, "/eventTime").is_some();
    let elsewhere = match about {
        "" if is_new => !matches!(namespace, "default" | "kube-system"),
        "" => namespace != "default",
        about => !is_new && about != namespace,
    };
    if elsewhere {
        faults.invalid("involvedObject.namespace", format!("{about:?}"), "does not match event.namespace");
    }
    if is_new {
        validate_new(kind, tree, faults);
    }
}

/// What says when it happened must say what happened, too.
fn validate_new(kind: &Kind, tree: &Value, faults: &mut Faults) {
    let controller = if kind.group.is_empty() { "reportingComponent" } else { "reportingController" };
    for (field, pointer) in [
        (controller, "/reportingComponent"),
        ("reportingInstance", "/reportingInstance"),
        ("action", "/action"),
        ("reason", "/reason"),
    ] {
        match text(tree, pointer) {
            "" => faults.required(field, ""),
            name if field == controller && !metadata::is_qualified_name(name) => {
                faults.invalid(field, format!("{name:?}"), metadata::QUALIFIED);
            }
            word if field != controller && word.len() > MAX_WORD => {
                faults.invalid(field, "\"\"", format!("can have at most {MAX_WORD} characters"));
            }
            _ => {}
        }
    }
    if text(tree, "/message").len() > MAX_MESSAGE {
        faults.invalid("message", "\"\"", format!("can have at most {MAX_MESSAGE} characters"));
    }
}

/// What events.k8s.io asks of a new event beyond that.
pub(crate) fn validate_strict(tree: &Value, faults: &mut Faults) {
    validate_series(tree, faults);
    if filled(tree, "/eventTime").is_none() {
        faults.required("eventTime", "");
    }
    let event_type = text(tree, "/type");
    if !matches!(event_type, "Normal" | "Warning") {
        faults.invalid("type", "\"\"", format!("has invalid value: {event_type}"));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let old = tree.get(field).filter(|v| !v.is_null() && **v != 0 && **v != Value::Object(serde_json::Map::new()));
        if old.is_some() {
            faults.invalid(field, "\"\"", "needs to be unset");
        }
    }
}

/// What events.k8s.io allows to change: the series only.
pub(crate) fn validate_strict_update(new: &Value, old: &Value, faults: &mut Faults) {
    if new.get("series") != old.get("series") {
        validate_series(new, faults);
    }
    for field in [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingComponent",
        "reportingInstance",
    ] {
        immutable(field, &format!("/{field}"), new, old, faults);
    }
}

fn validate_series(tree: &Value, faults: &mut Faults) {
    let Some(series) = tree.get("series").filter(|series| series.is_object()) else { return };
    if series.get("count").and_then(Value::as_i64).unwrap_or(0) < 2 {
        faults.invalid("series.count", "\"\"", "should be at least 2");
    }
    if filled(series, "/lastObservedTime").is_none() {
        faults.required("series.lastObservedTime", "");
    }
}

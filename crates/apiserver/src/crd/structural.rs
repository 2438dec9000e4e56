//! Whether a schema is structural: it says of every value what it is, so that pruning and defaulting are well defined.

use serde_json::Value;

use super::pattern::{MAX_COMPILED, Patterns, compile};
use super::validations;
use crate::status::Faults;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Checks the schema of one version.
pub(super) fn validate(path: &str, schema: &Value, faults: &mut Faults) {
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        faults.invalid(format!("{path}.type"), shown_type(schema), "must be object at the root");
    }
    node(path, schema, true, faults);
    validate_patterns(path, schema, faults);
    validations::validate(path, schema, faults);
}

/// All patterns together may take so much and no more, each counted once.
fn validate_patterns(path: &str, schema: &Value, faults: &mut Faults) {
    let mut room = MAX_COMPILED;
    for pattern in Patterns::of(schema).texts() {
        match compile(pattern) {
            Err(why) => faults.invalid(
                format_args!("{path}.pattern"),
                format_args!("{pattern:?}"),
                format_args!("must be a valid regular expression: {why}"),
            ),
            Ok((_, size)) => match room.checked_sub(size) {
                Some(left) => room = left,
                None => {
                    let why = format!("the patterns of a schema may take {MAX_COMPILED} bytes compiled");
                    faults.forbidden(path, &why);
                    return;
                }
            },
        }
    }
}

fn shown_type(schema: &Value) -> String {
    schema.get("type").cloned().unwrap_or_else(|| "".into()).to_string()
}

/// `typed` is false inside junctors, where the type is that of the schema around them.
fn node(path: &str, schema: &Value, typed: bool, faults: &mut Faults) {
    let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
    for name in ["$ref", "definitions", "dependencies", "id", "patternProperties", "additionalItems"] {
        if schema.get(name).is_some_and(|v| !v.is_null()) {
            faults.forbidden(format!("{path}.{name}"), &format!("{name} is not supported"));
        }
    }
    match schema.get("type").and_then(Value::as_str) {
        Some(known) if TYPES.contains(&known) => {}
        Some(other) => faults.unsupported(format!("{path}.type"), other, &TYPES),
        None if !typed || flag("x-kubernetes-int-or-string") || flag("x-kubernetes-preserve-unknown-fields") => {}
        None => faults.required(format!("{path}.type"), "must not be empty for specified object fields"),
    }
    let has = |name: &str| schema.get(name).is_some_and(|v| !v.is_null() && *v != Value::Bool(false));
    if has("properties") && has("additionalProperties") {
        faults.forbidden(
            format!("{path}.additionalProperties"),
            "additionalProperties and properties are mutual exclusive",
        );
    }
    if schema.get("type").and_then(Value::as_str) == Some("array") && typed && !has("items") {
        faults.required(format!("{path}.items"), "must be specified");
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        node(&format!("{path}.properties[{name}]"), property, typed, faults);
    }
    for name in ["items", "additionalProperties", "not"] {
        if let Some(inner) = schema.get(name).filter(|v| v.is_object()) {
            node(&format!("{path}.{name}"), inner, typed && name != "not", faults);
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, part) in schema.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
            node(&format!("{path}.{name}[{index}]"), part, false, faults);
        }
    }
}

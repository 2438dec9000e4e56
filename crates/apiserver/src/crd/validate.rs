//! Checking an object against the OpenAPI schema of its version.

use std::collections::BTreeSet;

use serde_json::Value;

use super::pattern::Patterns;
use crate::place::Place;
use crate::status::Faults;

/// Checks a whole object; `metadata` is checked elsewhere.
pub(super) fn root(schema: &Value, patterns: &Patterns, tree: &Value, faults: &mut Faults) {
    value(schema, patterns, tree, &Place::Root, faults);
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

fn number(schema: &Value, name: &str) -> Option<f64> {
    schema.get(name).and_then(Value::as_f64)
}

fn value(schema: &Value, patterns: &Patterns, tree: &Value, path: &Place<'_>, faults: &mut Faults) {
    if faults.is_full() {
        return;
    }
    if tree.is_null() && flag(schema, "nullable") {
        return;
    }
    if !has_type(schema, tree) {
        let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("integer or string");
        let found = type_of(tree);
        faults.wrong_type(path, found, format_args!("{path} in body must be of type {wanted}: {found:?}"));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array).filter(|allowed| !allowed.contains(tree)) {
        let words: Vec<String> = allowed.iter().map(shown).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        faults.unsupported(path, &shown(tree), &words);
    }
    match tree {
        Value::String(text) => string(schema, patterns, text, path, faults),
        Value::Number(_) => numeric(schema, tree, path, faults),
        Value::Array(elements) => array(schema, patterns, elements, path, faults),
        Value::Object(members) => object(schema, patterns, members, path, faults),
        Value::Null | Value::Bool(_) => {}
    }
    junctors(schema, patterns, tree, path, faults);
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn type_of(tree: &Value) -> &'static str {
    match tree {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(schema: &Value, tree: &Value) -> bool {
    if flag(schema, "x-kubernetes-int-or-string") {
        return matches!(type_of(tree), "integer" | "string");
    }
    match schema.get("type").and_then(Value::as_str) {
        None | Some("") => true,
        Some("number") => tree.is_number(),
        Some("integer") => tree.as_f64().is_some_and(|n| n.fract() == 0.0),
        Some(wanted) => type_of(tree) == wanted,
    }
}

fn string(schema: &Value, patterns: &Patterns, text: &str, path: &Place<'_>, faults: &mut Faults) {
    let length = text.chars().count() as f64;
    let shown = || format!("{text:?}");
    if let Some(most) = number(schema, "maxLength").filter(|most| length > *most) {
        faults.too_long(path, &format!("may not be more than {most} bytes"));
    }
    if let Some(least) = number(schema, "minLength").filter(|least| length < *least) {
        faults.invalid(path, shown(), format_args!("{path} in body should be at least {least} chars long"));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && !patterns.matches(pattern, text)
    {
        faults.invalid(path, shown(), format_args!("{path} in body should match '{pattern}'"));
    }
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    let fits = match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        _ => true,
    };
    if !fits {
        faults.invalid(path, shown(), format_args!("{path} in body must be of type {format}: {text:?}"));
    }
}

fn numeric(schema: &Value, tree: &Value, path: &Place<'_>, faults: &mut Faults) {
    let Some(found) = tree.as_f64() else { return };
    if let Some(least) = number(schema, "minimum") {
        let exclusive = flag(schema, "exclusiveMinimum");
        if found < least || (exclusive && found == least) {
            let than = if exclusive { "greater than" } else { "greater than or equal to" };
            faults.invalid(path, tree, format_args!("{path} in body should be {than} {least}"));
        }
    }
    if let Some(most) = number(schema, "maximum") {
        let exclusive = flag(schema, "exclusiveMaximum");
        if found > most || (exclusive && found == most) {
            let than = if exclusive { "less than" } else { "less than or equal to" };
            faults.invalid(path, tree, format_args!("{path} in body should be {than} {most}"));
        }
    }
    if let Some(step) = number(schema, "multipleOf").filter(|step| *step > 0.0 && (found / step).fract() != 0.0) {
        faults.invalid(path, tree, format_args!("{path} in body should be a multiple of {step}"));
    }
}

fn array(schema: &Value, patterns: &Patterns, elements: &[Value], path: &Place<'_>, faults: &mut Faults) {
    let length = elements.len() as f64;
    if let Some(most) = number(schema, "maxItems").filter(|most| length > *most) {
        faults.too_many(path, elements.len(), &format!("must have at most {most} items"));
    }
    if let Some(least) = number(schema, "minItems").filter(|least| length < *least) {
        faults.invalid(path, elements.len(), format_args!("{path} in body should have at least {least} items"));
    }
    let key = |element: &Value| match schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array) {
        Some(keys) => keys.iter().map(|k| element.get(k.as_str().unwrap_or_default()).map(Value::to_string)).collect(),
        None => vec![Some(element.to_string())],
    };
    let list_type = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    if matches!(list_type, Some("set" | "map")) || flag(schema, "uniqueItems") {
        let mut seen = BTreeSet::new();
        for (index, element) in elements.iter().enumerate() {
            if !seen.insert(key(element)) {
                faults.duplicate(path.element(index), element);
            }
        }
    }
    if let Some(items) = schema.get("items") {
        for (index, element) in elements.iter().enumerate() {
            value(items, patterns, element, &path.element(index), faults);
        }
    }
}

fn object(
    schema: &Value,
    patterns: &Patterns,
    members: &serde_json::Map<String, Value>,
    path: &Place<'_>,
    faults: &mut Faults,
) {
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            faults.required(path.member(name), "");
        }
    }
    let size = members.len() as f64;
    if let Some(most) = number(schema, "maxProperties").filter(|most| size > *most) {
        faults.too_many(path, members.len(), &format!("must have at most {most} items"));
    }
    if let Some(least) = number(schema, "minProperties").filter(|least| size < *least) {
        faults.invalid(path, members.len(), format_args!("{path} in body should have at least {least} properties"));
    }
    let properties = schema.get("properties");
    let others = schema.get("additionalProperties").filter(|o| o.is_object());
    for (name, member) in members {
        // Checked by the rules of all objects.
        if path.is_root() && name == "metadata" {
            continue;
        }
        if let Some(known) = properties.and_then(|p| p.get(name)).or(others) {
            value(known, patterns, member, &path.member(name), faults);
        }
    }
}

/// `allOf`, `anyOf`, `oneOf` and `not`.
fn junctors(schema: &Value, patterns: &Patterns, tree: &Value, path: &Place<'_>, faults: &mut Faults) {
    let parts = |name: &str| schema.get(name).and_then(Value::as_array).filter(|parts| !parts.is_empty());
    let fits = |part: &Value| {
        let mut inner = Faults::default();
        value(part, patterns, tree, path, &mut inner);
        inner.is_empty()
    };
    for part in parts("allOf").into_iter().flatten() {
        value(part, patterns, tree, path, faults);
    }
    if parts("anyOf").is_some_and(|parts| !parts.iter().any(fits)) {
        faults.invalid(path, tree, format_args!("{path} in body must validate at least one schema (anyOf)"));
    }
    if parts("oneOf").is_some_and(|parts| parts.iter().filter(|part| fits(part)).count() != 1) {
        faults.invalid(path, tree, format_args!("{path} in body must validate one and only one schema (oneOf)"));
    }
    if schema.get("not").is_some_and(fits) {
        faults.invalid(path, tree, format_args!("{path} in body must not validate the schema (not)"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(schema: Value, tree: Value) -> Vec<String> {
        let mut faults = Faults::default();
        let schema = json!({"type": "object", "properties": {"a": schema}});
        root(&schema, &Patterns::of(&schema), &json!({"a": tree}), &mut faults);
        faults.fields()
    }

    #[test]
    fn every_rule_of_a_schema_is_checked_and_names_its_field() {
        for (schema, good, bad, field) in [
            (json!({"type": "string"}), json!("x"), json!(1), "a"),
            (json!({"type": "integer"}), json!(1), json!(1.5), "a"),
            (json!({"type": "number"}), json!(1), json!("1"), "a"),
            (json!({"type": "boolean"}), json!(true), json!("true"), "a"),
            (json!({"type": "string", "nullable": true}), json!(null), json!(1), "a"),
            (json!({"x-kubernetes-int-or-string": true}), json!("1"), json!(true), "a"),
            (json!({"type": "string", "enum": ["x", "y"]}), json!("y"), json!("z"), "a"),
            (json!({"type": "string", "pattern": "^a+$"}), json!("aa"), json!("b"), "a"),
            (json!({"type": "string", "maxLength": 2}), json!("ab"), json!("abc"), "a"),
            (json!({"type": "string", "minLength": 2}), json!("ab"), json!("a"), "a"),
            (json!({"type": "string", "format": "date-time"}), json!("2024-01-01T00:00:00Z"), json!("now"), "a"),
            (json!({"type": "integer", "minimum": 1}), json!(1), json!(0), "a"),
            (json!({"type": "integer", "maximum": 1, "exclusiveMaximum": true}), json!(0), json!(1), "a"),
            (json!({"type": "integer", "multipleOf": 3}), json!(6), json!(7), "a"),
            (json!({"type": "array", "items": {"type": "string"}}), json!(["x"]), json!(["x", 1]), "a[1]"),
            (json!({"type": "array", "maxItems": 1}), json!([1]), json!([1, 2]), "a"),
            (json!({"type": "array", "x-kubernetes-list-type": "set"}), json!([1, 2]), json!([1, 1]), "a[1]"),
            (
                json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
                json!([{"k": 1}, {"k": 2}]),
                json!([{"k": 1, "v": 1}, {"k": 1, "v": 2}]),
                "a[1]",
            ),
            (json!({"type": "object", "required": ["b"]}), json!({"b": 1}), json!({}), "a.b"),
            (json!({"type": "object", "minProperties": 1}), json!({"b": 1}), json!({}), "a"),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                json!({"b": "1"}),
                json!({"b": 1}),
                "a.b",
            ),
            (
                json!({"oneOf": [{"required": ["b"]}, {"required": ["c"]}]}),
                json!({"b": 1}),
                json!({"b": 1, "c": 1}),
                "a",
            ),
            (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), json!(1), json!(true), "a"),
            (json!({"not": {"required": ["b"]}}), json!({}), json!({"b": 1}), "a"),
        ] {
            assert_eq!(faults(schema.clone(), good), [""; 0], "{schema}");
            assert_eq!(faults(schema.clone(), bad), [field], "{schema}");
        }
    }

    #[test]
    fn a_pattern_is_compiled_once_for_all_elements_and_long_names_are_not_written_out_for_each() {
        // Compiling for each element, or copying the name around it, takes minutes.
        let element = json!({"type": "string", "pattern": r"^\pL{1,30}$"});
        let schema = json!({"type": "object", "additionalProperties": {"type": "array", "items": element}});
        let name = "x".repeat(1 << 20);
        let good = json!({&name: vec!["text"; 200_000]});
        assert_eq!(faults(schema.clone(), good), [""; 0]);
        let bad = json!({&name: vec!["1"; 200_000]});
        assert!(!faults(schema, bad).is_empty());
    }
}

//! Pruning and defaulting by a structural schema.

use serde_json::{Map, Value};

/// Members that every object has whatever its schema says.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

/// Drops the members that the schema does not have, and notes their paths.
pub(super) fn prune_root(schema: &Value, tree: &mut Value, dropped: &mut Vec<String>) {
    prune(schema, tree, true, "", dropped);
}

fn prune(schema: &Value, tree: &mut Value, resource: bool, path: &str, dropped: &mut Vec<String>) {
    match tree {
        Value::Object(members) => prune_members(schema, members, resource, path, dropped),
        Value::Array(elements) => {
            let Some(items) = schema.get("items") else { return };
            for (index, element) in elements.iter_mut().enumerate() {
                let resource = flag(items, "x-kubernetes-embedded-resource");
                prune(items, element, resource, &format!("{path}[{index}]"), dropped);
            }
        }
        _ => {}
    }
}

fn prune_members(
    schema: &Value,
    members: &mut Map<String, Value>,
    resource: bool,
    path: &str,
    dropped: &mut Vec<String>,
) {
    let keeps_unknown = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let others = schema.get("additionalProperties");
    members.retain(|name, value| {
        if resource && ENVELOPE.contains(&name.as_str()) {
            return true;
        }
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let known = schema.get("properties").and_then(|p| p.get(name)).or_else(|| others.filter(|o| o.is_object()));
        match known {
            Some(known) => {
                prune(known, value, flag(known, "x-kubernetes-embedded-resource"), &path, dropped);
                true
            }
            None if keeps_unknown || others == Some(&Value::Bool(true)) => true,
            None => {
                dropped.push(path);
                false
            }
        }
    });
}

/// Fills in what the schema has a default for; a null where none may be counts as absent.
pub(super) fn default_root(schema: &Value, tree: &mut Value) {
    match tree {
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                if let Some(value) = property.get("default") {
                    let slot = members.get(name);
                    if slot.is_none() || (slot == Some(&Value::Null) && !flag(property, "nullable")) {
                        members.insert(name.clone(), value.clone());
                    }
                }
                if let Some(value) = members.get_mut(name) {
                    default_root(property, value);
                }
            }
            if let Some(others) = schema.get("additionalProperties").filter(|o| o.is_object()) {
                for (_, value) in members.iter_mut().filter(|(n, _)| properties.is_none_or(|p| !p.contains_key(*n))) {
                    default_root(others, value);
                }
            }
        }
        Value::Array(elements) => {
            if let Some(items) = schema.get("items") {
                elements.iter_mut().for_each(|element| default_root(items, element));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
            "size": {"type": "integer", "default": 3},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"a": {"type": "object", "properties": {}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string", "default": "d"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}})
    }

    #[test]
    fn unknown_members_are_dropped_and_named() {
        let mut tree = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "other": 1, "spec": {
            "size": 1, "x": 1, "free": {"any": {"thing": 1}, "a": {"b": 1}}, "list": [{"a": "1", "b": 2}], "map": {"k": "v"}}});
        let mut dropped = Vec::new();
        prune_root(&schema(), &mut tree, &mut dropped);
        assert_eq!(
            tree,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {
                "size": 1, "free": {"any": {"thing": 1}, "a": {}}, "list": [{"a": "1"}], "map": {"k": "v"}}})
        );
        dropped.sort();
        assert_eq!(dropped, ["other", "spec.free.a.b", "spec.list[0].b", "spec.x"]);
    }

    #[test]
    fn defaults_are_filled_in_from_the_outside_in() {
        let mut tree = json!({});
        default_root(&schema(), &mut tree);
        assert_eq!(tree, json!({"spec": {"size": 3}}));
        let mut tree = json!({"spec": {"size": null, "list": [{}]}});
        default_root(&schema(), &mut tree);
        assert_eq!(tree, json!({"spec": {"size": 3, "list": [{"a": "d"}]}}));
    }
}

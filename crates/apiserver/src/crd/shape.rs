//! Pruning and defaulting by a structural schema.

use serde_json::{Map, Value};

use crate::bounds::{MAX_DEPTH, MAX_OBJECT, encoded_length, too_deep, too_large};
use crate::place::{Noted, Place};
use crate::status::Status;

/// Members that every object has whatever its schema says.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

/// Drops the members that the schema does not have, and notes their paths.
pub(super) fn prune_root(schema: &Value, tree: &mut Value, dropped: &mut Noted) {
    prune(schema, tree, true, &Place::Root, dropped);
}

fn prune(schema: &Value, tree: &mut Value, resource: bool, place: &Place<'_>, dropped: &mut Noted) {
    match tree {
        Value::Object(members) => prune_members(schema, members, resource, place, dropped),
        Value::Array(elements) => {
            let Some(items) = schema.get("items") else { return };
            for (index, element) in elements.iter_mut().enumerate() {
                let resource = flag(items, "x-kubernetes-embedded-resource");
                prune(items, element, resource, &place.element(index), dropped);
            }
        }
        _ => {}
    }
}

fn prune_members(
    schema: &Value,
    members: &mut Map<String, Value>,
    resource: bool,
    place: &Place<'_>,
    dropped: &mut Noted,
) {
    let keeps_unknown = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let others = schema.get("additionalProperties");
    members.retain(|name, value| {
        if resource && ENVELOPE.contains(&name.as_str()) {
            return true;
        }
        let place = place.member(name);
        let known = schema.get("properties").and_then(|p| p.get(name)).or_else(|| others.filter(|o| o.is_object()));
        match known {
            Some(known) => {
                prune(known, value, flag(known, "x-kubernetes-embedded-resource"), &place, dropped);
                true
            }
            None if keeps_unknown || others == Some(&Value::Bool(true)) => true,
            None => {
                dropped.note(&place);
                false
            }
        }
    });
}

/// Fills in what the schema has a default for; a null where none may be counts as absent, and is dropped where there is no
/// default: Go programs write one for many an empty field. Elements of lists are not dropped. Few bytes of empty elements can
/// ask for many of defaults: more than an object may have of both is refused.
pub(super) fn default_root(schema: &Value, tree: &mut Value) -> Result<(), Status> {
    let mut room = MAX_OBJECT;
    defaults(schema, tree, MAX_DEPTH, &mut room)
}

fn defaults(schema: &Value, tree: &mut Value, levels: usize, room: &mut usize) -> Result<(), Status> {
    // Defaults inside of defaults nest no deeper than the schema, which is an object itself; but they are put at any depth.
    let Some(levels) = levels.checked_sub(1) else {
        return if tree.is_object() || tree.is_array() { Err(too_deep()) } else { Ok(()) };
    };
    match tree {
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let others = schema.get("additionalProperties").filter(|o| o.is_object());
            members.retain(|name, value| {
                let known = properties.and_then(|p| p.get(name)).or(others);
                !value.is_null() || known.is_none_or(|known| flag(known, "nullable") || has_default(known))
            });
            for (name, property) in properties.into_iter().flatten() {
                if let Some(value) = property.get("default") {
                    let slot = members.get(name);
                    if slot.is_none() || (slot == Some(&Value::Null) && !flag(property, "nullable")) {
                        // Name, value, quotes, colon and comma.
                        let size = name.len() + encoded_length(value) + 4;
                        *room = room.checked_sub(size).ok_or_else(too_large)?;
                        members.insert(name.clone(), value.clone());
                    }
                }
                if let Some(value) = members.get_mut(name) {
                    defaults(property, value, levels, room)?;
                }
            }
            if let Some(others) = others {
                for (_, value) in members.iter_mut().filter(|(n, _)| properties.is_none_or(|p| !p.contains_key(*n))) {
                    replace_null(others, value, room)?;
                    defaults(others, value, levels, room)?;
                }
            }
        }
        Value::Array(elements) => {
            if let Some(items) = schema.get("items") {
                for element in elements {
                    replace_null(items, element, room)?;
                    defaults(items, element, levels, room)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn has_default(schema: &Value) -> bool {
    schema.get("default").is_some_and(|value| !value.is_null())
}

fn replace_null(schema: &Value, value: &mut Value, room: &mut usize) -> Result<(), Status> {
    if let Some(default) = schema.get("default").filter(|_| value.is_null() && !flag(schema, "nullable")) {
        *room = room.checked_sub(encoded_length(default)).ok_or_else(too_large)?;
        value.clone_from(default);
    }
    Ok(())
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
        let mut dropped = Noted::default();
        prune_root(&schema(), &mut tree, &mut dropped);
        assert_eq!(
            tree,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {
                "size": 1, "free": {"any": {"thing": 1}, "a": {}}, "list": [{"a": "1"}], "map": {"k": "v"}}})
        );
        dropped.places.sort();
        assert_eq!(dropped.places, ["other", "spec.free.a.b", "spec.list[0].b", "spec.x"]);
    }

    #[test]
    fn defaults_are_filled_in_from_the_outside_in() {
        let mut tree = json!({});
        default_root(&schema(), &mut tree).unwrap();
        assert_eq!(tree, json!({"spec": {"size": 3}}));
        let mut tree = json!({"spec": {"size": null, "list": [{}]}});
        default_root(&schema(), &mut tree).unwrap();
        assert_eq!(tree, json!({"spec": {"size": 3, "list": [{"a": "d"}]}}));
    }

    #[test]
    fn nulls_that_may_not_be_are_dropped_or_replaced_but_those_of_lists_and_of_unknown_members_stay() {
        let text = |more: Value| {
            let mut schema = json!({"type": "string"});
            schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            schema
        };
        let members = json!({
            "plain": text(json!({})),
            "nullable": text(json!({"nullable": true, "default": "d"})),
            "defaulted": text(json!({"default": "d"})),
            "map": {"additionalProperties": text(json!({}))},
            "defaulted_map": {"additionalProperties": text(json!({"default": "d"}))},
            "list": {"items": {"type": "object", "properties": {"plain": text(json!({}))}}},
            "defaulted_list": {"items": text(json!({"default": "d"}))},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        });
        let schema = json!({"properties": {"spec": {"type": "object", "properties": members}}});
        let mut tree = json!({"spec": {
            "plain": null, "nullable": null, "defaulted": null, "map": {"a": null, "b": "b"}, "defaulted_map": {"a": null},
            "list": [null, {"plain": null}], "defaulted_list": [null], "free": {"a": null},
        }});
        default_root(&schema, &mut tree).unwrap();
        let expected = json!({"spec": {
            "nullable": null, "defaulted": "d", "map": {"b": "b"}, "defaulted_map": {"a": "d"},
            "list": [null, {}], "defaulted_list": ["d"], "free": {"a": null},
        }});
        assert_eq!(tree, expected);
    }

    #[test]
    fn defaults_of_many_elements_do_not_grow_an_object_beyond_what_may_be_kept() {
        let text = json!({"type": "string", "default": "x".repeat(1000)});
        let schema = json!({"properties": {"l": {"items": {"properties": {"a": text}}}}});
        let mut tree = json!({"l": vec![json!({}); 200_000]});
        assert_eq!(default_root(&schema, &mut tree).unwrap_err().code, 413);
        let mut tree = json!({"l": vec![json!({}); 2000]});
        default_root(&schema, &mut tree).unwrap();
        assert_eq!(tree["l"][1999]["a"].as_str().unwrap().len(), 1000);
    }
}

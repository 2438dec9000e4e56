//! Strategic merge patch: merging by the list keys of the built-in kinds, and its `$` directives.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::status::Status;

const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVE: &str = "$deleteFromPrimitiveList/";

/// How a list of this name is merged in the kinds served here: by which key of its elements. All others are replaced.
fn merge_key(list: &str, elements: &[Value]) -> Option<&'static str> {
    Some(match list {
        // Containers and Services have lists of this name; only those of containers name the container's port.
        "ports" if elements.iter().any(|e| e.get("containerPort").is_none() && e.get("port").is_some()) => "port",
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets"
        | "drivers"
        | "resourceClaims"
        | "schedulingGates" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ports" => "containerPort",
        "conditions" | "addresses" => "type",
        "ownerReferences" => "uid",
        "hostAliases" | "podIPs" | "hostIPs" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        _ => return None,
    })
}

/// Lists of plain values that are merged as sets.
fn is_merged_set(list: &str) -> bool {
    matches!(list, "finalizers" | "podCIDRs")
}

/// Applies `patch` to `tree`.
pub(super) fn merge(tree: &mut Value, patch: &Value) -> Result<(), Status> {
    let Some(patch) = patch.as_object() else {
        return Err(Status::bad_request("a strategic merge patch is a JSON object"));
    };
    if !tree.is_object() {
        *tree = Value::Object(Map::new());
    }
    let Some(members) = tree.as_object_mut() else { return Ok(()) };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *members = patch.iter().filter(|(k, _)| *k != "$patch").map(|(k, v)| (k.clone(), v.clone())).collect();
            return Ok(());
        }
        Some("delete") => {
            members.clear();
            return Ok(());
        }
        None | Some("merge") => {}
        Some(other) => return Err(Status::bad_request(format!("unknown patch directive $patch: {other:?}"))),
    }
    if let Some(keys) = patch.get("$retainKeys").and_then(Value::as_array) {
        let keys: BTreeSet<&str> = keys.iter().filter_map(Value::as_str).collect();
        members.retain(|name, _| keys.contains(name.as_str()));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_PRIMITIVE) {
            let gone = set_of(elements(name, value)?);
            if let Some(present) = members.get_mut(list).and_then(Value::as_array_mut) {
                present.retain(|element| !gone.contains(&element.to_string()));
            }
        } else if !name.starts_with('$') {
            merge_member(members, name, value)?;
        }
    }
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(ORDER) {
            reorder(members, list, elements(name, order)?);
        }
    }
    Ok(())
}

fn merge_member(members: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), Status> {
    match value {
        Value::Null => {
            members.remove(name);
        }
        Value::Object(_) => merge(members.entry(name).or_insert(Value::Null), value)?,
        Value::Array(patch) if merge_key(name, patch).is_some() || is_merged_set(name) => {
            let slot = members.entry(name).or_insert(Value::Null);
            if !slot.is_array() {
                *slot = Value::Array(Vec::new());
            }
            let present = slot.as_array_mut().expect("made an array above");
            match merge_key(name, patch) {
                Some(key) => merge_list(present, name, key, patch)?,
                None => {
                    let there = set_of(present);
                    present.extend(patch.iter().filter(|v| !there.contains(&v.to_string())).cloned());
                }
            }
        }
        other => {
            members.insert(name.to_owned(), other.clone());
        }
    }
    Ok(())
}

fn merge_list(present: &mut Vec<Value>, list: &str, key: &str, patch: &[Value]) -> Result<(), Status> {
    let replaces = |element: &&Value| element.get("$patch").and_then(Value::as_str) == Some("replace");
    if patch.iter().any(|e| replaces(&e)) {
        *present = patch.iter().filter(|e| !replaces(e)).cloned().collect();
        return Ok(());
    }
    // By the text of the key, so that each element is found without looking at all others.
    let identity = |element: &Value| element.get(key).map(Value::to_string);
    let mut slots: Vec<Option<Value>> = present.drain(..).map(Some).collect();
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, slot) in slots.iter().enumerate() {
        if let Some(identity) = slot.as_ref().and_then(identity) {
            places.entry(identity).or_default().push(index);
        }
    }
    for element in patch {
        let Some(identity) = identity(element) else {
            return Err(Status::bad_request(format!(
                "an element of {list} in the patch does not have its merge key {key}"
            )));
        };
        if element.get("$patch").and_then(Value::as_str) == Some("delete") {
            for index in places.remove(&identity).into_iter().flatten() {
                slots[index] = None;
            }
            continue;
        }
        let same = places.entry(identity).or_default();
        match same.first().and_then(|index| slots[*index].as_mut()) {
            Some(there) => merge(there, element)?,
            None => {
                let mut added = Value::Null;
                merge(&mut added, element)?;
                same.push(slots.len());
                slots.push(Some(added));
            }
        }
    }
    present.extend(slots.into_iter().flatten());
    Ok(())
}

/// Puts the named elements in the asked order; others keep their place behind the ones they followed.
fn reorder(members: &mut Map<String, Value>, list: &str, order: &[Value]) {
    let Some(present) = members.get_mut(list).and_then(Value::as_array_mut) else { return };
    let key = merge_key(list, order);
    let identity = |element: &Value| match key {
        Some(key) => element.get(key).map(Value::to_string),
        None => Some(element.to_string()),
    };
    let mut ranks: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for (index, wanted) in order.iter().enumerate() {
        ranks.entry(identity(wanted)).or_insert(index);
    }
    let mut last = None;
    let mut ranked: Vec<(Option<usize>, usize, Value)> = Vec::with_capacity(present.len());
    for (index, element) in present.drain(..).enumerate() {
        last = ranks.get(&identity(&element)).copied().or(last);
        ranked.push((last, index, element));
    }
    ranked.sort_by_key(|(rank, index, _)| (*rank, *index));
    present.extend(ranked.into_iter().map(|(_, _, element)| element));
}

fn set_of(values: &[Value]) -> BTreeSet<String> {
    values.iter().map(Value::to_string).collect()
}

fn elements<'a>(name: &str, value: &'a Value) -> Result<&'a [Value], Status> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| Status::bad_request(format!("{name} in the patch is not a list")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut tree: Value, patch: Value) -> Value {
        merge(&mut tree, &patch).unwrap();
        tree
    }

    #[test]
    fn finalizers_are_merged_as_a_set_and_removed_by_directive() {
        let tree = json!({"metadata": {"finalizers": ["a", "b"]}});
        assert_eq!(
            merged(tree.clone(), json!({"metadata": {"finalizers": ["b", "c"]}})),
            json!({"metadata": {"finalizers": ["a", "b", "c"]}})
        );
        assert_eq!(
            merged(tree, json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})),
            json!({"metadata": {"finalizers": ["b"]}})
        );
    }

    #[test]
    fn elements_are_merged_by_their_key_deleted_and_ordered() {
        let tree = json!({"containers": [{"name": "a", "image": "1", "x": 1}, {"name": "b"}]});
        let patch = json!({
            "containers": [{"name": "c"}, {"name": "a", "image": "2"}, {"name": "b", "$patch": "delete"}],
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        });
        assert_eq!(merged(tree, patch), json!({"containers": [{"name": "c"}, {"name": "a", "image": "2", "x": 1}]}));
    }

    #[test]
    fn the_ports_of_containers_and_of_services_have_keys_of_their_own() {
        let service = json!({"ports": [{"port": 80, "targetPort": 1}, {"port": 443}]});
        let patch = json!({"ports": [{"port": 80, "targetPort": 2}]});
        assert_eq!(merged(service, patch), json!({"ports": [{"port": 80, "targetPort": 2}, {"port": 443}]}));
        let container = json!({"ports": [{"containerPort": 80}]});
        let patch = json!({"ports": [{"containerPort": 80, "name": "http"}]});
        assert_eq!(merged(container, patch), json!({"ports": [{"containerPort": 80, "name": "http"}]}));
    }

    #[test]
    fn other_lists_are_replaced_and_null_removes() {
        let tree = json!({"accessModes": ["a"], "b": 1, "c": {"d": 1, "e": 2}});
        let patch = json!({"accessModes": ["x"], "b": null, "c": {"e": null}});
        assert_eq!(merged(tree, patch), json!({"accessModes": ["x"], "c": {"d": 1}}));
    }

    #[test]
    fn the_first_of_two_elements_with_one_key_is_merged_and_both_are_deleted() {
        let tree = json!({"env": [{"name": "a"}, {"name": "b"}, {"name": "a"}, {"value": 1}]});
        assert_eq!(
            merged(tree.clone(), json!({"env": [{"name": "a", "value": "1"}]})),
            json!({"env": [{"name": "a", "value": "1"}, {"name": "b"}, {"name": "a"}, {"value": 1}]})
        );
        let patch = json!({"env": [{"name": "a", "$patch": "delete"}, {"name": "a", "value": "2"}]});
        assert_eq!(merged(tree, patch), json!({"env": [{"name": "b"}, {"value": 1}, {"name": "a", "value": "2"}]}));
    }

    #[test]
    fn forty_thousand_elements_are_merged_ordered_and_deleted_one_look_each() {
        // Comparing each with all others takes minutes.
        let names = |mark: Value| -> Vec<Value> {
            (0..40_000).map(|n| json!({"name": format!("container-number-{n}"), "$patch": mark})).collect()
        };
        let plain: Vec<Value> = names(json!("merge"));
        let texts: Vec<Value> = (0..40_000).map(|n| json!(format!("example.com/finalizer-number-{n}"))).collect();
        let patch = json!({"containers": plain, "$setElementOrder/containers": plain, "finalizers": texts});
        let tree = merged(merged(json!({}), patch.clone()), patch);
        assert_eq!(tree["containers"].as_array().unwrap().len(), 40_000);
        assert_eq!(tree["finalizers"].as_array().unwrap().len(), 40_000);
        let patch = json!({"containers": names(json!("delete")), "$deleteFromPrimitiveList/finalizers": texts});
        assert_eq!(merged(tree, patch), json!({"containers": [], "finalizers": []}));
    }

    #[test]
    fn retain_keys_drops_the_other_member_of_a_union() {
        let tree = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        let patch =
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}, "$retainKeys": ["name", "hostPath"]}]});
        assert_eq!(merged(tree, patch), json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}));
    }
}

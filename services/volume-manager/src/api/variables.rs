//! A path inside a volume with variables of its container (`subPathExpr`), as the kubelet reads it.

use std::collections::{BTreeMap, BTreeSet};

use stowage_model::node_view::{EnvVar, NodeContainer, NodePod};
use stowage_plugins::field_value;

/// The path; the sentence names the variables that have no value here.
pub fn expand(expression: &str, container: &NodeContainer, pod: &NodePod) -> Result<String, String> {
    let (values, unreadable) = values(container, pod);
    let mut missing = BTreeSet::new();
    let path = replace(expression, |name| match values.get(name).filter(|value| !value.is_empty()) {
        Some(value) => value.clone(),
        None => {
            missing.insert(match unreadable.get(name) {
                Some(why) => format!("{name} ({why})"),
                None => name.to_owned(),
            });
            String::new()
        }
    });
    match missing.is_empty() {
        true => Ok(path),
        false => {
            let missing: Vec<String> = missing.into_iter().collect();
            Err(format!("subPathExpr {expression:?}: missing value for {}", missing.join(", ")))
        }
    }
}

/// The values of a container's variables, and why others have none.
fn values<'a>(container: &'a NodeContainer, pod: &NodePod) -> (BTreeMap<&'a str, String>, BTreeMap<&'a str, String>) {
    let (mut values, mut unreadable) = (BTreeMap::<&str, String>::new(), BTreeMap::new());
    for variable in &container.env {
        match value(variable, pod) {
            // In a value, what no earlier variable has stays as it is written.
            Ok(Value::Written(text)) => {
                let value = replace(text, |name| values.get(name).cloned().unwrap_or_else(|| format!("$({name})")));
                values.insert(&variable.name, value);
            }
            Ok(Value::Read(value)) => drop(values.insert(&variable.name, value)),
            Err(why) => drop(unreadable.insert(variable.name.as_str(), why)),
        }
    }
    (values, unreadable)
}

enum Value<'a> {
    Written(&'a str),
    Read(String),
}

fn value<'a>(variable: &'a EnvVar, pod: &NodePod) -> Result<Value<'a>, String> {
    match &variable.value_from {
        None => Ok(Value::Written(&variable.value)),
        Some(source) => match &source.field_ref {
            Some(field) => field_value(&field.field_path, pod).map(Value::Read),
            None => Err("only values and fieldRef are read here".to_owned()),
        },
    }
}

/// Puts values in the place of `$(NAME)`; `$$` stands for one `$`, and what is neither stays as it is.
fn replace(text: &str, mut value: impl FnMut(&str) -> String) -> String {
    let (mut result, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        rest = match reference {
            Some((name, after)) => {
                result.push_str(&value(name));
                after
            }
            None => {
                result.push('$');
                after.strip_prefix('$').unwrap_or(after)
            }
        };
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> NodePod {
        let pod = json!({
            "metadata": { "name": "web-0", "namespace": "default" },
            "spec": { "containers": [{
                "name": "c",
                "env": [
                    { "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    { "name": "DIR", "value": "logs/$(NAME)/$(LATER)" },
                    { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                    { "name": "EMPTY", "value": "" },
                ],
                "volumeMounts": [{ "name": "data", "mountPath": "/d", "subPathExpr": "$(NAME)" }],
            }] },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn expanded(expression: &str) -> Result<String, String> {
        let pod = pod();
        expand(expression, &pod.containers[0], &pod)
    }

    #[test]
    fn variables_are_replaced_as_the_kubelet_replaces_them() {
        for (expression, path) in [
            ("$(NAME)", "web-0"),
            ("a/$(NAME)/$(NAME)b", "a/web-0/web-0b"),
            ("$(DIR)", "logs/web-0/$(LATER)"),
            ("$$(NAME)", "$(NAME)"),
            ("$NAME", "$NAME"),
            ("a$", "a$"),
            ("$(NAME", "$(NAME"),
            ("plain", "plain"),
        ] {
            assert_eq!(expanded(expression).as_deref(), Ok(path), "{expression}");
        }
    }

    #[test]
    fn a_variable_without_a_value_is_named() {
        for (expression, says) in [
            ("$(NOBODY)/$(EMPTY)", "missing value for EMPTY, NOBODY"),
            ("$(KEY)", "KEY (only values and fieldRef are read here)"),
        ] {
            let error = expanded(expression).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn variables_that_no_path_asks_for_are_not_kept() {
        let pod = json!({ "spec": { "containers": [{ "name": "c", "env": [{ "name": "A", "value": "b" }] }] } });
        let pod: NodePod = serde_json::from_value(pod).unwrap();
        assert!(pod.containers[0].env.is_empty());
    }
}

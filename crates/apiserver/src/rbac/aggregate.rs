//! Aggregated cluster roles: their rules are those of the cluster roles that their selectors choose.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Rule;
use crate::object::text;

/// The rules `role` must have, given all cluster roles by name; nothing if it aggregates none or has them already.
pub(crate) fn aggregated(role: &Value, all: &[Value]) -> Option<Vec<Value>> {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors")?.as_array()?;
    let name = text(role, "/metadata/name");
    let mut seen = BTreeSet::new();
    let mut rules = Vec::new();
    let chosen = |other: &&Value| {
        text(other, "/metadata/name") != name && selectors.iter().any(|selector| selects(selector, other))
    };
    for rule in all.iter().filter(chosen).flat_map(Rule::all_of) {
        if seen.insert(rule.clone()) {
            rules.push(rule.to_json());
        }
    }
    let current = role.get("rules").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    (current != rules).then_some(rules)
}

fn selects(selector: &Value, role: &Value) -> bool {
    let label = |name: &str| role.pointer("/metadata/labels").and_then(|labels| labels.get(name)?.as_str());
    let equal = selector.get("matchLabels").and_then(Value::as_object);
    let equal = equal.into_iter().flatten().all(|(name, value)| label(name) == value.as_str());
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    equal
        && expressions.into_iter().flatten().all(|expression| {
            let found = label(text(expression, "/key"));
            let values = expression.get("values").and_then(Value::as_array);
            let among = values.into_iter().flatten().any(|value| value.as_str() == found && found.is_some());
            match text(expression, "/operator") {
                "In" => among,
                "NotIn" => !among,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_of_selected_roles_are_joined_once_each() {
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let part = |name: &str| json!({"metadata": {"name": name, "labels": {"to": "view"}}, "rules": [rule]});
        let role = json!({"metadata": {"name": "view", "labels": {"to": "view"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]}});
        let all = [part("a"), part("b"), role.clone(), json!({"metadata": {"name": "c"}, "rules": [{"verbs": ["*"]}]})];
        assert_eq!(aggregated(&role, &all), Some(vec![rule.clone()]));
        let mut done = role;
        done["rules"] = json!([rule]);
        assert_eq!(aggregated(&done, &all), None);
    }
}

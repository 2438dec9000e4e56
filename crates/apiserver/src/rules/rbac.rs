//! Rules of roles and bindings.

use serde_json::Value;

use crate::kind::Kind;
use crate::object::{default, filled, member_mut, text};
use crate::status::Faults;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The role of a binding and its users and groups are of the RBAC group unless they say otherwise.
pub(super) fn default_binding(tree: &mut Value) {
    default(member_mut(tree, "roleRef"), "apiGroup", GROUP);
    let subjects = tree.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten();
    for subject in subjects.filter_map(Value::as_object_mut) {
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            default(subject, "apiGroup", GROUP);
        }
    }
}

/// Every rule has verbs, and is about resources or, cluster-wide only, about paths.
pub(super) fn validate_role(kind: &Kind, tree: &Value, faults: &mut Faults) {
    for (index, rule) in tree.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let field = |name: &str| format!("rules[{index}].{name}");
        if filled(rule, "/verbs").is_none() {
            faults.required(field("verbs"), "verbs must contain at least one value");
        }
        if filled(rule, "/nonResourceURLs").is_some() {
            if kind.namespaced {
                faults.invalid(
                    field("nonResourceURLs"),
                    &rule["nonResourceURLs"],
                    "namespaced rules cannot apply to non-resource URLs",
                );
            }
            let about_resources = ["/apiGroups", "/resources", "/resourceNames"];
            if about_resources.iter().any(|pointer| filled(rule, pointer).is_some()) {
                faults.invalid(
                    field("nonResourceURLs"),
                    &rule["nonResourceURLs"],
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if filled(rule, "/apiGroups").is_none() {
            faults.required(field("apiGroups"), "resource rules must supply at least one api group");
        }
        if filled(rule, "/resources").is_none() {
            faults.required(field("resources"), "resource rules must supply at least one resource");
        }
    }
}

/// A binding names one role and well-formed subjects.
pub(super) fn validate_binding(kind: &Kind, tree: &Value, faults: &mut Faults) {
    if text(tree, "/roleRef/apiGroup") != GROUP {
        faults.unsupported("roleRef.apiGroup", text(tree, "/roleRef/apiGroup"), &[GROUP]);
    }
    let kinds: &[&str] = if kind.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&text(tree, "/roleRef/kind")) {
        faults.unsupported("roleRef.kind", text(tree, "/roleRef/kind"), kinds);
    }
    if text(tree, "/roleRef/name").is_empty() {
        faults.required("roleRef.name", "");
    }
    for (index, subject) in tree.get("subjects").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let field = |name: &str| format!("subjects[{index}].{name}");
        if text(subject, "/name").is_empty() {
            faults.required(field("name"), "");
        }
        match text(subject, "/kind") {
            "ServiceAccount" => {
                if !text(subject, "/apiGroup").is_empty() {
                    faults.unsupported(field("apiGroup"), text(subject, "/apiGroup"), &[""]);
                }
                if !kind.namespaced && text(subject, "/namespace").is_empty() {
                    faults.required(field("namespace"), "");
                }
            }
            "User" | "Group" => {
                if text(subject, "/apiGroup") != GROUP {
                    faults.unsupported(field("apiGroup"), text(subject, "/apiGroup"), &[GROUP]);
                }
            }
            other => faults.unsupported(field("kind"), other, &["ServiceAccount", "User", "Group"]),
        }
    }
}

/// What a binding grants is decided once, when it is made.
pub(super) fn validate_binding_update(new: &Value, old: &Value, faults: &mut Faults) {
    if new.get("roleRef") != old.get("roleRef") {
        faults.invalid("roleRef", new.get("roleRef").unwrap_or(&Value::Null), "cannot change roleRef");
    }
}

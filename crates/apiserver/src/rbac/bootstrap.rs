//! The roles and bindings that are there from the beginning when roles decide.

use serde_json::{Value, json};

use super::GROUP;

/// Kinds that a namespace's admin, editor and viewer deal with.
const CORE: [&str; 5] = ["configmaps", "persistentvolumeclaims", "pods", "serviceaccounts", "events"];
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// Kind and body of each, roles before the bindings that name them.
pub(crate) fn objects() -> Vec<(&'static str, Value)> {
    let discovery = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/"];
    let health = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let viewed = join(&CORE, &["namespaces", "persistentvolumeclaims/status", "pods/status"]);
    let mut all = vec![
        role(
            "cluster-admin",
            &json!([
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
        ),
        role("system:discovery", &json!([{"nonResourceURLs": join(&discovery, &health[..3]), "verbs": ["get"]}])),
        role("system:public-info-viewer", &json!([{"nonResourceURLs": health, "verbs": ["get"]}])),
        role(
            "system:basic-user",
            &json!([
                {
                    "apiGroups": ["authorization.k8s.io"],
                    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    "verbs": ["create"],
                },
                {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
            ]),
        ),
        role(
            "system:auth-delegator",
            &json!([
                {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
                {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            ]),
        ),
        part("view", &json!([{"apiGroups": [""], "resources": viewed, "verbs": READ}])),
        part(
            "edit",
            &json!([
                {"apiGroups": [""], "resources": ["secrets"], "verbs": READ},
                {"apiGroups": [""], "resources": join(&CORE, &["secrets"]), "verbs": WRITE},
                {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": join(&READ, &WRITE)},
            ]),
        ),
        part(
            "admin",
            &json!([
                {"apiGroups": ["authorization.k8s.io"], "resources": ["localsubjectaccessreviews"], "verbs": ["create"]},
                {"apiGroups": [GROUP], "resources": ["roles", "rolebindings"], "verbs": join(&READ, &WRITE)},
            ]),
        ),
        aggregate("view", None),
        aggregate("edit", Some("admin")),
        aggregate("admin", None),
    ];
    // An editor may also look, as upstream: the role `view` feeds `edit`, and that feeds `admin`.
    for (_, body) in &mut all {
        if body["metadata"]["name"] == "view" {
            body["metadata"]["labels"][aggregate_label("edit")] = "true".into();
        }
    }
    let bindings = [
        ("cluster-admin", "system:masters"),
        ("system:discovery", "system:authenticated"),
        ("system:basic-user", "system:authenticated"),
        ("system:public-info-viewer", "system:authenticated"),
    ];
    all.extend(bindings.map(|(role, group)| {
        let body = json!({
            "metadata": metadata(role),
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group}],
        });
        ("ClusterRoleBinding", body)
    }));
    all
}

fn join(first: &[&'static str], second: &[&'static str]) -> Vec<&'static str> {
    [first, second].concat()
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}})
}

fn aggregate_label(to: &str) -> String {
    format!("{GROUP}/aggregate-to-{to}")
}

fn role(name: &str, rules: &Value) -> (&'static str, Value) {
    ("ClusterRole", json!({"metadata": metadata(name), "rules": rules}))
}

/// A role whose rules go into the role `to`.
fn part(to: &str, rules: &Value) -> (&'static str, Value) {
    let (kind, mut body) = role(&format!("system:aggregate-to-{to}"), rules);
    body["metadata"]["labels"][aggregate_label(to)] = "true".into();
    (kind, body)
}

/// A role made of parts, itself a part of `into`.
fn aggregate(name: &str, into: Option<&str>) -> (&'static str, Value) {
    let (kind, mut body) = role(name, &json!([]));
    if let Some(into) = into {
        body["metadata"]["labels"][aggregate_label(into)] = "true".into();
    }
    body["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {aggregate_label(name): "true"}}]});
    (kind, body)
}

//! Role-based access: who may do what, decided from the roles and bindings in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::auth::User;
use crate::kind::Kind;
use crate::object::text;
use crate::status::Status;
use crate::store::{Query, Store};

mod aggregate;
pub(crate) mod bootstrap;
mod escalation;
mod rule;

pub(crate) use aggregate::aggregated;
pub(crate) use escalation::check as check_escalation;
pub(crate) use rule::{Request, Rule};

/// Group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// One binding, ready to be asked.
#[derive(Debug)]
struct Grant {
    subjects: Vec<Subject>,
    rules: Arc<[Rule]>,
    /// For people: which binding of which role this is.
    why: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
}

/// All roles and bindings of one moment.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    cluster: Vec<Grant>,
    /// By namespace.
    namespaced: BTreeMap<String, Vec<Grant>>,
}

impl Policy {
    /// What the published objects say.
    pub fn read(store: &Store) -> Self {
        let all = |kind: &str| -> Vec<Value> {
            let page = store.list(Kind::named(kind), &Query::default());
            page.map(|page| page.items.iter().map(|item| item.tree()).collect()).unwrap_or_default()
        };
        Self::compile(&all("ClusterRole"), &all("Role"), &all("ClusterRoleBinding"), &all("RoleBinding"))
    }

    fn compile(cluster_roles: &[Value], roles: &[Value], cluster_bindings: &[Value], bindings: &[Value]) -> Self {
        let rules_of = |role: &Value| {
            let key = (text(role, "/metadata/namespace").to_owned(), text(role, "/metadata/name").to_owned());
            (key, Arc::<[Rule]>::from(Rule::all_of(role)))
        };
        let known: BTreeMap<(String, String), Arc<[Rule]>> = cluster_roles.iter().chain(roles).map(rules_of).collect();
        let grant = |binding: &Value| {
            let namespace = text(binding, "/metadata/namespace");
            let of = if text(binding, "/roleRef/kind") == "Role" { namespace } else { "" };
            let role = text(binding, "/roleRef/name");
            let rules = known.get(&(of.to_owned(), role.to_owned()))?.clone();
            let why = format!(
                "allowed by {} {:?} of {} {role:?}",
                text(binding, "/kind"),
                [namespace, text(binding, "/metadata/name")].join("/").trim_start_matches('/'),
                text(binding, "/roleRef/kind"),
            );
            Some(Grant { subjects: subjects(binding, namespace), rules, why })
        };
        let mut policy =
            Self { cluster: cluster_bindings.iter().filter_map(grant).collect(), namespaced: BTreeMap::new() };
        for binding in bindings {
            if let Some(grant) = grant(binding) {
                let namespace = text(binding, "/metadata/namespace").to_owned();
                policy.namespaced.entry(namespace).or_default().push(grant);
            }
        }
        policy
    }

    fn grants(&self, user: &User, namespace: &str) -> Vec<&Grant> {
        let inside = self.namespaced.get(namespace).into_iter().flatten();
        self.cluster.iter().chain(inside).filter(|grant| grant.subjects.iter().any(|s| s.is(user))).collect()
    }

    /// Why `user` may do this; nothing if it may not.
    pub fn allows(&self, user: &User, request: &Request<'_>) -> Option<&str> {
        if user.is_master() {
            return Some("");
        }
        self.grants(user, request.namespace())
            .into_iter()
            .find(|grant| grant.rules.iter().any(|rule| rule.allows(request)))
            .map(|grant| grant.why.as_str())
    }

    /// Every rule that holds for `user` in `namespace`.
    pub fn rules_of(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let everything = || "*".to_owned();
        if user.is_master() {
            let objects = Rule {
                verbs: vec![everything()],
                api_groups: vec![everything()],
                resources: vec![everything()],
                ..Rule::default()
            };
            let paths = Rule { verbs: vec![everything()], non_resource_urls: vec![everything()], ..Rule::default() };
            return vec![objects, paths];
        }
        self.grants(user, namespace).into_iter().flat_map(|grant| grant.rules.iter().cloned()).collect()
    }
}

impl Subject {
    fn is(&self, user: &User) -> bool {
        match self {
            Self::User(name) => *name == user.name,
            Self::Group(name) => user.groups.contains(name),
        }
    }
}

fn subjects(binding: &Value, namespace: &str) -> Vec<Subject> {
    let all = binding.get("subjects").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|subject| {
        let name = text(subject, "/name");
        match text(subject, "/kind") {
            "User" => Some(Subject::User(name.to_owned())),
            "Group" => Some(Subject::Group(name.to_owned())),
            "ServiceAccount" => {
                let of = match text(subject, "/namespace") {
                    "" => namespace,
                    other => other,
                };
                Some(Subject::User(crate::tokens::subject(of, name)))
            }
            _ => None,
        }
    })
    .collect()
}

/// 403, in the words that kubectl users know.
pub(crate) fn refuse(user: &User, request: &Request<'_>) -> Status {
    let who = &user.name;
    match *request {
        Request::Path { verb, path } => {
            Status::new(403, "Forbidden", format!("forbidden: User {who:?} cannot {verb} path {path:?}"))
        }
        Request::Resource { verb, group, resource, namespace, name, .. } => {
            let place = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            let whole = request.whole_resource();
            let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
            let subject = if name.is_empty() { qualified } else { format!("{qualified} {name:?}") };
            let message = format!(
                "{subject} is forbidden: User {who:?} cannot {verb} resource {whole:?} in API group {group:?} {place}"
            );
            let mut status = Status::new(403, "Forbidden", message);
            if let Some(kind) = crate::kind::KINDS.iter().find(|k| k.group == group && k.plural == resource) {
                status = status.about(kind, name);
            }
            status
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reader() -> Value {
        json!({"kind": "ClusterRole", "metadata": {"name": "reader"},
               "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]})
    }

    fn binding(kind: &str, namespace: &str, subject: Value) -> Value {
        json!({"kind": kind, "metadata": {"name": "b", "namespace": namespace},
               "roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [subject]})
    }

    fn get(namespace: &str) -> Request<'_> {
        Request::Resource { verb: "get", group: "", resource: "pods", subresource: "", namespace, name: "p" }
    }

    #[test]
    fn a_role_binding_grants_in_its_namespace_only() {
        let user = User::new("alice", ["dev"]);
        for subject in [json!({"kind": "User", "name": "alice"}), json!({"kind": "Group", "name": "dev"})] {
            let policy = Policy::compile(&[reader()], &[], &[], &[binding("RoleBinding", "a", subject)]);
            assert!(policy.allows(&user, &get("a")).is_some());
            assert!(policy.allows(&user, &get("b")).is_none());
            assert!(policy.allows(&user, &get("")).is_none());
        }
    }

    #[test]
    fn a_cluster_role_binding_grants_everywhere_and_a_service_account_has_its_namespace() {
        let account = json!({"kind": "ServiceAccount", "name": "s", "namespace": "a"});
        let policy = Policy::compile(&[reader()], &[], &[binding("ClusterRoleBinding", "", account)], &[]);
        let user = User::new("system:serviceaccount:a:s", ["system:serviceaccounts"]);
        assert!(policy.allows(&user, &get("b")).is_some_and(|why| why.contains("\"b\"") && why.contains("reader")));
        assert!(policy.allows(&User::new("system:serviceaccount:b:s", ["x"]), &get("b")).is_none());
    }

    #[test]
    fn masters_may_everything_and_strangers_nothing() {
        let policy = Policy::default();
        assert!(policy.allows(&User::new("root", ["system:masters"]), &get("a")).is_some());
        let stranger = User::new("eve", ["x"]);
        assert!(policy.allows(&stranger, &get("a")).is_none());
        let status = refuse(&stranger, &get("a"));
        assert_eq!(
            status.message,
            r#"pods "p" is forbidden: User "eve" cannot get resource "pods" in API group "" in the namespace "a""#
        );
    }
}

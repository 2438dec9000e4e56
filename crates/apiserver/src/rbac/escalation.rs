//! Nobody grants what they do not have: the checks on writes to roles and bindings.

use serde_json::Value;

use super::rule::uncovered;
use super::{Policy, Request, Rule};
use crate::auth::User;
use crate::kind::Kind;
use crate::object::text;
use crate::status::Status;
use crate::store::Store;

/// Refuses the role or binding `new` if `user` may not grant it. `old` is what is there now.
pub(crate) fn check(
    policy: &Policy,
    store: &Store,
    user: &User,
    kind: &Kind,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if user.is_master() {
        return Ok(());
    }
    let namespace = text(new, "/metadata/namespace");
    let name = text(new, "/metadata/name");
    let owned = policy.rules_of(user, namespace);
    let may = |verb: &str, resource: &str, name: &str| {
        let request = Request::Resource { verb, group: super::GROUP, resource, subresource: "", namespace, name };
        policy.allows(user, &request).is_some()
    };
    let unchanged = |field: &str| old.is_some_and(|old| old.get(field) == new.get(field));
    match kind.kind {
        "Role" | "ClusterRole" => {
            if new.get("aggregationRule").is_some_and(|rule| !rule.is_null())
                && !unchanged("aggregationRule")
                && !may("escalate", kind.plural, name)
            {
                let everything = everything();
                if !uncovered(&everything, &owned).is_empty() {
                    return Err(Status::forbidden(
                        kind,
                        name,
                        "must have cluster-admin privileges to use the aggregationRule",
                    ));
                }
            }
            // Changing labels of a role needs no more rights than that.
            if unchanged("rules") || may("escalate", kind.plural, name) {
                return Ok(());
            }
            refuse_missing(user, kind, name, &uncovered(&Rule::all_of(new), &owned))
        }
        "RoleBinding" | "ClusterRoleBinding" => {
            if unchanged("roleRef") && unchanged("subjects") {
                return Ok(());
            }
            let (role_kind, role_name) = (text(new, "/roleRef/kind"), text(new, "/roleRef/name"));
            let (role_kind, of) =
                if role_kind == "Role" { (Kind::named("Role"), namespace) } else { (Kind::named("ClusterRole"), "") };
            if may("bind", role_kind.plural, role_name) {
                return Ok(());
            }
            let role = store.newest(role_kind, of, role_name).ok_or_else(|| Status::not_found(role_kind, role_name))?;
            refuse_missing(user, kind, name, &uncovered(&Rule::all_of(&role.tree()), &owned))
        }
        _ => Ok(()),
    }
}

fn everything() -> [Rule; 2] {
    let star = || vec!["*".to_owned()];
    [
        Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() },
        Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() },
    ]
}

fn refuse_missing(user: &User, kind: &Kind, name: &str, missing: &[Rule]) -> Result<(), Status> {
    if missing.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = missing.iter().map(|rule| rule.to_json().to_string()).collect();
    let why = format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        user.groups,
        shown.join("\n")
    );
    Err(Status::forbidden(kind, name, why))
}

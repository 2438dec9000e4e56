//! May this user do that?

use serde_json::{Value, json};

use crate::auth::User;
use crate::object::text;
use crate::rbac::Request;
use crate::server::Core;
use crate::status::Status;

/// The status of an access review about `user`.
pub(super) fn review(core: &Core, user: &User, spec: &Value) -> Result<Value, Status> {
    let request = match (spec.get("resourceAttributes"), spec.get("nonResourceAttributes")) {
        (Some(asked), None | Some(Value::Null)) if !asked.is_null() => Request::Resource {
            verb: text(asked, "/verb"),
            group: text(asked, "/group"),
            resource: text(asked, "/resource"),
            subresource: text(asked, "/subresource"),
            namespace: text(asked, "/namespace"),
            name: text(asked, "/name"),
        },
        (None | Some(Value::Null), Some(asked)) if !asked.is_null() => {
            Request::Path { verb: text(asked, "/verb"), path: text(asked, "/path") }
        }
        _ => {
            return Err(Status::new(
                422,
                "Invalid",
                "spec: Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
    };
    Ok(match core.allows(user, &request) {
        Some(why) if why.is_empty() => json!({"allowed": true}),
        Some(why) => json!({"allowed": true, "reason": format!("RBAC: {why}")}),
        None => json!({"allowed": false}),
    })
}

/// The user a review asks about.
pub(super) fn subject(spec: &Value) -> Result<User, Status> {
    let list = |value: Option<&Value>| -> Vec<String> {
        let all = value.and_then(Value::as_array).into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let groups = list(spec.get("groups"));
    let name = text(spec, "/user");
    if name.is_empty() && groups.is_empty() {
        return Err(Status::new(
            422,
            "Invalid",
            "spec.user: Invalid value: \"\": at least one of user or group must be specified",
        ));
    }
    let extra = spec.get("extra").and_then(Value::as_object).into_iter().flatten();
    Ok(User {
        name: name.to_owned(),
        uid: text(spec, "/uid").to_owned(),
        groups,
        extra: extra.map(|(key, values)| (key.clone(), list(Some(values)))).collect(),
    })
}

/// The status of a rules review about `user`.
pub(super) fn rules(core: &Core, user: &User, spec: &Value) -> Result<Value, Status> {
    let namespace = text(spec, "/namespace");
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let rules = core.rules_of(user, namespace);
    let (paths, resources): (Vec<_>, Vec<_>) = rules.iter().partition(|rule| !rule.non_resource_urls.is_empty());
    Ok(json!({
        "resourceRules": resources.iter().map(|rule| rule.to_json()).collect::<Vec<_>>(),
        "nonResourceRules": paths.iter().map(|rule| rule.to_json()).collect::<Vec<_>>(),
        "incomplete": false,
    }))
}

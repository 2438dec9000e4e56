//! `kubectl --as`: acting as somebody else, for those who may.

use http::HeaderMap;

use crate::auth::{AUTHENTICATED, User};
use crate::rbac::Request;
use crate::server::Core;
use crate::status::Status;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Who the request is to be done as: `user`, or the one its headers name.
pub(super) fn effective(core: &Core, headers: &HeaderMap, user: User) -> Result<User, Status> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let groups: Vec<String> =
        headers.get_all(GROUP).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    let has_extra = headers.keys().any(|name| name.as_str().starts_with(EXTRA));
    let (name, uid) = (text(USER), text(UID));
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && !has_extra {
            return Ok(user);
        }
        return Err(Status::bad_request("requested groups, uid or extra without impersonating a user"));
    }
    if !uid.is_empty() || has_extra {
        return Err(Status::not_implemented(
            "impersonating a uid or extra values is not part of this API server yet; impersonate user and groups only",
        ));
    }
    let may = |resource: &str, namespace: &str, name: &str| {
        let request = Request::Resource { verb: "impersonate", group: "", resource, subresource: "", namespace, name };
        core.authorize(&user, &request)
    };
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, account)) => may("serviceaccounts", namespace, account)?,
        None => may("users", "", &name)?,
    }
    for group in &groups {
        may("groups", "", group)?;
    }
    let implied = match account {
        Some((namespace, _)) if groups.is_empty() => {
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
        }
        _ => Vec::new(),
    };
    let mut groups = [groups, implied].concat();
    if !groups.iter().any(|g| g == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    Ok(User { name, groups, ..User::default() })
}

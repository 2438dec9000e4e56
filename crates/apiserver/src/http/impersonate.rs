//! `kubectl --as`: acting as somebody else, for those who may.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};

use super::query::unescape;
use crate::auth::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User};
use crate::rbac::Request;
use crate::rules::metadata::{is_dns_label, is_dns_subdomain};
use crate::server::Core;
use crate::status::Status;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
/// Group of the resources that stand for uids and extra values.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Whom the headers of a request name.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    name: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

/// Who the request is to be done as: `user`, or the one its headers name.
pub(super) fn effective(core: &Core, headers: &HeaderMap, user: User) -> Result<User, Status> {
    let Some(wanted) = Wanted::read(headers)? else { return Ok(user) };
    let may = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        core.authorize(&user, &Request::Resource { verb: "impersonate", group, resource, subresource, namespace, name })
    };
    match wanted.account() {
        Some((namespace, account)) => may("", "serviceaccounts", "", namespace, account)?,
        None => may("", "users", "", "", &wanted.name)?,
    }
    for group in &wanted.groups {
        may("", "groups", "", "", group)?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            may(AUTHENTICATION, "userextras", key, "", value)?;
        }
    }
    if !wanted.uid.is_empty() {
        may(AUTHENTICATION, "uids", "", "", &wanted.uid)?;
    }
    Ok(wanted.into_user())
}

/// The text of a header. One that cannot be read is refused: left out, the request would be done as somebody else.
fn text(name: &str, value: &HeaderValue) -> Result<String, Status> {
    String::from_utf8(value.as_bytes().to_vec())
        .map_err(|_| Status::bad_request(format!("the value of the header {name} is not valid UTF-8")))
}

/// The one value of a header, empty if it is not there.
fn single(headers: &HeaderMap, name: &str) -> Result<String, Status> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| text(name, value)).transpose()?.unwrap_or_default();
    if values.next().is_some() {
        return Err(Status::bad_request(format!("the header {name} is there more than once")));
    }
    Ok(first)
}

/// Keys come percent-encoded; one that is not is taken as it is.
fn extra_key(encoded: &str) -> Result<String, Status> {
    let Some(bytes) = unescape(encoded) else { return Ok(encoded.to_owned()) };
    String::from_utf8(bytes)
        .map_err(|_| Status::bad_request(format!("the name of the header {EXTRA}{encoded} is not valid UTF-8")))
}

impl Wanted {
    fn read(headers: &HeaderMap) -> Result<Option<Self>, Status> {
        let groups = headers.get_all(GROUP).iter().map(|value| text(GROUP, value)).collect::<Result<Vec<_>, _>>()?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            if let Some(key) = header.as_str().strip_prefix(EXTRA) {
                extra.entry(extra_key(key)?).or_default().push(text(header.as_str(), value)?);
            }
        }
        let (name, uid) = (single(headers, USER)?, single(headers, UID)?);
        if !name.is_empty() {
            return Ok(Some(Self { name, groups, uid, extra }));
        }
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        Err(Status::bad_request("requested groups, uid or extra without impersonating a user"))
    }

    /// Namespace and name, if this is a service account.
    fn account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        (is_dns_label(namespace) && is_dns_subdomain(name)).then_some((namespace, name))
    }

    /// With the groups that go without saying: those of a service account unless others are named, and whether it is known.
    fn into_user(self) -> User {
        let mut groups = self.groups.clone();
        if let Some((namespace, _)) = self.account().filter(|_| groups.is_empty()) {
            groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        }
        let is_in = |group: &str| groups.iter().any(|g| g == group);
        let known = self.name != ANONYMOUS;
        let implied = if known { AUTHENTICATED } else { UNAUTHENTICATED };
        let told = is_in(implied) || (known && is_in(UNAUTHENTICATED));
        if !told {
            groups.push(implied.to_owned());
        }
        User { name: self.name, uid: self.uid, groups, extra: self.extra }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn read(headers: &[(&str, &[u8])]) -> Result<Option<Wanted>, Status> {
        let header = |(name, value): &(&str, &[u8])| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap())
        };
        Wanted::read(&headers.iter().map(header).collect())
    }

    fn user(name: &str, groups: &[&str]) -> User {
        let mut headers = vec![(USER, name.as_bytes())];
        headers.extend(groups.iter().map(|group| (GROUP, group.as_bytes())));
        read(&headers).unwrap().unwrap().into_user()
    }

    #[test]
    fn names_of_any_script_are_read_and_unreadable_ones_are_refused() {
        assert_eq!(user("jörg", &["größe"]).name, "jörg");
        assert_eq!(user("jörg", &["größe"]).groups, ["größe", AUTHENTICATED]);
        for headers in [
            vec![(USER, b"j\xf6rg".as_slice())],
            vec![(USER, b"a".as_slice()), (GROUP, b"\xff")],
            vec![(USER, b"a".as_slice()), (UID, b"\xff")],
            vec![(USER, b"a".as_slice()), ("impersonate-extra-k", b"\xff")],
            vec![(USER, b"a".as_slice()), ("impersonate-extra-%ff", b"v")],
            vec![(USER, b"a".as_slice()), (USER, b"b")],
            vec![(GROUP, b"g".as_slice())],
            vec![(USER, b"".as_slice()), (UID, b"1")],
        ] {
            assert_eq!(read(&headers).unwrap_err().code, 400, "{headers:?}");
        }
        assert_eq!(read(&[]).unwrap(), None);
    }

    #[test]
    fn groups_that_go_without_saying_are_those_of_upstream() {
        for (name, groups, effective) in [
            ("alice", &[][..], &[AUTHENTICATED][..]),
            ("alice", &["dev"], &["dev", AUTHENTICATED]),
            ("alice", &[AUTHENTICATED], &[AUTHENTICATED]),
            ("alice", &[UNAUTHENTICATED], &[UNAUTHENTICATED]),
            (ANONYMOUS, &[], &[UNAUTHENTICATED]),
            (ANONYMOUS, &["dev"], &["dev", UNAUTHENTICATED]),
            (ANONYMOUS, &[AUTHENTICATED], &[AUTHENTICATED, UNAUTHENTICATED]),
            ("system:serviceaccount:n:s", &[], &["system:serviceaccounts", "system:serviceaccounts:n", AUTHENTICATED]),
            ("system:serviceaccount:n:s", &["dev"], &["dev", AUTHENTICATED]),
            ("system:serviceaccount:n:s:t", &[], &[AUTHENTICATED]),
        ] {
            assert_eq!(user(name, groups).groups, effective, "{name} {groups:?}");
        }
    }

    #[test]
    fn the_keys_of_extra_values_are_decoded_and_keep_what_is_no_escape() {
        let wanted = read(&[
            (USER, b"a"),
            ("Impersonate-Extra-Example.com%2fScope", b"x"),
            ("impersonate-extra-example.com%2fscope", b"y"),
            ("impersonate-extra-100%", b"z"),
        ]);
        let extra = wanted.unwrap().unwrap().extra;
        assert_eq!(extra["example.com/scope"], ["x", "y"]);
        assert_eq!(extra["100%"], ["z"]);
        assert_eq!(extra_key("a%2fb%").unwrap(), "a%2fb%");
    }
}

//! What a service asks the API for, in the words of a role: resource and verb.

use http::Method;

/// One verb on one resource, as a role grants it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Plural, with its subresource: `persistentvolumes/status`.
    pub resource: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
}

impl Right {
    /// The right a request needs; `None` for paths that are no resources.
    pub fn of(method: &Method, path: &str, query: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let skipped = match parts.next()? {
            "api" => 1,
            "apis" => 2,
            _ => return None,
        };
        let mut parts: Vec<&str> = parts.skip(skipped).collect();
        if parts.first() == Some(&"namespaces") && parts.len() > 2 {
            parts.drain(..2);
        }
        let (plural, name, subresource) = (*parts.first()?, parts.get(1), parts.get(2));
        let resource = match subresource {
            Some(subresource) => format!("{plural}/{subresource}"),
            None => plural.to_owned(),
        };
        let watches = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
        let verb = match (method.as_str(), name) {
            ("GET", _) if watches => "watch",
            ("GET", None) => "list",
            ("GET", Some(_)) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            ("DELETE", None) => "deletecollection",
            _ => return None,
        };
        Some(Self { resource, verb })
    }

    /// Whether it changes anything.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(method: Method, path: &str, query: &str) -> String {
        Right::of(&method, path, query).map(|right| format!("{} {}", right.verb, right.resource)).unwrap_or_default()
    }

    #[test]
    fn requests_need_the_rights_that_roles_name() {
        assert_eq!(right(Method::GET, "/api/v1/persistentvolumes", "limit=500"), "list persistentvolumes");
        assert_eq!(right(Method::GET, "/api/v1/persistentvolumes", "watch=true&x=y"), "watch persistentvolumes");
        assert_eq!(right(Method::GET, "/api/v1/namespaces/n/pods/p", ""), "get pods");
        assert_eq!(right(Method::GET, "/api/v1/namespaces/n", ""), "get namespaces");
        assert_eq!(right(Method::PATCH, "/api/v1/nodes/a/status", ""), "patch nodes/status");
        assert_eq!(right(Method::POST, "/api/v1/namespaces/n/pods/p/binding", ""), "create pods/binding");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l";
        assert_eq!(right(Method::PUT, lease, ""), "update leases");
        assert_eq!(right(Method::DELETE, lease, ""), "delete leases");
        assert_eq!(right(Method::GET, "/healthz", ""), "");
    }
}

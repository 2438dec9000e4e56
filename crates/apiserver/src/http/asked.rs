//! What a request asks for, as authorisation and metrics name it.

use http::Method;

use crate::kind::Kind;
use crate::metrics::RequestLabels;
use crate::rbac::Request;
use crate::status::Status;
use crate::store::Subresource;

use super::query::Parameters;
use super::route::Route;

/// One request in the words of roles: verb and resource, or verb and path.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: &'static str,
    namespace: String,
    name: String,
    path: String,
}

impl Asked {
    pub fn new(method: &Method, path: &str, query: Option<&str>, route: &Result<Route, Status>) -> Self {
        let plain = match *method {
            Method::GET => "get",
            Method::HEAD => "head",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        match route {
            Ok(Route::Resource(target)) => {
                let parameters = Parameters::parse(query);
                let mut name = target.name.clone();
                let verb = match *method {
                    Method::GET | Method::HEAD => {
                        let watch = parameters.flag("watch");
                        if name.is_empty() {
                            // A list of one name is about that name, so that roles can name it.
                            let selector = parameters.text("fieldSelector");
                            let one = selector.strip_prefix("metadata.name=").filter(|rest| !rest.contains(','));
                            name = one.map(|rest| rest.trim_start_matches('=').to_owned()).unwrap_or_default();
                            if watch { "watch" } else { "list" }
                        } else if watch {
                            "watch"
                        } else {
                            "get"
                        }
                    }
                    Method::DELETE if name.is_empty() => "deletecollection",
                    _ => plain,
                };
                // A namespace is inside itself, as upstream: who has rights there has them on it.
                let is_namespace = *target.kind == *Kind::named("Namespace");
                let namespace = if is_namespace { &target.name } else { &target.namespace };
                Self {
                    verb,
                    group: target.kind.group.to_owned(),
                    version: target.kind.version.to_owned(),
                    resource: target.kind.plural.to_owned(),
                    subresource: match target.subresource {
                        Subresource::Main => "",
                        Subresource::Status => "status",
                        Subresource::Binding => "binding",
                    },
                    namespace: namespace.clone(),
                    name,
                    path: String::new(),
                }
            }
            Ok(Route::Review(review, namespace)) => Self {
                verb: plain,
                group: review.group.to_owned(),
                version: review.version.to_owned(),
                resource: review.plural.to_owned(),
                namespace: namespace.clone(),
                ..Self::default()
            },
            Ok(Route::Token { namespace, name }) => Self {
                verb: plain,
                version: "v1".to_owned(),
                resource: "serviceaccounts".to_owned(),
                subresource: "token",
                namespace: namespace.clone(),
                name: name.clone(),
                ..Self::default()
            },
            _ => {
                // Paths that are no objects are asked for by method.
                let verb = match plain {
                    "create" => "post",
                    "update" => "put",
                    other => other,
                };
                Self { verb, path: path.to_owned(), ..Self::default() }
            }
        }
    }

    pub fn request(&self) -> Request<'_> {
        if self.resource.is_empty() {
            return Request::Path { verb: self.verb, path: &self.path };
        }
        Request::Resource {
            verb: self.verb,
            group: &self.group,
            resource: &self.resource,
            subresource: self.subresource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb, "get" | "head" | "list" | "watch")
    }

    /// Whether this is what somebody does who holds a lease or wants to.
    pub fn is_about_one_lease(&self) -> bool {
        self.group == "coordination.k8s.io"
            && self.resource == "leases"
            && matches!(self.verb, "get" | "create" | "update" | "patch")
    }

    pub fn labels(&self) -> RequestLabels {
        let verb = match self.verb {
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            other => return self.labelled(other.to_uppercase()),
        };
        self.labelled(verb.to_owned())
    }

    fn labelled(&self, verb: String) -> RequestLabels {
        let scope = match (self.resource.is_empty(), self.name.is_empty(), self.namespace.is_empty()) {
            (true, _, _) => "",
            (false, false, _) => "resource",
            (false, true, false) => "namespace",
            (false, true, true) => "cluster",
        };
        RequestLabels {
            verb,
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            subresource: self.subresource.to_owned(),
            scope: scope.to_owned(),
            component: "apiserver".to_owned(),
        }
    }
}

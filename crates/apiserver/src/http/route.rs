//! Paths: which document or object a request is about.

use crate::kind::{Kind, Kinds};
use crate::review::{self, Review};
use crate::status::Status;
use crate::store::Subresource;

use super::discovery::Document as Discovery;
use super::openapi::Document as OpenApi;
use super::query::decode;

/// What a path leads to.
#[derive(Debug)]
pub(super) enum Route {
    /// Which of the endpoints; empty for a single check of one.
    Health {
        check: String,
    },
    Version,
    Discovery(Discovery),
    OpenApi(OpenApi),
    Resource(Target),
    /// A question that is answered and not kept.
    Review(&'static Review, String),
    /// A service account's tokens.
    Token {
        namespace: String,
        name: String,
    },
    Metrics,
}

/// An object, a part of one, or a collection.
#[derive(Debug)]
pub(super) struct Target {
    pub kind: &'static Kind,
    /// Empty for cluster-wide kinds and for all namespaces.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    pub subresource: Subresource,
}

impl Route {
    pub fn parse(kinds: &Kinds, path: &str) -> Result<Self, Status> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            [check @ ("healthz" | "readyz" | "livez")] => Ok(Self::Health { check: (*check).to_owned() }),
            // Any of the single checks that upstream has: here all of them are one.
            ["healthz" | "readyz" | "livez", ..] => Ok(Self::Health { check: String::new() }),
            ["version"] => Ok(Self::Version),
            ["metrics"] => Ok(Self::Metrics),
            ["api"] => Ok(Self::Discovery(Discovery::Core)),
            ["apis"] => Ok(Self::Discovery(Discovery::Groups)),
            ["apis", group] => Discovery::group(kinds, group).map(Self::Discovery).ok_or_else(|| no_such_path(path)),
            ["api", version] => {
                Discovery::resources(kinds, "", version).map(Self::Discovery).ok_or_else(|| no_such_path(path))
            }
            ["apis", group, version] => {
                Discovery::resources(kinds, group, version).map(Self::Discovery).ok_or_else(|| no_such_path(path))
            }
            ["openapi", rest @ ..] => OpenApi::parse(kinds, rest).map(Self::OpenApi).ok_or_else(|| no_such_path(path)),
            ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"] => {
                Ok(Self::Token { namespace: (*namespace).to_owned(), name: (*name).to_owned() })
            }
            ["apis", group @ ("authentication.k8s.io" | "authorization.k8s.io"), version, rest @ ..] => {
                let (namespace, plural) = match *rest {
                    [plural] => ("", plural),
                    ["namespaces", namespace, plural] => (namespace, plural),
                    _ => return Err(no_such_path(path)),
                };
                let found = review::find(group, version, plural).filter(|r| r.namespaced != namespace.is_empty());
                found.map(|r| Self::Review(r, namespace.to_owned())).ok_or_else(|| no_such_path(path))
            }
            ["api", version, rest @ ..] => target(kinds, "", version, rest, path).map(Self::Resource),
            ["apis", group, version, rest @ ..] => target(kinds, group, version, rest, path).map(Self::Resource),
            _ => Err(no_such_path(path)),
        }
    }
}

fn target(kinds: &Kinds, group: &str, version: &str, rest: &[&str], path: &str) -> Result<Target, Status> {
    let kind = |plural: &str| kinds.find(group, version, plural).ok_or_else(|| no_such_kind(group, plural, path));
    let (kind, namespace, name, subresource) = match *rest {
        // A namespace's own parts look like the resources inside it.
        ["namespaces", name, "status"] if group.is_empty() => (kind("namespaces")?, "", name, "status"),
        ["namespaces", namespace, plural] => (kind(plural)?, namespace, "", ""),
        ["namespaces", namespace, plural, name] => (kind(plural)?, namespace, name, ""),
        ["namespaces", namespace, plural, name, part] => (kind(plural)?, namespace, name, part),
        [plural] => (kind(plural)?, "", "", ""),
        [plural, name] => (kind(plural)?, "", name, ""),
        [plural, name, part] => (kind(plural)?, "", name, part),
        _ => return Err(no_such_path(path)),
    };
    if kind.namespaced == namespace.is_empty() && !(kind.namespaced && name.is_empty()) {
        return Err(no_such_path(path));
    }
    let subresource = match subresource {
        "" => Subresource::Main,
        "status" if kind.status => Subresource::Status,
        "binding" if *kind == *Kind::named("Pod") => Subresource::Binding,
        "scale"
        | "eviction"
        | "ephemeralcontainers"
        | "resize"
        | "finalize"
        | "approval"
        | "log"
        | "exec"
        | "attach"
        | "portforward"
        | "proxy" => {
            return Err(Status::not_implemented(format!(
                "the subresource {subresource} of {} is not part of this API server",
                kind.plural
            )));
        }
        _ => return Err(no_such_path(path)),
    };
    Ok(Target { kind, namespace: namespace.to_owned(), name: name.to_owned(), subresource })
}

/// Kinds that people expect of a Kubernetes API, and whose absence must not look like a mistake in the path.
fn no_such_kind(group: &str, plural: &str, path: &str) -> Status {
    let missing = match (group, plural) {
        ("", "resourcequotas" | "limitranges") => "quotas and limits are not part of this API server",
        ("", "replicationcontrollers" | "podtemplates" | "endpoints" | "bindings" | "componentstatuses") => {
            "this kind is not part of this API server"
        }
        ("batch" | "autoscaling" | "policy" | "networking.k8s.io" | "discovery.k8s.io" | "scheduling.k8s.io", _)
        | ("admissionregistration.k8s.io" | "certificates.k8s.io" | "node.k8s.io" | "resource.k8s.io", _) => {
            "this API group is not part of this API server"
        }
        _ => return no_such_path(path),
    };
    Status::new(404, "NotFound", format!("the server could not find the requested resource ({path}): {missing}"))
}

fn no_such_path(path: &str) -> Status {
    Status::new(404, "NotFound", format!("the server could not find the requested resource ({path})"))
}

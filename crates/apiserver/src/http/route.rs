//! Paths: which document or object a request is about.

use crate::kind::Kind;
use crate::status::Status;
use crate::store::Subresource;

use super::discovery::Document as Discovery;
use super::openapi::Document as OpenApi;
use super::query::decode;

/// What a path leads to.
#[derive(Debug)]
pub(super) enum Route {
    Health,
    Version,
    Discovery(Discovery),
    OpenApi(OpenApi),
    Resource(Target),
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
    pub fn parse(path: &str) -> Result<Self, Status> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["healthz" | "readyz" | "livez", ..] => Ok(Self::Health),
            ["version"] => Ok(Self::Version),
            ["api"] => Ok(Self::Discovery(Discovery::Core)),
            ["apis"] => Ok(Self::Discovery(Discovery::Groups)),
            ["apis", group] => Discovery::group(group).map(Self::Discovery).ok_or_else(|| no_such_path(path)),
            ["api", version] => {
                Discovery::resources("", version).map(Self::Discovery).ok_or_else(|| no_such_path(path))
            }
            ["apis", group, version] => {
                Discovery::resources(group, version).map(Self::Discovery).ok_or_else(|| no_such_path(path))
            }
            ["openapi", "v3", rest @ ..] => OpenApi::parse(rest).map(Self::OpenApi).ok_or_else(|| no_such_path(path)),
            ["api", version, rest @ ..] => target("", version, rest, path).map(Self::Resource),
            ["apis", group, version, rest @ ..] => target(group, version, rest, path).map(Self::Resource),
            _ => Err(no_such_path(path)),
        }
    }
}

fn target(group: &str, version: &str, rest: &[&str], path: &str) -> Result<Target, Status> {
    let kind = |plural: &str| Kind::find(group, version, plural).ok_or_else(|| no_such_path(path));
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
        "binding" if kind.kind == "Pod" => Subresource::Binding,
        _ => return Err(no_such_path(path)),
    };
    Ok(Target { kind, namespace: namespace.to_owned(), name: name.to_owned(), subresource })
}

fn no_such_path(path: &str) -> Status {
    Status::new(404, "NotFound", format!("the server could not find the requested resource ({path})"))
}

//! Discovery: which groups, versions and resources there are.

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use crate::kind::{Kind, Kinds, version_priority};
use crate::review::REVIEWS;

use super::{Body, json as json_response};

/// The Kubernetes version whose behaviour is followed.
const MINOR: &str = "34";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A document of discovery.
#[derive(Debug)]
pub(super) enum Document {
    Core,
    Groups,
    Group(&'static str),
    Resources { group: &'static str, version: &'static str },
}

/// One line of discovery: a resource or a part of one.
struct Resource {
    name: &'static str,
    part: &'static str,
    singular: &'static str,
    kind: (&'static str, &'static str, &'static str),
    namespaced: bool,
    verbs: Vec<&'static str>,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
}

impl Document {
    pub fn group(kinds: &Kinds, name: &str) -> Option<Self> {
        groups(kinds).into_iter().map(|(group, _)| group).find(|g| *g == name).map(Self::Group)
    }

    pub fn resources(kinds: &Kinds, group: &str, version: &str) -> Option<Self> {
        let (group, versions) = all_groups(kinds).into_iter().find(|(g, _)| *g == group)?;
        let version = versions.into_iter().find(|v| *v == version)?;
        Some(Self::Resources { group, version })
    }

    pub fn answer(&self, kinds: &Kinds, headers: &HeaderMap) -> Response<Body> {
        let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if accept.split(',').any(is_aggregated) {
            let all = all_groups(kinds).into_iter();
            let wanted: Option<Vec<Value>> = match self {
                Self::Core => Some(all.filter(|(g, _)| g.is_empty()).map(|g| aggregated(kinds, &g)).collect()),
                Self::Groups => Some(all.filter(|(g, _)| !g.is_empty()).map(|g| aggregated(kinds, &g)).collect()),
                Self::Group(_) | Self::Resources { .. } => None,
            };
            if let Some(items) = wanted {
                let document = json!({
                    "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
                    "items": items,
                });
                let mut response = json_response(StatusCode::OK, document.to_string());
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
                return response;
            }
        }
        let document = match self {
            Self::Core => json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }),
            Self::Groups => {
                let all: Vec<Value> = groups(kinds).iter().map(|(g, v)| group_of(g, v)).collect();
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": all})
            }
            Self::Group(name) => {
                let versions = groups(kinds).into_iter().find(|(g, _)| g == name).map(|(_, v)| v).unwrap_or_default();
                let mut document = group_of(name, &versions);
                document["kind"] = "APIGroup".into();
                document["apiVersion"] = "v1".into();
                document
            }
            Self::Resources { group, version } => {
                let all: Vec<Value> = resources(kinds, group, version).iter().map(Resource::line).collect();
                let group_version = if group.is_empty() { (*version).to_owned() } else { format!("{group}/{version}") };
                json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": all,
                })
            }
        };
        json_response(StatusCode::OK, document.to_string())
    }
}

fn is_aggregated(accepted: &str) -> bool {
    let parts: Vec<&str> = accepted.split(';').map(str::trim).collect();
    ["application/json", "g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"].iter().all(|p| parts.contains(p))
}

type Group = (&'static str, Vec<&'static str>);

/// Every group with its versions, the preferred one first; the core group has no name.
fn all_groups(kinds: &Kinds) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let of_kinds = kinds.iter().map(|k| (k.group, k.version));
    for (group, version) in of_kinds.chain(REVIEWS.iter().map(|r| (r.group, r.version))) {
        match groups.iter_mut().find(|(g, _)| *g == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((group, vec![version])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by_key(|version| std::cmp::Reverse(version_priority(version)));
    }
    groups.sort_by_key(|(group, _)| *group);
    groups
}

/// Named groups with their versions.
pub(super) fn groups(kinds: &Kinds) -> Vec<Group> {
    all_groups(kinds).into_iter().filter(|(group, _)| !group.is_empty()).collect()
}

fn group_of(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

/// What is served under one group and version.
fn resources(kinds: &Kinds, group: &str, version: &str) -> Vec<Resource> {
    let of_kinds = kinds.iter().filter(|k| k.group == group && k.version == version).flat_map(resources_of);
    let reviews = REVIEWS.iter().filter(|r| r.group == group && r.version == version).map(|r| Resource {
        name: r.plural,
        part: "",
        singular: r.singular,
        kind: (r.group, r.version, r.kind),
        namespaced: r.namespaced,
        verbs: vec!["create"],
        short_names: &[],
        categories: &[],
    });
    of_kinds.chain(reviews).collect()
}

fn resources_of(kind: &'static Kind) -> Vec<Resource> {
    let own = (kind.group, kind.version, kind.kind);
    let line = |part, kind_of, verbs: &[&'static str]| Resource {
        name: kind.plural,
        part,
        singular: "",
        kind: kind_of,
        namespaced: kind.namespaced,
        verbs: verbs.to_vec(),
        short_names: &[],
        categories: &[],
    };
    let main = Resource {
        singular: kind.singular,
        short_names: kind.short_names,
        categories: kind.categories,
        ..line("", own, &VERBS)
    };
    let mut all = vec![main];
    if *kind == *Kind::named("Pod") {
        all.push(line("binding", ("", "v1", "Binding"), &["create"]));
    }
    if *kind == *Kind::named("ServiceAccount") {
        all.push(line("token", ("authentication.k8s.io", "v1", "TokenRequest"), &["create"]));
    }
    if kind.status {
        all.push(line("status", own, &["get", "patch", "update"]));
    }
    all
}

impl Resource {
    /// A line of an `APIResourceList`.
    fn line(&self) -> Value {
        let name = if self.part.is_empty() { self.name.to_owned() } else { format!("{}/{}", self.name, self.part) };
        let (group, version, kind) = self.kind;
        let mut line = json!({
            "name": name, "singularName": self.singular, "namespaced": self.namespaced, "kind": kind,
            "verbs": self.verbs,
        });
        if self.part == "token" {
            line["group"] = group.into();
            line["version"] = version.into();
        }
        if !self.short_names.is_empty() {
            line["shortNames"] = json!(self.short_names);
        }
        if !self.categories.is_empty() {
            line["categories"] = json!(self.categories);
        }
        line
    }

    fn response_kind(&self) -> Value {
        let (group, version, kind) = self.kind;
        json!({"group": group, "version": version, "kind": kind})
    }
}

/// One group of the aggregated document.
fn aggregated(kinds: &Kinds, (group, versions): &Group) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            let all = resources(kinds, group, version);
            let mains = all.iter().filter(|r| r.part.is_empty()).map(|main| {
                let parts: Vec<Value> = all
                    .iter()
                    .filter(|r| r.name == main.name && !r.part.is_empty())
                    .map(|r| json!({"subresource": r.part, "responseKind": r.response_kind(), "verbs": r.verbs}))
                    .collect();
                json!({
                    "resource": main.name, "responseKind": main.response_kind(), "singularResource": main.singular,
                    "scope": if main.namespaced { "Namespaced" } else { "Cluster" }, "verbs": main.verbs,
                    "shortNames": main.short_names, "categories": main.categories, "subresources": parts,
                })
            });
            json!({"version": version, "freshness": "Current", "resources": mains.collect::<Vec<_>>()})
        })
        .collect();
    json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
}

pub(super) fn version() -> String {
    json!({
        "major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0+stowage"), "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", std::env::consts::ARCH),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = ["v1alpha1", "foo", "v2beta1", "v10", "v1", "v2", "v11beta2", "bar", "v1beta10"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_priority(version)));
        assert_eq!(versions, ["v10", "v2", "v1", "v11beta2", "v2beta1", "v1beta10", "v1alpha1", "bar", "foo"]);
    }

    #[test]
    fn an_aggregated_document_is_asked_for_by_its_parameters() {
        assert!(is_aggregated("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
        assert!(!is_aggregated("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"));
        assert!(!is_aggregated("application/json"));
    }
}

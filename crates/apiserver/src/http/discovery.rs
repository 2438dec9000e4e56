//! Discovery: which groups, versions and resources there are.

use std::collections::BTreeSet;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::kind::{KINDS, Kind};

use super::{Body, json as json_response};

/// The Kubernetes version whose behaviour is followed.
const MINOR: &str = "34";

/// A document of discovery.
#[derive(Debug)]
pub(super) enum Document {
    Core,
    Groups,
    Group(&'static str),
    Resources { group: &'static str, version: &'static str },
}

impl Document {
    pub fn group(name: &str) -> Option<Self> {
        groups().into_iter().map(|(group, _)| group).find(|g| *g == name).map(Self::Group)
    }

    pub fn resources(group: &str, version: &str) -> Option<Self> {
        let kind = KINDS.iter().find(|k| k.group == group && k.version == version)?;
        Some(Self::Resources { group: kind.group, version: kind.version })
    }

    pub fn answer(&self) -> Response<Body> {
        let document = match self {
            Self::Core => json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }),
            Self::Groups => {
                let all: Vec<Value> = groups().into_iter().map(|(g, v)| group_of(g, v)).collect();
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": all})
            }
            Self::Group(name) => {
                let (group, version) = groups().into_iter().find(|(g, _)| g == name).unwrap_or((name, "v1"));
                let mut document = group_of(group, version);
                document["kind"] = "APIGroup".into();
                document["apiVersion"] = "v1".into();
                document
            }
            Self::Resources { group, version } => {
                let kinds = KINDS.iter().filter(|k| k.group == *group && k.version == *version);
                let all: Vec<Value> = kinds.flat_map(resources_of).collect();
                let group_version = if group.is_empty() { (*version).to_owned() } else { format!("{group}/{version}") };
                json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": all,
                })
            }
        };
        json_response(StatusCode::OK, document.to_string())
    }
}

/// Named groups with their version.
pub(super) fn groups() -> BTreeSet<(&'static str, &'static str)> {
    KINDS.iter().filter(|k| !k.group.is_empty()).map(|k| (k.group, k.version)).collect()
}

fn group_of(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources_of(kind: &Kind) -> Vec<Value> {
    let part = |name: String, of: &str, verbs: Value| json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": of, "verbs": verbs});
    let verbs = json!(["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]);
    let mut main = part(kind.plural.to_owned(), kind.kind, verbs);
    main["singularName"] = kind.singular.into();
    if !kind.short_names.is_empty() {
        main["shortNames"] = json!(kind.short_names);
    }
    let mut all = vec![main];
    if kind.kind == "Pod" {
        all.push(part("pods/binding".to_owned(), "Binding", json!(["create"])));
    }
    if kind.status {
        all.push(part(format!("{}/status", kind.plural), kind.kind, json!(["get", "patch", "update"])));
    }
    all
}

pub(super) fn version() -> String {
    json!({
        "major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0+stowage"), "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", std::env::consts::ARCH),
    })
    .to_string()
}

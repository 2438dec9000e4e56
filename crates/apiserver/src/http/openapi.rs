//! As much of OpenAPI v3 as tells kubectl that objects are validated here.

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::kind::{KINDS, Kind};

use super::{Body, discovery, json as json_response};

/// A document of `/openapi/v3`.
#[derive(Debug)]
pub(super) enum Document {
    Index,
    GroupVersion { group: &'static str, version: &'static str },
}

impl Document {
    pub fn parse(parts: &[&str]) -> Option<Self> {
        let (group, version) = match *parts {
            [] => return Some(Self::Index),
            ["api", version] => ("", version),
            ["apis", group, version] => (group, version),
            _ => return None,
        };
        let kind = KINDS.iter().find(|k| k.group == group && k.version == version)?;
        Some(Self::GroupVersion { group: kind.group, version: kind.version })
    }

    pub fn answer(&self) -> Response<Body> {
        let document = match self {
            Self::Index => index(),
            Self::GroupVersion { group, version } => {
                let kinds = KINDS.iter().filter(|k| k.group == *group && k.version == *version);
                let paths: Map<String, Value> = kinds.map(|k| (path_of(k), operations(k))).collect();
                json!({
                    "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "stowage"}, "paths": paths,
                    "components": {"schemas": {}},
                })
            }
        };
        json_response(StatusCode::OK, document.to_string())
    }
}

fn index() -> Value {
    let mut paths = Map::new();
    let named = discovery::groups().into_iter().map(|(group, version)| format!("apis/{group}/{version}"));
    for path in named.chain(["api/v1".to_owned()]) {
        let url = format!("/openapi/v3/{path}");
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

fn path_of(kind: &Kind) -> String {
    let root =
        if kind.group.is_empty() { format!("/api/{}", kind.version) } else { format!("/apis/{}", kind.api_version()) };
    let namespace = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{root}{namespace}/{}/{{name}}", kind.plural)
}

fn operations(kind: &Kind) -> Value {
    let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation"]
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    json!({"patch": {
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
    }})
}

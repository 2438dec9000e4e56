//! As much of OpenAPI as tells kubectl that objects are validated here.

use http::header::{ACCEPT, HeaderMap};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::kind::{Kind, Kinds};
use crate::status::Status;

use super::{Body, discovery, json as json_response, with_type};

mod gnostic;

const TITLE: &str = "Kubernetes";
const VERSION: &str = "stowage";
/// What every patch takes; kubectl lets a server validate that knows the last.
const PARAMETERS: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];

/// A document of `/openapi`.
#[derive(Debug)]
pub(super) enum Document {
    /// Version 2, all in one.
    Whole,
    /// Version 3: where the documents of each group and version are.
    Index,
    /// Version 3: the document of one group and version.
    GroupVersion { group: &'static str, version: &'static str },
}

impl Document {
    pub fn parse(kinds: &Kinds, parts: &[&str]) -> Option<Self> {
        let (group, version) = match *parts {
            ["v2"] => return Some(Self::Whole),
            ["v3"] => return Some(Self::Index),
            ["v3", "api", version] => ("", version),
            ["v3", "apis", group, version] => (group, version),
            _ => return None,
        };
        let kind = kinds.iter().find(|k| k.group == group && k.version == version)?;
        Some(Self::GroupVersion { group: kind.group, version: kind.version })
    }

    pub fn answer(&self, kinds: &Kinds, headers: &HeaderMap) -> Result<Response<Body>, Status> {
        let document = match self {
            Self::Whole => {
                let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
                let asks_for = |known: &[&str]| accept.split(',').any(|one| known.iter().any(|k| one.contains(k)));
                if asks_for(&[gnostic::ASKED, gnostic::ANSWERED]) {
                    return Ok(with_type(StatusCode::OK, gnostic::ANSWERED, gnostic::document(kinds.iter())));
                }
                if !asks_for(&["json", "*/*"]) {
                    let message = format!(
                        "/openapi/v2 is served as JSON and as {:?}, the request accepts {accept:?}",
                        gnostic::ANSWERED
                    );
                    return Err(Status::new(406, "NotAcceptable", message));
                }
                json!({
                    "swagger": "2.0", "info": {"title": TITLE, "version": VERSION},
                    "paths": paths(kinds.iter()), "definitions": {},
                })
            }
            Self::Index => index(kinds),
            Self::GroupVersion { group, version } => json!({
                "openapi": "3.0.0", "info": {"title": TITLE, "version": VERSION},
                "paths": paths(kinds.iter().filter(|k| k.group == *group && k.version == *version)),
                "components": {"schemas": {}},
            }),
        };
        Ok(json_response(StatusCode::OK, document.to_string()))
    }
}

fn paths(kinds: impl Iterator<Item = &'static Kind>) -> Map<String, Value> {
    kinds.map(|kind| (path_of(kind), operations(kind))).collect()
}

fn index(kinds: &Kinds) -> Value {
    let named = discovery::groups(kinds)
        .into_iter()
        .flat_map(|(group, versions)| versions.into_iter().map(move |version| format!("apis/{group}/{version}")));
    let mut paths = Map::new();
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
    let parameters: Vec<Value> = PARAMETERS
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

//! Bodies of requests: JSON, YAML and Kubernetes protobuf, all read into the same JSON tree.

use http::HeaderMap;
use serde::de::DeserializeSeed as _;
use serde_json::Value;

use crate::bounds;
use crate::status::Status;

mod messages;
mod protobuf;
mod tree;

use tree::{Reading, Tree};

/// Half of what JSON may have: the reader of YAML takes that much more of the stack for each level.
const MAX_YAML_DEPTH: usize = 64;

/// A body, and what was odd about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Content {
    /// The body as JSON.
    pub tree: Value,
    /// Paths of the members that were given twice.
    pub duplicates: Vec<String>,
}

/// The media type of a request's body, without its parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let whole = headers.get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    whole.split(';').next().unwrap_or_default().trim()
}

/// Reads a body of any form this server takes.
pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Content, Status> {
    let content = read_any(headers, body)?;
    bounds::check_body(&content.tree)?;
    Ok(content)
}

fn read_any(headers: &HeaderMap, body: &[u8]) -> Result<Content, Status> {
    match media_type(headers) {
        // Upstream looks at the bytes when no type is named.
        "" if body.starts_with(protobuf::MAGIC) => read_protobuf(body),
        "" | "application/json" => read_json(body),
        "application/yaml" => read_yaml(body),
        "application/vnd.kubernetes.protobuf" => read_protobuf(body),
        other => Err(Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf (it was {other:?})"
        ))),
    }
}

/// Reads JSON, noting members that are given twice.
pub(crate) fn read_json(body: &[u8]) -> Result<Content, Status> {
    let reading = Reading::new();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let tree = Tree::new(&reading)
        .deserialize(&mut deserializer)
        .and_then(|tree| deserializer.end().map(|()| tree))
        .map_err(|error| Status::bad_request(format!("the body of the request is not readable JSON: {error}")))?;
    Ok(Content { tree, duplicates: reading.duplicates.into_inner().places })
}

fn read_protobuf(body: &[u8]) -> Result<Content, Status> {
    let tree = protobuf::decode(body)
        .map_err(|error| Status::bad_request(format!("the body of the request is not readable protobuf: {error}")))?;
    Ok(Content { tree, duplicates: Vec::new() })
}

fn read_yaml(body: &[u8]) -> Result<Content, Status> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!("the body of the request is not readable YAML: {error}"))
    };
    let mut options = serde_saphyr::Options::default();
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    options.with_snippet = false;
    if let Some(budget) = &mut options.budget {
        budget.max_depth = MAX_YAML_DEPTH;
    }
    let reading = Reading::new();
    let tree = serde_saphyr::with_deserializer_from_slice_with_options(body, options, |deserializer| {
        Tree::new(&reading).deserialize(deserializer)
    })
    .map_err(|error| unreadable(&error))?;
    Ok(Content { tree, duplicates: reading.duplicates.into_inner().places })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn read_as(media_type: &'static str, body: &str) -> Result<Content, Status> {
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(media_type))]);
        read(&headers, body.as_bytes())
    }

    #[test]
    fn a_member_given_twice_is_noted_with_its_path_and_the_last_counts() {
        let content = read_as("application/json", r#"{"a": [{"b": 1, "b": 2}], "c": 1, "c": {"d": 3}}"#).unwrap();
        assert_eq!(content.tree, json!({"a": [{"b": 2}], "c": {"d": 3}}));
        assert_eq!(content.duplicates, ["a[0].b", "c"]);
    }

    #[test]
    fn yaml_is_read_with_its_types_and_its_duplicates() {
        let yaml = "a: 1\nb: [x, true, null, '1', 1.5]\nc:\n  d: one\n  d: two\n";
        let content = read_as("application/yaml", yaml).unwrap();
        assert_eq!(content.tree, json!({"a": 1, "b": ["x", true, null, "1", 1.5], "c": {"d": "two"}}));
        assert_eq!(content.duplicates, ["c.d"]);
    }

    #[test]
    fn a_body_that_is_too_deep_or_grows_by_aliases_is_refused_in_every_form() {
        let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        for (media_type, most) in [("application/json", bounds::MAX_DEPTH), ("application/yaml", MAX_YAML_DEPTH)] {
            assert!(read_as(media_type, &nested(most)).is_ok(), "{media_type}");
            for levels in [most + 1, 100_000] {
                assert_eq!(read_as(media_type, &nested(levels)).unwrap_err().code, 400, "{media_type} {levels}");
            }
        }
        let block: String = (0..5000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
        assert_eq!(read_as("application/yaml", &block).unwrap_err().code, 400);
        // Each map takes a hundred times the memory of its bytes.
        let maps = format!("[{}1]", r#"{"":1},"#.repeat(400_000));
        assert_eq!(read_as("application/json", &maps).unwrap_err().code, 400);
        let list = format!("[{}1]", "1,".repeat(1_000_000));
        assert!(read_as("application/json", &list).is_ok());
        let text = "x".repeat(1 << 20);
        let aliases: String = (0..90).map(|n| format!("k{n}: *a\n")).collect();
        assert_eq!(read_as("application/yaml", &format!("a: &a {text}\n{aliases}")).unwrap_err().code, 400);
    }

    #[test]
    fn a_body_that_cannot_be_read_is_refused_with_its_form() {
        for (media_type, body) in
            [("application/json", "{"), ("application/json", "{} {}"), ("application/yaml", "a: [")]
        {
            assert_eq!(read_as(media_type, body).unwrap_err().code, 400, "{body}");
        }
        assert_eq!(read_as("application/vnd.kubernetes.protobuf", "k8s").unwrap_err().code, 400);
        assert_eq!(read_as("text/plain", "{}").unwrap_err().code, 415);
        assert_eq!(read_as("application/yaml", "a: 1\n---\nb: 2\n").unwrap_err().code, 400);
    }
}

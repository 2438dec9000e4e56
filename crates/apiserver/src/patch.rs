//! Patches: JSON Patch, merge patch and strategic merge patch.

use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

use crate::status::Status;
use crate::wire::{self, Content};

mod strategic;

/// As upstream: each operation may copy a large part of the object.
const MAX_OPERATIONS: usize = 10_000;

/// A change to part of an object.
#[derive(Debug, Clone)]
pub enum Patch {
    /// RFC 6902, as lax as upstream's implementation.
    Json(Vec<PatchOperation>),
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' own, which knows which lists are merged and by which key.
    Strategic(Value),
}

impl Patch {
    /// Reads a patch of this content type; also returns the paths of members that it gives twice.
    pub fn parse(content_type: &str, body: &[u8]) -> Result<(Self, Vec<String>), Status> {
        let object = |body: &[u8]| -> Result<Content, Status> {
            let content = wire::read_json(body)?;
            if content.tree.is_object() {
                Ok(content)
            } else {
                Err(Status::bad_request("the patch is not a JSON object"))
            }
        };
        match content_type {
            "application/json-patch+json" => {
                let operations: Vec<PatchOperation> = serde_json::from_slice(body)
                    .map_err(|error| Status::bad_request(format!("the patch is not readable: {error}")))?;
                if operations.len() > MAX_OPERATIONS {
                    return Err(Status::new(
                        413,
                        "RequestEntityTooLarge",
                        format!(
                            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                            operations.len()
                        ),
                    ));
                }
                Ok((Self::Json(operations), Vec::new()))
            }
            "application/merge-patch+json" => object(body).map(|c| (Self::Merge(c.tree), c.duplicates)),
            "application/strategic-merge-patch+json" => object(body).map(|c| (Self::Strategic(c.tree), c.duplicates)),
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => Err(Status::unsupported_media_type(
                "server-side apply is not part of this API server; use a merge patch or client-side apply",
            )),
            other => Err(Status::unsupported_media_type(format!(
                "the body of the request was in an unknown format ({other:?}); accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json"
            ))),
        }
    }

    /// The object with the patch applied.
    pub fn apply(&self, mut tree: Value) -> Result<Value, Status> {
        match self {
            Self::Json(operations) => {
                for operation in operations {
                    apply_json(&mut tree, operation)?;
                }
            }
            Self::Merge(patch) => json_patch::merge(&mut tree, patch),
            Self::Strategic(patch) => strategic::merge(&mut tree, patch)?,
        }
        Ok(tree)
    }
}

/// One operation, with two liberties that sidecars rely on: `replace` adds a missing member, and `test` takes a missing
/// member for null.
fn apply_json(tree: &mut Value, operation: &PatchOperation) -> Result<(), Status> {
    let lenient = match operation {
        PatchOperation::Replace(replace) if is_missing_member(tree, replace.path.as_str()) => {
            Some(PatchOperation::Add(AddOperation { path: replace.path.clone(), value: replace.value.clone() }))
        }
        PatchOperation::Test(test) if test.value.is_null() && tree.pointer(test.path.as_str()).is_none() => {
            return Ok(());
        }
        _ => None,
    };
    json_patch::patch(tree, std::slice::from_ref(lenient.as_ref().unwrap_or(operation))).map_err(|error| {
        let message = format!("the server rejected our request due to an error in our request: {error}");
        Status::new(422, "Invalid", message)
    })
}

/// Whether `path` names a member that is absent from an object that is there.
fn is_missing_member(tree: &Value, path: &str) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else { return false };
    tree.pointer(path).is_none() && tree.pointer(parent).is_some_and(Value::is_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json_patch(tree: Value, operations: Value) -> Result<Value, Status> {
        let body = serde_json::to_vec(&operations).unwrap();
        Patch::parse("application/json-patch+json", &body)?.0.apply(tree)
    }

    #[test]
    fn replacing_a_missing_member_adds_it() {
        let patched =
            json_patch(json!({"metadata": {}}), json!([{"op": "replace", "path": "/metadata/x", "value": 1}]));
        assert_eq!(patched.unwrap(), json!({"metadata": {"x": 1}}));
    }

    #[test]
    fn testing_a_missing_member_for_null_passes() {
        let operations = json!([{"op": "test", "path": "/a", "value": null}, {"op": "add", "path": "/a", "value": 1}]);
        assert_eq!(json_patch(json!({}), operations).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn a_failed_test_and_a_missing_parent_are_refused() {
        for operation in [
            json!({"op": "test", "path": "/a", "value": 2}),
            json!({"op": "replace", "path": "/x/y", "value": 2}),
            json!({"op": "remove", "path": "/x"}),
        ] {
            assert_eq!(json_patch(json!({"a": 1}), json!([operation])).unwrap_err().code, 422);
        }
    }

    #[test]
    fn server_side_apply_is_refused_with_a_sentence() {
        let status = Patch::parse("application/apply-patch+yaml", b"{}").unwrap_err();
        assert_eq!((status.code, status.message.contains("server-side apply")), (415, true));
    }
}

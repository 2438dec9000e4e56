//! Patches: JSON Patch, merge patch and strategic merge patch.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::status::Status;
use crate::wire::{self, Content};

mod json;
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
                let content = wire::read_json(body)?;
                let operations: Vec<PatchOperation> = serde_json::from_value(content.tree)
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
                Ok((Self::Json(operations), content.duplicates))
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
                let mut costs = json::Costs::default();
                for operation in operations {
                    json::apply(&mut tree, operation, &mut costs)?;
                }
            }
            Self::Merge(patch) => json_patch::merge(&mut tree, patch),
            Self::Strategic(patch) => strategic::merge(&mut tree, patch)?,
        }
        Ok(tree)
    }
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

    fn nested(levels: usize, innermost: Value) -> Value {
        (0..levels).fold(innermost, |inner, _| json!({"a": inner}))
    }

    #[test]
    fn no_intermediate_result_is_deeper_than_an_object_may_be() {
        // Each round puts what there is below 120 more levels; the stack would not be enough to drop the result.
        let below = format!("/t{}/b", "/a".repeat(119));
        let round = [
            json!({"op": "add", "path": "/t", "value": nested(119, json!({}))}),
            json!({"op": "move", "from": "/x", "path": below}),
            json!({"op": "move", "from": "/t", "path": "/x"}),
        ];
        let operations: Vec<Value> = (0..1000).flat_map(|_| round.clone()).collect();
        let status = json_patch(json!({"x": {}}), operations.into()).unwrap_err();
        assert_eq!((status.code, status.message.contains("nested deeper")), (422, true), "{status}");
        let added = json_patch(
            nested(100, json!({})),
            json!([
            {"op": "add", "path": "/a".repeat(100) + "/b", "value": nested(100, json!(1))}]),
        );
        assert_eq!(added.unwrap_err().code, 422);
    }

    #[test]
    fn copies_that_double_the_object_are_stopped_before_they_fill_the_memory() {
        let copies: Vec<Value> =
            (0..40).map(|n| json!({"op": "copy", "from": "/x", "path": format!("/x/k{n}")})).collect();
        let status = json_patch(json!({"x": {"v": "a text"}}), copies.into()).unwrap_err();
        assert_eq!((status.code, status.message.contains("copy more than")), (422, true), "{status}");
    }

    #[test]
    fn operations_that_push_a_long_list_aside_again_and_again_are_stopped() {
        let list = json!({"l": vec![1; 500_000]});
        for operation in [
            json!({"op": "add", "path": "/l/0", "value": 1}),
            json!({"op": "move", "from": "/l", "path": "/l"}),
            json!({"op": "remove", "path": "/l/0"}),
        ] {
            let operations = vec![operation; 10_000];
            assert_eq!(json_patch(list.clone(), operations.into()).unwrap_err().code, 422);
        }
        let appended = vec![json!({"op": "add", "path": "/l/-", "value": 1}); 10_000];
        assert_eq!(json_patch(list, appended.into()).unwrap()["l"].as_array().unwrap().len(), 510_000);
    }

    #[test]
    fn moving_the_last_element_of_an_empty_list_is_refused() {
        let status = json_patch(json!({"l": []}), json!([{"op": "move", "from": "/l/-", "path": "/m"}]));
        assert_eq!(status.unwrap_err().code, 422);
    }

    #[test]
    fn server_side_apply_is_refused_with_a_sentence() {
        let status = Patch::parse("application/apply-patch+yaml", b"{}").unwrap_err();
        assert_eq!((status.code, status.message.contains("server-side apply")), (415, true));
    }
}

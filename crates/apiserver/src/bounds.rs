//! How deep and how large an object may be, whichever way it comes in.
//!
//! What is kept is read again with a limit on nesting, ours and that of most clients, so that nothing deeper may ever be
//! kept; and what works on trees recurses, so that nothing much deeper may ever be built.

use std::cell::Cell;
use std::io;

use serde_json::Value;

use crate::status::Status;

/// Lists and maps inside each other. serde_json, with which Rust clients and this server read, takes 127; an object
/// is the deepest in a watch that shows tables, five levels down.
pub(crate) const MAX_DEPTH: usize = 120;
const READABLE_DEPTH: usize = 127;

/// No object, and so no request, may be larger than this (as upstream's limit on requests; etcd takes half of it).
pub(crate) const MAX_OBJECT: usize = 3 << 20;

/// What a body may come to as a tree, which takes many times the memory of its bytes: texts by their length, values and maps
/// by what they take at least. The largest objects in use have a tenth of it; aliases of YAML would go on for ever.
const MAX_WEIGHT: usize = 16 << 20;
/// Weight of a value.
pub(crate) const VALUE: usize = 8;
/// Weight of a map that is not empty.
pub(crate) const MAP: usize = 96;

/// What a body that is being read has still room for.
#[derive(Debug)]
pub(crate) struct Weight(Cell<usize>);

impl Default for Weight {
    fn default() -> Self {
        Self(Cell::new(MAX_WEIGHT))
    }
}

impl Weight {
    /// Whether there was room for so much more.
    pub fn take(&self, weight: usize) -> bool {
        let left = self.0.get().checked_sub(weight);
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }
}

/// Whether lists and maps are nested deeper than `levels` here. Looks no deeper than that.
pub(crate) fn is_deeper_than(levels: usize, tree: &Value) -> bool {
    match tree {
        Value::Array(elements) => levels == 0 || elements.iter().any(|element| is_deeper_than(levels - 1, element)),
        Value::Object(members) => levels == 0 || members.values().any(|member| is_deeper_than(levels - 1, member)),
        _ => false,
    }
}

/// 400: a body that nests deeper than objects may.
pub(crate) fn check_body(tree: &Value) -> Result<(), Status> {
    if is_deeper_than(MAX_DEPTH, tree) {
        return Err(Status::bad_request(format!(
            "the body of the request is nested deeper than {MAX_DEPTH} lists and maps"
        )));
    }
    Ok(())
}

/// Refuses what would be kept if it is too deep (422) or too large (413). What was so before may stay so, as it could not
/// lose its finalizers otherwise: `before` is the object as it is, and the length of its JSON.
pub(crate) fn check_result(tree: &Value, before: Option<(&Value, usize)>) -> Result<(), Status> {
    let was_deep = before.is_some_and(|(old, _)| is_deeper_than(MAX_DEPTH, old));
    if is_deeper_than(if was_deep { READABLE_DEPTH } else { MAX_DEPTH }, tree) {
        return Err(too_deep());
    }
    let size = encoded_length(tree);
    if size > MAX_OBJECT && before.is_none_or(|(_, before)| size > before) {
        return Err(too_large());
    }
    Ok(())
}

/// 422: an object that would nest too deep.
pub(crate) fn too_deep() -> Status {
    Status::new(422, "Invalid", format!("the object would be nested deeper than {MAX_DEPTH} lists and maps"))
}

/// 413: an object that would be too large.
pub(crate) fn too_large() -> Status {
    Status::new(
        413,
        "RequestEntityTooLarge",
        format!("Request entity too large: the object would be larger than {MAX_OBJECT} bytes of JSON"),
    )
}

/// How long the tree is as JSON.
pub(crate) fn encoded_length(tree: &Value) -> usize {
    struct Length(usize);
    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    serde_json::to_writer(&mut length, tree).expect("a JSON tree always encodes");
    length.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn what_may_be_kept_can_be_read_again_also_inside_a_watch_of_tables() {
        let deepest = nested(MAX_DEPTH);
        assert!(check_result(&deepest, None).is_ok() && check_body(&deepest).is_ok());
        assert_eq!(check_result(&nested(MAX_DEPTH + 1), None).unwrap_err().code, 422);
        assert_eq!(check_body(&nested(MAX_DEPTH + 1)).unwrap_err().code, 400);
        // From before there was a limit.
        let older = nested(READABLE_DEPTH);
        assert!(check_result(&older, Some((&older, 0))).is_ok() && check_result(&older, Some((&deepest, 0))).is_err());
        assert!(serde_json::from_str::<Value>(&older.to_string()).is_ok());
        let shown = json!({"type": "ADDED", "object": {"rows": [{"object": deepest}]}}).to_string();
        assert!(serde_json::from_str::<Value>(&shown).is_ok());
    }

    #[test]
    fn the_size_is_that_of_the_json_and_an_object_that_was_larger_may_shrink() {
        let large = json!({"a": "\u{1}é".repeat(500_000)});
        assert_eq!(encoded_length(&large), large.to_string().len());
        assert_eq!(check_result(&large, None).unwrap_err().code, 413);
        assert!(check_result(&large, Some((&large, large.to_string().len()))).is_ok());
    }
}

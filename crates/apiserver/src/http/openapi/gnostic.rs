//! The document of version 2 in the form kubectl asks for before it validates a List itself: protobuf, with the messages of
//! gnostic's openapiv2. All that is written here are texts and messages, which look alike on the wire.

use serde_json::json;

use crate::kind::Kind;

use super::{PARAMETERS, TITLE, VERSION, path_of};

/// What kubectl sends in `Accept`. Go cannot read it as the type of an answer.
pub(super) const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The type of the answer.
pub(super) const ANSWERED: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// A `Document`. Its `Definitions` are empty, so that kubectl leaves validation to the server.
pub(super) fn document(kinds: impl Iterator<Item = &'static Kind>) -> Vec<u8> {
    let info = [field(1, TITLE), field(2, VERSION)].concat();
    let paths: Vec<u8> = kinds.flat_map(|kind| field(2, named(&path_of(kind), &path_item(kind)))).collect();
    [field(1, "2.0"), field(2, info), field(8, paths), field(9, "")].concat()
}

fn path_item(kind: &Kind) -> Vec<u8> {
    let parameters: Vec<u8> = PARAMETERS.iter().flat_map(|name| field(8, parameter(name))).collect();
    let answer = field(1, field(1, "OK"));
    let responses = field(1, named("200", &answer));
    let kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let extensions = [
        field(13, named("x-kubernetes-action", &field(2, "patch"))),
        // YAML, which JSON is.
        field(13, named("x-kubernetes-group-version-kind", &field(2, kind.to_string()))),
    ];
    field(8, [parameters, field(9, responses), extensions.concat()].concat())
}

/// A `ParametersItem`, a `Parameter` and a `NonBodyParameter` around a parameter of the query.
fn parameter(name: &str) -> Vec<u8> {
    let of_query = [field(2, "query"), field(4, name), field(6, "string")].concat();
    field(1, field(2, field(3, of_query)))
}

/// A member of what JSON has as an object.
fn named(name: &str, value: &[u8]) -> Vec<u8> {
    [field(1, name), field(2, value)].concat()
}

/// A field with a length; its number fits into the tag's one byte.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_its_tag_its_length_and_its_content() {
        assert_eq!(field(1, "2.0"), [0x0a, 3, b'2', b'.', b'0']);
        assert_eq!(field(9, ""), [0x4a, 0]);
        assert_eq!(field(2, vec![7; 300])[..4], [0x12, 0xac, 0x02, 7]);
    }
}

//! Messages as the log shows them: one line of JSON, read from the bytes on the wire by the contract's own table.
//!
//! From the bytes, because the log stands where messages of every type pass as bytes; one reader for all of them is also
//! far less code than a printer for each. It looks as the originals' protosanitizer has it: fields under the names of the
//! contract and in the order of these, values by name where the contract has names, and secrets stripped.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::redact::STRIPPED;

/// Deeper than any message of the contract.
const DEEPEST: u32 = 16;

/// One field of a message.
pub(super) struct Field {
    number: u32,
    name: &'static str,
    repeated: bool,
    shape: Shape,
}

/// What a field holds.
enum Shape {
    Text,
    Bool,
    Number,
    Enum(&'static [(i32, &'static str)]),
    /// By its place in the table.
    Message(usize),
    /// Of text by text.
    Map,
    /// Nothing of it is ever read.
    Secret,
}

include!(concat!(env!("OUT_DIR"), "/calls.rs"));

/// The request and the answer of a unary call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    pub(super) path: &'static str,
    pub(super) request: usize,
    pub(super) answer: usize,
}

/// The call of this path, if it is one of the contract and has one request and one answer.
pub(super) fn method(path: &str) -> Option<Method> {
    METHODS.iter().find(|(known, _, _)| *known == path).map(|(path, request, answer)| Method {
        path,
        request: *request,
        answer: *answer,
    })
}

/// The message of this place in the table, as JSON.
pub(super) fn json(message: usize, bytes: &[u8]) -> String {
    match read(message, bytes, DEEPEST) {
        Some(json) => json.to_string(),
        None => "\"unreadable\"".to_owned(),
    }
}

enum Json {
    Text(String),
    /// Written as it is.
    Plain(String),
    List(Vec<Json>),
    Map(BTreeMap<String, Json>),
}

/// None if the bytes are not such a message.
fn read(message: usize, mut bytes: &[u8], depth: u32) -> Option<Json> {
    let fields = *MESSAGES.get(message)?;
    let mut found = BTreeMap::new();
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).ok()?;
        let value = Value::take(&mut bytes, wire)?;
        // One of a newer contract is not shown: it may be a secret.
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        let old = found.remove(field.name);
        found.insert(field.name.to_owned(), add(field, old, value, depth.checked_sub(1)?)?);
    }
    Some(Json::Map(found))
}

/// A value as the wire has it.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Value<'a> {
    fn take(bytes: &mut &'a [u8], wire: WireType) -> Option<Self> {
        let mut split = |length: usize| {
            let (taken, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Some(taken)
        };
        match wire {
            WireType::Varint => decode_varint(bytes).ok().map(Self::Varint),
            WireType::SixtyFourBit => split(8).map(|_| Self::Fixed),
            WireType::ThirtyTwoBit => split(4).map(|_| Self::Fixed),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
                let (taken, rest) = bytes.split_at_checked(length)?;
                *bytes = rest;
                Some(Self::Bytes(taken))
            }
            WireType::StartGroup | WireType::EndGroup => None,
        }
    }
}

/// Where the kubelet puts service account tokens into a volume's context.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// What a field holds after one more value of it.
fn add(field: &Field, old: Option<Json>, value: Value<'_>, depth: u32) -> Option<Json> {
    match (&field.shape, value) {
        (Shape::Secret, _) => Some(Json::Text(STRIPPED.to_owned())),
        (Shape::Map, Value::Bytes(bytes)) => {
            let mut map = match old {
                Some(Json::Map(map)) => map,
                _ => BTreeMap::new(),
            };
            let (key, value) = entry(bytes)?;
            // Tokens come in a map that is otherwise no secret, where the driver has not asked for another place.
            let value = if key == TOKENS { STRIPPED.to_owned() } else { value };
            map.insert(key, Json::Text(value));
            Some(Json::Map(map))
        }
        // Numbers of a list come packed, all in one value.
        (shape @ (Shape::Bool | Shape::Number | Shape::Enum(_)), Value::Bytes(mut bytes)) if field.repeated => {
            let mut list = list(old);
            while !bytes.is_empty() {
                list.push(one(shape, Value::Varint(decode_varint(&mut bytes).ok()?), depth)?);
            }
            Some(Json::List(list))
        }
        (shape, value) if field.repeated => {
            let mut list = list(old);
            list.push(one(shape, value, depth)?);
            Some(Json::List(list))
        }
        (shape, value) => one(shape, value, depth),
    }
}

fn list(old: Option<Json>) -> Vec<Json> {
    match old {
        Some(Json::List(list)) => list,
        _ => Vec::new(),
    }
}

fn one(shape: &Shape, value: Value<'_>, depth: u32) -> Option<Json> {
    Some(match (shape, value) {
        (Shape::Text, Value::Bytes(bytes)) => Json::Text(String::from_utf8_lossy(bytes).into_owned()),
        (Shape::Bool, Value::Varint(number)) => Json::Plain((number != 0).to_string()),
        // Every number of the contract is signed.
        (Shape::Number, Value::Varint(number)) => Json::Plain(number.cast_signed().to_string()),
        (Shape::Enum(names), Value::Varint(number)) => {
            let number = number.cast_signed();
            match names.iter().find(|(known, _)| i64::from(*known) == number) {
                Some((_, name)) => Json::Text((*name).to_owned()),
                None => Json::Plain(number.to_string()),
            }
        }
        (Shape::Message(message), Value::Bytes(bytes)) => read(*message, bytes, depth)?,
        _ => return None,
    })
}

/// Key and value of a map's entry, which is a message of its own.
fn entry(mut bytes: &[u8]) -> Option<(String, String)> {
    let (mut key, mut text) = (String::new(), String::new());
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).ok()?;
        match (number, Value::take(&mut bytes, wire)?) {
            (1, Value::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
            (2, Value::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
            _ => {}
        }
    }
    Some((key, text))
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write_text(f, text),
            Self::Plain(text) => f.write_str(text),
            Self::List(list) => {
                f.write_char('[')?;
                for (place, value) in list.iter().enumerate() {
                    write!(f, "{}{value}", if place > 0 { "," } else { "" })?;
                }
                f.write_char(']')
            }
            Self::Map(map) => {
                f.write_char('{')?;
                for (place, (key, value)) in map.iter().enumerate() {
                    f.write_str(if place > 0 { "," } else { "" })?;
                    write_text(f, key)?;
                    write!(f, ":{value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

/// A text of JSON: also what would end the log's line, or colour a terminal, is written as its number.
fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

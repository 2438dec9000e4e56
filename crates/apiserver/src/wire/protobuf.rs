//! Kubernetes protobuf: the `k8s\0` envelope and the messages in it, turned into the JSON they stand for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::messages::{self, Field, FieldKind, Shape};
use super::read_json;
use crate::bounds::{MAP, VALUE, Weight};

/// What every body begins with.
pub(super) const MAGIC: &[u8; 4] = b"k8s\0";
/// Schemas of CRDs nest; nothing sensible nests deeper.
const MAX_DEPTH: usize = 100;

/// Why bytes are not what they claim to be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Decode {
    #[error("the body does not begin with the Kubernetes protobuf mark")]
    FindMark,
    #[error("the message ends too early")]
    ReadMore,
    #[error("field {field} has the wrong wire type")]
    ReadField { field: u32 },
    #[error("a text is not valid UTF-8")]
    ReadText,
    #[error("field {field} holds bytes that are not JSON")]
    ReadJson { field: &'static str },
    #[error("the messages are nested too deeply")]
    Nest,
    #[error("the message has too many values")]
    Grow,
    #[error("no kind {kind:?} in version {api_version:?} is known to this server as protobuf; send it as JSON")]
    FindKind { api_version: String, kind: String },
    #[error("the content encoding {0:?} is not known")]
    FindEncoding(String),
}

/// The object that an enveloped body holds, as JSON.
pub(super) fn decode(body: &[u8]) -> Result<Value, Decode> {
    let envelope = body.strip_prefix(MAGIC.as_slice()).ok_or(Decode::FindMark)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), [].as_slice());
    for part in Parts(envelope) {
        let (number, part) = part?;
        match number {
            1 => {
                for part in Parts(part.bytes(1)?) {
                    match part? {
                        (1, part) => api_version = part.text(1)?,
                        (2, part) => kind = part.text(2)?,
                        _ => {}
                    }
                }
            }
            2 => raw = part.bytes(2)?,
            3 if !part.bytes(3)?.is_empty() => return Err(Decode::FindEncoding(part.text(3)?)),
            // The content type of `raw`; a JSON body may be wrapped as well.
            4 if part.bytes(4)? == b"application/json" => {
                return read_json(raw).map(|content| content.tree).map_err(|_| Decode::ReadJson { field: "raw" });
            }
            _ => {}
        }
    }
    let Some(name) = messages::name_of(&api_version, &kind) else {
        return Err(Decode::FindKind { api_version, kind });
    };
    let mut members = message(name, raw, At { depth: 0, weight: &Weight::default() })?;
    members.insert("apiVersion".to_owned(), api_version.into());
    members.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(members))
}

/// How deep in a body something is, and what the body has still room for.
#[derive(Clone, Copy)]
struct At<'a> {
    depth: usize,
    weight: &'a Weight,
}

impl At<'_> {
    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    fn take(self, weight: usize) -> Result<(), Decode> {
        if self.weight.take(weight) { Ok(()) } else { Err(Decode::Grow) }
    }
}

fn message(name: &str, bytes: &[u8], at: At<'_>) -> Result<Map<String, Value>, Decode> {
    let mut members = Map::new();
    let Some(fields) = messages::message(name) else { return Ok(members) };
    if at.depth > MAX_DEPTH {
        return Err(Decode::Nest);
    }
    for part in Parts(bytes) {
        let (number, part) = part?;
        // What a newer client knows and we do not is left out, as upstream does.
        let Some(field) = fields.get(&number) else { continue };
        at.take(if members.is_empty() { MAP } else { VALUE })?;
        match field.shape {
            Shape::List => {
                let slot = members.entry(field.name).or_insert_with(|| json!([]));
                if let Some(list) = slot.as_array_mut() {
                    push_elements(list, field, number, part, at)?;
                }
            }
            Shape::Map => {
                let (key, value) = entry(field, part.bytes(number)?, at)?;
                let slot = members.entry(field.name).or_insert_with(|| json!({}));
                if let Some(map) = slot.as_object_mut() {
                    map.insert(key, value);
                }
            }
            Shape::One => match value(field, number, part, at)? {
                Value::Object(inner) if field.inline => members.extend(inner),
                Value::Null => {}
                empty if is_empty(&empty) && !field.zero => {}
                value => {
                    members.insert(field.name.to_owned(), value);
                }
            },
        }
    }
    Ok(members)
}

/// Numbers may come packed, many in one part.
fn push_elements(list: &mut Vec<Value>, field: &Field, number: u32, part: Part, at: At<'_>) -> Result<(), Decode> {
    match (field.kind, part) {
        (FieldKind::Int, Part::Bytes(mut packed)) => {
            while !packed.is_empty() {
                at.take(VALUE)?;
                list.push((varint(&mut packed)? as i64).into());
            }
        }
        _ => list.push(value(field, number, part, at)?),
    }
    Ok(())
}

fn entry(field: &Field, bytes: &[u8], at: At<'_>) -> Result<(String, Value), Decode> {
    let (mut key, mut found) = (String::new(), None);
    for part in Parts(bytes) {
        match part? {
            (1, part) => key = part.text(1)?,
            (2, part) => found = Some(value(field, 2, part, at)?),
            _ => {}
        }
    }
    let absent = || match field.kind {
        FieldKind::Bool => false.into(),
        FieldKind::Int => 0.into(),
        FieldKind::Message(_) => json!({}),
        _ => "".into(),
    };
    Ok((key, found.unwrap_or_else(absent)))
}

fn value(field: &Field, number: u32, part: Part, at: At<'_>) -> Result<Value, Decode> {
    Ok(match field.kind {
        FieldKind::Text => part.text(number)?.into(),
        FieldKind::Bool => (part.number(number)? != 0).into(),
        // Two's complement, as protobuf writes negative numbers.
        FieldKind::Int => (part.number(number)? as i64).into(),
        FieldKind::Float => match part {
            Part::Fixed(bits) => json!(f64::from_bits(bits)),
            _ => return Err(Decode::ReadField { field: number }),
        },
        FieldKind::Bytes => STANDARD.encode(part.bytes(number)?).into(),
        FieldKind::Time => time(part.bytes(number)?, "%Y-%m-%dT%H:%M:%SZ")?,
        FieldKind::MicroTime => time(part.bytes(number)?, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        FieldKind::Quantity => first_text(part.bytes(number)?)?,
        FieldKind::IntOrString => int_or_string(part.bytes(number)?)?,
        FieldKind::Raw => raw(field, part.bytes(number)?)?,
        FieldKind::Items => texts(part.bytes(number)?, 1)?,
        FieldKind::Message(name) => Value::Object(message(name, part.bytes(number)?, at.deeper())?),
        FieldKind::SchemaOrBool | FieldKind::SchemaOrArray | FieldKind::SchemaOrStrings => {
            schema_or(field.kind, part.bytes(number)?, at.deeper())?
        }
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// Seconds and nanoseconds; nothing at all stands for no time.
fn time(bytes: &[u8], format: &str) -> Result<Value, Decode> {
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    for part in Parts(bytes) {
        match part? {
            (1, part) => seconds = part.number(1)? as i64,
            (2, part) => nanos = part.number(2)? as i32,
            _ => {}
        }
    }
    let at = Timestamp::new(seconds, nanos).map_err(|_| Decode::ReadField { field: 1 })?;
    Ok(at.strftime(format).to_string().into())
}

fn first_text(bytes: &[u8]) -> Result<Value, Decode> {
    let mut text = String::new();
    for part in Parts(bytes) {
        if let (1, part) = part? {
            text = part.text(1)?;
        }
    }
    // An unset quantity is shown as zero.
    Ok(if text.is_empty() { "0".into() } else { text.into() })
}

fn texts(bytes: &[u8], field: u32) -> Result<Value, Decode> {
    let mut list = Vec::new();
    for part in Parts(bytes) {
        let (number, part) = part?;
        if number == field {
            list.push(part.text(number)?.into());
        }
    }
    Ok(Value::Array(list))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Decode> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for part in Parts(bytes) {
        match part? {
            (1, part) => is_text = part.number(1)? != 0,
            (2, part) => number = part.number(2)? as i32,
            (3, part) => text = part.text(3)?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

/// Bytes of JSON inside a message.
fn raw(field: &Field, bytes: &[u8]) -> Result<Value, Decode> {
    for part in Parts(bytes) {
        if let (1, part) = part? {
            let json = part.bytes(1)?;
            if !json.is_empty() {
                let content = read_json(json).map_err(|_| Decode::ReadJson { field: field.name })?;
                return Ok(content.tree);
            }
        }
    }
    Ok(Value::Null)
}

/// A schema, or what else may stand where a schema stands.
fn schema_or(kind: FieldKind, bytes: &[u8], at: At<'_>) -> Result<Value, Decode> {
    const SCHEMA: &str = "apiextensions.JSONSchemaProps";
    let schema_field = if kind == FieldKind::SchemaOrBool { 2 } else { 1 };
    let (mut allows, mut list) = (false, Vec::new());
    for part in Parts(bytes) {
        let (number, part) = part?;
        if number == schema_field {
            return message(SCHEMA, part.bytes(number)?, at).map(Value::Object);
        }
        match kind {
            FieldKind::SchemaOrBool => allows = part.number(number)? != 0,
            FieldKind::SchemaOrArray => list.push(message(SCHEMA, part.bytes(number)?, at)?.into()),
            _ => list.push(part.text(number)?.into()),
        }
    }
    Ok(if kind == FieldKind::SchemaOrBool { allows.into() } else { Value::Array(list) })
}

/// The value of one field on the wire.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Number(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

impl<'a> Part<'a> {
    fn number(self, field: u32) -> Result<u64, Decode> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(Decode::ReadField { field }),
        }
    }

    fn bytes(self, field: u32) -> Result<&'a [u8], Decode> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Decode::ReadField { field }),
        }
    }

    fn text(self, field: u32) -> Result<String, Decode> {
        std::str::from_utf8(self.bytes(field)?).map(str::to_owned).map_err(|_| Decode::ReadText)
    }
}

/// The fields of a message, one after the other; the first error is the last item.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = Result<(u32, Part<'a>), Decode>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = next_part(&mut self.0);
        if part.is_err() {
            self.0 = &[];
        }
        Some(part)
    }
}

fn next_part<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Part<'a>), Decode> {
    let tag = varint(bytes)?;
    let number = u32::try_from(tag >> 3).map_err(|_| Decode::ReadMore)?;
    let part = match tag & 7 {
        0 => Part::Number(varint(bytes)?),
        1 => {
            let fixed = take(bytes, 8)?;
            Part::Fixed(u64::from_le_bytes(fixed.try_into().map_err(|_| Decode::ReadMore)?))
        }
        2 => {
            let length = usize::try_from(varint(bytes)?).map_err(|_| Decode::ReadMore)?;
            Part::Bytes(take(bytes, length)?)
        }
        5 => {
            let fixed = take(bytes, 4)?;
            Part::Fixed(u32::from_le_bytes(fixed.try_into().map_err(|_| Decode::ReadMore)?).into())
        }
        _ => return Err(Decode::ReadField { field: number }),
    };
    Ok((number, part))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Decode> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Decode::ReadMore)?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Decode> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Decode::ReadMore)
}

#[cfg(test)]
mod tests;

//! Values: those of an object, looked at where they are, and those that an expression makes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map as Members, Value as Json};

use super::functions::{Cidr, Format, Semver, Url, time};
use super::types::{DYN, DYN_LIST, ListType, ObjectType, Type};
use super::{Error, Run};

#[derive(Debug, Clone)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    Type(&'static str),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    /// In billionths.
    Quantity(i128),
    Ip(IpAddr),
    Cidr(Cidr),
    Url(Arc<Url>),
    Semver(Arc<Semver>),
    Format(Format),
}

#[derive(Debug, Clone)]
pub(crate) enum Text<'a> {
    Given(&'a str),
    Made(Arc<str>),
}

#[derive(Debug, Clone)]
pub(crate) enum List<'a> {
    Given(&'a [Json], &'a ListType),
    Made(Arc<[Value<'a>]>),
}

#[derive(Debug, Clone)]
pub(crate) enum Map<'a> {
    Given(&'a Members<String, Json>, &'a Type),
    Object(&'a Members<String, Json>, &'a ObjectType),
    Made(Arc<[(Value<'a>, Value<'a>)]>),
}

impl<'a> Value<'a> {
    /// A part of an object, read by its type. What is of another type than its schema says is what it is.
    pub fn of(tree: &'a Json, of: &'a Type) -> Self {
        match (tree, of) {
            (Json::Null, _) => Self::Null,
            (Json::Bool(value), _) => Self::Bool(*value),
            (Json::Number(number), Type::Double) => Self::Double(number.as_f64().unwrap_or_default()),
            (Json::Number(number), Type::Int) => {
                // 1.0 is an integer too.
                Self::Int(number.as_i64().unwrap_or_else(|| number.as_f64().unwrap_or_default() as i64))
            }
            (Json::Number(number), _) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Self::Int(int),
                (None, Some(uint)) => Self::Uint(uint),
                (None, None) => Self::Double(number.as_f64().unwrap_or_default()),
            },
            (Json::String(text), Type::Timestamp) => {
                time::timestamp(text).map_or_else(|| Self::given(text), Self::Timestamp)
            }
            (Json::String(text), Type::Duration) => {
                time::duration(text).map_or_else(|| Self::given(text), Self::Duration)
            }
            (Json::String(text), Type::Bytes) => {
                STANDARD.decode(text).map_or_else(|_| Self::given(text), |bytes| Self::Bytes(bytes.into()))
            }
            (Json::String(text), _) => Self::given(text),
            (Json::Array(elements), Type::List(of)) => Self::List(List::Given(elements, of)),
            (Json::Array(elements), _) => Self::List(List::Given(elements, &DYN_LIST)),
            (Json::Object(members), Type::Map(of)) => Self::Map(Map::Given(members, of)),
            (Json::Object(members), Type::Object(of)) => Self::Map(Map::Object(members, of)),
            (Json::Object(members), _) => Self::Map(Map::Given(members, &DYN)),
        }
    }

    pub fn given(text: &'a str) -> Self {
        Self::Text(Text::Given(text))
    }

    pub fn text(made: impl Into<Arc<str>>) -> Self {
        Self::Text(Text::Made(made.into()))
    }

    pub fn list(made: Vec<Self>) -> Self {
        Self::List(List::Made(made.into()))
    }

    pub fn some(inner: Self) -> Self {
        Self::Optional(Some(Arc::new(inner)))
    }

    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Type(_) => "type",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
        }
    }

    /// As `string()` and `format()` write it.
    pub fn write(&self, into: &mut String, run: &mut Run) -> Result<(), Error> {
        let before = into.len();
        let written = match self {
            Self::Null => into.write_str("null"),
            Self::Bool(value) => write!(into, "{value}"),
            Self::Int(value) => write!(into, "{value}"),
            Self::Uint(value) => write!(into, "{value}"),
            Self::Double(value) => write!(into, "{value}"),
            Self::Text(text) => into.write_str(text),
            Self::Bytes(bytes) => into.write_str(&String::from_utf8_lossy(bytes)),
            Self::Timestamp(at) => write!(into, "{at}"),
            Self::Duration(duration) => into.write_str(&time::written(duration)),
            Self::Type(name) => into.write_str(name),
            Self::List(list) => {
                into.push('[');
                for (index, element) in list.iter().enumerate() {
                    into.push_str(if index == 0 { "" } else { ", " });
                    element.write(into, run)?;
                }
                into.write_char(']')
            }
            Self::Map(map) => {
                run.charge(map.breadth())?;
                into.push('{');
                for (index, (key, value)) in map.entries().into_iter().enumerate() {
                    into.push_str(if index == 0 { "" } else { ", " });
                    key.write(into, run)?;
                    into.push_str(": ");
                    value.write(into, run)?;
                }
                into.write_char('}')
            }
            Self::Ip(address) => write!(into, "{address}"),
            Self::Cidr(cidr) => write!(into, "{cidr}"),
            other => return Err(Error::Overload(format!("string({})", other.type_name()))),
        };
        written.map_err(|_| Error::Cost)?;
        run.charge((into.len() - before) / 10 + 1)
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Given(text) => text,
            Self::Made(text) => text,
        }
    }
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Given(elements, _) => elements.len(),
            Self::Made(elements) => elements.len(),
        }
    }

    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Given(elements, of) => elements.get(index).map(|element| Value::of(element, &of.element)),
            Self::Made(elements) => elements.get(index).cloned(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Given(members, _) | Self::Object(members, _) => members.len(),
            Self::Made(entries) => entries.len(),
        }
    }

    /// What going through all of it costs.
    pub fn breadth(&self) -> usize {
        self.len() + if let Self::Object(_, of) = self { of.fields.len() } else { 0 }
    }

    /// All keys and values; of an object by the names that it has itself.
    pub fn entries(&self) -> Vec<(Value<'a>, Value<'a>)> {
        match self {
            Self::Given(members, of) => members.iter().map(|(k, v)| (Value::given(k), Value::of(v, of))).collect(),
            Self::Object(members, of) => {
                let types: BTreeMap<&str, &Type> = of.fields.values().map(|(raw, of)| (raw.as_str(), of)).collect();
                let of = |name: &str| types.get(name).copied().unwrap_or(&DYN);
                members.iter().map(|(k, v)| (Value::given(k), Value::of(v, of(k)))).collect()
            }
            Self::Made(entries) => entries.to_vec(),
        }
    }

    /// The member of this name; of an object, the name that expressions use.
    pub fn member(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Self::Given(members, of) => members.get(name).map(|value| Value::of(value, of)),
            Self::Object(members, of) => {
                let (raw, of) = of.fields.get(name)?;
                members.get(raw).map(|value| Value::of(value, of))
            }
            Self::Made(entries) => {
                let named = |(key, _): &&(Value<'_>, Value<'_>)| matches!(key, Value::Text(text) if **text == *name);
                entries.iter().find(named).map(|(_, value)| value.clone())
            }
        }
    }
}

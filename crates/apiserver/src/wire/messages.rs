//! The table of message fields, read once from `messages.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: LazyLock<BTreeMap<&'static str, Message>> = LazyLock::new(|| parse(include_str!("messages.txt")));

/// The fields of a message, by number.
pub(super) type Message = BTreeMap<u32, Field>;

/// One field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub name: &'static str,
    pub shape: Shape,
    pub kind: FieldKind,
    /// Whether an empty value is shown.
    pub zero: bool,
    /// Whether the message's own fields stand in this field's place.
    pub inline: bool,
}

/// How often a field may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    List,
    Map,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldKind {
    Text,
    Bool,
    Int,
    Float,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    Raw,
    Items,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
    Message(&'static str),
}

/// The message of this name, such as `core.Pod`.
pub(super) fn message(name: &str) -> Option<&'static Message> {
    TABLE.get(name)
}

/// The name of the message that a body of this version and kind is.
pub(super) fn name_of(api_version: &str, kind: &str) -> Option<&'static str> {
    // Sent with the version of what is deleted.
    let package = match api_version {
        _ if kind == "DeleteOptions" => "meta",
        "v1" => "core",
        "apiextensions.k8s.io/v1" => "apiextensions",
        "apps/v1" => "apps",
        "authentication.k8s.io/v1" => "authentication",
        "authorization.k8s.io/v1" => "authorization",
        "coordination.k8s.io/v1" => "coordination",
        "events.k8s.io/v1" => "events",
        "rbac.authorization.k8s.io/v1" => "rbac",
        "storage.k8s.io/v1" => "storage",
        _ => return None,
    };
    TABLE.get_key_value(format!("{package}.{kind}").as_str()).map(|(name, _)| *name)
}

fn parse(text: &'static str) -> BTreeMap<&'static str, Message> {
    let mut table: BTreeMap<&'static str, Message> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        match (line.strip_prefix("  "), words.next()) {
            (None, Some(name)) => {
                current = name;
                table.entry(name).or_default();
            }
            (Some(_), Some(number)) => {
                let number = number.parse().expect("the table is part of this program");
                table.entry(current).or_default().insert(number, field(words));
            }
            (_, None) => {}
        }
    }
    table
}

fn field(mut words: impl Iterator<Item = &'static str>) -> Field {
    let mut word = || words.next().unwrap_or_default();
    let (name, first) = (word(), word());
    let (shape, kind) = match first {
        "list" => (Shape::List, word()),
        "map" => (Shape::Map, word()),
        kind => (Shape::One, kind),
    };
    let flag = word();
    Field { name, shape, kind: field_kind(kind), zero: flag == "zero", inline: flag == "inline" }
}

fn field_kind(word: &'static str) -> FieldKind {
    match word {
        "text" => FieldKind::Text,
        "bool" => FieldKind::Bool,
        "int" => FieldKind::Int,
        "float" => FieldKind::Float,
        "bytes" => FieldKind::Bytes,
        "Time" => FieldKind::Time,
        "MicroTime" => FieldKind::MicroTime,
        "Quantity" => FieldKind::Quantity,
        "IntOrString" => FieldKind::IntOrString,
        "Raw" => FieldKind::Raw,
        "Items" => FieldKind::Items,
        "JSONSchemaPropsOrBool" => FieldKind::SchemaOrBool,
        "JSONSchemaPropsOrArray" => FieldKind::SchemaOrArray,
        "JSONSchemaPropsOrStringArray" => FieldKind::SchemaOrStrings,
        message => FieldKind::Message(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_that_a_field_names_is_in_the_table() {
        for (name, fields) in TABLE.iter() {
            for field in fields.values() {
                if let FieldKind::Message(target) = field.kind {
                    assert!(message(target).is_some(), "{name}.{} is of {target}", field.name);
                }
            }
        }
    }

    #[test]
    fn every_stored_kind_can_be_sent_as_protobuf() {
        for kind in crate::kind::KINDS {
            assert!(name_of(&kind.api_version(), kind.kind).is_some(), "{}", kind.kind);
        }
    }
}

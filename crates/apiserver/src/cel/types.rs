//! The types of values, as a structural schema gives them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::Value as Json;

#[derive(Debug, Clone)]
pub(crate) enum Type {
    /// Known only when it is there, as of `x-kubernetes-int-or-string`.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    /// The type of another value.
    Meta,
    List(Arc<ListType>),
    /// Of texts, or of what a literal has as keys, to this.
    Map(Arc<Type>),
    Object(Arc<ObjectType>),
    Optional(Arc<Type>),
    /// A quantity, an address and what else Kubernetes has added, by name.
    Opaque(&'static str),
}

#[derive(Debug)]
pub(crate) struct ListType {
    pub element: Type,
    pub merge: Merge,
}

/// What makes two elements of a list the same one.
#[derive(Debug)]
pub(crate) enum Merge {
    Atomic,
    Set,
    Keyed(Vec<String>),
}

#[derive(Debug, Default)]
pub(crate) struct ObjectType {
    /// By the name that expressions use; each with its name in the object.
    pub fields: BTreeMap<String, (String, Type)>,
}

/// The type of what has none in its schema.
pub(super) static DYN: Type = Type::Dyn;
pub(super) static DYN_LIST: LazyLock<ListType> =
    LazyLock::new(|| ListType { element: Type::Dyn, merge: Merge::Atomic });

/// Types that expressions have names for: `type(self) == string`.
pub(super) const NAMES: [(&str, &str); 12] = [
    ("bool", "bool"),
    ("int", "int"),
    ("uint", "uint"),
    ("double", "double"),
    ("string", "string"),
    ("bytes", "bytes"),
    ("list", "list"),
    ("map", "map"),
    ("null_type", "null_type"),
    ("type", "type"),
    ("optional_type", "optional_type"),
    ("dyn", "dyn"),
];

impl Type {
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(ListType { element, merge: Merge::Atomic }))
    }

    pub fn optional(inner: Self) -> Self {
        Self::Optional(Arc::new(inner))
    }

    /// The type of what a schema describes, or nothing if expressions may not see it. `resource` is true where an object
    /// has a kind and a name.
    pub fn of(schema: &Json, resource: bool) -> Option<Self> {
        let text = |name: &str| schema.get(name).and_then(Json::as_str).unwrap_or_default();
        if schema.get("x-kubernetes-int-or-string") == Some(&Json::Bool(true)) {
            return Some(Self::Dyn);
        }
        Some(match text("type") {
            "boolean" => Self::Bool,
            "integer" => Self::Int,
            "number" => Self::Double,
            "string" => match text("format") {
                "byte" => Self::Bytes,
                "duration" => Self::Duration,
                "date" | "date-time" => Self::Timestamp,
                _ => Self::Text,
            },
            "array" => {
                let items = schema.get("items")?;
                let element = Self::of(items, is_resource(items))?;
                let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
                let merge = match text("x-kubernetes-list-type") {
                    "set" => Merge::Set,
                    "map" => {
                        let keys = keys.into_iter().flatten().filter_map(Json::as_str);
                        Merge::Keyed(keys.map(str::to_owned).collect())
                    }
                    _ => Merge::Atomic,
                };
                Self::List(Arc::new(ListType { element, merge }))
            }
            "object" => match schema.get("additionalProperties").filter(|inner| inner.is_object()) {
                Some(inner) => Self::Map(Arc::new(Self::of(inner, is_resource(inner))?)),
                None => Self::Object(Arc::new(ObjectType::of(schema, resource))),
            },
            _ => return None,
        })
    }

    pub fn field(&self, name: &str) -> Option<&(String, Self)> {
        match self {
            Self::Object(object) => object.fields.get(name),
            _ => None,
        }
    }

    /// Whether a value of the one type may stand where the other is wanted.
    pub(super) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Null, _) | (_, Self::Dyn | Self::Null) | (Self::Object(_), Self::Object(_)) => true,
            (Self::List(one), Self::List(other)) => one.element.fits(&other.element),
            (Self::Map(one), Self::Map(other)) | (Self::Optional(one), Self::Optional(other)) => one.fits(other),
            (Self::Opaque(one), Self::Opaque(other)) => one == other,
            (Self::List(_) | Self::Map(_) | Self::Object(_) | Self::Optional(_) | Self::Opaque(_), _) => false,
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }
}

pub(crate) fn is_resource(schema: &Json) -> bool {
    schema.get("x-kubernetes-embedded-resource") == Some(&Json::Bool(true))
}

impl ObjectType {
    fn of(schema: &Json, resource: bool) -> Self {
        let mut fields = BTreeMap::new();
        for (name, property) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
            if let (Some(escaped), Some(inner)) = (escape(name), Type::of(property, is_resource(property))) {
                fields.insert(escaped, (name.clone(), inner));
            }
        }
        if resource {
            // What every object has; nothing else of its metadata may be asked for.
            let text = |name: &str| (name.to_owned(), (name.to_owned(), Type::Text));
            let metadata = Self { fields: ["name", "generateName"].map(text).into() };
            fields.extend(["apiVersion", "kind"].map(text));
            fields.insert("metadata".to_owned(), ("metadata".to_owned(), Type::Object(Arc::new(metadata))));
        }
        Self { fields }
    }
}

/// The name by which expressions call a field, or nothing if they cannot.
pub(crate) fn escape(name: &str) -> Option<String> {
    const WORDS: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if WORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::Text => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::Meta => f.write_str("type"),
            Self::List(list) => write!(f, "list({})", list.element),
            Self::Map(inner) => write!(f, "map(string, {inner})"),
            Self::Object(_) => f.write_str("object"),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Opaque(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn names_that_are_no_names_in_expressions_are_escaped() {
        for (name, escaped) in [
            ("name", Some("name")),
            ("namespace", Some("__namespace__")),
            ("my_field", Some("my_field")),
            ("my__field", Some("my__underscores__field")),
            ("foo-bar", Some("foo__dash__bar")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("int", Some("int")),
            ("1st", None),
            ("ä", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }
}

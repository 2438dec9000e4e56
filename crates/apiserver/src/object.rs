//! Objects: as they are kept (encoded, small) and as they are worked on (a JSON tree).

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use stowage_model::annotations;

/// One version of an object as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The revision that made this version; also inside the JSON as `metadata.resourceVersion`.
    pub revision: u64,
    /// The whole object, ready to be sent.
    pub json: Bytes,
}

/// Namespace (empty for cluster-wide kinds) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Namespace, or empty.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl Key {
    /// The key of this namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl Object {
    /// Encodes `tree` as the version made by `revision`.
    pub(crate) fn encode(mut tree: Value, revision: u64) -> Self {
        metadata_mut(&mut tree).insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
        let json = serde_json::to_vec(&tree).expect("a JSON tree always encodes");
        Self { revision, json: Bytes::from(json.into_boxed_slice()) }
    }

    /// An answer that is not kept: what a dry run would have made.
    pub(crate) fn unsaved(tree: Value) -> Self {
        let json = serde_json::to_vec(&tree).expect("a JSON tree always encodes");
        Self { revision: 0, json: json.into() }
    }

    /// The object as a JSON tree.
    pub fn tree(&self) -> Value {
        serde_json::from_slice(&self.json).expect("only encoded or verified objects are kept")
    }
}

/// Whether [`Object::tree`] can read this: all of it, no deeper than it goes, every number; without making a tree of it.
pub(crate) fn check_readable(json: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Readable>(json).map(|_| ())
}

struct Readable;

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        while entries.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

/// The string at `pointer`, or an empty one.
pub(crate) fn text<'a>(tree: &'a Value, pointer: &str) -> &'a str {
    tree.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The value of an annotation, empty if there is none.
pub(crate) fn annotation<'a>(tree: &'a Value, name: &str) -> &'a str {
    tree["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

/// Whether a class is marked as the default, by the current or the legacy annotation.
pub(crate) fn is_default_class(tree: &Value) -> bool {
    [annotations::DEFAULT_CLASS, annotations::BETA_DEFAULT_CLASS].iter().any(|name| annotation(tree, name) == "true")
}

/// What `pointer` shows unless it is absent, null, or empty.
pub(crate) fn filled<'a>(tree: &'a Value, pointer: &str) -> Option<&'a Value> {
    tree.pointer(pointer).filter(|v| match v {
        Value::Null => false,
        Value::String(s) => !s.is_empty(),
        Value::Array(a) => !a.is_empty(),
        Value::Object(o) => !o.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    })
}

/// The member `name` of `tree`, made an object if it is not one.
pub(crate) fn member_mut<'a>(tree: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    let members = object_mut(tree);
    object_mut(members.entry(name).or_insert(Value::Null))
}

/// `metadata`, made if it is not there.
pub(crate) fn metadata_mut(tree: &mut Value) -> &mut Map<String, Value> {
    member_mut(tree, "metadata")
}

fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

/// Sets `members[name]` unless something is there already.
pub(crate) fn default(members: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let slot = members.entry(name).or_insert(Value::Null);
    if slot.is_null() || slot.as_str() == Some("") {
        *slot = value.into();
    }
}

/// Makes `new[name]` what `old[name]` is, absent included.
pub(crate) fn restore(new: &mut Map<String, Value>, old: Option<&Map<String, Value>>, name: &str) {
    match old.and_then(|o| o.get(name)) {
        Some(value) => new.insert(name.to_owned(), value.clone()),
        None => new.remove(name),
    };
}

/// Adds `finalizer` unless it is there.
pub(crate) fn add_finalizer(tree: &mut Value, finalizer: &str) {
    let slot = metadata_mut(tree).entry("finalizers").or_insert(Value::Null);
    match slot.as_array_mut() {
        Some(list) if list.iter().any(|f| f == finalizer) => {}
        Some(list) => list.push(finalizer.into()),
        None => *slot = Value::Array(vec![finalizer.into()]),
    }
}

/// Takes `finalizer` off, and the list with it when it was the last.
pub(crate) fn drop_finalizer(tree: &mut Value, finalizer: &str) {
    let metadata = metadata_mut(tree);
    if let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        list.retain(|f| f != finalizer);
        if list.is_empty() {
            metadata.remove("finalizers");
        }
    }
}

/// Takes empty lists and maps out of metadata: they are the same as absent ones, and a write that turns one into the other
/// changes nothing.
pub(crate) fn drop_empty(metadata: &mut Map<String, Value>) {
    for name in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let is_empty = |v: &Value| {
            v.is_null() || v.as_object().is_some_and(Map::is_empty) || v.as_array().is_some_and(Vec::is_empty)
        };
        if metadata.get(name).is_some_and(is_empty) {
            metadata.remove(name);
        }
    }
}

/// The finalizers of an object.
pub(crate) fn finalizers(tree: &Value) -> impl Iterator<Item = &str> {
    tree.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Whether the object waits for its finalizers or its grace period.
pub(crate) fn is_deleting(tree: &Value) -> bool {
    filled(tree, "/metadata/deletionTimestamp").is_some()
}

/// A time as Kubernetes writes it: UTC, whole seconds.
pub(crate) fn timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A version 4 UUID made of `id`.
pub(crate) fn uid(id: u128) -> String {
    let id = (id & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{id:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The `attempt`-th random end of a generated name: five letters and digits that spell nothing.
pub(crate) fn name_suffix(id: u128, attempt: u32) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // Mixed (as in SplitMix64), so that neighbouring ids and attempts give names that do not look alike.
    let mut rest = (id as u64 ^ (id >> 64) as u64).wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    rest = (rest ^ (rest >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    rest = (rest ^ (rest >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    rest ^= rest >> 31;
    (0..5)
        .map(|_| {
            let letter = LETTERS[(rest % 27) as usize];
            rest /= 27;
            char::from(letter)
        })
        .collect()
}

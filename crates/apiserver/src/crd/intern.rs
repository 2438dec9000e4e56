//! The kinds that definitions bring. Each distinct one is made once and stays for the life of the process, as the built-in
//! kinds do, so that everything may refer to kinds without counting; how much of them there may ever be is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object::text;

/// Bytes that kinds may take in the life of a process: some ten thousand definitions, or as many changes of their names.
pub(super) const MAX_KINDS: usize = 16 << 20;

/// All kinds that were ever made.
#[derive(Debug, Default)]
struct Made {
    kinds: BTreeMap<String, &'static Kind>,
    words: BTreeSet<&'static str>,
    bytes: usize,
}

static MADE: Mutex<Made> = Mutex::new(Made { kinds: BTreeMap::new(), words: BTreeSet::new(), bytes: 0 });

fn made() -> MutexGuard<'static, Made> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind of one version of a definition.
pub(super) fn kind(
    definition: &Value,
    version: &Value,
    kept_in: Option<(&'static str, &'static str)>,
) -> &'static Kind {
    made().kind(definition, version, kept_in)
}

/// Whether the kinds of this definition may still be made.
pub(super) fn has_room(definition: &Value) -> bool {
    let made = made();
    made.bytes + made.cost(definition) <= MAX_KINDS
}

/// All that a kind is made of. The version it is kept in is no news to somebody who has seen all versions.
fn identity(definition: &Value, version: &Value, kept_in: Option<(&str, &str)>) -> String {
    let spec = &definition["spec"];
    let fields = version.get("selectableFields").unwrap_or(&Value::Null);
    json!([spec["group"], version["name"], spec["names"], spec["scope"], has_status(version), fields, kept_in])
        .to_string()
}

fn has_status(version: &Value) -> bool {
    version.pointer("/subresources/status").is_some_and(|status| !status.is_null())
}

impl Made {
    /// At most what the kinds of a definition would add.
    fn cost(&self, definition: &Value) -> usize {
        let versions = definition.pointer("/spec/versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let kept = versions.iter().find(|version| version["storage"] == true);
        let kept = kept.map(|kept| (text(definition, "/spec/group"), text(kept, "/name")));
        let each = versions.iter().map(|version| {
            let kept_in = kept.filter(|(_, name)| *name != text(version, "/name"));
            let identity = identity(definition, version, kept_in);
            if self.kinds.contains_key(&identity) { 0 } else { cost(&identity) }
        });
        each.sum()
    }

    fn kind(
        &mut self,
        definition: &Value,
        version: &Value,
        kept_in: Option<(&'static str, &'static str)>,
    ) -> &'static Kind {
        let identity = identity(definition, version, kept_in);
        if let Some(kind) = self.kinds.get(&identity) {
            return kind;
        }
        let names = &definition["spec"]["names"];
        let status = has_status(version);
        let fields = version.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
        let fields: Vec<_> = fields
            .map(|field| {
                let path = text(field, "/jsonPath").trim_start_matches('.');
                (self.word(path), self.word(&format!("/{}", path.replace('.', "/"))))
            })
            .collect();
        let kind: &'static Kind = Box::leak(Box::new(Kind {
            group: self.word(text(definition, "/spec/group")),
            version: self.word(text(version, "/name")),
            plural: self.word(text(names, "/plural")),
            singular: self.word(text(names, "/singular")),
            kind: self.word(text(names, "/kind")),
            short_names: self.words(names, "shortNames"),
            namespaced: text(definition, "/spec/scope") == "Namespaced",
            status,
            status_on_create: !status,
            status_keeps_metadata: true,
            generation: true,
            returns_deleted: false,
            unconditional_update: false,
            create_on_update: false,
            fields: Vec::leak(fields),
            categories: self.words(names, "categories"),
            kept_in,
            renamed: &[],
            custom: true,
        }));
        self.bytes += cost(&identity);
        self.kinds.insert(identity, kind);
        kind
    }

    fn words(&mut self, names: &Value, list: &str) -> &'static [&'static str] {
        let list = names.get(list).and_then(Value::as_array).into_iter().flatten();
        Vec::leak(list.filter_map(Value::as_str).map(|word| self.word(word)).collect())
    }

    fn word(&mut self, word: &str) -> &'static str {
        if let Some(known) = self.words.get(word) {
            return known;
        }
        let kept = String::leak(word.to_owned());
        self.words.insert(kept);
        kept
    }
}

/// What a kind of this identity takes at most: itself, its identity, and each of its words with a place in a set and a list.
fn cost(identity: &str) -> usize {
    let words = identity.matches(',').count();
    size_of::<Kind>() + 2 * identity.len() + words * 6 * size_of::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(short_name: &str) -> Value {
        json!({"spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": [short_name]},
            "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true}]}})
    }

    #[test]
    fn a_definition_made_again_adds_nothing_and_every_other_is_counted() {
        let mut made = Made::default();
        let mut make = |name: &str| {
            let definition = definition(name);
            let versions = definition["spec"]["versions"].as_array().unwrap();
            let (cost, before) = (made.cost(&definition), made.bytes);
            let kept = made.kind(&definition, &versions[0], None);
            made.kind(&definition, &versions[1], Some((kept.group, kept.version)));
            assert_eq!(made.bytes - before, cost);
            (made.bytes, made.words.len())
        };
        let first = make("w");
        assert_eq!(make("w"), first);
        let second = make("v");
        assert!(second.0 > first.0 && second.1 == first.1 + 1);
    }
}

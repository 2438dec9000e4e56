//! CustomResourceDefinitions: kinds that come and go while the server runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{Kind, Kinds, version_priority};
use crate::object::{default, is_deleting, member_mut, text, timestamp};
use crate::place::Noted;
use crate::status::{Faults, Status};
use crate::store::Ground;

mod intern;
mod path;
pub(crate) mod pattern;
mod rules;
mod shape;
mod structural;
mod validate;
mod validations;

pub(crate) use path::Path;
use pattern::Patterns;
pub(crate) use rules::{validate, validate_update};
use validations::Validations;

/// A definition as the store works with it.
#[derive(Debug)]
pub(crate) struct Definition {
    /// Of the object that it was read from.
    pub revision: u64,
    /// Group and plural.
    pub resource: (&'static str, &'static str),
    /// One kind for each served version.
    pub kinds: Vec<&'static Kind>,
    /// The kind in whose form objects are kept; also there when that version is not served.
    pub kept: &'static Kind,
    versions: BTreeMap<&'static str, Version>,
    terminating: bool,
}

#[derive(Debug)]
struct Version {
    schema: Value,
    patterns: Patterns,
    /// Read when the first object is written: a definition is read more often than that.
    validations: OnceLock<Validations>,
    columns: Vec<PrinterColumn>,
    deprecation: Option<String>,
}

/// A column that the definition wants printed.
#[derive(Debug, Clone)]
pub(crate) struct PrinterColumn {
    pub name: String,
    pub column_type: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub path: Path,
}

impl Definition {
    /// Reads a definition whose names were accepted.
    pub fn read(tree: &Value, revision: u64) -> Option<Self> {
        if condition(tree, "Established") != Some("True") {
            return None;
        }
        let versions = tree.pointer("/spec/versions")?.as_array()?;
        let kept_version = versions.iter().find(|v| v["storage"] == true)?;
        let kept = intern::kind(tree, kept_version, None);
        let of_version = |version: &Value| {
            let kept_in = (version != kept_version).then_some((kept.group, kept.version));
            intern::kind(tree, version, kept_in)
        };
        let served = versions.iter().filter(|v| v["served"] == true);
        let kinds: Vec<&'static Kind> = served.map(of_version).collect();
        let details = versions.iter().map(|v| (of_version(v).version, Version::read(tree, v))).collect();
        Some(Self {
            revision,
            resource: (kept.group, kept.plural),
            kinds,
            kept,
            versions: details,
            terminating: is_deleting(tree),
        })
    }

    /// Refuses new objects of a kind that is going.
    pub fn check_open(&self) -> Result<(), Status> {
        if self.terminating {
            return Err(Status::method_not_allowed(
                "create not allowed while custom resource definition is terminating",
            ));
        }
        Ok(())
    }

    /// Drops what the schema of this version does not have and fills in its defaults, also for nulls; returns the paths of what was dropped.
    pub fn shape(&self, kind: &Kind, tree: &mut Value) -> Result<Vec<String>, Status> {
        let Some(version) = self.versions.get(kind.version) else { return Ok(Vec::new()) };
        let mut dropped = Noted::default();
        shape::prune_root(&version.schema, tree, &mut dropped);
        shape::default_root(&version.schema, tree)?;
        Ok(dropped.places)
    }

    /// Checks an object against the schema and the rules of this version; `old` is what it was before. Returns what is wrong
    /// but was so before.
    pub fn validate(&self, kind: &Kind, tree: &Value, old: Option<&Value>, faults: &mut Faults) -> Vec<String> {
        let Some(version) = self.versions.get(kind.version) else { return Vec::new() };
        validate::root(&version.schema, &version.patterns, tree, faults);
        let validations = version.validations.get_or_init(|| Validations::of(&version.schema));
        if validations.is_empty() {
            return Vec::new();
        }
        // What is kept in the form of another version is looked at in the form of this one.
        let old = old.map(|old| {
            let mut old = kind.shown(old.clone());
            // What cannot be completed is looked at as it is.
            let _unknown = self.shape(kind, &mut old);
            old
        });
        match kind.kept_in {
            Some(_) => validations.enforce(&kind.shown(tree.clone()), old.as_ref(), faults),
            None => validations.enforce(tree, old.as_ref(), faults),
        }
    }

    /// What everybody who asks for this version is told, if it is on its way out.
    pub fn deprecation(&self, kind: &Kind) -> Option<&str> {
        self.versions.get(kind.version)?.deprecation.as_deref()
    }

    /// The columns of this version.
    pub fn columns(&self, kind: &Kind) -> &[PrinterColumn] {
        self.versions.get(kind.version).map_or(&[], |v| &v.columns)
    }
}

impl Version {
    fn read(definition: &Value, tree: &Value) -> Self {
        let columns = tree.get("additionalPrinterColumns").and_then(Value::as_array);
        let column = |c: &Value| {
            Some(PrinterColumn {
                name: text(c, "/name").to_owned(),
                column_type: text(c, "/type").to_owned(),
                format: text(c, "/format").to_owned(),
                description: text(c, "/description").to_owned(),
                priority: c.get("priority").and_then(Value::as_i64).unwrap_or(0),
                path: Path::parse(text(c, "/jsonPath")).ok()?,
            })
        };
        let schema = tree.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
        Self {
            patterns: Patterns::of(&schema),
            validations: OnceLock::new(),
            deprecation: deprecation(definition, tree),
            schema,
            columns: columns.into_iter().flatten().filter_map(column).collect(),
        }
    }
}

/// The warning of a version, or the one that is made of its name.
fn deprecation(definition: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
        return Some(warning.to_owned());
    }
    let (group, kind) = (text(definition, "/spec/group"), text(definition, "/spec/names/kind"));
    let name = text(version, "/name");
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    let others = versions.into_iter().flatten().filter(|v| v["served"] == true && v["deprecated"] != true);
    let newer = others.map(|v| text(v, "/name")).filter(|other| version_priority(other) > version_priority(name));
    let instead = newer.max_by_key(|other| version_priority(other));
    let instead = instead.map(|other| format!("; use {group}/{other} {kind}")).unwrap_or_default();
    Some(format!("{group}/{name} {kind} is deprecated{instead}"))
}

/// Defaults of a new definition, and its status: names are accepted at once, or never.
pub(crate) fn create(ground: &Ground, tree: &mut Value, now: Timestamp) {
    let kind = text(tree, "/spec/names/kind").to_owned();
    let spec = member_mut(tree, "spec");
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        default(names, "singular", kind.to_lowercase());
        default(names, "listKind", format!("{kind}List"));
    }
    default(spec, "conversion", json!({"strategy": "None"}));
    update(ground, tree, now);
}

/// Brings the status in line with the spec.
pub(crate) fn update(ground: &Ground, tree: &mut Value, now: Timestamp) {
    let conflict = name_conflict(ground.kinds(), tree);
    let names = tree.pointer("/spec/names").cloned().unwrap_or_default();
    let kept = tree.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let kept = kept.filter(|v| v["storage"] == true).map(|v| text(v, "/name").to_owned()).next();
    let status = member_mut(tree, "status");
    let versions = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let (Some(versions), Some(kept)) = (versions.as_array_mut(), kept)
        && !versions.iter().any(|v| *v == *kept)
    {
        versions.push(kept.into());
    }
    status
        .insert("acceptedNames".to_owned(), if conflict.is_none() { names } else { json!({"kind": "", "plural": ""}) });
    match conflict {
        None => {
            set_condition(tree, "NamesAccepted", true, "NoConflicts", "no conflicts found", now);
            set_condition(
                tree,
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted",
                now,
            );
        }
        Some((reason, message)) => {
            set_condition(tree, "NamesAccepted", false, reason, &message, now);
            if condition(tree, "Established") != Some("True") {
                set_condition(tree, "Established", false, "NotAccepted", "not all names are accepted", now);
            }
        }
    }
}

/// A name that another kind of the same group has already.
fn name_conflict(kinds: &Kinds, tree: &Value) -> Option<(&'static str, String)> {
    let group = text(tree, "/spec/group");
    let plural = text(tree, "/spec/names/plural");
    let own = |kind: &Kind| kind.custom && kind.plural == plural;
    let others: Vec<&Kind> = kinds.iter().filter(|k| k.group == group && !own(k)).collect();
    let taken: BTreeSet<&str> =
        others.iter().flat_map(|k| [k.plural, k.singular].into_iter().chain(k.short_names.iter().copied())).collect();
    let in_use = |name: &str| format!("{name:?} is already in use");
    for (pointer, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = text(tree, &format!("/spec/names/{pointer}"));
        if taken.contains(name) {
            return Some((reason, in_use(name)));
        }
    }
    let short = tree.pointer("/spec/names/shortNames").and_then(Value::as_array);
    if let Some(name) = short.into_iter().flatten().filter_map(Value::as_str).find(|name| taken.contains(name)) {
        return Some(("ShortNamesConflict", in_use(name)));
    }
    let kind = text(tree, "/spec/names/kind");
    others.iter().any(|k| k.kind == kind).then(|| ("KindConflict", in_use(kind)))
}

fn condition<'a>(tree: &'a Value, name: &str) -> Option<&'a str> {
    let conditions = tree.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|c| text(c, "/type") == name).map(|c| text(c, "/status"))
}

/// Sets a condition of the status; its time changes only with its status.
pub(crate) fn set_condition(tree: &mut Value, name: &str, holds: bool, reason: &str, message: &str, now: Timestamp) {
    let status = if holds { "True" } else { "False" };
    if condition(tree, name) == Some(status) {
        return;
    }
    let slot = member_mut(tree, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Some(conditions) = slot.as_array_mut() {
        conditions.retain(|c| text(c, "/type") != name);
        conditions.push(json!({
            "type": name, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": timestamp(now),
        }));
    }
}

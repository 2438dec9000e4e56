//! What a definition itself must be.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path::Path;
use super::{intern, structural};
use crate::object::{filled, text};
use crate::rules::metadata::is_dns_label;
use crate::status::Faults;

/// As many of them as upstream allows in one version.
const MAX_SELECTABLE: usize = 8;
/// Bytes of what is told about a deprecated version, as upstream.
const MAX_WARNING: usize = 256;
const WORD: &str = "must be lower case letters, digits and '-', begin with a letter, end with a letter or digit, and have at \
     most 63 characters";
const APPROVED: &str = "/metadata/annotations/api-approved.kubernetes.io";

/// Checks a definition as it would be after the write.
pub(crate) fn validate(tree: &Value, faults: &mut Faults) {
    let (group, plural) = (text(tree, "/spec/group"), text(tree, "/spec/names/plural"));
    let name = text(tree, "/metadata/name");
    if name != format!("{plural}.{group}") {
        faults.invalid("metadata.name", format!("{name:?}"), "must be spec.names.plural+\".\"+spec.group");
    }
    for (pointer, field) in [
        ("/spec/group", "spec.group"),
        ("/spec/scope", "spec.scope"),
        ("/spec/names/plural", "spec.names.plural"),
        ("/spec/names/kind", "spec.names.kind"),
    ] {
        if filled(tree, pointer).is_none() {
            faults.required(field, "");
        }
    }
    crate::rules::one_of("spec.scope", "/spec/scope", tree, &["Cluster", "Namespaced"], faults);
    let protected = group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io") || group == "k8s.io";
    if protected && filled(tree, APPROVED).is_none() {
        faults.required(
            "metadata.annotations[api-approved.kubernetes.io]",
            "protected groups must have approval annotation \"api-approved.kubernetes.io\"",
        );
    }
    match text(tree, "/spec/conversion/strategy") {
        "" | "None" => {}
        "Webhook" => faults.forbidden(
            "spec.conversion.strategy",
            "conversion by webhook is not part of this API server; use strategy None",
        ),
        other => faults.unsupported("spec.conversion.strategy", other, &["None", "Webhook"]),
    }
    validate_names(tree, faults);
    validate_versions(tree, faults);
    if faults.is_empty() && !intern::has_room(tree) {
        faults.forbidden(
            "spec.names",
            "too many different kinds were defined since this server was started; restart it to make room",
        );
    }
}

/// What a kind is called, each a word of at most 63 characters as upstream.
fn validate_names(tree: &Value, faults: &mut Faults) {
    let mut word = |field: String, name: &str| {
        let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
        if !name.is_empty() && (!begins || !is_dns_label(name)) {
            faults.invalid(format_args!("spec.names.{field}"), format_args!("{name:?}"), WORD);
        }
    };
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = text(tree, &format!("/spec/names/{field}"));
        // Kinds have capitals.
        word(field.to_owned(), &if field.ends_with("ind") { name.to_lowercase() } else { name.to_owned() });
    }
    for field in ["shortNames", "categories"] {
        let names = tree.pointer(&format!("/spec/names/{field}")).and_then(Value::as_array);
        for (index, name) in names.into_iter().flatten().enumerate() {
            word(format!("{field}[{index}]"), name.as_str().unwrap_or_default());
        }
    }
}

fn validate_versions(tree: &Value, faults: &mut Faults) {
    let versions: &[Value] = tree.pointer("/spec/versions").and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let kept = versions.iter().filter(|v| v["storage"] == true).count();
    if kept != 1 {
        let shown = versions.len();
        faults.invalid("spec.versions", shown, "must have exactly one version marked as storage version");
    }
    let mut names = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        let name = text(version, "/name");
        if !crate::rules::metadata::is_dns_label(name) {
            faults.invalid(format!("{path}.name"), format!("{name:?}"), "must be a DNS label such as v1");
        } else if !names.insert(name) {
            faults.duplicate(format!("{path}.name"), &name.into());
        }
        match filled(version, "/schema/openAPIV3Schema") {
            Some(schema) => structural::validate(&format!("{path}.schema.openAPIV3Schema"), schema, faults),
            None => faults.required(format!("{path}.schema.openAPIV3Schema"), "schemas are required"),
        }
        if let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) {
            validate_warning(&format!("{path}.deprecationWarning"), warning, version["deprecated"] == true, faults);
        }
        let fields = version.get("selectableFields").and_then(Value::as_array).map_or(0, Vec::len);
        if fields > MAX_SELECTABLE {
            let why = format!("must have at most {MAX_SELECTABLE} items");
            faults.too_many(format_args!("{path}.selectableFields"), fields, &why);
        }
        let columns = version.get("additionalPrinterColumns").and_then(Value::as_array);
        for (number, column) in columns.into_iter().flatten().enumerate() {
            let field = format!("{path}.additionalPrinterColumns[{number}]");
            for part in ["name", "type"] {
                if filled(column, &format!("/{part}")).is_none() {
                    faults.required(format!("{field}.{part}"), "");
                }
            }
            let json_path = text(column, "/jsonPath");
            if let Err(why) = Path::parse(json_path) {
                faults.invalid(format!("{field}.jsonPath"), format!("{json_path:?}"), &why);
            }
        }
    }
}

/// A warning is a line of a header.
fn validate_warning(field: &str, warning: &str, deprecated: bool, faults: &mut Faults) {
    let shown = format!("{warning:?}");
    if !deprecated {
        faults.invalid(field, &shown, "can only be set for deprecated versions");
    }
    if warning.len() > MAX_WARNING {
        faults.too_long(field, &format!("may not be more than {MAX_WARNING} bytes"));
    } else if warning.trim().is_empty() || warning.chars().any(char::is_control) {
        faults.invalid(field, &shown, "must be a line of printable characters");
    }
}

/// Checks what may not change: what the kind is called and where its objects live.
pub(crate) fn validate_update(new: &Value, old: &Value, faults: &mut Faults) {
    for (field, pointer) in [
        ("spec.group", "/spec/group"),
        ("spec.scope", "/spec/scope"),
        ("spec.names.plural", "/spec/names/plural"),
        ("spec.names.kind", "/spec/names/kind"),
    ] {
        crate::rules::immutable(field, pointer, new, old, faults);
    }
    let kept = old.pointer("/status/storedVersions").and_then(Value::as_array);
    let versions = new.pointer("/spec/versions").and_then(Value::as_array);
    for (index, version) in kept.into_iter().flatten().enumerate() {
        if !versions.into_iter().flatten().any(|v| v.get("name") == Some(version)) {
            faults.invalid(format!("status.storedVersions[{index}]"), version, "must appear in spec.versions");
        }
    }
}

//! The files in `deploy/crds` are what this crate makes, and the projections of the model fit them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use stowage_crds::{definitions, files};
use stowage_model::object::Projection;
use stowage_model::volume_group_snapshot::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
use stowage_model::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds")
}

#[test]
fn the_files_are_in_step_with_the_types() {
    let mut expected = BTreeSet::new();
    for (name, text) in files() {
        let found = fs::read_to_string(folder().join(&name)).unwrap_or_default();
        assert!(found == text, "deploy/crds/{name} is not what the types say: run `cargo xtask crds`");
        expected.insert(name);
    }
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn yaml_reads_every_file_as_the_object_it_was_made_of() {
    for (definition, (name, text)) in definitions().iter().zip(files()) {
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), definition.object(), "{name}");
    }
}

#[test]
fn of_each_kind_one_version_is_stored_and_the_one_that_services_use_is_served() {
    for definition in definitions() {
        let object = definition.object();
        let versions = object["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.iter().filter(|version| version["storage"] == true).count(), 1, "{}", definition.name());
        let used = versions.iter().find(|version| version["name"] == definition.kind().version).unwrap();
        assert_eq!(used["served"], true, "{}", definition.name());
    }
}

/// A value in which everything is set that a schema has.
fn full(schema: &Value) -> Value {
    match schema["type"].as_str().unwrap() {
        "object" if schema["additionalProperties"].is_object() => json!({"name": "value"}),
        "object" => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            Value::Object(fields.map(|(name, field)| (name.clone(), full(field))).collect::<Map<_, _>>())
        }
        "array" => json!([full(&schema["items"])]),
        "boolean" => true.into(),
        "integer" => 7.into(),
        "string" if schema["format"] == "date-time" => "2026-01-02T03:04:05Z".into(),
        "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| "text".into()),
        other => panic!("no value of type {other}"),
    }
}

/// What of a projection stays empty when everything is set that its definition has.
fn unknown_fields<T: Projection + Debug>() -> Vec<String> {
    let definition = definitions().into_iter().find(|definition| definition.kind() == T::KIND).unwrap();
    let object = definition.object();
    let versions = object["spec"]["versions"].as_array().unwrap();
    let version = versions.iter().find(|version| version["name"] == T::KIND.version).unwrap();
    let object: T = serde_json::from_value(full(&version["schema"]["openAPIV3Schema"])).unwrap();
    let text = format!("{object:#?}");
    // The metadata is the API server's own, and is set by no schema.
    let own = text.split_once("    },\n").unwrap().1.lines();
    own.filter(|line| [": None,", ": \"\",", ": [],", ": {},"].iter().any(|empty| line.ends_with(empty)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn what_a_projection_reads_its_definition_has() {
    let nothing = Vec::<String>::new();
    assert_eq!(unknown_fields::<VolumeSnapshot>(), nothing);
    assert_eq!(unknown_fields::<VolumeSnapshotContent>(), nothing);
    assert_eq!(unknown_fields::<VolumeSnapshotClass>(), nothing);
    assert_eq!(unknown_fields::<VolumeGroupSnapshot>(), nothing);
    assert_eq!(unknown_fields::<VolumeGroupSnapshotContent>(), nothing);
    assert_eq!(unknown_fields::<VolumeGroupSnapshotClass>(), nothing);
}

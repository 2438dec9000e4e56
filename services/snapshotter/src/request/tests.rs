use serde_json::{Value, json};

use stowage_model::annotations::{SNAPSHOT_GROUP_HANDLE, SNAPSHOT_SECRET_NAME, SNAPSHOT_SECRET_NAMESPACE};
use stowage_model::{VolumeGroupSnapshotContent, VolumeSnapshotContent};
use stowage_runtime::told::Known;

use super::*;
use crate::options::{Names, Options};

fn facts() -> Facts {
    Facts { driver: "d.example".into(), lists: true, groups: true, options: Options::default() }
}

fn case(parameters: &[(&str, &str)], spoil: impl FnOnce(&mut Value)) -> Case {
    let mut object = json!({
        "metadata": { "name": "c", "uid": "c" },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "12-34" },
            "driver": "d.example", "volumeSnapshotClassName": "fast", "source": { "volumeHandle": "vol-1" },
        },
    });
    spoil(&mut object);
    let parameters = parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Case {
        content: Content::from(&serde_json::from_value::<VolumeSnapshotContent>(object).unwrap()),
        is_unknown: false,
        class: Class::Found { name: "fast".into(), parameters },
        create: None,
        look: None,
        delete: None,
        doubt: None,
        known: Known::default(),
    }
}

const LIST: (&str, &str) =
    ("csi.storage.k8s.io/snapshotter-list-secret-name", "csi.storage.k8s.io/snapshotter-list-secret-namespace");

#[test]
fn every_reserved_key_that_is_known_stays_here_and_an_unknown_one_is_named() {
    let mut parameters: Vec<(&str, &str)> = KNOWN.iter().map(|key| (*key, "x")).collect();
    parameters.push(("pool", "a"));
    let Request::CreateSnapshot(request) = case(&parameters, |_| {}).create(&facts()).unwrap().request else {
        panic!()
    };
    assert_eq!(request.parameters, BTreeMap::from([("pool".to_owned(), "a".to_owned())]));
    parameters.push(("csi.storage.k8s.io/snapshoter-secret-name", "x"));
    let problem = case(&parameters, |_| {}).create(&facts()).unwrap_err().to_string();
    assert!(
        problem.contains("\"csi.storage.k8s.io/snapshoter-secret-name\"") && problem.contains("\"fast\""),
        "{problem}"
    );
}

#[test]
fn names_are_cut_to_their_length() {
    for (uuid_length, name) in [(None, "snapshot-12-34"), (Some(3), "snapshot-123"), (Some(32), "snapshot-1234")] {
        let mut facts = facts();
        facts.options.snapshots = Names { prefix: "snapshot".into(), uuid_length };
        let Request::CreateSnapshot(request) = case(&[], |_| {}).create(&facts).unwrap().request else { panic!() };
        assert_eq!(request.name, name);
    }
    let unnamed = case(&[], |object| object["spec"]["volumeSnapshotRef"]["uid"] = json!("")).create(&facts());
    let problem = unnamed.unwrap_err();
    assert_eq!(problem, Problem::NameSnapshot { user: "VolumeSnapshot" });
    assert!(problem.to_string().starts_with("spec.volumeSnapshotRef.uid is empty"), "{problem}");
}

#[test]
fn the_secret_is_that_of_the_annotations_and_half_of_it_means_none() {
    let annotated = |pairs: Value| case(&[], |object| object["metadata"]["annotations"] = pairs).create(&facts());
    let both = annotated(json!({ SNAPSHOT_SECRET_NAME: "key", SNAPSHOT_SECRET_NAMESPACE: "shop" }));
    assert_eq!(both.unwrap().secret, Some(Key::namespaced("shop", "key")));
    assert_eq!(annotated(json!({ SNAPSHOT_SECRET_NAME: "key" })).unwrap().secret, None);
    let empty = annotated(json!({ SNAPSHOT_SECRET_NAME: "", SNAPSHOT_SECRET_NAMESPACE: "shop" }));
    assert!(matches!(empty, Err(Problem::ReadSecret { .. })));
}

#[test]
fn the_secret_of_a_look_is_that_of_the_class_or_of_a_members_annotations() {
    let existing = |object: &mut Value| object["spec"]["source"] = json!({ "snapshotHandle": "s" });
    let token = [(LIST.0, "k-${volumesnapshotcontent.name}"), (LIST.1, "shop")];
    assert_eq!(case(&token, existing).look("s", &facts()).unwrap().secret, Some(Key::namespaced("shop", "k-c")));
    let other = [(LIST.0, "${volumesnapshot.name}"), (LIST.1, "shop")];
    let problem = case(&other, existing).look("s", &facts()).unwrap_err();
    assert!(matches!(problem, Problem::NameSecret { .. }), "only the content's name is known");
    assert!(problem.to_string().contains("use ${volumesnapshotcontent.name}"), "{problem}");
    let member = case(&token, |object| {
        object["metadata"]["annotations"] = json!({
            SNAPSHOT_GROUP_HANDLE: "g", SNAPSHOT_SECRET_NAME: "key", SNAPSHOT_SECRET_NAMESPACE: "shop",
        });
    });
    assert_eq!(member.look("s", &facts()).unwrap().secret, Some(Key::namespaced("shop", "key")));
}

#[test]
fn what_is_gone_by_the_time_of_a_deletion_does_without() {
    let gone = Case { class: Class::Missing("fast".into()), ..case(&[], |_| {}) };
    assert!(matches!(gone.create(&facts()), Err(Problem::FindClass { .. })));
    let again = gone.create_again(&facts()).unwrap();
    assert!(!again.is_whole && matches!(again.request, Request::CreateSnapshot(_)));
    assert!(case(&[], |_| {}).create_again(&facts()).unwrap().is_whole);
}

#[test]
fn a_driver_without_groups_is_never_asked_for_one() {
    let object = json!({
        "metadata": { "name": "g" },
        "spec": {
            "volumeGroupSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "1" },
            "source": { "volumeHandles": ["a"] },
        },
    });
    let content = Content::from(&serde_json::from_value::<VolumeGroupSnapshotContent>(object).unwrap());
    let group = Case { content, ..case(&[], |_| {}) };
    assert!(group.create(&facts()).is_ok());
    let without = Facts { groups: false, ..facts() };
    assert_eq!(group.create(&without), Err(Problem::FindGroups { driver: "d.example".into() }));
}

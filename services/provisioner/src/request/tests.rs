use serde_json::{Value, json};

use stowage_csi::v1::volume_capability::AccessType;

use super::*;
use crate::fixture::{DRIVER, VOLUME, claim_with, class_with, facts};
use crate::intent::SecretRef;

fn build_with(spoil_claim: impl FnOnce(&mut Value), spoil_class: impl FnOnce(&mut Value)) -> Result<Intent, Problem> {
    build(&claim_with(spoil_claim), &class_with(spoil_class), &facts(), &Cluster::default())
}

fn problem(spoil_claim: impl FnOnce(&mut Value), spoil_class: impl FnOnce(&mut Value)) -> String {
    build_with(spoil_claim, spoil_class).unwrap_err().to_string()
}

#[test]
fn a_plain_claim_becomes_a_plain_call() {
    let intent = build_with(|_| {}, |_| {}).unwrap();
    let call = intent.create_volume(BTreeMap::new());
    assert_eq!(call.name, VOLUME);
    let range = call.capacity_range.unwrap();
    assert_eq!((range.required_bytes, range.limit_bytes), (1 << 30, 0));
    assert_eq!(call.parameters, BTreeMap::from([("pool".into(), "a".into())]));
    assert_eq!(call.volume_capabilities.len(), 1);
    assert_eq!(call.volume_capabilities[0].access_mode.unwrap().mode, 1);
    let Some(AccessType::Mount(mount)) = &call.volume_capabilities[0].access_type else { panic!("not a mount") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags.as_slice()), ("ext4", &["noatime".to_owned()][..]));
    assert!(mount.volume_mount_group.is_empty());
    assert!(call.secrets.is_empty() && call.accessibility_requirements.is_none());
}

#[test]
fn a_block_claim_asks_for_a_device() {
    let intent = build_with(|claim| claim["spec"]["volumeMode"] = "Block".into(), |_| {}).unwrap();
    let call = intent.create_volume(BTreeMap::new());
    assert!(matches!(call.volume_capabilities[0].access_type, Some(AccessType::Block(_))));
}

/// A driver that looks at the first of them made another volume than beside the original.
#[test]
fn every_access_mode_becomes_a_capability_in_the_order_of_the_claim() {
    let modes = json!(["ReadOnlyMany", "ReadWriteOnce"]);
    let intent = build_with(|claim| claim["spec"]["accessModes"] = modes, |_| {}).unwrap();
    assert_eq!(intent.request.modes, [3, 1]);
}

#[test]
fn a_driver_with_finer_modes_is_told_more() {
    let facts = Facts { finer_modes: true, ..facts() };
    let intent = build(&claim_with(|_| {}), &class_with(|_| {}), &facts, &Cluster::default()).unwrap();
    assert_eq!(intent.request.modes, [7]);
}

#[test]
fn the_volume_is_named_as_the_flags_say() {
    let mut facts = facts();
    facts.options.volume_name_prefix = "vol".into();
    facts.options.volume_name_uuid_length = Some(10);
    let intent = build(&claim_with(|_| {}), &class_with(|_| {}), &facts, &Cluster::default()).unwrap();
    assert_eq!(intent.volume, "vol-7c9e667974");
    facts.options.volume_name_prefix.clear();
    assert_eq!(build(&claim_with(|_| {}), &class_with(|_| {}), &facts, &Cluster::default()), Err(Problem::NameVolume));
}

#[test]
fn extra_metadata_names_claim_and_volume() {
    let mut facts = facts();
    facts.options.extra_create_metadata = true;
    let parameters =
        build(&claim_with(|_| {}), &class_with(|_| {}), &facts, &Cluster::default()).unwrap().request.parameters;
    assert_eq!(parameters["csi.storage.k8s.io/pvc/name"], "db");
    assert_eq!(parameters["csi.storage.k8s.io/pvc/namespace"], "shop");
    assert_eq!(parameters["csi.storage.k8s.io/pv/name"], VOLUME);
    assert_eq!(parameters.len(), 4);
}

#[test]
fn the_file_system_comes_from_the_class_else_from_the_flag() {
    let fs_type = |class: &StorageClass| {
        let mut facts = facts();
        facts.options.default_fstype = "xfs".into();
        build(&claim_with(|_| {}), class, &facts, &Cluster::default()).unwrap().request.mount.unwrap().fs_type
    };
    assert_eq!(fs_type(&class_with(|_| {})), "ext4");
    assert_eq!(fs_type(&class_with(|class| class["parameters"] = json!({ "FsType": "btrfs" }))), "btrfs");
    assert_eq!(fs_type(&class_with(|class| class["parameters"] = json!({}))), "xfs");
}

#[test]
fn secrets_are_resolved_but_their_keys_are_not_sent() {
    let parameters = json!({
        "csi.storage.k8s.io/secret-name": "keys-${pvc.name}",
        "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}",
    });
    let intent = build_with(|_| {}, |class| class["parameters"] = parameters).unwrap();
    let keys = SecretRef { namespace: "shop".into(), name: "keys-db".into() };
    assert_eq!(intent.secrets.provisioner, Some(keys.clone()));
    assert_eq!(intent.secrets.node_publish, Some(keys));
    assert!(intent.request.parameters.is_empty());
}

#[test]
fn what_cannot_be_provisioned_names_the_field_the_value_and_the_way_out() {
    let none = |_: &mut Value| {};
    let storage = |size: &str| {
        let size = size.to_owned();
        move |claim: &mut Value| claim["spec"]["resources"]["requests"]["storage"] = size.into()
    };
    assert_eq!(problem(storage("0"), none), "spec.resources.requests.storage is 0; ask for at least one byte");
    assert_eq!(
        problem(storage("9Ei"), none),
        "spec.resources.requests.storage: quantity 9Ei is not a size from 0 to 9223372036854775807 bytes (just under \
         8Ei); ask for less"
    );
    assert!(problem(storage("-1Gi"), none).contains("-1Gi"));
    assert!(
        problem(|claim| claim["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } }), none)
            .contains("spec.selector")
    );
    assert!(problem(|claim| claim["spec"]["accessModes"] = json!([]), none).contains("spec.accessModes is empty"));
    let unknown = problem(none, |class| class["parameters"]["csi.storage.k8s.io/typo"] = "x".into());
    assert!(
        unknown.contains("StorageClass \"fast\" has the unknown parameter \"csi.storage.k8s.io/typo\""),
        "{unknown}"
    );
    assert!(problem(none, |class| class["parameters"]["fstype"] = "xfs".into()).contains("keep the first"));
    let other = problem(none, |class| class["provisioner"] = "other.example".into());
    assert!(other.contains("\"other.example\"") && other.contains(DRIVER), "{other}");
    let half = problem(none, |class| class["parameters"] = json!({ "csi.storage.k8s.io/secret-name": "a" }));
    assert!(half.contains("csi.storage.k8s.io/secret-namespace"), "{half}");
}

#[test]
fn a_driver_that_cannot_create_is_named() {
    let facts = Facts { creates: false, ..facts() };
    let error = build(&claim_with(|_| {}), &class_with(|_| {}), &facts, &Cluster::default()).unwrap_err();
    assert_eq!(error, Problem::FindCapability { driver: DRIVER.into() });
}

#[test]
fn only_sources_of_unknown_kinds_are_left_to_populators() {
    for (source, populated) in [
        (Value::Null, false),
        (json!({ "kind": "PersistentVolumeClaim", "name": "a" }), false),
        (json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a" }), false),
        (json!({ "apiGroup": "hello.example", "kind": "Hello", "name": "a" }), true),
    ] {
        assert_eq!(
            is_populated(&claim_with(|claim| claim["spec"]["dataSource"] = source.clone())),
            populated,
            "{source}"
        );
    }
}

use std::collections::BTreeMap;

use crate::fixture::{DRIVER, HANDLE, UID, VOLUME, claim, claim_with, class_with, facts, intent, made};
use crate::request;
use crate::requirement::Cluster;

use super::*;

#[test]
fn the_object_for_a_claim_that_is_gone_is_the_same_but_for_the_claims_version() {
    let mut expected = body(&claim(), &intent(), &made(), &facts());
    expected["spec"]["claimRef"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(unclaimed(&intent(), &made(), &facts()).unwrap(), expected);
}

#[test]
fn the_object_of_a_plain_volume_is_exactly_the_originals() {
    let made = Made { context: BTreeMap::from([("token".into(), "t1".into())]), ..made() };
    assert_eq!(
        body(&claim(), &intent(), &made, &facts()),
        json!({
            "metadata": {
                "name": VOLUME,
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": DRIVER,
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": "1Gi" },
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": "shop", "name": "db", "uid": UID, "resourceVersion": "7",
                },
                "csi": {
                    "driver": DRIVER,
                    "volumeHandle": HANDLE,
                    "fsType": "ext4",
                    "volumeAttributes": {
                        "storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-42-shared.csi.stowage.dev",
                        "token": "t1",
                    },
                },
                "mountOptions": ["noatime"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
            },
        })
    );
}

#[test]
fn the_drivers_size_counts_when_it_gave_more() {
    let made = Made { bytes: 3 << 29, ..made() };
    assert_eq!(body(&claim(), &intent(), &made, &facts())["spec"]["capacity"]["storage"], "1536Mi");
}

#[test]
fn secrets_are_referred_to_where_each_is_used() {
    let class = class_with(|class| {
        class["parameters"] = json!({
            "csi.storage.k8s.io/secret-name": "all", "csi.storage.k8s.io/secret-namespace": "ns",
            "csi.storage.k8s.io/node-stage-secret-name": "stage", "csi.storage.k8s.io/node-stage-secret-namespace": "ns",
        });
    });
    let intent = request::build(&claim(), &class, &facts(), &Cluster::default()).unwrap();
    let body = body(&claim(), &intent, &made(), &facts());
    let all = json!({ "namespace": "ns", "name": "all" });
    let csi = &body["spec"]["csi"];
    assert_eq!(csi["nodeStageSecretRef"]["name"], "stage");
    for field in
        ["controllerPublishSecretRef", "nodePublishSecretRef", "controllerExpandSecretRef", "nodeExpandSecretRef"]
    {
        assert_eq!(csi[field], all, "{field}");
    }
    let annotations = &body["metadata"]["annotations"];
    assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-name"], "all");
    assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-namespace"], "ns");
    assert_eq!(annotations["volume.kubernetes.io/controller-modify-secret-name"], "all");
    assert!(csi.get("fsType").is_none());
}

#[test]
fn a_block_volume_has_no_file_system() {
    let claim = claim_with(|claim| claim["spec"]["volumeMode"] = "Block".into());
    let intent = request::build(&claim, &class_with(|_| {}), &facts(), &Cluster::default()).unwrap();
    let body = body(&claim, &intent, &made(), &facts());
    assert_eq!(body["spec"]["volumeMode"], "Block");
    assert!(body["spec"]["csi"].get("fsType").is_none());
}

#[test]
fn a_volume_only_to_be_read_is_marked_if_the_flag_says_so() {
    let claim = claim_with(|claim| claim["spec"]["accessModes"] = json!(["ReadOnlyMany"]));
    let mut facts = facts();
    assert!(body(&claim, &intent(), &made(), &facts)["spec"]["csi"].get("readOnly").is_none());
    facts.options.controller_publish_readonly = true;
    assert_eq!(body(&claim, &intent(), &made(), &facts)["spec"]["csi"]["readOnly"], true);
}

#[test]
fn a_volume_of_some_places_has_their_affinity_if_the_driver_knows_places() {
    let made = Made { topology: vec![BTreeMap::from([("zone".into(), "a".into())]), BTreeMap::new()], ..made() };
    assert!(body(&claim(), &intent(), &made, &facts())["spec"].get("nodeAffinity").is_none());
    let facts = Facts { topology: true, ..facts() };
    assert_eq!(
        body(&claim(), &intent(), &made, &facts)["spec"]["nodeAffinity"],
        json!({ "required": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] },
        ]}})
    );
}

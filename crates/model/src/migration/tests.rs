use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::access_mode::{AccessMode, AccessModes};
use crate::phase::VolumeMode;
use crate::selector::Requirement;
use crate::volume::{ClaimRef, CsiSource, SecretRef};

#[test]
fn a_migrated_plugin_has_a_driver_and_others_have_none() {
    assert_eq!(driver_of("kubernetes.io/aws-ebs"), Some("ebs.csi.aws.com"));
    assert_eq!(driver_of(HOST_PATH), None);
    assert_eq!(driver_of("ebs.csi.aws.com"), None);
}

#[test]
fn a_volumes_source_names_plugin_and_driver() {
    let read = |text| serde_json::from_str::<Volume>(text).unwrap();
    let cinder = read(r#"{"spec":{"cinder":{"volumeID":"x"}}}"#);
    assert_eq!(driver_of_source(&cinder), Some("cinder.csi.openstack.org"));
    assert_eq!(plugin_of_source(&cinder), Some("kubernetes.io/cinder"));
    let path = read(r#"{"spec":{"hostPath":{"path":"/x"}}}"#);
    assert_eq!(driver_of_source(&path), None);
    assert_eq!(plugin_of_source(&path), Some(HOST_PATH));
    let csi = read(r#"{"spec":{"csi":{"driver":"d","volumeHandle":"h"}}}"#);
    assert_eq!((driver_of_source(&csi), plugin_of_source(&csi)), (None, None));
}

#[test]
fn a_driver_names_the_plugin_it_took_over_from() {
    assert_eq!(plugin_of("cinder.csi.openstack.org"), Some("kubernetes.io/cinder"));
    assert_eq!(plugin_of("shared.csi.stowage.dev"), None);
}

fn volume(source: Value, labels: Value) -> Volume {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "pv1", "uid": "u1", "labels": labels}, "spec": spec})).unwrap()
}

fn translated(source: Value) -> Volume {
    to_csi(&volume(source, json!({}))).unwrap().unwrap().into_owned()
}

fn inline(source: Value) -> Result<Option<Volume>, Error> {
    let mut whole = json!({"name": "data"});
    whole.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    inline_to_csi(&serde_json::from_value(whole).unwrap(), "shop")
}

fn csi(expected: Value) -> CsiSource {
    serde_json::from_value(expected).unwrap()
}

/// Source, and what its driver gets of a volume and of a pod's own volume.
fn table() -> Vec<(Value, Value, Value)> {
    let both = |source: Value, csi: Value| (source, csi.clone(), csi);
    let file_secret = |namespace: &str| json!({"name": "azure-storage-account-acme-secret", "namespace": namespace});
    vec![
        both(
            json!({"awsElasticBlockStore": {"volumeID": "aws://eu-west-1a/vol-1", "fsType": "xfs", "partition": 2}}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "xfs",
                "volumeAttributes": {"partition": "2"}}),
        ),
        both(
            json!({"awsElasticBlockStore": {"volumeID": "vol-2", "readOnly": true}}),
            json!({"driver": "ebs.csi.aws.com", "volumeHandle": "vol-2", "readOnly": true,
                "volumeAttributes": {"partition": "0"}}),
        ),
        both(
            json!({"gcePersistentDisk": {"pdName": "disk", "fsType": "ext4", "partition": 1}}),
            json!({"driver": "pd.csi.storage.gke.io", "fsType": "ext4", "volumeAttributes": {"partition": "1"},
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"}),
        ),
        both(
            json!({"gcePersistentDisk": {"pdName": "disk", "readOnly": true}}),
            json!({"driver": "pd.csi.storage.gke.io", "readOnly": true, "volumeAttributes": {"partition": ""},
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"}),
        ),
        both(
            json!({"azureDisk": {"diskName": "d", "diskURI": "/subscriptions/s/d", "kind": "managed",
                "cachingMode": "ReadOnly", "fsType": "ext4", "readOnly": true}}),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/subscriptions/s/d", "fsType": "ext4",
                "readOnly": true,
                "volumeAttributes": {"kind": "Managed", "cachingmode": "ReadOnly", "fstype": "ext4"}}),
        ),
        (
            json!({"azureDisk": {"diskURI": "/d", "cachingMode": ""}}),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/d",
                "volumeAttributes": {"kind": "Managed", "cachingmode": ""}}),
            json!({"driver": "disk.csi.azure.com", "volumeHandle": "/d", "volumeAttributes": {"kind": "Managed"}}),
        ),
        (
            json!({"azureFile": {"secretName": "azure-storage-account-acme-secret", "shareName": "s",
                "secretNamespace": "keys", "readOnly": true}}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#acme#s#pv1#keys", "readOnly": true,
                "volumeAttributes": {"sharename": "s"}, "nodeStageSecretRef": file_secret("keys")}),
            json!({"driver": "file.csi.azure.com", "volumeHandle": "#acme#s#data#shop", "readOnly": true,
                "volumeAttributes": {"sharename": "s"}, "nodeStageSecretRef": file_secret("shop")}),
        ),
        both(
            json!({"cinder": {"volumeID": "c1", "fsType": "ext4", "readOnly": true}}),
            json!({"driver": "cinder.csi.openstack.org", "volumeHandle": "c1", "fsType": "ext4", "readOnly": true}),
        ),
        both(
            json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk", "fsType": "ext4", "storagePolicyName": "gold"}}),
            json!({"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] a/b.vmdk", "fsType": "ext4",
                "volumeAttributes": {"storagepolicyname": "gold"}}),
        ),
        both(
            json!({"portworxVolume": {"volumeID": "p1", "fsType": "ext4", "readOnly": true}}),
            json!({"driver": "pxd.portworx.com", "volumeHandle": "p1", "fsType": "ext4"}),
        ),
    ]
}

#[test]
fn each_of_the_seven_plugins_sources_becomes_its_drivers() {
    for (source, of_volume, of_pod) in table() {
        let whole = translated(source.clone());
        assert_eq!(whole.spec.csi, Some(csi(of_volume)), "{source}");
        assert_eq!((whole.spec.in_tree, whole.spec.other_source), (None, None), "{source}");
        assert_eq!((whole.meta.name.as_str(), whole.meta.uid.as_str()), ("pv1", "u1"));
        assert_eq!(inline(source.clone()).unwrap().unwrap().spec.csi, Some(csi(of_pod)), "{source}");
    }
}

#[test]
fn the_table_has_every_plugin() {
    let members: BTreeSet<String> = table()
        .iter()
        .flat_map(|(source, _, _)| source.as_object().unwrap().keys().cloned().collect::<Vec<_>>())
        .collect();
    assert_eq!(members, MIGRATED.iter().map(|(_, _, member)| (*member).to_owned()).collect());
    for (source, of_volume, _) in table() {
        let volume = volume(source, json!({}));
        assert_eq!(driver_of_source(&volume), of_volume["driver"].as_str());
        assert_eq!(volume.spec.in_tree.map(|source| source.member()), volume.spec.other_source);
    }
}

#[test]
fn a_csi_volume_is_itself_and_one_of_another_plugin_is_none() {
    let own = volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), json!({}));
    assert!(matches!(to_csi(&own), Ok(Some(Cow::Borrowed(same))) if *same == own));
    assert_eq!(to_csi(&volume(json!({"hostPath": {"path": "/x"}}), json!({}))), Ok(None));
    assert_eq!(inline(json!({"hostPath": {"path": "/x"}})), Ok(None));
}

#[test]
fn a_pods_own_volume_gets_a_name_and_the_modes_its_plugin_had() {
    let modes = |name: &str| AccessModes::from([AccessMode::from(name)]);
    for (source, name, mode) in [
        (json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-1"}}), "ebs.csi.aws.com-vol-1", "ReadWriteOnce"),
        (json!({"gcePersistentDisk": {"pdName": "d"}}), "pd.csi.storage.gke.io-d", "ReadWriteOnce"),
        (json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}), "pd.csi.storage.gke.io-d", "ReadOnlyMany"),
        (json!({"azureDisk": {"diskName": "d", "diskURI": "/u/d"}}), "/u/d", "ReadWriteOnce"),
        (json!({"azureFile": {"secretName": "s", "shareName": "x"}}), "#s#x#data#shop", "ReadWriteMany"),
        (json!({"cinder": {"volumeID": "c"}}), "cinder.csi.openstack.org-c", "ReadWriteOnce"),
        (json!({"vsphereVolume": {"volumePath": "p"}}), "csi.vsphere.vmware.com-p", "ReadWriteOnce"),
        (json!({"portworxVolume": {"volumeID": "p", "readOnly": true}}), "pxd.portworx.com-p", "ReadOnlyMany"),
    ] {
        let volume = inline(source).unwrap().unwrap();
        assert_eq!((volume.meta.name.as_str(), volume.spec.access_modes), (name, modes(mode)));
        assert_eq!(volume.spec.volume_mode, VolumeMode::Filesystem);
    }
}

#[test]
fn what_cannot_be_translated_is_named() {
    let refused = |source: Value| to_csi(&volume(source, json!({}))).unwrap_err().to_string();
    for id in ["aws://vol-1", "aws://zone/disk-1", "aws:///a/vol-1/b", "aws://"] {
        assert!(refused(json!({"awsElasticBlockStore": {"volumeID": id}})).contains(id));
    }
    for kind in ["Shared", "Dedicated"] {
        let source = json!({"azureDisk": {"diskURI": "/d", "kind": kind}});
        assert!(refused(source.clone()).contains(kind));
        assert!(inline(source).is_err());
    }
    let message = refused(json!({"azureFile": {"secretName": "keys", "shareName": "s"}}));
    assert!(message.contains("\"keys\"") && message.contains("secretNamespace"), "{message}");
}

#[test]
fn a_share_without_a_secrets_namespace_uses_its_claims_and_says_its_resource_group() {
    let mut share = volume(json!({"azureFile": {"secretName": "s", "shareName": "x"}}), json!({}));
    share.spec.claim_ref = Some(ClaimRef { namespace: "shop".into(), ..ClaimRef::default() });
    let annotations = json!({"kubernetes.io/azure-file-resource-group": "group"});
    share.meta.annotations = serde_json::from_value(annotations).unwrap();
    let csi = to_csi(&share).unwrap().unwrap().into_owned().spec.csi.unwrap();
    assert_eq!(csi.volume_handle, "group#s#x#pv1#shop");
    assert_eq!(csi.node_stage_secret_ref.unwrap().namespace, "shop");
}

#[test]
fn a_portworx_volumes_secret_is_used_for_every_call() {
    let mut volume = volume(json!({"portworxVolume": {"volumeID": "p"}}), json!({}));
    let name = json!({"openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "ns"});
    volume.meta.annotations = serde_json::from_value(name).unwrap();
    let csi = to_csi(&volume).unwrap().unwrap().into_owned().spec.csi.unwrap();
    let expected = Some(Box::new(SecretRef { namespace: "ns".into(), name: "s".into() }));
    for secret in [
        csi.controller_publish_secret_ref,
        csi.node_stage_secret_ref,
        csi.node_publish_secret_ref,
        csi.controller_expand_secret_ref,
        csi.node_expand_secret_ref,
    ] {
        assert_eq!(secret, expected);
    }
}

#[test]
fn a_google_disks_labels_say_its_zone_or_region() {
    let handle = |labels: Value| {
        let volume = volume(json!({"gcePersistentDisk": {"pdName": "d"}}), labels);
        to_csi(&volume).map(|volume| volume.unwrap().into_owned().spec.csi.unwrap().volume_handle)
    };
    let zonal = Ok("projects/UNSPECIFIED/zones/us-east1-a/disks/d".to_owned());
    assert_eq!(handle(json!({"topology.kubernetes.io/zone": "us-east1-a"})), zonal);
    assert_eq!(handle(json!({"failure-domain.beta.kubernetes.io/zone": "us-east1-a"})), zonal);
    let regional = handle(json!({"topology.kubernetes.io/zone": "us-east1-a__us-east1-c"}));
    assert_eq!(regional, Ok("projects/UNSPECIFIED/regions/us-east1/disks/d".to_owned()));
    for zones in ["us-east1-a__us-west1-a", "a__b"] {
        let error = handle(json!({"topology.kubernetes.io/zone": zones})).unwrap_err();
        assert!(error.to_string().contains("region"), "{error}");
    }
}

#[test]
fn a_google_disk_has_the_modes_it_was_attached_with() {
    for (given, used) in [
        (vec!["ReadWriteMany"], vec!["ReadWriteOnce"]),
        (vec!["ReadWriteOnce", "ReadOnlyMany"], vec!["ReadWriteOnce"]),
        (vec!["ReadOnlyMany"], vec!["ReadOnlyMany"]),
        (vec![], vec![]),
    ] {
        let source = json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": given});
        assert_eq!(translated(source).spec.access_modes.names(), used);
    }
}

/// The requirements of each term, as `key=values`.
fn affinity(volume: &Volume) -> Vec<Vec<String>> {
    let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let requirement = |r: &Requirement| format!("{}={}", r.key, r.values.join(","));
    let terms = required.map(|selector| selector.node_selector_terms.as_slice()).unwrap_or_default();
    terms.iter().map(|term| term.match_expressions.iter().map(requirement).collect()).collect()
}

#[test]
fn zones_become_the_drivers_own_topology() {
    let ebs = |labels, terms: Value| {
        let mut source = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
        if !terms.is_null() {
            source["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
        }
        affinity(&to_csi(&volume(source, labels)).unwrap().unwrap())
    };
    let term =
        |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
    let old_zone = "failure-domain.beta.kubernetes.io/zone";
    let key = "topology.ebs.csi.aws.com/zone";
    assert_eq!(ebs(json!({}), Value::Null), Vec::<Vec<String>>::new());
    assert_eq!(ebs(json!({old_zone: "b__a__a"}), Value::Null), [[format!("{key}=a,b")]]);
    assert_eq!(ebs(json!({}), json!([term("topology.kubernetes.io/zone", "a")])), [[format!("{key}=a")]]);
    let mut both = term(old_zone, "a");
    let region = json!({"key": "failure-domain.beta.kubernetes.io/region", "operator": "In", "values": ["r"]});
    both["matchExpressions"].as_array_mut().unwrap().push(region);
    let expected = [[format!("{key}=a"), "topology.kubernetes.io/region=r".to_owned()]];
    assert_eq!(ebs(json!({}), json!([both])), expected);
    let with_other = ebs(json!({"topology.kubernetes.io/zone": "a"}), json!([term("disk", "ssd")]));
    assert_eq!(with_other, [["disk=ssd".to_owned(), format!("{key}=a")]]);
}

#[test]
fn a_vsphere_volume_keeps_zone_and_region() {
    let labels = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"});
    let volume = volume(json!({"vsphereVolume": {"volumePath": "p"}}), labels);
    let expected = [["topology.csi.vmware.com/zone=z", "topology.csi.vmware.com/region=r"]];
    assert_eq!(affinity(&to_csi(&volume).unwrap().unwrap()), expected);
}

#[test]
fn a_handle_is_repaired_from_the_node_it_is_attached_to() {
    const GOOGLE: &str = "pd.csi.storage.gke.io";
    let node = "projects/p/zones/us-east1-b/instances/n";
    for (handle, repaired) in [
        ("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "projects/p/zones/us-east1-b/disks/d"),
        ("projects/UNSPECIFIED/zones/us-east1-c/disks/d", "projects/p/zones/us-east1-c/disks/d"),
        ("projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d", "projects/p/regions/us-east1/disks/d"),
        ("projects/UNSPECIFIED/regions/us-west1/disks/d", "projects/p/regions/us-west1/disks/d"),
        ("projects/q/zones/z/disks/d", "projects/q/zones/z/disks/d"),
    ] {
        assert_eq!(repair_handle(GOOGLE, handle, node).as_deref(), Ok(repaired));
    }
    for (handle, node) in [
        ("disk", node),
        ("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "n"),
        ("projects/UNSPECIFIED/planets/UNSPECIFIED/disks/d", node),
    ] {
        assert!(repair_handle(GOOGLE, handle, node).is_err(), "{handle} {node}");
    }
    assert_eq!(repair_handle("ebs.csi.aws.com", "vol-1", "i-1").as_deref(), Ok("vol-1"));
}

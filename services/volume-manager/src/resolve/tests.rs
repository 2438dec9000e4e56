use serde_json::{Value, json};

use super::*;

fn pod() -> Pod {
    read(json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "pod-uid" },
        "spec": {
            "securityContext": { "fsGroup": 7 },
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c", "readOnly": true } }],
            "containers": [{ "name": "x", "volumeMounts": [{ "name": "data" }] }],
        },
    }))
}

fn claim(rest: impl FnOnce(&mut Value)) -> Claim {
    let mut claim = json!({
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "claim-uid",
            "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": { "volumeName": "pv" },
        "status": { "phase": "Bound" },
    });
    rest(&mut claim);
    read(claim)
}

fn persistent(rest: impl FnOnce(&mut Value)) -> Volume {
    let mut volume = json!({
        "metadata": { "name": "pv" },
        "spec": {
            "claimRef": { "namespace": "ns", "name": "c", "uid": "claim-uid" },
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteOnce"],
            "mountOptions": ["noatime"],
            "csi": {
                "driver": "d", "volumeHandle": "h", "fsType": "xfs", "volumeAttributes": { "k": "v" },
                "nodeStageSecretRef": { "namespace": "s", "name": "stage" },
            },
        },
    });
    rest(&mut volume);
    read(volume)
}

fn read<T: Projection>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn with(pod: &Pod, claim: &Claim, pv: &Volume, node: Option<&Node>) -> Result<Use, Error> {
    let volume = &pod.spec.volumes[0];
    check_claim(pod, volume, claim)?;
    usage(pod, volume, claim, pv, node)
}

#[track_caller]
fn refused(claim: &Claim, pv: &Volume, says: &str) {
    let message = with(&pod(), claim, pv, None).unwrap_err().to_string();
    assert!(message.contains(says), "{message}");
}

#[test]
fn everything_the_driver_must_know_comes_from_pod_claim_and_volume() {
    let usage = with(&pod(), &claim(|_| {}), &persistent(|_| {}), None).unwrap();
    assert_eq!(usage.volume, VolumeId::new("d", "h"));
    assert_eq!((usage.spec_name.as_str(), usage.pod_volume.as_str(), usage.fs_type.as_str()), ("pv", "data", "xfs"));
    assert_eq!(usage.mount_options, ["noatime"]);
    assert_eq!(usage.attributes["k"], "v");
    assert!(usage.read_only);
    assert_eq!(usage.fs_group, Some(7));
    assert_eq!(usage.stage_secret, Some(Key::namespaced("s", "stage")));
    assert_eq!(usage.publish_secret, None);
}

#[test]
fn s74_a_claim_that_is_not_bound_is_refused() {
    let unmarked = |c: &mut Value| c["metadata"]["annotations"] = Value::Null;
    refused(&claim(unmarked), &persistent(|_| {}), "claim c is not bound yet");
    refused(&claim(|c| c["status"]["phase"] = "Lost".into()), &persistent(|_| {}), "claim c is not bound yet");
    refused(&claim(|c| c["spec"]["volumeName"] = Value::Null), &persistent(|_| {}), "claim c is not bound yet");
}

#[test]
fn a_claim_whose_binding_is_completed_need_not_say_so_in_its_status() {
    let claim = claim(|c| c["status"]["phase"] = "Pending".into());
    assert!(with(&pod(), &claim, &persistent(|_| {}), None).is_ok());
}

#[test]
fn a_claim_on_its_way_out_is_refused_unless_it_is_protected() {
    let deleting = |finalizers: Value| {
        claim(|c| {
            c["metadata"]["deletionTimestamp"] = "2024-01-01T00:00:00Z".into();
            c["metadata"]["finalizers"] = finalizers;
        })
    };
    refused(&deleting(json!([])), &persistent(|_| {}), "being deleted");
    let protected = deleting(json!(["kubernetes.io/pvc-protection"]));
    assert!(with(&pod(), &protected, &persistent(|_| {}), None).is_ok());
}

#[test]
fn a_volume_bound_to_another_claim_of_the_name_is_refused() {
    let foreign = persistent(|v| v["spec"]["claimRef"]["uid"] = "older".into());
    refused(&claim(|_| {}), &foreign, "volume pv is not bound to claim ns/c");
    refused(&claim(|_| {}), &persistent(|v| v["spec"]["claimRef"] = Value::Null), "is not bound to");
}

#[test]
fn s82_a_generic_ephemeral_claim_must_be_the_pods_own() {
    let mut pod = pod();
    pod.spec.volumes[0].source = PodVolumeSource::Ephemeral;
    let message = with(&pod, &claim(|_| {}), &persistent(|_| {}), None).unwrap_err().to_string();
    assert!(message.contains("was not made for this pod"), "{message}");
    let owned = claim(|c| {
        c["metadata"]["ownerReferences"] =
            json!([{ "kind": "Pod", "name": "p", "uid": "pod-uid", "controller": true }]);
    });
    assert!(with(&pod, &owned, &persistent(|_| {}), None).is_ok());
}

#[test]
fn s83_the_volume_mode_must_match_how_the_pod_uses_it() {
    let block = persistent(|v| v["spec"]["volumeMode"] = "Block".into());
    refused(&claim(|_| {}), &block, "list it in volumeDevices");
    let mut mapping = pod();
    let mount = mapping.spec.containers[0].volume_mounts.remove(0);
    mapping.spec.containers[0].volume_devices.push(mount);
    let message = with(&mapping, &claim(|_| {}), &persistent(|_| {}), None).unwrap_err().to_string();
    assert!(message.contains("list it in volumeMounts"), "{message}");
}

#[test]
fn a_driver_name_that_would_leave_its_directory_is_refused() {
    for name in ["", "../x", "a/b", ".."] {
        refused(&claim(|_| {}), &persistent(|v| v["spec"]["csi"]["driver"] = name.into()), "not a name");
    }
}

#[test]
fn a_volume_of_another_kind_names_its_source() {
    let nfs = persistent(|v| {
        v["spec"]["csi"] = Value::Null;
        v["spec"]["nfs"] = json!({ "server": "s", "path": "/" });
    });
    refused(&claim(|_| {}), &nfs, "source nfs is not supported");
}

#[test]
fn a_volume_out_of_this_nodes_reach_is_refused() {
    let affine = persistent(|v| {
        let zone = json!({ "key": "zone", "operator": "In", "values": ["z1"] });
        v["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [zone] }] } });
    });
    let node = |zone: &str| read::<Node>(json!({ "metadata": { "name": "n", "labels": { "zone": zone } } }));
    assert!(with(&pod(), &claim(|_| {}), &affine, Some(&node("z1"))).is_ok());
    let message = with(&pod(), &claim(|_| {}), &affine, Some(&node("z2"))).unwrap_err().to_string();
    assert!(message.contains("cannot be reached from node n"), "{message}");
}

use serde_json::{Value, json};

use stowage_model::names::UniqueVolumeName;

use super::*;
use crate::controller::tests::controller;

fn pod(rest: impl FnOnce(&mut Value)) -> NodePod {
    let mut pod = json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "pod-uid" },
        "spec": {
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c", "readOnly": true } }],
            "containers": [{ "name": "x", "volumeMounts": [{ "name": "data" }] }],
        },
    });
    rest(&mut pod);
    read(pod)
}

fn claim(rest: impl FnOnce(&mut Value)) -> Claim {
    let mut claim = json!({
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "claim-uid", "resourceVersion": "1",
            "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": { "volumeName": "pv" },
        "status": { "phase": "Bound" },
    });
    rest(&mut claim);
    read(claim)
}

fn persistent(rest: impl FnOnce(&mut Value)) -> NodeVolume {
    let mut volume = json!({
        "metadata": { "name": "pv", "uid": "pv-uid", "resourceVersion": "1" },
        "spec": {
            "claimRef": { "namespace": "ns", "name": "c", "uid": "claim-uid" },
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteOnce"],
            "mountOptions": ["noatime"],
            "csi": { "driver": "d", "volumeHandle": "h", "fsType": "xfs", "volumeAttributes": { "k": "v" } },
        },
    });
    rest(&mut volume);
    read(volume)
}

fn read<T: Projection>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn with(pod: &NodePod, claim: Option<Claim>, pv: Option<NodeVolume>, node: Option<Node>) -> PodVolumes {
    let controller = controller().await;
    claim.into_iter().for_each(|claim| _ = controller.caches.claims.observe(claim));
    pv.into_iter().for_each(|pv| _ = controller.caches.volumes.observe(pv));
    let sources = Sources {
        claims: &controller.caches.claims,
        volumes: &controller.caches.volumes,
        node: node.map(Arc::new),
        plugins: &controller.plugins,
        host: &controller.host,
        made_of: &controller.made_of,
        se_linux: None,
    };
    populate(pod, &sources)
}

async fn refused(pod: &NodePod, claim: Claim, pv: NodeVolume, says: &str, is_waiting: bool) {
    let found = with(pod, Some(claim), Some(pv), None).await;
    let [problem] = &found.problems[..] else { panic!("{found:?}") };
    assert!(problem.message.contains(says), "{}", problem.message);
    assert_eq!(problem.is_waiting, is_waiting, "{}", problem.message);
}

fn just(pod: impl FnOnce(&mut Value)) -> NodePod {
    self::pod(pod)
}

#[tokio::test]
async fn a_claims_volume_is_known_by_driver_and_handle_and_carries_what_it_says() {
    let found = with(&pod(|_| {}), Some(claim(|_| {})), Some(persistent(|_| {})), None).await;
    assert!(found.is_complete(), "{found:?}");
    let mount = &found.volumes[&UniqueVolumeName::from("kubernetes.io/csi/d^h")];
    assert_eq!((mount.spec.name.as_str(), mount.spec.mount_options()), ("pv", &["noatime".to_owned()][..]));
    assert!(mount.spec.read_only && mount.traits.is_attachable && mount.traits.is_device_mountable);
}

#[tokio::test]
async fn s85_two_names_for_one_volume_share_it() {
    let twice = just(|p| {
        let claim = json!({ "claimName": "c" });
        p["spec"]["volumes"] = json!([{ "name": "one", "persistentVolumeClaim": claim }, { "name": "two", "persistentVolumeClaim": claim }]);
        p["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "one" }, { "name": "two" }]);
    });
    let found = with(&twice, Some(claim(|_| {})), Some(persistent(|_| {})), None).await;
    let names: Vec<_> = found.volumes.values().flat_map(|mount| mount.outer_names.clone()).collect();
    assert_eq!((found.volumes.len(), names), (1, vec!["one".to_owned(), "two".to_owned()]));
}

#[tokio::test]
async fn a_volume_that_no_container_uses_is_not_looked_at() {
    let unused = just(|p| p["spec"]["containers"] = json!([{ "name": "x" }]));
    assert_eq!(with(&unused, None, None, None).await, PodVolumes::default());
}

#[tokio::test]
async fn a_claim_that_is_missing_or_not_bound_may_be_on_its_way_and_a_lost_one_is_not() {
    let found = with(&pod(|_| {}), None, None, None).await;
    assert!(found.problems[0].is_waiting && found.problems[0].message.contains("claim c does not exist"));
    let unmarked = |c: &mut Value| c["metadata"]["annotations"] = Value::Null;
    refused(&pod(|_| {}), claim(unmarked), persistent(|_| {}), "claim c is not bound yet", true).await;
    let lost = claim(|c| c["status"]["phase"] = "Lost".into());
    refused(&pod(|_| {}), lost, persistent(|_| {}), "claim c has lost its volume", false).await;
    let found = with(&pod(|_| {}), Some(claim(|_| {})), None, None).await;
    assert!(found.problems[0].message.contains("volume pv does not exist"), "{found:?}");
}

#[tokio::test]
async fn a_claim_whose_binding_is_completed_need_not_say_so_in_its_status() {
    let pending = claim(|c| c["status"]["phase"] = "Pending".into());
    assert!(with(&pod(|_| {}), Some(pending), Some(persistent(|_| {})), None).await.is_complete());
}

#[tokio::test]
async fn a_claim_on_its_way_out_is_refused_unless_it_is_protected() {
    let deleting = |finalizers: Value| {
        claim(|c| {
            c["metadata"]["deletionTimestamp"] = "2024-01-01T00:00:00Z".into();
            c["metadata"]["finalizers"] = finalizers;
        })
    };
    refused(&pod(|_| {}), deleting(json!([])), persistent(|_| {}), "being deleted", false).await;
    let protected = deleting(json!(["kubernetes.io/pvc-protection"]));
    assert!(with(&pod(|_| {}), Some(protected), Some(persistent(|_| {})), None).await.is_complete());
}

#[tokio::test]
async fn a_volume_bound_to_another_claim_of_the_name_is_refused() {
    let foreign = persistent(|v| v["spec"]["claimRef"]["uid"] = "older".into());
    refused(&pod(|_| {}), claim(|_| {}), foreign, "volume pv is not bound to claim ns/c", true).await;
}

#[tokio::test]
async fn s82_a_generic_ephemeral_claim_must_be_the_pods_own() {
    let ephemeral = just(|p| p["spec"]["volumes"] = json!([{ "name": "data", "ephemeral": {} }]));
    let named = |owned: bool| {
        claim(|c| {
            c["metadata"]["name"] = "p-data".into();
            if owned {
                let owner = json!({ "kind": "Pod", "name": "p", "uid": "pod-uid", "controller": true });
                c["metadata"]["ownerReferences"] = json!([owner]);
            }
        })
    };
    refused(&ephemeral, named(false), persistent(|_| {}), "was not made for this pod", false).await;
    assert!(with(&ephemeral, Some(named(true)), Some(persistent(|_| {})), None).await.is_complete());
}

#[tokio::test]
async fn s83_the_volume_mode_must_match_how_the_pod_uses_it() {
    let block = || persistent(|v| v["spec"]["volumeMode"] = "Block".into());
    refused(&pod(|_| {}), claim(|_| {}), block(), "list it in volumeDevices", false).await;
    let mapping = just(|p| {
        p["spec"]["containers"][0] = json!({ "name": "x", "volumeDevices": [{ "name": "data" }] });
    });
    refused(&mapping, claim(|_| {}), persistent(|_| {}), "list it in volumeMounts", false).await;
    assert!(with(&mapping, Some(claim(|_| {})), Some(block()), None).await.is_complete());
    let without = persistent(|v| v["spec"]["volumeMode"] = Value::Null);
    refused(&pod(|_| {}), claim(|_| {}), without, "does not say its volumeMode", false).await;
}

#[tokio::test]
async fn a_driver_name_that_would_leave_its_directory_is_refused() {
    for name in ["", "../x", "a/b", ".."] {
        let odd = persistent(|v| v["spec"]["csi"]["driver"] = name.into());
        refused(&pod(|_| {}), claim(|_| {}), odd, "is not the name of a driver", false).await;
    }
}

#[tokio::test]
async fn a_volume_out_of_this_nodes_reach_is_refused() {
    let affine = || {
        persistent(|v| {
            let zone = json!({ "key": "zone", "operator": "In", "values": ["z1"] });
            let terms = json!([{ "matchExpressions": [zone] }]);
            v["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } });
        })
    };
    let node = |zone: &str| Some(read::<Node>(json!({ "metadata": { "name": "n", "labels": { "zone": zone } } })));
    assert!(with(&pod(|_| {}), Some(claim(|_| {})), Some(affine()), node("z1")).await.is_complete());
    let found = with(&pod(|_| {}), Some(claim(|_| {})), Some(affine()), node("z2")).await;
    assert!(found.problems[0].message.contains("cannot be reached from node n"), "{found:?}");
}

#[tokio::test]
async fn an_inline_volume_of_a_driver_is_the_pods_own() {
    let inline = just(|p| p["spec"]["volumes"] = json!([{ "name": "data", "csi": { "driver": "d" } }]));
    let found = with(&inline, None, None, None).await;
    let (name, mount) = found.volumes.first_key_value().unwrap();
    assert_eq!(name.as_str(), "kubernetes.io/csi/pod-uid-data");
    assert!(!mount.traits.is_attachable && !mount.traits.is_device_mountable);
}

#[tokio::test]
async fn files_about_a_pod_are_made_again_when_its_resources_or_any_of_its_annotations_change() {
    let inputs = async |rest: fn(&mut Value)| {
        let items = json!([{ "path": "cpu", "resourceFieldRef": { "containerName": "x", "resource": "limits.cpu" } }]);
        let pod = just(|pod| {
            pod["metadata"]["annotations"] = json!({ "kubectl.kubernetes.io/last-applied-configuration": "{}" });
            pod["spec"]["volumes"] = json!([{ "name": "data", "downwardAPI": { "items": items, "defaultMode": 420 } }]);
            pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "1" } });
            pod["spec"]["resources"] = json!({ "limits": { "memory": "1Gi" } });
            rest(pod);
        });
        let found = with(&pod, None, None, None).await;
        found.volumes.into_values().next().unwrap().inputs
    };
    let before = inputs(|_| {}).await;
    assert_eq!(before, inputs(|pod| pod["status"]["phase"] = json!("Running")).await);
    let changes: [fn(&mut Value); 4] = [
        |pod| pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("2"),
        |pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("500m"),
        |pod| pod["spec"]["resources"]["limits"]["memory"] = json!("2Gi"),
        |pod| pod["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!("{ }"),
    ];
    for change in changes {
        assert_ne!(before, inputs(change).await);
    }
}

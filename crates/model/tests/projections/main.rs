//! Every projection reads what a real API server sends: fields it does not know, fields that are absent, and nulls.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod samples;

use serde_json::{Value, json};
use stowage_model::access_mode::AccessMode;
use stowage_model::phase::{BindingMode, ClaimPhase, ReclaimPolicy, VolumeMode, VolumePhase};
use stowage_model::pod::{ContainerState, PodVolumeSource};
use stowage_model::*;

use crate::samples::{
    attachment, claim, class, csi_driver, csi_node, lease, node, pod, reference_grant, secret, snapshot_class, volume,
    volume_group_snapshot, volume_group_snapshot_content, volume_snapshot, volume_snapshot_content,
};

fn read<T: Projection>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// Maps whose keys belong to users; their values are strings and the API server never sends a null there.
const FREE_FORM: &[&str] =
    &["annotations", "labels", "parameters", "matchLabels", "volumeAttributes", "attachmentMetadata", "nodeSelector"];

/// All copies of the object in which one field is null or missing.
fn spoiled(json: &Value) -> Vec<Value> {
    fn pointers(json: &Value, at: &str, found: &mut Vec<String>) {
        match json {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let pointer = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                    found.push(pointer.clone());
                    if !FREE_FORM.contains(&key.as_str()) {
                        pointers(value, &pointer, found);
                    }
                }
            }
            Value::Array(values) => {
                values.iter().enumerate().for_each(|(i, value)| pointers(value, &format!("{at}/{i}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    pointers(json, "", &mut found);
    let spoil = |pointer: &String| {
        let mut null = json.clone();
        *null.pointer_mut(pointer).unwrap() = Value::Null;
        let mut missing = json.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        missing.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(&key);
        [null, missing]
    };
    found.iter().flat_map(spoil).collect()
}

fn null_and_missing_read_the_same<T: Projection>(json: Value) {
    let _: T = read(json.clone());
    let _: T = read(json!({}));
    for pair in spoiled(&json).chunks(2) {
        let null = serde_json::from_value::<T>(pair[0].clone()).unwrap_or_else(|e| panic!("{e} in {}", pair[0]));
        let missing: T = read(pair[1].clone());
        assert_eq!(null, missing, "{}", pair[0]);
    }
}

#[test]
fn every_field_of_every_kind_may_be_null_or_missing() {
    null_and_missing_read_the_same::<Claim>(claim());
    null_and_missing_read_the_same::<Volume>(volume());
    null_and_missing_read_the_same::<StorageClass>(class());
    null_and_missing_read_the_same::<Pod>(pod());
    null_and_missing_read_the_same::<Node>(node());
    null_and_missing_read_the_same::<VolumeAttachment>(attachment());
    null_and_missing_read_the_same::<CsiNode>(csi_node());
    null_and_missing_read_the_same::<CsiDriver>(csi_driver());
    null_and_missing_read_the_same::<Lease>(lease());
    null_and_missing_read_the_same::<VolumeSnapshot>(volume_snapshot());
    null_and_missing_read_the_same::<VolumeSnapshotContent>(volume_snapshot_content());
    null_and_missing_read_the_same::<VolumeSnapshotClass>(snapshot_class());
    null_and_missing_read_the_same::<ReferenceGrant>(reference_grant());
    null_and_missing_read_the_same::<VolumeGroupSnapshot>(volume_group_snapshot());
    null_and_missing_read_the_same::<VolumeGroupSnapshotContent>(volume_group_snapshot_content());
    null_and_missing_read_the_same::<VolumeGroupSnapshotClass>(snapshot_class());
}

#[test]
fn metadata_is_read_without_the_bulky_annotation() {
    let claim: Claim = read(claim());
    assert_eq!(claim.key(), Key::namespaced("shop", "data"));
    assert_eq!((claim.meta.revision, claim.meta.deletion_grace_period_seconds), (4711, Some(30)));
    assert!(claim.meta.is_deleting() && claim.meta.has_finalizer(finalizers::CLAIM_PROTECTION));
    assert_eq!(claim.meta.controller().unwrap().uid, "pod-uid");
    assert!(claim.meta.annotations.keys().all(|key| !key.contains("last-applied")));
}

#[test]
fn a_claim_is_read() {
    let claim: Claim = read(claim());
    assert_eq!(claim.requested().to_string(), "10Gi");
    assert_eq!((claim.class_name(), claim.attributes_class()), ("fast", "gold"));
    assert_eq!(claim.spec.volume_mode, VolumeMode::Block);
    assert!(claim.spec.access_modes.contains(AccessMode::ReadWriteOnce));
    assert!(claim.is_fully_bound());
    assert_eq!(claim.data_source().unwrap().name, "other");
    assert_eq!(claim.status.phase, ClaimPhase::Bound);
    assert_eq!(claim.status.allocated_resources.storage, claim.status.capacity.storage);
    assert!(condition::find(&claim.status.conditions, "Resizing").unwrap().is_true());
    assert_eq!(claim.provisioned_volume_name(), "pvc-uid-of-data");
}

#[test]
fn the_legacy_class_annotation_wins_over_the_field_even_when_empty() {
    let mut json = claim();
    json["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = json!("");
    let claim: Claim = read(json);
    assert_eq!(claim.class_name(), "");
    assert!(claim.has_class());
}

#[test]
fn a_claim_without_field_and_annotation_has_no_class_but_an_empty_field_is_one() {
    let mut json = claim();
    json["spec"]["storageClassName"] = Value::Null;
    assert!(!read::<Claim>(json.clone()).has_class());
    json["spec"]["storageClassName"] = json!("");
    assert!(read::<Claim>(json).has_class());
}

#[test]
fn an_ephemeral_claim_belongs_to_its_pod_only() {
    let claim: Claim = read(claim());
    let mut json = pod();
    assert!(!claim.is_owned_by(&read(json.clone())));
    json["metadata"]["uid"] = json!("pod-uid");
    assert!(claim.is_owned_by(&read(json)));
}

#[test]
fn a_volume_is_read() {
    let volume: Volume = read(volume());
    assert_eq!(volume.capacity().size(), Ok(10 << 30));
    assert_eq!(volume.spec.access_modes.names(), ["ReadWriteOnce", "ReadWriteMany"]);
    assert_eq!(volume.spec.reclaim_policy, ReclaimPolicy::Delete);
    assert_eq!(volume.status.phase, VolumePhase::Bound);
    let csi = volume.spec.csi.as_ref().unwrap();
    assert_eq!(csi.unique_name().as_str(), "kubernetes.io/csi/shared.csi.stowage.dev^h1");
    assert_eq!(csi.node_expand_secret_ref.as_ref().unwrap().name, "s");
    assert_eq!(volume.spec.other_source, None);
    assert!(volume.is_bound_to(&read(claim())));
}

#[test]
fn a_volume_is_bound_to_the_claim_of_the_same_uid_or_reserved_for_any() {
    let mut json = volume();
    json["spec"]["claimRef"]["uid"] = json!("an-earlier-claim");
    assert!(!read::<Volume>(json.clone()).is_bound_to(&read(claim())));
    json["spec"]["claimRef"]["uid"] = json!("");
    assert!(read::<Volume>(json.clone()).is_bound_to(&read(claim())));
    json["spec"]["claimRef"]["namespace"] = json!("elsewhere");
    assert!(!read::<Volume>(json).is_bound_to(&read(claim())));
}

#[test]
fn a_volume_of_another_source_says_which() {
    let volume: Volume = read(json!({"spec": {"hostPath": {"path": "/x"}}}));
    assert_eq!((volume.spec.csi, volume.spec.other_source), (None, Some("hostPath")));
}

#[test]
fn the_deletion_secret_needs_name_and_namespace() {
    let with = |name: &str, namespace: &str| {
        let annotations =
            json!({annotations::DELETION_SECRET_NAME: name, annotations::DELETION_SECRET_NAMESPACE: namespace});
        read::<Volume>(json!({"metadata": {"annotations": annotations}})).deletion_secret()
    };
    assert_eq!(with("", ""), None);
    assert_eq!(with("s", "ns").unwrap().namespace, "ns");
}

#[test]
fn a_class_is_read() {
    let class: StorageClass = read(class());
    assert_eq!(class.reclaim_policy(), ReclaimPolicy::Retain);
    assert_eq!(class.binding_mode, Some(BindingMode::WaitForFirstConsumer));
    assert!(class.waits_for_consumer() && class.allow_volume_expansion && class.provisions());
    assert_eq!(class.allowed_topologies[0].match_label_expressions[0].values, ["a", "b"]);
}

#[test]
fn a_pod_is_read_with_the_source_of_each_volume() {
    let pod: Pod = read(pod());
    let sources: Vec<_> = pod.spec.volumes.iter().map(|volume| &volume.source).collect();
    assert!(matches!(sources[0], PodVolumeSource::Claim { claim_name, read_only: true } if claim_name == "data"));
    assert!(matches!(
        sources[1..8],
        [
            PodVolumeSource::Ephemeral,
            PodVolumeSource::EmptyDir,
            PodVolumeSource::ConfigMap,
            PodVolumeSource::Secret,
            PodVolumeSource::Projected,
            PodVolumeSource::DownwardApi,
            PodVolumeSource::HostPath,
        ]
    ));
    assert!(matches!(sources[8], PodVolumeSource::Csi(csi) if csi.driver == "local.csi.stowage.dev"));
    assert_eq!(sources[9], &PodVolumeSource::Other);
}

#[test]
fn a_pods_claims_are_the_named_and_the_ephemeral_ones() {
    let pod: Pod = read(pod());
    let claims: Vec<_> = pod.claims().collect();
    assert_eq!(claims, [Key::namespaced("shop", "data"), Key::namespaced("shop", "web-0-scratch")]);
    assert!(pod.mounts("data") && pod.mounts("tmp") && !pod.mounts("scratch"));
    assert!(pod.maps_device("scratch") && !pod.maps_device("data"));
}

#[test]
fn a_pod_is_terminal_only_when_it_succeeded_or_failed() {
    let mut json = pod();
    for (phase, terminal) in [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true)] {
        json["status"]["phase"] = json!(phase);
        assert_eq!(read::<Pod>(json.clone()).is_terminal(), terminal, "{phase}");
    }
}

#[test]
fn a_pods_containers_are_running_or_not() {
    let mut json = pod();
    let running: Pod = read(json.clone());
    assert!(running.has_running_containers());
    assert_eq!(running.status.init_container_statuses[0].state, ContainerState::Terminated);
    json["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "ContainerCreating"}});
    assert!(!read::<Pod>(json).has_running_containers());
}

#[test]
fn a_toleration_covers_a_taint_by_key_operator_and_effect() {
    let taint = &read::<Node>(node()).spec.taints[0];
    let tolerates = |toleration: Value| read::<Pod>(json!({"spec": {"tolerations": [toleration]}})).tolerates(taint);
    let key = "node.kubernetes.io/out-of-service";
    assert!(tolerates(json!({"operator": "Exists"})));
    assert!(tolerates(json!({"key": key, "operator": "Exists", "effect": "NoExecute"})));
    assert!(tolerates(json!({"key": key, "value": "nodeshutdown", "effect": ""})), "an empty effect is all effects");
    assert!(!tolerates(json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})));
    assert!(!tolerates(json!({"key": key, "value": "other"})));
    assert!(!tolerates(json!({"key": "other", "operator": "Exists"})));
    assert!(!tolerates(json!({"value": "nodeshutdown"})), "an empty key needs Exists");
}

#[test]
fn a_node_is_read() {
    let node: Node = read(node());
    assert!(node.is_attach_managed() && node.is_out_of_service() && node.spec.unschedulable);
    assert!(node.is_attached("kubernetes.io/csi/d^h") && node.is_in_use("kubernetes.io/csi/d^h"));
    assert!(!node.is_attached("kubernetes.io/csi/d^other"));
    assert!(!node.is_ready(), "an unknown state is not ready");
    assert!(node.ready().unwrap().last_heartbeat_time < node.ready().unwrap().last_transition_time);
}

#[test]
fn an_attachment_is_read() {
    let attachment: VolumeAttachment = read(attachment());
    assert_eq!(attachment.volume_name(), Some("pvc-1"));
    assert!(attachment.status.attached);
    assert_eq!(attachment.status.attachment_metadata["token"], "t");
    assert_eq!(attachment.status.attach_error.as_ref().unwrap().error_code, Some(8));
    let inline = attachment.spec.source.inline_volume_spec.as_ref().unwrap();
    assert_eq!(inline.csi.as_ref().unwrap().volume_handle, "h1");
}

#[test]
fn a_driver_on_a_node_has_an_id_and_perhaps_a_limit() {
    let node: CsiNode = read(csi_node());
    assert_eq!(node.driver("d").unwrap().node_id, "id1");
    assert_eq!((node.limit("d"), node.limit("other")), (Some(24), None));
}

#[test]
fn a_driver_needs_attach_and_has_persistent_volumes_unless_it_says_otherwise() {
    use stowage_model::csi_driver::LifecycleMode::{Ephemeral, Persistent};
    let silent: CsiDriver = read(json!({"spec": {}}));
    assert!(silent.needs_attach() && silent.supports(Persistent) && !silent.supports(Ephemeral));
    let speaking: CsiDriver = read(csi_driver());
    assert!(!speaking.needs_attach() && !speaking.supports(Persistent) && speaking.supports(Ephemeral));
}

#[test]
fn a_lease_is_read_with_its_micro_times() {
    let lease: Lease = read(lease());
    assert_eq!(lease.holder(), Some("pod-1"));
    assert_eq!(lease.spec.renew_time.unwrap().duration_since(lease.spec.acquire_time.unwrap()).as_micros(), 5_123_456);
    assert_eq!(lease.duration().as_secs(), 15);
    let released: Lease = read(json!({"spec": {"holderIdentity": ""}}));
    assert_eq!(released.holder(), None);
}

#[test]
fn a_secret_is_read() {
    let secret: Secret = read(secret());
    assert_eq!(secret.data.get("password"), Some(b"hunter2".as_slice()));
}

#[test]
fn a_snapshot_and_its_content_name_each_other() {
    let snapshot: VolumeSnapshot = read(volume_snapshot());
    let content: VolumeSnapshotContent = read(volume_snapshot_content());
    assert_eq!(snapshot.bound_content(), Some(content.meta.name.as_str()));
    assert!(content.spec.volume_snapshot_ref.names(&snapshot.meta));
    assert_eq!((snapshot.is_ready(), content.is_ready(), content.snapshot_handle()), (true, true, Some("h")));
    let mut other = snapshot.meta.clone();
    other.uid = "of another life".to_owned();
    assert!(!content.spec.volume_snapshot_ref.names(&other));
    let class: VolumeSnapshotClass = read(snapshot_class());
    assert!(class.is_default());
}

#[test]
fn a_group_snapshot_knows_its_content_and_its_members() {
    let group: VolumeGroupSnapshot = read(volume_group_snapshot());
    let content: VolumeGroupSnapshotContent = read(volume_group_snapshot_content());
    assert_eq!(group.bound_content(), Some(content.meta.name.as_str()));
    assert!(content.spec.volume_group_snapshot_ref.names(&group.meta));
    let status = content.status.as_ref().unwrap();
    assert_eq!((content.group_handle(), status.volume_snapshot_info_list[0].restore_size), (Some("gh"), Some(1024)));
    let class: VolumeGroupSnapshotClass = read(snapshot_class());
    assert!(class.is_default());
}

//! Claims as csi-resizer (external-resizer of July 2026, driver hostpath) left them on a kube-apiserver 1.36.4 when it was
//! killed: what ours makes of them there, and here.

use super::*;

/// Spec and status of the claim, capacity and annotations of its volume, byte for byte.
fn left(claim: &str) -> World {
    let (claim, volume) = match claim {
        "for the node" => (
            r#"{"spec": {"resources": {"requests": {"storage": "2Gi"}}}, "status": {"accessModes": ["ReadWriteOnce"], "allocatedResourceStatuses": {"storage": "NodeResizePending"}, "allocatedResources": {"storage": "2Gi"}, "capacity": {"storage": "1Gi"}, "conditions": [{"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:45Z", "message": "No pods are currently referencing this PVC", "reason": "NoPodsUsingPVC", "status": "True", "type": "Unused"}, {"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:46Z", "status": "True", "type": "Resizing"}, {"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:46Z", "message": "Waiting for user to (re-)start a pod to finish file system resize of volume on node.", "status": "True", "type": "FileSystemResizePending"}], "phase": "Bound"}}"#,
            r#"{"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "h1.example", "volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi", "volume.kubernetes.io/provisioner-deletion-secret-name": "", "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}}, "spec": {"capacity": {"storage": "2Gi"}}}"#,
        ),
        "infeasible" => (
            r#"{"spec": {"resources": {"requests": {"storage": "20Ti"}}}, "status": {"accessModes": ["ReadWriteOnce"], "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}, "allocatedResources": {"storage": "20Ti"}, "capacity": {"storage": "1Gi"}, "conditions": [{"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:46Z", "message": "No pods are currently referencing this PVC", "reason": "NoPodsUsingPVC", "status": "True", "type": "Unused"}, {"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:47Z", "status": "True", "type": "Resizing"}, {"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:47Z", "message": "failed to expand pvc with rpc error: code = OutOfRange desc = Requested capacity 21990232555520 exceeds maximum allowed 1099511627776", "status": "True", "type": "ControllerResizeError"}], "phase": "Bound"}}"#,
            r#"{"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "h1.example", "volume.kubernetes.io/provisioner-deletion-secret-name": "", "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}}, "spec": {"capacity": {"storage": "1Gi"}}}"#,
        ),
        "class infeasible" => (
            r#"{"spec": {"resources": {"requests": {"storage": "1Gi"}}, "volumeAttributesClassName": "odd"}, "status": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "conditions": [{"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:46Z", "message": "No pods are currently referencing this PVC", "reason": "NoPodsUsingPVC", "status": "True", "type": "Unused"}, {"lastProbeTime": "2026-11-19T04:32:47Z", "lastTransitionTime": "2026-11-19T04:32:47Z", "message": "Modifying volume to \"odd\" failed. Waiting for retry.", "status": "True", "type": "ModifyingVolume"}, {"lastProbeTime": "2026-11-19T04:32:47Z", "lastTransitionTime": "2026-11-19T04:32:47Z", "message": "invalid parameters: [colour]", "reason": "InvalidArgument", "status": "True", "type": "ModifyVolumeError"}], "currentVolumeAttributesClassName": "silver", "modifyVolumeStatus": {"status": "Infeasible", "targetVolumeAttributesClassName": "odd"}, "phase": "Bound"}}"#,
            r#"{"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "h1.example", "volume.kubernetes.io/provisioner-deletion-secret-name": "", "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}}, "spec": {"capacity": {"storage": "1Gi"}, "volumeAttributesClassName": "silver"}}"#,
        ),
        "class missing" => (
            r#"{"spec": {"resources": {"requests": {"storage": "1Gi"}}, "volumeAttributesClassName": "nowhere"}, "status": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "conditions": [{"lastProbeTime": null, "lastTransitionTime": "2026-11-19T04:32:47Z", "message": "No pods are currently referencing this PVC", "reason": "NoPodsUsingPVC", "status": "True", "type": "Unused"}], "currentVolumeAttributesClassName": "silver", "modifyVolumeStatus": {"status": "Pending"}, "phase": "Bound"}}"#,
            r#"{"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "h1.example", "volume.kubernetes.io/provisioner-deletion-secret-name": "", "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}}, "spec": {"capacity": {"storage": "1Gi"}, "volumeAttributesClassName": "silver"}}"#,
        ),
        other => panic!("{other}"),
    };
    let mut world = growing();
    merge(&mut world.claim, &serde_json::from_str(claim).unwrap());
    merge(&mut world.volume, &serde_json::from_str(volume).unwrap());
    world
}

#[test]
fn what_waits_for_the_node_is_left_alone_until_the_node_is_done() {
    let mut world = left("for the node");
    assert_eq!(world.settle().why.resize, Reason::NodesTurn);
    assert!(world.log.is_empty() && world.told.is_empty(), "{:?}", world.log);
    let done = json!({ "capacity": { "storage": "2Gi" }, "allocatedResourceStatuses": null, "conditions": null });
    merge(&mut world.claim, &json!({ "status": done }));
    assert_eq!(world.settle().why.resize, Reason::Settled);
    assert_eq!(world.log, [json!({ "volume": { "metadata": { "annotations": { PRE_RESIZE_CAPACITY: null } } } })]);
}

#[test]
fn what_was_refused_is_asked_for_once_more_and_a_size_that_is_taken_back_at_once() {
    let mut world = left("infeasible");
    world.settle();
    assert_eq!(world.calls().len(), 1);
    assert_eq!(world.conditions(), ["Unused", "Resizing"]);
    let unused = &world.status()["conditions"][0];
    assert_eq!((&unused["reason"], &unused["lastProbeTime"]), (&json!("NoPodsUsingPVC"), &Value::Null));
    world.fail(Kind::Expand, Code::OutOfRange);
    world.settle();
    assert_eq!(world.status()["allocatedResourceStatuses"]["storage"], "ControllerResizeInfeasible");
    world.request("3Gi");
    world.settle();
    assert_eq!(world.calls()[1]["call"]["expand"], "3Gi");
}

#[test]
fn a_class_that_was_refused_is_tried_once_more_and_gives_way_to_another() {
    let mut world = left("class infeasible");
    world.settle();
    assert_eq!(world.calls()[0]["call"]["modify"], "odd");
    world.fail(Kind::Modify, Code::InvalidArgument);
    world.settle();
    assert_eq!(world.status()["modifyVolumeStatus"]["status"], "Infeasible");
    world.claim["spec"]["volumeAttributesClassName"] = json!("gold");
    world.settle();
    assert_eq!(world.calls()[1]["call"]["modify"], "gold");
}

#[test]
fn a_class_that_is_missing_is_told_and_nothing_is_written() {
    let mut world = left("class missing");
    world.class = None;
    assert_eq!(world.settle().why.modify, Reason::AwaitingClass);
    assert_eq!((world.log.len(), world.told.as_slice()), (0, &["VolumeModifyFailed"][..]));
}

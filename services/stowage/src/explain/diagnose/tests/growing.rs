use serde_json::{Value, json};

use super::*;

fn wants_more(world: &mut Value) {
    world["claims"][0]["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
    world["pods"][0]["status"]["phase"] = "Running".into();
}

fn says(world: &mut Value, status: &str) {
    wants_more(world);
    world["claims"][0]["status"]["allocatedResourceStatuses"] = json!({ "storage": status });
}

fn wants_gold(world: &mut Value) {
    world["claims"][0]["spec"]["volumeAttributesClassName"] = "gold".into();
    world["attributesClasses"] = json!([{ "metadata": { "name": "gold" }, "driverName": DRIVER }]);
    world["pods"] = json!([]);
}

#[test]
fn a_claim_that_does_not_grow_is_told_why() {
    let rows: [Row; 11] = [
        (
            "resize-infeasible",
            claim,
            |w| {
                says(w, "ControllerResizeInfeasible");
                w["claims"][0]["status"]["conditions"] = json!([{ "type": "ControllerResizeError", "status": "True",
                "reason": "OutOfRange", "message": "at most 1Gi" }]);
            },
            State::Stuck,
            &["to 2Gi", "at most 1Gi", "OutOfRange", "kubectl patch pvc data -n default"],
        ),
        (
            "resize-failed",
            claim,
            |w| {
                wants_more(w);
                w["events"] =
                    json!([event("PersistentVolumeClaim", "data", "VolumeResizeFailed", "rpc error: disk is away")]);
            },
            State::Stuck,
            &["disk is away", "resizer of d.example.com"],
        ),
        (
            "expansion-not-allowed",
            claim,
            |w| {
                wants_more(w);
                w["classes"][0]["allowVolumeExpansion"] = false.into();
            },
            State::Stuck,
            &["allowVolumeExpansion of StorageClass \"fast\""],
        ),
        (
            "resizer-silent",
            claim,
            |w| {
                wants_more(w);
                w["leases"] = json!([]);
            },
            State::Stuck,
            &["no resizer has begun", "no Lease external-resizer-d-example-com"],
        ),
        (
            "resizer-silent",
            claim,
            |w| {
                says(w, "ControllerResizeInProgress");
                renewed(w, "external-resizer-d-example-com", THEN);
            },
            State::Stuck,
            &["has begun and not ended", "dead"],
        ),
        (
            "resizer-silent",
            claim,
            |w| {
                wants_more(w);
                of_nfs(w);
            },
            State::Stuck,
            &["pv-controller", "kube-controller-manager-1"],
        ),
        (
            "resize-waits-for-pod",
            claim,
            |w| {
                says(w, "NodeResizePending");
                w["pods"] = json!([]);
            },
            State::Waiting,
            &["when a pod uses the claim"],
        ),
        (
            "node-resize-pending",
            claim,
            |w| {
                says(w, "NodeResizePending");
                w["claims"][0]["status"]["conditions"] = json!([{ "type": "FileSystemResizePending", "status": "True",
                "lastTransitionTime": THEN }]);
            },
            State::Stuck,
            &["kubelet of node-1"],
        ),
        // The resizer failed once, and has done it since.
        (
            "resize-waits-for-pod",
            claim,
            |w| {
                says(w, "NodeResizePending");
                w["pods"] = json!([]);
                let mut done =
                    event("PersistentVolumeClaim", "data", "FileSystemResizeRequired", "grow it on the node");
                done["lastTimestamp"] = "2026-01-01T00:09:40Z".into();
                w["events"] =
                    json!([event("PersistentVolumeClaim", "data", "VolumeResizeFailed", "disk was away"), done]);
            },
            State::Waiting,
            &["when a pod uses the claim"],
        ),
        ("resize-infeasible", claim, |w| says(w, "NodeResizeInfeasible"), State::Stuck, &["NodeResizeInfeasible"]),
        (
            "resize-failed",
            claim,
            |w| {
                says(w, "NodeResizePending");
                w["events"] = json!([event("Pod", "web", "VolumeResizeFailed", "resize2fs: bad superblock")]);
            },
            State::Stuck,
            &["bad superblock", "kubelet of node-1"],
        ),
    ];
    check(&rows);
}

#[test]
fn a_claim_that_does_not_change_is_told_why() {
    let rows: [Row; 4] = [
        (
            "attributes-class-missing",
            claim,
            |w| {
                wants_gold(w);
                w["attributesClasses"] = json!([]);
            },
            State::Stuck,
            &["spec.volumeAttributesClassName is \"gold\""],
        ),
        (
            "attributes-class-of-other-driver",
            claim,
            |w| {
                wants_gold(w);
                w["attributesClasses"][0]["driverName"] = "e.example.com".into();
            },
            State::Stuck,
            &["e.example.com", "d.example.com"],
        ),
        (
            "modify-infeasible",
            claim,
            |w| {
                wants_gold(w);
                w["claims"][0]["status"]["conditions"] = json!([{ "type": "ModifyVolumeError", "status": "True",
                "reason": "InvalidArgument", "message": "iops is too high" }]);
            },
            State::Stuck,
            &["iops is too high"],
        ),
        ("modifier-silent", claim, wants_gold, State::Stuck, &["external-resizer-d-example-com-1"]),
    ];
    check(&rows);
}

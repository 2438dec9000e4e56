use serde_json::{Value, json};

use super::*;

/// The volume is on another node, too, with a pod of its own there.
fn elsewhere(world: &mut Value) {
    world["attachments"][0]["spec"]["nodeName"] = "node-2".into();
    world["nodes"][0]["status"]["volumesAttached"] = json!([]);
    world["nodes"].as_array_mut().unwrap().push(json!({
        "metadata": { "name": "node-2" }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    }));
    let mut other = world["pods"][0].clone();
    other["metadata"]["name"] = "old".into();
    other["metadata"]["uid"] = "uid-old".into();
    other["spec"]["nodeName"] = "node-2".into();
    other["status"]["phase"] = "Running".into();
    world["pods"].as_array_mut().unwrap().push(other);
}

/// The pod there is gone, and this one waits for long.
fn left(world: &mut Value) {
    elsewhere(world);
    world["pods"].as_array_mut().unwrap().pop();
    world["pods"][0]["status"]["conditions"][0]["lastTransitionTime"] = THEN.into();
}

#[test]
fn a_volume_that_is_not_attached_is_told_why() {
    let rows: [Row; 15] = [
        (
            "attach-failed",
            pod,
            |w| {
                w["attachments"][0]["status"] = json!({ "attached": false,
                "attachError": { "message": "rpc error: disk is away", "time": "2026-01-01T00:09:00Z", "errorCode": 13 } });
            },
            State::Stuck,
            &["disk is away", "VolumeAttachment csi-1", "gRPC code 13", "attacher of d.example.com"],
        ),
        (
            "driver-not-on-node",
            pod,
            |w| {
                w["attachments"][0]["status"]["attached"] = false.into();
                w["csiNodes"][0]["spec"]["drivers"] = json!([]);
            },
            State::Stuck,
            &["CSINode node-1 does not list d.example.com"],
        ),
        (
            "driver-not-on-node",
            pod,
            |w| {
                w["drivers"][0]["spec"]["attachRequired"] = false.into();
                w["attachments"] = json!([]);
                w["csiNodes"] = json!([]);
            },
            State::Stuck,
            &["there is no CSINode node-1"],
        ),
        (
            "attacher-silent",
            pod,
            |w| w["attachments"][0]["status"]["attached"] = false.into(),
            State::Stuck,
            &["status.attached of VolumeAttachment csi-1 is false", "external-attacher-leader-d-example-com-1"],
        ),
        (
            "attach-not-wanted",
            pod,
            |w| {
                w["attachments"] = json!([]);
                w["nodes"][0]["status"]["volumesAttached"] = json!([]);
                w["pods"][0]["status"]["conditions"][0]["lastTransitionTime"] = THEN.into();
            },
            State::Stuck,
            &["no VolumeAttachment", "attach-detach-controller"],
        ),
        (
            "not-reported",
            pod,
            |w| w["nodes"][0]["status"]["volumesAttached"] = json!([]),
            State::Stuck,
            &["status.volumesAttached of node node-1"],
        ),
        (
            "multi-attach",
            pod,
            elsewhere,
            State::Stuck,
            &["still attached to node node-2", "pod old", "kubectl delete pod old"],
        ),
        (
            "multi-attach-leaving",
            pod,
            |w| {
                elsewhere(w);
                w["pods"][1]["metadata"]["deletionTimestamp"] = THEN.into();
            },
            State::Stuck,
            &["being deleted", "kubelet of node-2", "stowage explain pod old -n default"],
        ),
        // Its grace ends later: an ordinary move.
        (
            "multi-attach-leaving",
            pod,
            |w| {
                elsewhere(w);
                w["pods"][1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:20Z".into();
            },
            State::Working,
            &["kubelet of node-2"],
        ),
        ("detach-silent", pod, left, State::Stuck, &["attach-detach-controller"]),
        // Nobody is to be asked about a node that is gone.
        (
            "detach-silent",
            pod,
            |w| {
                elsewhere(w);
                w["nodes"].as_array_mut().unwrap().pop();
            },
            State::Working,
            &["VolumeAttachment csi-1 to node-2 is not gone", "attach-detach-controller"],
        ),
        (
            "held-by-dead-node",
            pod,
            |w| {
                elsewhere(w);
                w["nodes"][1]["status"]["conditions"][0]["status"] = "Unknown".into();
            },
            State::Stuck,
            &["node-2, which is not ready", "kubectl taint node node-2 node.kubernetes.io/out-of-service"],
        ),
        (
            "detach-failed",
            pod,
            |w| {
                elsewhere(w);
                w["attachments"][0]["metadata"]["deletionTimestamp"] = THEN.into();
                w["attachments"][0]["status"]["detachError"] = json!({ "message": "rpc error: busy" });
            },
            State::Stuck,
            &["detaching from node-2 failed: rpc error: busy"],
        ),
        (
            "still-in-use",
            pod,
            |w| {
                left(w);
                w["nodes"][1]["status"]["volumesInUse"] = json!(["kubernetes.io/csi/d.example.com^v1"]);
            },
            State::Stuck,
            &["node-2 still has it mounted"],
        ),
        (
            "node-not-ready",
            pod,
            |w| {
                w["nodes"][0]["status"]["conditions"][0] = json!({ "type": "Ready", "status": "Unknown",
                "lastTransitionTime": "2026-01-01T00:05:00Z", "message": "Kubelet stopped posting node status." });
            },
            State::Stuck,
            &["node node-1 has not been ready for 5m", "Kubelet stopped"],
        ),
    ];
    check(&rows);
}

#[test]
fn a_mount_that_fails_is_told_in_the_nodes_words_and_not_in_the_umbrella_over_them() {
    let rows: [Row; 3] = [
        (
            "mount-failed",
            pod,
            |w| {
                let mut umbrella =
                    event("Pod", "web", "FailedMount", "unmounted volumes=[data]: timed out waiting for the condition");
                umbrella["lastTimestamp"] = "2026-01-01T00:09:50Z".into();
                w["events"] =
                    json!([event("Pod", "web", "FailedMount", "MountVolume.SetUp failed: exit status 32"), umbrella]);
            },
            State::Stuck,
            &["exit status 32", "kubelet of node-1"],
        ),
        (
            "mount-failed",
            pod,
            |w| {
                w["events"] = json!([event("Pod", "web", "FailedMount", "configmap \"settings\" not found")]);
            },
            State::Stuck,
            &["create the ConfigMap"],
        ),
        ("kubelet-silent", pod, |_| {}, State::Working, &["has not mounted the volumes"]),
    ];
    check(&rows);
}

/// The pod came to its node when the volume was on another, and was told so.
fn moved(world: &mut Value) {
    let mut refused = event("Pod", "web", "FailedAttachVolume", "Multi-Attach error for volume \"pv-1\" Volume is ...");
    refused["lastTimestamp"] = "2026-01-01T00:09:00Z".into();
    world["events"] = json!([refused]);
    world["pods"][0]["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:08:59Z".into();
}

#[test]
fn a_volume_that_came_late_is_mounted_and_not_stuck() {
    let rows: [Row; 4] = [
        // What is attached is so, whatever was told before.
        (
            "kubelet-silent",
            pod,
            |w| {
                moved(w);
                w["attachments"][0]["metadata"]["creationTimestamp"] = "2026-01-01T00:09:50Z".into();
            },
            State::Working,
            &["kubelet of node-1"],
        ),
        // Nor does the kubelet's wait for that count. Where attachments may not be read, the event tells.
        (
            "kubelet-silent",
            pod,
            |w| {
                moved(w);
                let mut umbrella = event("Pod", "web", "FailedMount", "timed out waiting for the condition");
                umbrella["lastTimestamp"] = "2026-01-01T00:09:40Z".into();
                let mut attached = event("Pod", "web", "SuccessfulAttachVolume", "succeeded for volume \"pv-1\" ");
                attached["type"] = "Normal".into();
                attached["lastTimestamp"] = "2026-01-01T00:09:45Z".into();
                w["events"].as_array_mut().unwrap().extend([umbrella, attached]);
                w["attachments"] = Value::Null;
            },
            State::Working,
            &["kubelet of node-1"],
        ),
        // That another volume came settles nothing.
        (
            "mount-failed",
            pod,
            |w| {
                moved(w);
                w["events"][0]["message"] = "Multi-Attach error for volume \"other\" Volume is ...".into();
                let mut attached = event("Pod", "web", "SuccessfulAttachVolume", "succeeded for volume \"pv-1\" ");
                attached["type"] = "Normal".into();
                w["events"].as_array_mut().unwrap().push(attached);
            },
            State::Stuck,
            &["Multi-Attach error for volume \"other\""],
        ),
        // What is told of the mount itself stays.
        (
            "mount-failed",
            pod,
            |w| {
                moved(w);
                let failed = event("Pod", "web", "FailedMount", "MountVolume.MountDevice failed: exit status 32");
                w["events"].as_array_mut().unwrap().push(failed);
            },
            State::Stuck,
            &["exit status 32"],
        ),
    ];
    check(&rows);
    assert!(is_news("SuccessfulAttachVolume"), "the survey does not read it");
}

#[test]
fn a_pod_that_waits_for_its_image_is_no_matter_of_volumes() {
    let mut pulls = event("Pod", "web", "BackOff", "Back-off pulling image");
    pulls["involvedObject"]["uid"] = "uid-web".into();
    let mut world = good();
    world["events"] = Value::Array(vec![pulls]);
    let report = diagnose(&gathered(pod(), &world), NOW.parse().unwrap());
    assert_eq!(report.stories[0].state(), State::Fine, "{report:#?}");
}

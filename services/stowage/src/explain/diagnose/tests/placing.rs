use serde_json::json;

use super::*;

#[test]
fn a_pod_without_a_node_is_told_why() {
    let rows: [Row; 11] = [
        (
            "claim-missing",
            pod,
            |w| w["claims"] = json!([]),
            State::Stuck,
            &["names claim default/data", "create claim"],
        ),
        (
            "gated",
            pod,
            |w| {
                unplaced(w);
                w["pods"][0]["spec"]["schedulingGates"] = json!([{ "name": "quota" }]);
            },
            State::Waiting,
            &["\"quota\""],
        ),
        (
            "class-missing",
            pod,
            |w| {
                let pods = w["pods"].clone();
                unbound(w);
                w["pods"] = pods;
                w["claims"][0]["spec"]["storageClassName"] = "gold".into();
                w["pods"][0]["spec"]["nodeName"] = "".into();
            },
            State::Stuck,
            &["gold"],
        ),
        (
            "volume-unreachable",
            pod,
            |w| {
                unplaced(w);
                w["volumes"][0]["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["z9"] }] }] } });
            },
            State::Stuck,
            &["is met by no node", "zone In [z9]"],
        ),
        (
            "volume-unreachable",
            pod,
            |w| {
                unplaced(w);
                on_its_node(w);
                w["nodes"][0]["spec"] = json!({ "unschedulable": true });
            },
            State::Stuck,
            &["node-1 is cordoned", "kubectl uncordon node-1"],
        ),
        (
            "volume-unreachable",
            pod,
            |w| {
                unplaced(w);
                on_its_node(w);
                w["pods"][0]["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "node-2" });
            },
            State::Stuck,
            &["spec.nodeSelector of pod web", "kubernetes.io/hostname=node-2"],
        ),
        (
            "attach-limit",
            pod,
            |w| {
                unplaced(w);
                let other = |name: &str| {
                    json!({
                        "metadata": { "name": format!("csi-{name}") }, "status": { "attached": true },
                        "spec": { "attacher": DRIVER, "nodeName": "node-1", "source": { "persistentVolumeName": name } },
                    })
                };
                w["attachments"] = json!([other("a"), other("b")]);
            },
            State::Stuck,
            &["node-1 has 2 of 2", "allocatable.count"],
        ),
        (
            "unschedulable",
            pod,
            |w| {
                unplaced(w);
                w["events"] =
                    json!([event("Pod", "web", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")]);
            },
            State::Stuck,
            &["Insufficient cpu", "scheduler"],
        ),
        (
            "attach-limit",
            pod,
            |w| {
                unplaced(w);
                w["events"] =
                    json!([event("Pod", "web", "FailedScheduling", "0/1 nodes: 1 node(s) exceed max volume count")]);
            },
            State::Stuck,
            &["max volume count"],
        ),
        ("scheduler-silent", pod, unplaced, State::Stuck, &["kube-scheduler-1"]),
        (
            "pod-past-scheduler",
            claim,
            |w| {
                let pods = w["pods"].clone();
                unbound(w);
                with_policy(w, "WaitForFirstConsumer");
                w["pods"] = pods;
            },
            State::Stuck,
            &["spec.nodeName", "past the scheduler"],
        ),
    ];
    check(&rows);
}

fn on_its_node(world: &mut Value) {
    world["volumes"][0]["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"] }] }] } });
}

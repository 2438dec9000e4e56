use std::collections::BTreeSet;

use stowage_model::annotations::{CONTROLLER_MANAGED_ATTACH, CSI_NODE_IDS};
use stowage_model::node::Node;
use stowage_runtime::api::Patch;
use stowage_runtime::cache::View;

use super::super::Action;
use super::super::node::{Snapshot, Why, decide};
use super::*;

fn node(rest: Value) -> View<Node> {
    let mut object = json!({
        "metadata": {
            "name": "node", "uid": "u", "resourceVersion": "5",
            "labels": { "kubernetes.io/hostname": "node" },
            "annotations": { CONTROLLER_MANAGED_ATTACH: "true" },
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    json_patch_merge(&mut object, &rest);
    View::Known(Arc::new(serde_json::from_value(object).unwrap()))
}

/// A registered node with nothing to do.
fn quiet() -> Snapshot {
    Snapshot {
        name: "node".into(),
        node: node(json!({})),
        labels: [("kubernetes.io/hostname".to_owned(), "node".to_owned())].into(),
        status: json!({ "capacity": { "pods": "110" } }),
        drivers: Vec::new(),
        dismissed: BTreeSet::new(),
        in_use: BTreeSet::new(),
        heartbeat: Some(now()),
        lease_duration: SignedDuration::from_secs(40),
    }
}

#[track_caller]
fn metadata(s: &Snapshot) -> Value {
    match decide(s, now()).actions.pop() {
        Some(Action::PatchNode { body, .. }) => body["metadata"].clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_quiet_node_is_left_alone() {
    let decision = decide(&quiet(), now());
    assert_eq!((decision.why, decision.actions.len()), (Why::UpToDate, 0));
}

#[test]
fn a_missing_node_is_made_ready_and_managed() {
    let decision = decide(&Snapshot { node: View::Absent, ..quiet() }, now());
    let [Action::CreateNode(body)] = &decision.actions[..] else { panic!("{decision:?}") };
    assert_eq!(body["metadata"]["annotations"][CONTROLLER_MANAGED_ATTACH], "true");
    assert_eq!(body["status"]["conditions"][0]["type"], "Ready");
    assert_eq!(body["status"]["capacity"]["pods"], "110");
}

#[test]
fn a_node_whose_write_got_no_answer_is_read_first() {
    assert_eq!(decide(&Snapshot { node: View::Unknown, ..quiet() }, now()).actions, [Action::ReadNode]);
}

#[test]
fn the_in_use_list_is_written_when_its_members_differ_and_guarded_by_uid_only() {
    let mut s = Snapshot { in_use: ["b", "a"].map(Into::into).into(), ..quiet() };
    let decision = decide(&s, now());
    let [Action::ReportInUse { target }] = &decision.actions[..] else { panic!("{decision:?}") };
    assert_eq!((target.uid.as_str(), target.revision), ("u", None));
    s.node = node(json!({ "status": { "volumesInUse": ["b", "a"] } }));
    assert_eq!(decide(&s, now()).actions, []);
    s.in_use.clear();
    assert_eq!(decide(&s, now()).why, Why::InUseDiffers);
}

#[test]
fn a_node_called_silent_is_ready_again_only_while_its_lease_is_renewed() {
    let unknown = json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "Unknown" }]);
    let mut s = Snapshot { node: node(json!({ "status": { "conditions": unknown } })), ..quiet() };
    let decision = decide(&s, now());
    let [Action::PatchNodeStatus { patch: Patch::Json(operations), .. }] = &decision.actions[..] else {
        panic!("{decision:?}");
    };
    assert_eq!(operations.last().unwrap()["path"], "/status/conditions/1");
    s.heartbeat = Some(later(-41));
    assert_eq!(decide(&s, now()).why, Why::Silent);
    s.heartbeat = None;
    assert_eq!(decide(&s, now()).why, Why::Silent);
}

#[test]
fn s118_a_drivers_node_id_and_topology_are_written_beside_those_of_others() {
    let driver = DriverInfo { topology: [("zone".to_owned(), "z1".to_owned())].into(), ..driver() };
    let ids = json!({ "metadata": { "annotations": { CSI_NODE_IDS: "{\"other\":\"x\"}" } } });
    let mut s = Snapshot { node: node(ids), drivers: vec![driver], ..quiet() };
    let patch = metadata(&s);
    assert_eq!(patch["labels"], json!({ "zone": "z1" }));
    assert_eq!(patch["annotations"], json!({ CSI_NODE_IDS: "{\"driver\":\"node-1\",\"other\":\"x\"}" }));
    let done = json!({ "metadata": { "labels": patch["labels"], "annotations": patch["annotations"] } });
    s.node = node(done);
    assert_eq!(decide(&s, now()).actions, []);
}

#[test]
fn s121_a_dismissed_drivers_node_id_goes_and_the_last_takes_the_annotation_with_it() {
    let annotated = |ids: &str| node(json!({ "metadata": { "annotations": { CSI_NODE_IDS: ids } } }));
    let mut s = Snapshot { dismissed: ["driver".to_owned()].into(), ..quiet() };
    s.node = annotated("{\"driver\":\"node-1\",\"other\":\"x\"}");
    assert_eq!(metadata(&s)["annotations"], json!({ CSI_NODE_IDS: "{\"other\":\"x\"}" }));
    s.node = annotated("{\"driver\":\"node-1\"}");
    assert_eq!(metadata(&s)["annotations"], json!({ CSI_NODE_IDS: null }));
    s.node = node(json!({}));
    assert_eq!(decide(&s, now()).actions, []);
}

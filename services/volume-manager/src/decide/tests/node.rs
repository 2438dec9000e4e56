use std::collections::BTreeSet;

use stowage_model::annotations::{CONTROLLER_MANAGED_ATTACH, CSI_NODE_IDS};
use stowage_model::node::Node;
use stowage_runtime::api::Patch;
use stowage_runtime::cache::View;

use super::super::Action;
use super::super::node::{Snapshot, Why, decide};
use super::*;
use crate::machine::Pressure;
use crate::state::Reported;

fn node(rest: Value) -> View<Node> {
    let mut object = json!({
        "metadata": {
            "name": "node", "uid": "u", "resourceVersion": "5",
            "labels": { "kubernetes.io/hostname": "node" },
            "annotations": { CONTROLLER_MANAGED_ATTACH: "true" },
        },
        "status": { "conditions": conditions(&[]) },
    });
    json_patch_merge(&mut object, &rest);
    View::Known(Arc::new(serde_json::from_value(object).unwrap()))
}

fn machine() -> Value {
    json!({ "capacity": { "pods": "110" } })
}

/// The conditions of a node that is well and has just said so, some of them spoiled.
fn conditions(spoiled: &[(&str, Value)]) -> Value {
    let list = crate::node::conditions(Pressure::default()).into_iter().map(|wanted| {
        let status = if wanted.holds { "True" } else { "False" };
        let mut condition = json!({
            "type": wanted.kind, "status": status, "reason": wanted.reason,
            "lastHeartbeatTime": now().to_string(), "lastTransitionTime": later(-1000).to_string(),
        });
        for (_, rest) in spoiled.iter().filter(|(kind, _)| *kind == wanted.kind) {
            json_patch_merge(&mut condition, rest);
        }
        condition
    });
    list.collect()
}

#[track_caller]
fn conditions_written(s: &Snapshot, now: Timestamp) -> (Why, Vec<Value>) {
    let decision = decide(s, now);
    let [Action::PatchNodeStatus { patch: Patch::Json(operations), .. }] = &decision.actions[..] else {
        panic!("{decision:?}");
    };
    let written = operations.iter().filter(|operation| operation["op"] != "test");
    (decision.why, written.map(|operation| operation["value"].clone()).collect())
}

/// A registered node with nothing to do.
fn quiet() -> Snapshot {
    Snapshot {
        name: "node".into(),
        registers: true,
        controller_attach: true,
        node: node(json!({})),
        labels: [("kubernetes.io/hostname".to_owned(), "node".to_owned())].into(),
        status: machine(),
        reported: Some(Reported { uid: "u".into(), status: machine() }),
        pressure: Pressure::default(),
        drivers: Vec::new(),
        dismissed: BTreeSet::new(),
        in_use: BTreeSet::new(),
        heartbeat: Some(now()),
        lease_duration: SignedDuration::from_secs(40),
        report_every: SignedDuration::from_secs(300),
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
    let kinds: Vec<&Value> = body["status"]["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    assert!(body["status"]["conditions"][0]["lastHeartbeatTime"].is_string());
    assert_eq!(body["status"]["capacity"]["pods"], "110");
}

#[test]
fn a_missing_node_is_left_to_others_where_that_was_asked_for() {
    let decision = decide(&Snapshot { node: View::Absent, registers: false, ..quiet() }, now());
    assert_eq!((decision.why, decision.actions.len()), (Why::NotRegistered, 0));
}

#[test]
fn s57_a_node_that_attaches_by_itself_does_not_say_that_the_controller_does() {
    let s = Snapshot { controller_attach: false, ..quiet() };
    assert_eq!(metadata(&s)["annotations"], json!({ CONTROLLER_MANAGED_ATTACH: null }));
    let decision = decide(&Snapshot { node: View::Absent, ..s }, now());
    let [Action::CreateNode(body)] = &decision.actions[..] else { panic!("{decision:?}") };
    assert_eq!(body["metadata"]["annotations"], json!({}));
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
    let unknown = json!({ "status": "Unknown" });
    let unknown = conditions(&[("MemoryPressure", unknown.clone()), ("Ready", unknown)]);
    let mut s = Snapshot { node: node(json!({ "status": { "conditions": unknown } })), ..quiet() };
    let (why, written) = conditions_written(&s, now());
    assert_eq!(
        (why, &written[0]["status"], &written[3]["status"]),
        (Why::ConditionsDiffer, &json!("False"), &json!("True"))
    );
    s.heartbeat = Some(later(-41));
    assert_eq!(decide(&s, now()).why, Why::Silent);
    s.heartbeat = None;
    assert_eq!(decide(&s, now()).why, Why::Silent);
}

#[test]
fn a_node_that_does_not_change_says_so_every_five_minutes() {
    let decision = decide(&quiet(), now());
    assert_eq!((decision.why, decision.wake_at), (Why::UpToDate, Some(later(300))));
    let s = Snapshot { heartbeat: Some(later(300)), ..quiet() };
    let (why, written) = conditions_written(&s, later(300));
    assert_eq!((why, written.len()), (Why::Heartbeat, 4));
    assert!(written.iter().all(|one| one["lastTransitionTime"] == later(-1000).to_string()), "{written:?}");
}

#[test]
fn what_the_machine_is_is_told_once_by_each_process_and_when_it_changes() {
    let mut s = Snapshot { reported: None, ..quiet() };
    let decision = decide(&s, now());
    let [Action::PatchNodeStatus { patch: Patch::Merge(body), reported, .. }] = &decision.actions[..] else {
        panic!("{decision:?}");
    };
    assert_eq!((decision.why, &body["status"]), (Why::MachineDiffers, &machine()));
    s.reported = reported.clone();
    assert_eq!(decide(&s, now()).actions, []);
    s.status = json!({ "capacity": { "pods": "110", "memory": "1Ki" } });
    assert_eq!(decide(&s, now()).why, Why::MachineDiffers);
    s.reported = Some(Reported { uid: "of another Node".into(), status: s.status.clone() });
    assert_eq!(decide(&s, now()).why, Why::MachineDiffers);
}

#[test]
fn a_pressure_is_told_at_once_and_taken_back_after_five_minutes() {
    let mut s = Snapshot { pressure: Pressure { disk: true, ..Pressure::default() }, ..quiet() };
    let (why, written) = conditions_written(&s, now());
    assert_eq!((why, &written[1]["status"]), (Why::ConditionsDiffer, &json!("True")));
    let pressed = json!({
        "status": "True", "reason": "KubeletHasDiskPressure", "lastTransitionTime": later(-60).to_string(),
    });
    s.node = node(json!({ "status": { "conditions": conditions(&[("DiskPressure", pressed)]) } }));
    assert_eq!(decide(&s, now()).actions, []);
    s.pressure = Pressure::default();
    let decision = decide(&s, now());
    assert_eq!((decision.actions.len(), decision.wake_at), (0, Some(later(240))));
    s.heartbeat = Some(later(240));
    assert_eq!(conditions_written(&s, later(240)).1[1]["status"], "False");
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

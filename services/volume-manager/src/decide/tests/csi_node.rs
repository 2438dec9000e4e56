use std::collections::BTreeSet;

use stowage_model::csi_node::CsiNode;
use stowage_runtime::api::Patch;
use stowage_runtime::cache::View;

use super::super::Action;
use super::super::csi_node::{Refresh, Snapshot, Why, decide};
use super::*;

fn csi_node(owner: &str, drivers: Value) -> View<CsiNode> {
    let object = json!({
        "metadata": {
            "name": "node", "uid": "c", "resourceVersion": "5",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "node", "uid": owner }],
        },
        "spec": { "drivers": drivers },
    });
    View::Known(Arc::new(serde_json::from_value(object).unwrap()))
}

fn entry() -> Value {
    json!({ "name": "driver", "nodeID": "node-1", "topologyKeys": [] })
}

fn with_driver() -> Snapshot {
    Snapshot {
        name: "node".into(),
        csi_node: View::Absent,
        node_uid: Some("u".into()),
        drivers: vec![driver()],
        dismissed: BTreeSet::new(),
        refresh: BTreeMap::new(),
    }
}

#[track_caller]
fn operations(s: &Snapshot) -> Vec<Value> {
    match decide(s, now()).actions.pop() {
        Some(Action::PatchCsiNode { patch: Patch::Json(operations), target }) => {
            assert_eq!(target.revision, Some(5), "places in a list are only true for one version");
            operations
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn s118_a_missing_object_is_made_with_the_driver_and_owned_by_the_node() {
    let decision = decide(&with_driver(), now());
    let [Action::CreateCsiNode(body)] = &decision.actions[..] else { panic!("{decision:?}") };
    assert_eq!(body["spec"]["drivers"], json!([entry()]));
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(decide(&Snapshot { node_uid: None, ..with_driver() }, now()).why, Why::WaitingForNode);
}

#[test]
fn s118_a_driver_is_appended_replaced_or_left_as_it_is() {
    let other = json!({ "name": "other", "nodeID": "x", "topologyKeys": [] });
    let mut s = Snapshot { csi_node: csi_node("u", json!([])), ..with_driver() };
    assert_eq!(operations(&s), [json!({ "op": "add", "path": "/spec/drivers", "value": [entry()] })]);
    s.csi_node = csi_node("u", json!([other]));
    assert_eq!(operations(&s), [json!({ "op": "add", "path": "/spec/drivers/-", "value": entry() })]);
    s.csi_node = csi_node("u", json!([other, entry()]));
    assert_eq!(decide(&s, now()).why, Why::UpToDate);
    s.drivers[0].limit = Some(3);
    let limited = operations(&s);
    assert_eq!(limited[0]["path"], "/spec/drivers/1");
    assert_eq!(limited[0]["value"]["allocatable"]["count"], 3);
}

#[test]
fn s119_an_object_of_an_earlier_node_is_deleted_to_be_made_anew() {
    let decision = decide(&Snapshot { csi_node: csi_node("gone", json!([])), ..with_driver() }, now());
    assert_eq!(decision.why, Why::OwnedByAnother);
    assert!(matches!(&decision.actions[..], [Action::DeleteCsiNode { target }] if target.uid == "c"));
}

#[test]
fn s121_a_dismissed_driver_is_taken_out_and_a_missing_one_is_no_work() {
    let mut s = Snapshot { drivers: Vec::new(), dismissed: ["driver".to_owned()].into(), ..with_driver() };
    s.csi_node = csi_node("u", json!([{ "name": "other", "nodeID": "x" }, entry()]));
    assert_eq!(operations(&s), [json!({ "op": "remove", "path": "/spec/drivers/1" })]);
    s.csi_node = csi_node("u", json!([{ "name": "other", "nodeID": "x" }]));
    assert_eq!(decide(&s, now()).why, Why::UpToDate);
}

#[test]
fn a_driver_that_has_not_registered_again_yet_keeps_its_entry() {
    let s = Snapshot { drivers: Vec::new(), csi_node: csi_node("u", json!([entry()])), ..with_driver() };
    assert_eq!(decide(&s, now()).why, Why::UpToDate);
}

#[test]
fn s117_a_driver_that_wants_it_is_asked_again_after_each_period() {
    let mut s = Snapshot { csi_node: csi_node("u", json!([entry()])), ..with_driver() };
    // Not registered, no CSIDriver, or one without a period: it is not in the list.
    let decision = decide(&s, now());
    assert_eq!((decision.actions.len(), decision.wake_at), (0, None));
    let mut with = |seconds, record| {
        let refresh = Refresh { period: SignedDuration::from_secs(seconds), record };
        s.refresh.insert("driver".into(), refresh);
        let decision = decide(&s, later(30));
        (decision.actions, decision.wake_at)
    };
    let ask = || vec![Action::Refresh { driver: "driver".into() }];
    let done = Record { state: State::Done(()), ..running() };
    assert_eq!(with(60, None), (ask(), None));
    assert_eq!(with(60, Some(running())), (vec![], None));
    assert_eq!(with(60, Some(done.clone())), (vec![], Some(later(60))));
    assert_eq!(with(60, Some(failed())), (vec![], Some(later(60))), "a failure waits for the next period too");
    assert_eq!(with(30, Some(done)), (ask(), None), "a shorter period counts at once");
}

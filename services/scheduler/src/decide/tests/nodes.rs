//! Silent nodes.

use super::*;
use crate::decide::NodeAction;
use crate::decide::node::{Health, decide};
use crate::snapshot::NodeSnapshot;

const GRACE: SignedDuration = SignedDuration::from_secs(40);
const STARTUP: SignedDuration = SignedDuration::from_secs(60);

fn with(ready: &str, reason: &str, taints: &[(&str, &str)]) -> Value {
    let mut node = node("a");
    if !ready.is_empty() {
        node["status"]["conditions"] = json!([{ "type": "Ready", "status": ready, "reason": reason }]);
    }
    let taints: Vec<Value> = taints.iter().map(|(key, effect)| json!({ "key": key, "effect": effect })).collect();
    node["spec"]["taints"] = taints.into();
    node
}

fn decide_after(node: Value, seconds: i64, renewed: bool) -> Decision<NodeAction> {
    let node = View::Known(std::sync::Arc::new(serde_json::from_value(node).unwrap()));
    let snapshot = NodeSnapshot { node, heard_at: NOW, renewed, silence: GRACE, startup: STARTUP };
    decide(&snapshot, NOW + SignedDuration::from_secs(seconds))
}

const UNREACHABLE: [(&str, &str); 2] =
    [("node.kubernetes.io/unreachable", "NoSchedule"), ("node.kubernetes.io/unreachable", "NoExecute")];
const NOT_READY: [(&str, &str); 2] =
    [("node.kubernetes.io/not-ready", "NoSchedule"), ("node.kubernetes.io/not-ready", "NoExecute")];

#[test]
fn a_node_that_is_heard_of_is_looked_at_again_when_its_grace_ends() {
    assert_eq!(decide_after(with("True", "", &[]), 39, true), Decision::wait_until(NOW + GRACE, Why::Marked));
}

#[test]
fn a_silent_node_is_marked_unknown_then_tainted_then_left_alone() {
    assert_eq!(decide_after(with("True", "", &[]), 40, true).actions, [NodeAction::MarkUnknown]);
    let marked = with("Unknown", "NodeStatusUnknown", &[]);
    assert_eq!(decide_after(marked, 40, true).actions, [NodeAction::Taint(Health::Unreachable)]);
    let tainted = with("Unknown", "NodeStatusUnknown", &UNREACHABLE);
    assert_eq!(decide_after(tainted, 400, true), Decision::rest(Why::Marked));
}

#[test]
fn a_renewal_brings_a_marked_node_back_and_the_taints_go() {
    let tainted = with("Unknown", "NodeStatusUnknown", &UNREACHABLE);
    assert_eq!(decide_after(tainted, 1, true).actions, [NodeAction::MarkBack]);
    let back = with("True", "NodeLeaseRenewed", &UNREACHABLE);
    assert_eq!(decide_after(back, 1, true).actions, [NodeAction::Taint(Health::Ready)]);
}

#[test]
fn after_a_restart_the_first_look_at_a_lease_does_not_bring_a_node_back() {
    let tainted = with("Unknown", "NodeStatusUnknown", &UNREACHABLE);
    assert_eq!(decide_after(tainted, 1, false), Decision::rest(Why::Marked));
}

#[test]
fn what_the_node_says_of_itself_is_not_corrected() {
    let own = with("Unknown", "OwnReason", &UNREACHABLE);
    assert_eq!(decide_after(own, 1, true), Decision::rest(Why::Marked));
}

#[test]
fn a_node_that_never_reported_has_the_startup_grace() {
    let fresh = || with("", "", &[]);
    assert_eq!(decide_after(fresh(), 59, false), Decision::wait_until(NOW + STARTUP, Why::Marked));
    assert_eq!(decide_after(fresh(), 60, false).actions, [NodeAction::MarkUnknown]);
}

#[test]
fn a_node_that_is_not_ready_is_tainted_so_and_partial_taints_are_completed() {
    assert_eq!(decide_after(with("False", "", &[]), 1, true).actions, [NodeAction::Taint(Health::NotReady)]);
    assert_eq!(
        decide_after(with("False", "", &NOT_READY[..1]), 1, true).actions,
        [NodeAction::Taint(Health::NotReady)]
    );
    let told = decide_after(with("False", "", &NOT_READY), 1, true);
    assert_eq!(told, Decision::wait_until(NOW + GRACE, Why::Marked));
}

#[test]
fn a_node_nobody_may_decide_on_is_read() {
    let snapshot = NodeSnapshot { node: View::Unknown, heard_at: NOW, renewed: true, silence: GRACE, startup: STARTUP };
    assert_eq!(decide(&snapshot, NOW), Decision::act([NodeAction::Look], Why::Unknown));
}

/// Nobody woke the pod when the node was known again, so it stayed pending until the resync.
#[test]
fn a_node_whose_write_got_no_answer_takes_pods_all_the_same() {
    let mut world = World::default();
    world.node(node("a")).pod(pod("p", &[]));
    world.caches.nodes.mark_unknown(&Key::cluster("a"));
    assert_eq!(world.decide("p").why, Why::Bind { node: "a".into() });
}

//! Pods that nobody is left to end.

use super::*;
use crate::decide::Leftover;

fn placed(deleting: bool) -> Value {
    let mut pod = pod("p", &[]);
    pod["spec"]["nodeName"] = "a".into();
    if deleting {
        pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    }
    pod
}

fn after(seconds: i64) -> Timestamp {
    NOW + SignedDuration::from_secs(seconds)
}

fn out_of_service(ready: &str) -> Value {
    let mut node = node("a");
    node["spec"]["taints"] = json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]);
    node["status"]["conditions"] = json!([{ "type": "Ready", "status": ready }]);
    node
}

#[test]
fn a_pod_of_a_missing_node_goes_after_the_quarantine() {
    let mut world = World::default();
    world.pod(placed(false));
    // Missing since somebody looked.
    assert_eq!(world.decide("p"), Decision::wait_until(after(40), Why::Quarantine));
    assert_eq!(world.decide_at("p", after(39)), Decision::wait_until(after(40), Why::Quarantine));
    assert_eq!(world.decide_at("p", after(40)).actions, [PodAction::Collect(Leftover::NodeGone("a".into()))]);
}

#[test]
fn a_pod_of_a_node_that_is_there_stays_even_when_it_is_to_end() {
    let mut world = World::default();
    world.node(node("a")).pod(placed(true));
    assert_eq!(world.decide_at("p", after(1000)), Decision::rest(Why::Placed));
}

#[test]
fn a_pod_that_is_to_end_goes_when_its_dead_node_is_out_of_service() {
    for (ready, deleting, goes) in
        [("Unknown", true, true), ("False", true, true), ("True", true, false), ("Unknown", false, false)]
    {
        let mut world = World::default();
        world.node(out_of_service(ready)).pod(placed(deleting));
        let collected = world.decide("p").actions == [PodAction::Collect(Leftover::OutOfService("a".into()))];
        assert_eq!(collected, goes, "Ready {ready}, deleting {deleting}");
    }
}

#[test]
fn a_pod_that_was_told_to_go_at_once_is_not_told_again() {
    let mut world = World::default();
    let mut held = placed(true);
    held["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.pod(held);
    assert_eq!(world.decide_at("p", after(1000)), Decision::rest(Why::Placed));
}

#[test]
fn a_pod_that_is_to_end_and_never_had_a_node_goes() {
    let mut world = two_nodes();
    let mut ending = placed(true);
    ending["spec"]["nodeName"] = "".into();
    world.pod(ending);
    assert_eq!(world.decide("p").actions, [PodAction::Collect(Leftover::NeverPlaced)]);
    assert_eq!(world.settle("p"), Why::Gone);
}

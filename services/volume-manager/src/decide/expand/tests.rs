use serde_json::{Value, json};

use super::*;
use crate::decide::tests::{persistent, traits};

fn size(text: &str) -> Quantity {
    text.parse().unwrap()
}

/// A claim of 1Gi whose volume has grown to 2Gi.
fn claim(status: Value) -> Arc<Claim> {
    let mut object = json!({
        "metadata": { "name": "claim", "namespace": "default" },
        "status": { "capacity": { "storage": "1Gi" } },
    });
    for (key, value) in status.as_object().unwrap() {
        object["status"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

fn resizing(status: &str) -> Arc<Claim> {
    let statuses = json!({ "storage": status });
    claim(json!({ "allocatedResources": { "storage": "2Gi" }, "allocatedResourceStatuses": statuses }))
}

fn of(claim: &Arc<Claim>, modes: Value, recorded: Option<&str>) -> Expansion {
    let spec = persistent(json!({ "spec": { "capacity": { "storage": "2Gi" }, "accessModes": modes } }));
    expansion(&spec, &traits(), claim, recorded.map(size))
}

fn protocol(expansion: &Expansion) -> Option<(Protocol, String)> {
    match expansion {
        Expansion::Needed { protocol, size, .. } => Some((*protocol, size.to_string())),
        _ => None,
    }
}

const ONE_NODE: &str = "ReadWriteOnce";

#[test]
fn s84_a_volume_larger_than_its_claim_grows_and_one_that_may_only_be_read_does_not() {
    let found = of(&claim(json!({})), json!([ONE_NODE]), None);
    assert_eq!(protocol(&found), Some((Protocol::Legacy, "2Gi".into())));
    let mut spec = persistent(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    Arc::make_mut(&mut spec).read_only = true;
    assert!(matches!(expansion(&spec, &traits(), &claim(json!({})), None), Expansion::ReadOnly { .. }));
}

#[test]
fn s124_an_infeasible_growth_is_not_tried() {
    assert_eq!(of(&resizing("NodeResizeInfeasible"), json!([ONE_NODE]), None), Expansion::NotNeeded);
    assert_eq!(of(&resizing("ControllerResizeInProgress"), json!([ONE_NODE]), None), Expansion::NotNeeded);
}

#[test]
fn s125_s127_a_pending_growth_and_one_in_progress_go_on_to_the_size_that_was_allocated() {
    for status in ["NodeResizePending", "NodeResizeInProgress"] {
        let found = of(&resizing(status), json!([ONE_NODE]), None);
        assert_eq!(protocol(&found), Some((Protocol::Recovery, "2Gi".into())), "{status}");
    }
}

#[test]
fn s128_a_claim_of_one_node_that_has_its_size_is_done() {
    let done = claim(json!({ "capacity": { "storage": "2Gi" } }));
    assert_eq!(of(&done, json!([ONE_NODE]), Some("1Gi")), Expansion::NotNeeded);
}

#[test]
fn s129_a_volume_of_many_nodes_grows_on_each_unless_that_is_not_required() {
    let done = claim(json!({ "capacity": { "storage": "2Gi" } }));
    let many = || json!(["ReadWriteMany"]);
    assert!(of(&done, many(), Some("1Gi")).is_needed());
    assert_eq!(of(&done, many(), None), Expansion::NotNeeded, "what is mounted after it grew has its size");
    let mut object = json!({ "metadata": { "annotations": { annotations::NODE_EXPANSION_NOT_REQUIRED: "true" } } });
    object["status"] = json!({ "capacity": { "storage": "2Gi" } });
    let exempt = Arc::new(serde_json::from_value(object).unwrap());
    assert_eq!(of(&exempt, many(), Some("1Gi")), Expansion::NotNeeded);
}

#[test]
fn a_volume_that_has_the_size_here_is_left_alone() {
    assert_eq!(of(&claim(json!({})), json!([ONE_NODE]), Some("2Gi")), Expansion::NotNeeded);
    let unbound = Arc::new(Claim::default());
    assert_eq!(of(&unbound, json!([ONE_NODE]), None), Expansion::NotNeeded);
}

use stowage_model::annotations::CSI_NODE_IDS;

use super::super::Action;
use super::super::plugin::{Snapshot, View, Why, decide};
use super::*;

/// A socket that has just appeared.
fn appeared() -> Snapshot {
    Snapshot {
        socket: "/s".into(),
        plugin: Some(View { instance: 1, greeted: None, accepted: false, refused: None, notified: false }),
        twin: None,
        node: Some(Arc::new(serde_json::from_value(json!({ "metadata": { "name": "node" } })).unwrap())),
        csi_node: None,
        greeting: None,
        notification: None,
    }
}

fn greeted() -> Snapshot {
    let mut s = appeared();
    s.plugin.as_mut().unwrap().greeted = Some(driver());
    s
}

#[track_caller]
fn refusal(s: &Snapshot) -> String {
    match decide(s, now()).actions.pop() {
        Some(Action::Refuse { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plugin_is_greeted_accepted_announced_and_told() {
    let mut s = appeared();
    assert_eq!(decide(&s, now()).actions, [Action::Greet { socket: "/s".into(), instance: 1 }]);
    s = greeted();
    assert_eq!(decide(&s, now()).actions, [Action::Accept { socket: "/s".into() }]);
    s.plugin.as_mut().unwrap().accepted = true;
    assert_eq!(decide(&s, now()).why, Why::WaitingForNode);
    let annotated = json!({ "metadata": { "annotations": { CSI_NODE_IDS: "{\"driver\":\"node-1\"}" } } });
    s.node = Some(Arc::new(serde_json::from_value(annotated).unwrap()));
    assert_eq!(decide(&s, now()).why, Why::WaitingForCsiNode);
    let entries = json!({ "spec": { "drivers": [{ "name": "driver", "nodeID": "node-1" }] } });
    s.csi_node = Some(Arc::new(serde_json::from_value(entries).unwrap()));
    let notify = Action::Notify { socket: "/s".into(), instance: 1, refusal: None };
    assert_eq!(decide(&s, now()).actions, [notify]);
    s.plugin.as_mut().unwrap().notified = true;
    assert_eq!(decide(&s, now()).why, Why::Registered);
}

#[test]
fn s116_a_second_driver_of_the_name_must_have_a_higher_version() {
    let twin = |version: &str| Snapshot { twin: Version::parse(version), ..greeted() };
    for version in ["1.0.0", "1.1.0"] {
        assert!(refusal(&twin(version)).contains("registered already"));
    }
    assert_eq!(decide(&twin("1.0"), now()).why, Why::Accepted);
}

#[test]
fn s118_a_topology_that_contradicts_a_label_is_refused_with_the_way_out() {
    let mut s = greeted();
    let driver = s.plugin.as_mut().unwrap().greeted.as_mut().unwrap();
    driver.topology = [("zone".to_owned(), "z1".to_owned())].into();
    let labelled = json!({ "metadata": { "labels": { "zone": "z2" } } });
    s.node = Some(Arc::new(serde_json::from_value(labelled).unwrap()));
    let message = refusal(&s);
    assert!(message.contains("zone=z1") && message.contains("zone=z2"), "{message}");
}

#[test]
fn a_refused_plugin_is_told_why_and_then_left_alone() {
    let mut s = appeared();
    s.plugin.as_mut().unwrap().refused = Some("too old".into());
    let notify = Action::Notify { socket: "/s".into(), instance: 1, refusal: Some("too old".into()) };
    assert_eq!(decide(&s, now()).actions, [notify]);
    s.plugin.as_mut().unwrap().notified = true;
    assert_eq!(decide(&s, now()).why, Why::Refused);
}

#[test]
fn a_plugin_that_does_not_answer_is_asked_again_after_a_while() {
    let mut s = Snapshot { greeting: Some(failed()), ..appeared() };
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.wake_at), (Why::BackingOff, Some(later(1))));
    s.greeting = Some(running());
    assert_eq!(decide(&s, now()).why, Why::Busy);
    s.plugin = None;
    assert_eq!(decide(&s, now()).why, Why::Gone);
}

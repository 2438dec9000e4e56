//! Claims that name a VolumeAttributesClass.

use serde_json::json;

use super::*;
use crate::fixture::{DRIVER, facts, read};
use crate::options::AttributesClasses;
use crate::snapshot::LookedUp;

/// A claim with the class "gold", of which nothing is known yet.
fn naming_gold() -> ClaimSnapshot {
    let mut s = fresh(&facts());
    set_claim(&mut s, |claim| claim["spec"]["volumeAttributesClassName"] = "gold".into());
    s
}

fn found(driver: &str) -> Option<Record<LookedUp>> {
    let class =
        read(json!({ "metadata": { "name": "gold" }, "driverName": driver, "parameters": { "iops": "9000" } }), |_| {});
    ended(State::Done(LookedUp { name: "gold".into(), class: Some(class) }), 0)
}

fn missing() -> Option<Record<LookedUp>> {
    ended(State::Done(LookedUp { name: "gold".into(), class: None }), 0)
}

fn look_up() -> Vec<Action> {
    vec![Action::LookUp("gold".into())]
}

/// The intent that is recorded.
fn recorded_by(s: &ClaimSnapshot) -> Arc<Intent> {
    match decide(s, now()).actions.as_slice() {
        [Action::Record(intent)] => Arc::clone(intent),
        other => panic!("nothing is recorded: {other:?}"),
    }
}

fn told(s: &ClaimSnapshot, now: Timestamp) -> String {
    match decide(s, now).actions.as_slice() {
        [Action::Tell(note)] => note.message.clone(),
        other => panic!("nothing is told: {other:?}"),
    }
}

#[test]
fn the_class_is_read_first_and_its_parameters_are_the_mutable_ones_of_the_call() {
    let mut s = naming_gold();
    assert_eq!(decide(&s, now()).actions, look_up());
    s.attributes = ended(State::Running, 0);
    assert_eq!(decide(&s, now()), Decision::rest(Why::Looking));
    s.attributes = found(DRIVER);
    let intent = recorded_by(&s);
    let call = intent.create_volume(Default::default());
    assert_eq!(call.mutable_parameters, [("iops".to_owned(), "9000".to_owned())].into());
    // All else is as without it.
    let plain = super::intent().create_volume(Default::default());
    assert_eq!(stowage_csi::v1::CreateVolumeRequest { mutable_parameters: Default::default(), ..call }, plain);
    assert_eq!(Intent::decode(&intent.encode(), |_| None).unwrap(), *intent);
    assert!(intent.encode().starts_with("{\"v\":4,"), "{}", intent.encode());
}

#[test]
fn what_was_recorded_stands_until_the_driver_refuses_it() {
    let mut s = naming_gold();
    s.attributes = found(DRIVER);
    let intent = recorded_by(&s);
    s.attributes = None;
    s.recorded = Some(Recorded { intent: Arc::clone(&intent), durable: true, maybe_made: false, inherited: false });
    assert_eq!(decide(&s, now()).actions, [Action::Create { intent: Arc::clone(&intent), wanted: true }]);
    // The class may have been made anew meanwhile.
    s.creation = ended(State::Failed(failure("InvalidArgument")), 1);
    assert_eq!(decide(&s, now()).actions, look_up());
    s.attributes = found(DRIVER);
    let decision = decide(&s, later(300));
    assert_eq!(decision.actions, [Action::Create { intent, wanted: true }]);
    s.creation.as_mut().unwrap().since = later(301);
    assert_eq!(decide(&s, later(601)).actions, look_up(), "the look is older than the failure");
}

#[test]
fn a_class_that_is_missing_is_told_and_looked_for_again() {
    let mut s = naming_gold();
    s.attributes = missing();
    assert!(told(&s, now()).contains("VolumeAttributesClass \"gold\" does not exist"));
    assert_eq!(decide(&s, later(30)).actions, look_up());
    s.attributes = ended(State::Failed(failure("ApiUnavailable")), 5);
    assert!(told(&s, now()).contains("cannot read VolumeAttributesClass \"gold\" now: no; it is tried again"));
    assert_eq!(decide(&s, now()).wake_at, Some(later(5)));
    assert_eq!(decide(&s, later(5)).actions, look_up());
}

#[test]
fn a_class_that_may_not_be_read_is_told_and_read_again_after_its_backoff() {
    let mut s = naming_gold();
    s.attributes = ended(State::Failed(failure("Forbidden")), 5);
    let message = told(&s, now());
    assert!(message.contains("may not read VolumeAttributesClass \"gold\""), "{message}");
    assert!(message.contains("grant the provisioner get of volumeattributesclasses"), "{message}");
    assert_eq!(decide(&s, now()).wake_at, Some(later(5)));
    assert_eq!(decide(&s, later(5)).actions, look_up());
}

#[test]
fn a_claim_that_changes_its_mind_has_the_other_class_read() {
    let mut s = naming_gold();
    s.attributes = found(DRIVER);
    set_claim(&mut s, |claim| claim["spec"]["volumeAttributesClassName"] = "silver".into());
    assert_eq!(decide(&s, now()).actions, [Action::LookUp("silver".into())]);
}

#[test]
fn a_class_of_another_driver_and_a_driver_that_changes_nothing_are_told() {
    let mut s = naming_gold();
    s.attributes = found("other.csi.example");
    let message = told(&s, now());
    assert!(message.contains("\"gold\" is of driver \"other.csi.example\""), "{message}");
    let mut facts = facts();
    facts.modifies = false;
    s.facts = Arc::new(facts);
    assert!(told(&s, now()).contains("MODIFY_VOLUME"));
}

/// The original switches its gate off where discovery does not show the kind, unless the gate is named.
#[test]
fn where_the_kind_is_not_served_the_name_is_left_alone_unless_the_gate_was_asked_for() {
    let mut s = ClaimSnapshot { are_attributes_unserved: true, ..naming_gold() };
    s.attributes = ended(State::Failed(failure("ApiUnavailable")), 5);
    assert_eq!(decide(&s, now()).actions, [Action::Record(intent())]);
    let mut facts = facts();
    facts.options.attributes_class = AttributesClasses::On;
    s.facts = Arc::new(facts);
    assert!(told(&s, now()).contains("serves the kind in storage.k8s.io/v1"));
}

#[test]
fn with_the_gate_off_the_name_is_left_alone() {
    let mut facts = facts();
    (facts.modifies, facts.options.attributes_class) = (false, AttributesClasses::Off);
    let s = ClaimSnapshot { facts: Arc::new(facts), ..naming_gold() };
    assert_eq!(decide(&s, now()).actions, [Action::Record(intent())]);
}

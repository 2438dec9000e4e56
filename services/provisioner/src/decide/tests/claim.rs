use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::fixture::{DRIVER, facts, made, volume_with};
use crate::places::{Places, Requirement};

#[test]
fn nothing_is_called_before_the_intent_is_recorded() {
    let facts = facts();
    assert_eq!(decide(&fresh(&facts), now()), Decision::act([Action::Record(intent())], Why::Unrecorded));
    let mut s = fresh(&facts);
    s.recorded = Some(Recorded { intent: intent(), durable: false, maybe_made: false, inherited: false });
    assert_eq!(decide(&s, now()).actions, [Action::Record(intent())]);
    s.recorded = recorded(false);
    assert_eq!(decide(&s, now()).actions, create(true));
}

#[test]
fn claims_that_need_nothing_from_us_are_left_alone() {
    let facts = facts();
    let rests: [(Spoil, Why); 5] = [
        (|claim| claim["metadata"]["annotations"] = json!({}), Why::NotOurs),
        (
            |claim| claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = "x".into(),
            Why::NotOurs,
        ),
        (mark_deleting, Why::Deleting),
        (bind, Why::Bound),
        (|claim| claim["spec"]["volumeName"] = "other".into(), Why::Bound),
    ];
    for (spoil, why) in rests {
        let mut s = fresh(&facts);
        set_claim(&mut s, spoil);
        assert_eq!(decide(&s, now()), Decision::rest(why));
    }
}

#[test]
fn the_legacy_annotation_asks_as_well() {
    let facts = facts();
    let mut s = fresh(&facts);
    let annotations = json!({ "volume.beta.kubernetes.io/storage-provisioner": DRIVER });
    set_claim(&mut s, |claim| claim["metadata"]["annotations"] = annotations);
    assert_eq!(decide(&s, now()).why, Why::Unrecorded);
}

#[test]
fn a_claim_that_waits_for_its_consumer_waits_for_the_selected_node() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.class = Some(Arc::new(class_with(|class| class["volumeBindingMode"] = "WaitForFirstConsumer".into())));
    assert_eq!(decide(&s, now()), Decision::rest(Why::WaitsForConsumer));
    let node = "volume.kubernetes.io/selected-node";
    set_claim(&mut s, |claim| claim["metadata"]["annotations"][node] = "".into());
    assert_eq!(decide(&s, now()), Decision::rest(Why::WaitsForConsumer));
    set_claim(&mut s, |claim| claim["metadata"]["annotations"][node] = "node-1".into());
    assert_eq!(decide(&s, now()).why, Why::Unrecorded);
}

#[test]
fn a_problem_is_told_again_only_before_the_server_forgets_it_and_nothing_is_called() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.class = None;
    let decision = decide(&s, now());
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(note.reason, "ProvisioningFailed");
    assert!(note.message.contains("StorageClass \"fast\" does not exist"), "{}", note.message);
    s.told = Known::of((), note.clone(), later(2700));
    let why = Why::Problem(Problem::FindClass { class: "fast".into() });
    assert_eq!(decide(&s, now()), Decision::wait_until(later(2700), why.clone()));
    assert_eq!(decide(&s, later(2700)), Decision::act([Action::Tell(note.clone())], why));
}

#[test]
fn a_selected_node_that_does_not_exist_is_told_and_given_back() {
    let facts = Facts { topology: true, ..facts() };
    let mut s = fresh(&facts);
    s.class = Some(Arc::new(class_with(|class| class["volumeBindingMode"] = "WaitForFirstConsumer".into())));
    set_claim(&mut s, |claim| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "nowhere".into();
    });
    let decision = decide(&s, now());
    let [Action::Tell(note), Action::Reschedule(_)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(note.reason, "ProvisioningFailed");
    assert!(note.message.contains("nowhere"), "{}", note.message);
    // The claim was written by somebody else meanwhile: it is given back without a second word.
    s.told = Known::of((), note.clone(), later(2700));
    let decision = decide(&s, now());
    assert!(matches!(decision.actions.as_slice(), [Action::Reschedule(_)]), "{decision:?}");
}

#[test]
fn a_selected_node_whose_driver_registers_again_is_kept_and_the_claim_waits() {
    let facts = Facts { topology: true, ..facts() };
    let mut s = fresh(&facts);
    s.class = Some(Arc::new(class_with(|class| class["volumeBindingMode"] = "WaitForFirstConsumer".into())));
    set_claim(&mut s, |claim| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n1".into();
    });
    let csi_node = json!({ "metadata": { "name": "n1" }, "spec": { "drivers": [] } });
    s.cluster.csi_node = Some(Arc::new(serde_json::from_value(csi_node).unwrap()));
    let decision = decide(&s, now());
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert!(note.message.contains("not registered on the selected node \"n1\""), "{}", note.message);
    assert!(matches!(decision.why, Why::Problem(Problem::FindDriver { .. })), "{decision:?}");
}

#[test]
fn a_volume_that_may_have_been_made_for_a_claim_of_another_node_is_found_and_deleted() {
    let mut facts = Facts { topology: true, ..facts() };
    let segments = [("node".to_owned(), "a".to_owned())].into();
    facts.node = Some(crate::facts::NodeFacts { name: "a".into(), segments });
    let mut s = ClaimSnapshot { facts: Arc::new(facts.clone()), recorded: recorded(true), ..fresh(&facts) };
    set_claim(&mut s, |claim| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "b".into());
    let decision = decide(&s, now());
    assert!(matches!(decision.actions.as_slice(), [Action::Create { wanted: false, .. }]), "{decision:?}");
    s.creation = ended(State::Done(made()), 0);
    let decision = decide(&s, now());
    assert!(matches!(decision.actions.as_slice(), [Action::CleanUp { .. }]), "{decision:?}");
}

#[test]
fn a_claim_of_nobody_is_taken_where_its_volume_has_room() {
    let mut facts = Facts { topology: true, ..facts() };
    let segments = [("node".to_owned(), "a".to_owned())].into();
    facts.node = Some(crate::facts::NodeFacts { name: "a".into(), segments });
    facts.options.node_deployment = Some(crate::options::NodeDeployment { node: "a".into(), ..Default::default() });
    let mut s = fresh(&facts);
    assert_eq!(decide(&s, now()), Decision::act([Action::Bid], Why::Bidding));
    s.bid = Some(crate::ownership::Bid { at: later(9), failures: 0 });
    assert_eq!(decide(&s, now()), Decision::wait_until(later(9), Why::Bidding));
    let decision = decide(&s, later(9));
    assert!(matches!(decision.actions.as_slice(), [Action::AskForRoom(_)]), "{decision:?}");
    let room = |state| Some(Record { state, since: later(9), failures: 0, retry_at: later(9) });
    s.room = room(State::Running);
    assert_eq!(decide(&s, later(9)), Decision::rest(Why::Calling));
    s.room = room(State::Done(false));
    assert_eq!(decide(&s, later(9)), Decision::act([Action::Bid], Why::NoRoom));
    s.room = room(State::Done(true));
    let decision = decide(&s, later(9));
    assert!(matches!(decision.actions.as_slice(), [Action::Take(_)]), "{decision:?}");
}

/// Every node told it, and counted it as a failure.
#[test]
fn of_all_nodes_only_the_one_that_has_the_claim_tells_what_is_wrong_with_it() {
    let segments = [("node".to_owned(), "a".to_owned())].into();
    let node = Some(crate::facts::NodeFacts { name: "a".into(), segments });
    let mut facts = Facts { topology: true, node, ..facts() };
    facts.options.node_deployment = Some(crate::options::NodeDeployment { node: "a".into(), ..Default::default() });
    let spoils: [fn(&mut ClaimSnapshot, &mut Value); 5] = [
        |s, _| s.class = None,
        |s, _| s.volume = View::Known(volume_with(|volume| volume["spec"]["claimRef"]["uid"] = "other".into())),
        |_, claim| claim["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } }),
        |s, claim| {
            claim["spec"]["volumeAttributesClassName"] = "gold".into();
            let state = State::Done(crate::snapshot::LookedUp { name: "gold".into(), class: None });
            s.attributes = Some(Record { state, since: now(), failures: 0, retry_at: now() });
        },
        |s, claim| {
            claim["spec"]["dataSource"] = crate::source::tests::cloning();
            let source = crate::source::tests::source_claim_with(|claim| claim["status"]["phase"] = "Pending".into());
            s.source = Some(crate::source::tests::found_claim(source, View::Absent));
        },
    ];
    for (index, spoil) in spoils.into_iter().enumerate() {
        let at = |node: Value| {
            let mut s = fresh(&facts);
            let claim = claim_with(|claim| {
                spoil(&mut s, claim);
                claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node;
            });
            ClaimSnapshot { claim: Some(Arc::new(claim)), ..s }
        };
        assert_eq!(decide(&at("b".into()), now()), Decision::rest(Why::OtherNode), "{index}");
        let ours = decide(&at("a".into()), now());
        assert!(matches!(ours.actions.as_slice(), [Action::Tell(_)]), "{index} {ours:?}");
        let mut open = at("".into());
        // Without its class nobody knows who may take it, and a name that is taken is no reason to.
        if index < 2 {
            assert_eq!(decide(&open, now()), Decision::rest(Why::OtherNode));
            continue;
        }
        assert_eq!(decide(&open, now()), Decision::act([Action::Bid], Why::Bidding), "{index}");
        open.bid = Some(crate::ownership::Bid { at: now(), failures: 0 });
        let taken = decide(&open, now());
        assert!(matches!(taken.actions.as_slice(), [Action::Take(_)]), "{index} {taken:?}");
    }
}

#[test]
fn a_source_of_an_unknown_kind_is_left_to_its_populator() {
    let facts = facts();
    let mut s = fresh(&facts);
    let source = json!({ "apiGroup": "hello.example", "kind": "Hello", "name": "a" });
    set_claim(&mut s, |claim| claim["spec"]["dataSourceRef"] = source);
    let decision = decide(&s, now());
    assert_eq!(decision.why, Why::WaitsForPopulator);
    assert!(matches!(decision.actions.as_slice(), [Action::Tell(note)] if note.reason == "Provisioning"));
}

#[test]
fn of_all_nodes_only_the_selected_one_tells_of_a_populator() {
    let segments = [("node".to_owned(), "a".to_owned())].into();
    let node = Some(crate::facts::NodeFacts { name: "a".into(), segments });
    let mut facts = Facts { topology: true, node, ..facts() };
    facts.options.node_deployment = Some(crate::options::NodeDeployment { node: "a".into(), ..Default::default() });
    let mut s = fresh(&facts);
    let mut decided = |node: Value| {
        set_claim(&mut s, |claim| {
            claim["spec"]["dataSourceRef"] = json!({ "apiGroup": "hello.example", "kind": "Hello", "name": "a" });
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node;
        });
        decide(&s, now())
    };
    assert_eq!(decided("b".into()), Decision::rest(Why::OtherNode));
    assert_eq!(decided("".into()), Decision::rest(Why::WaitsForPopulator));
    let ours = decided("a".into());
    assert!(matches!(ours.actions.as_slice(), [Action::Tell(_)]), "{ours:?}");
}

#[test]
fn a_snapshot_of_the_wrong_group_is_not_a_populators_but_a_mistake_that_is_told() {
    let facts = facts();
    let mut s = fresh(&facts);
    for group in [json!("snapshot.k8s.io"), Value::Null] {
        let source = json!({ "apiGroup": group, "kind": "VolumeSnapshot", "name": "a" });
        set_claim(&mut s, |claim| claim["spec"]["dataSourceRef"] = source);
        let decision = decide(&s, now());
        let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
        assert_eq!(note.reason, "ProvisioningFailed");
        let right = "the group of VolumeSnapshots is \"snapshot.storage.k8s.io\"";
        assert!(note.message.contains(right), "{}", note.message);
    }
}

#[test]
fn a_foreign_volume_under_the_name_is_told() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.volume = View::Known(volume_with(|volume| volume["spec"]["claimRef"]["uid"] = "other".into()));
    let decision = decide(&s, now());
    assert_eq!(decision.why, Why::Problem(Problem::UseName { volume: VOLUME.into() }));
}

#[test]
fn one_claim_never_has_two_calls() {
    let facts = facts();
    for deleting in [false, true] {
        let mut s = fresh(&facts);
        s.recorded = recorded(true);
        if deleting {
            s.claim = None;
        }
        s.creation = Some(Record { state: State::Running, since: now(), failures: 0, retry_at: now() });
        assert_eq!(decide(&s, now()), Decision::rest(Why::Calling));
        s.creation = ended(State::Done(made()), 0);
        s.cleanup = Some(Record { state: State::Running, since: now(), failures: 0, retry_at: now() });
        assert_eq!(decide(&s, now()), Decision::rest(Why::Calling));
    }
}

#[test]
fn a_volume_that_was_made_gets_its_object() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = recorded(true);
    s.creation = ended(State::Done(made()), 0);
    let expected = Action::MakeVolume { intent: intent(), made: made() };
    assert_eq!(decide(&s, now()), Decision::act([expected], Why::Made));
}

#[test]
fn a_claim_deleted_before_anything_was_sent_costs_no_call() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = recorded(false);
    s.claim = None;
    assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::NothingMade));
}

#[test]
fn a_volume_that_another_object_has_is_never_deleted() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = recorded(true);
    s.claim = None;
    s.creation = ended(State::Done(made()), 0);
    s.owner = Some("imported".into());
    assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::OwnedBy("imported".into())));
}

#[test]
fn a_second_volume_beside_the_claims_own_is_deleted() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = recorded(true);
    s.volume = View::Known(volume_with(|volume| volume["spec"]["csi"]["volumeHandle"] = "pool-a/0".into()));
    s.creation = ended(State::Done(made()), 0);
    assert_eq!(decide(&s, now()).actions, clean_up());
}

#[test]
fn an_object_whose_write_got_no_answer_is_read_first() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = recorded(true);
    s.creation = ended(State::Done(made()), 0);
    s.volume = View::Unknown;
    assert_eq!(decide(&s, now()).actions, [Action::ReadVolume(VOLUME.into())]);
}

#[test]
fn failures_back_off_and_what_the_driver_calls_invalid_waits_five_minutes() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = recorded(false);
    s.creation = ended(State::Failed(failure("Internal")), 2);
    assert_eq!(decide(&s, now()), Decision::wait_until(later(2), Why::BacksOff));
    assert_eq!(decide(&s, later(2)).actions, create(true));
    s.creation = ended(State::Failed(failure("InvalidArgument")), 2);
    assert_eq!(decide(&s, now()), Decision::wait_until(later(300), Why::BacksOff));
    s.recorded = recorded(true);
    s.creation = ended(State::Uncertain(failure("Unavailable")), 2);
    assert_eq!(decide(&s, now()), Decision::wait_until(later(2), Why::BacksOff));
}

#[test]
fn a_record_that_rests_is_taken_up_when_its_call_is_due_and_not_before() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.recorded = Some(Recorded { intent: intent(), durable: false, maybe_made: false, inherited: false });
    s.creation = ended(State::Failed(failure("Internal")), 2);
    assert_eq!(decide(&s, now()), Decision::wait_until(later(2), Why::BacksOff));
    assert_eq!(decide(&s, later(2)), Decision::act([Action::Record(intent())], Why::Unrecorded));
    s.class = Some(Arc::new(class_with(|class| class["parameters"]["pool"] = "b".into())));
    assert_eq!(decide(&s, now()).why, Why::RequestChanged, "a corrected class is used at once");
    s.claim = None;
    assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::NothingMade));
}

/// Each node that came or went had all of them tried at once, with a backoff that began anew.
#[test]
fn a_request_that_names_other_places_by_now_waits_for_its_call() {
    let facts = facts();
    let place = [("node".to_owned(), "new".to_owned())].into();
    let mut other = (*intent()).clone();
    other.request.places = Some(Requirement { requisite: Places::of(vec![place]), first: 0 });
    for durable in [true, false] {
        let mut s = fresh(&facts);
        s.recorded = Some(Recorded { intent: Arc::new(other.clone()), durable, maybe_made: false, inherited: false });
        let decision = decide(&s, now());
        assert_eq!(decision.actions, [Action::Record(intent())], "nothing was called for");
        s.creation = ended(State::Failed(failure("Internal")), 2);
        assert_eq!(decide(&s, now()), Decision::wait_until(later(2), Why::BacksOff));
        assert_eq!(decide(&s, later(2)).actions, [Action::Record(intent())]);
        s.class = Some(Arc::new(class_with(|class| class["parameters"]["pool"] = "b".into())));
        assert_eq!(decide(&s, now()).why, Why::RequestChanged, "that is somebody's wish");
    }
}

#[test]
fn a_claim_is_kept_where_no_other_node_can_help() {
    let (placeless, mut places) = (facts(), Facts { topology: true, ..facts() });
    // Where there is nowhere to choose, the request stays the same.
    places.options.immediate_topology = false;
    let node = "volume.kubernetes.io/selected-node";
    for (facts, code, selected) in [(&placeless, "ResourceExhausted", true), (&places, "ResourceExhausted", false)] {
        let mut s = fresh(facts);
        if selected {
            set_claim(&mut s, |claim| claim["metadata"]["annotations"][node] = "node-1".into());
        }
        s.recorded = recorded(false);
        s.creation = ended(State::Failed(failure(code)), 2);
        assert_eq!(decide(&s, now()), Decision::wait_until(later(2), Why::BacksOff), "{code} {selected}");
    }
}

#[test]
fn a_corrected_class_is_recorded_and_used_at_once_but_never_after_an_uncertain_call() {
    let facts = facts();
    let mut s = fresh(&facts);
    s.class = Some(Arc::new(class_with(|class| class["parameters"]["pool"] = "b".into())));
    s.creation = ended(State::Failed(failure("InvalidArgument")), 2);
    s.recorded = recorded(false);
    let decision = decide(&s, now());
    assert_eq!(decision.why, Why::RequestChanged);
    assert!(matches!(decision.actions.as_slice(), [Action::Record(new)] if new.request.parameters["pool"] == "b"));
    s.recorded = recorded(true);
    s.creation = ended(State::Uncertain(failure("Aborted")), 0);
    assert_eq!(decide(&s, now()).actions, create(true));
}

#[test]
fn a_full_node_is_given_back_to_the_scheduler_unless_something_may_have_been_made() {
    let mut facts = facts();
    let waits = |facts: &Facts, maybe_made: bool| {
        let mut s = fresh(facts);
        s.class = Some(Arc::new(class_with(|class| class["volumeBindingMode"] = "WaitForFirstConsumer".into())));
        set_claim(&mut s, |claim| {
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n1".into();
        });
        s.recorded = recorded(maybe_made);
        s.creation = ended(State::Failed(failure("ResourceExhausted")), 4);
        let decision = decide(&s, now());
        (decision.why, matches!(decision.actions.as_slice(), [Action::Reschedule(_)]))
    };
    assert_eq!(waits(&facts, false), (Why::BacksOff, false), "a driver without places is full everywhere");
    facts.topology = true;
    assert_eq!(waits(&facts, false), (Why::NoRoom, true));
    assert_eq!(waits(&facts, true), (Why::BacksOff, false));
}

/// Node `n1` in node deployment, full, where an earlier call may have made the volume.
fn full_and_unsettled() -> ClaimSnapshot {
    let segments = [("node".to_owned(), "n1".to_owned())].into();
    let node = Some(crate::facts::NodeFacts { name: "n1".into(), segments });
    let mut s = fresh(&Facts { topology: true, node, ..facts() });
    set_claim(&mut s, |claim| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n1".into());
    s.recorded = recorded(true);
    s.creation = ended(State::Failed(failure("ResourceExhausted")), 4);
    s
}

#[test]
fn in_node_deployment_a_full_node_gives_the_claim_back_and_goes_on_asking_what_it_made() {
    let mut s = full_and_unsettled();
    let decision = decide(&s, now());
    assert!(matches!(decision.actions.as_slice(), [Action::Reschedule(_)]), "{decision:?}");
    let decision = decide(&s, later(4));
    assert_eq!(decision.actions, create(true), "a claim that came back is tried again");
    set_claim(&mut s, |claim| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n2".into());
    assert_eq!(decide(&s, later(300)).actions, create(false));
}

#[test]
fn the_volume_of_another_node_does_not_end_the_search_for_the_one_made_here() {
    let mut s = full_and_unsettled();
    set_claim(&mut s, bind);
    let on = |node: &'static str| {
        View::Known(volume_with(move |volume| {
            let expression = json!({ "key": "node", "operator": "In", "values": [node] });
            let terms = json!([{ "matchExpressions": [expression] }]);
            volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } });
            volume["spec"]["csi"]["volumeHandle"] = "n2/1".into();
        }))
    };
    s.volume = on("n1");
    assert_eq!(decide(&s, later(300)), Decision::act([Action::Forget], Why::VolumeExists));
    s.volume = on("n2");
    assert_eq!(decide(&s, later(300)).actions, create(false));
    s.creation = ended(State::Done(made()), 0);
    assert_eq!(decide(&s, now()).actions, clean_up());
}

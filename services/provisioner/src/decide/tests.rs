use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use stowage_runtime::cache::View;
use stowage_runtime::operation::Failure;

use super::*;
use crate::facts::Facts;
use crate::fixture::{DRIVER, HANDLE, VOLUME, claim_with, class_with, facts, intent, made, volume_with};
use crate::journal::{Recorded, Trace};
use crate::requirement::Cluster;
use crate::snapshot::{ClaimSnapshot, VolumeSnapshot};

type Spoil = fn(&mut Value);

const NOW: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn later(seconds: i64) -> Timestamp {
    now().checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

fn failure(code: &str) -> Failure {
    Failure { code: code.into(), message: "no".into() }
}

fn ended<R>(state: State<R>, retry_in: i64) -> Option<Record<R>> {
    Some(Record { state, since: now(), failures: 1, retry_at: later(retry_in) })
}

/// A claim that needs a volume, and nothing done for it yet.
fn fresh(facts: &Facts) -> ClaimSnapshot {
    ClaimSnapshot {
        facts: Arc::new(facts.clone()),
        claim: Some(Arc::new(claim_with(|_| {}))),
        class: Some(Arc::new(class_with(|_| {}))),
        volume: View::Absent,
        recorded: None,
        creation: None,
        cleanup: None,
        owner: None,
        cluster: Cluster::default(),
        bid: None,
        room: None,
        told: Known::default(),
    }
}

fn decide(s: &ClaimSnapshot, now: Timestamp) -> Decision {
    super::decide(&Snapshot::Claim(Box::new(s.clone())), now)
}

fn recorded(maybe_made: bool) -> Option<Recorded> {
    Some(Recorded { intent: intent(), durable: true, maybe_made })
}

fn set_claim(s: &mut ClaimSnapshot, spoil: impl FnOnce(&mut Value)) {
    s.claim = Some(Arc::new(claim_with(spoil)));
}

fn bind(claim: &mut Value) {
    claim["spec"]["volumeName"] = VOLUME.into();
}

fn mark_deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = NOW.into();
}

fn create(wanted: bool) -> Vec<Action> {
    vec![Action::Create { intent: intent(), wanted }]
}

fn clean_up() -> Vec<Action> {
    vec![Action::CleanUp { intent: intent(), handle: HANDLE.into() }]
}

#[test]
fn nothing_is_called_before_the_intent_is_recorded() {
    let facts = facts();
    assert_eq!(decide(&fresh(&facts), now()), Decision::act([Action::Record(intent())], Why::Unrecorded));
    let mut s = fresh(&facts);
    s.recorded = Some(Recorded { intent: intent(), durable: false, maybe_made: false });
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

/// Crash points of reference section 2.17: the record is loaded, what was called is not known.
mod after_a_restart {
    use super::*;

    fn restarted(facts: &Facts) -> ClaimSnapshot {
        ClaimSnapshot { recorded: recorded(true), ..fresh(facts) }
    }

    #[test]
    fn create_sent_and_no_answer_seen_replays_the_recorded_request_whatever_the_class_says_now() {
        let facts = facts();
        let mut s = restarted(&facts);
        for class in [None, Some(Arc::new(class_with(|class| class["parameters"] = json!({ "pool": "b" }))))] {
            s.class = class;
            assert_eq!(decide(&s, now()).actions, create(true));
        }
    }

    #[test]
    fn create_answered_and_claim_deleted_in_between_replays_then_deletes_then_forgets() {
        let facts = facts();
        let mut s = restarted(&facts);
        s.claim = None;
        s.class = None;
        assert_eq!(decide(&s, now()).actions, create(false));
        s.creation = ended(State::Done(made()), 0);
        assert_eq!(decide(&s, now()), Decision::act(clean_up(), Why::Unwanted));
        s.cleanup = ended(State::Done(HANDLE.into()), 0);
        assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::CleanedUp));
    }

    #[test]
    fn volume_saved_and_event_not_sent_only_forgets_the_record() {
        let facts = facts();
        let mut s = restarted(&facts);
        s.volume = View::Known(volume_with(|_| {}));
        assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::VolumeExists));
        s.claim = None;
        assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::VolumeExists));
    }

    #[test]
    fn a_retained_volume_whose_claim_reference_was_cleared_or_changed_still_owns_what_was_made() {
        let facts = facts();
        let reused: [Spoil; 2] = [
            |volume| volume["spec"]["claimRef"] = Value::Null,
            |volume| volume["spec"]["claimRef"] = json!({ "namespace": "shop", "name": "next", "uid": "other" }),
        ];
        for spoil in reused {
            let mut s = restarted(&facts);
            s.claim = None;
            s.volume = View::Known(volume_with(spoil));
            assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::VolumeExists));
            s.creation = ended(State::Done(made()), 0);
            assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::VolumeExists));
        }
    }

    #[test]
    fn a_claim_that_is_deleting_or_bound_elsewhere_wants_nothing_any_more() {
        let facts = facts();
        let unwanted: [Spoil; 2] = [mark_deleting, |claim| claim["spec"]["volumeName"] = "static".into()];
        for spoil in unwanted {
            let mut s = restarted(&facts);
            set_claim(&mut s, spoil);
            assert_eq!(decide(&s, now()).actions, create(false));
            s.creation = ended(State::Done(made()), 0);
            assert_eq!(decide(&s, now()).actions, clean_up());
        }
    }

    #[test]
    fn a_final_failure_for_a_claim_that_is_gone_ends_the_record_and_an_uncertain_one_goes_on() {
        let facts = facts();
        let mut s = restarted(&facts);
        s.claim = None;
        s.creation = ended(State::Uncertain(failure("DeadlineExceeded")), 4);
        assert_eq!(decide(&s, now()), Decision::wait_until(later(4), Why::BacksOff));
        assert_eq!(decide(&s, later(4)).actions, create(false));
        s.creation = ended(State::Failed(failure("Internal")), 4);
        s.recorded = recorded(false);
        assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::NothingMade));
    }

    #[test]
    fn a_failure_before_the_call_was_sent_proves_nothing_about_an_earlier_call() {
        let facts = facts();
        let mut s = restarted(&facts);
        s.claim = None;
        s.creation = ended(State::Failed(failure("SecretUnavailable")), 4);
        assert_eq!(decide(&s, now()), Decision::wait_until(later(4), Why::BacksOff));
    }
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
fn a_claim_is_kept_where_no_other_node_can_help() {
    let (placeless, places) = (facts(), Facts { topology: true, ..facts() });
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

fn released(facts: &Facts) -> VolumeSnapshot {
    volume_snapshot(facts, |volume| volume["status"]["phase"] = "Released".into())
}

fn volume_snapshot(facts: &Facts, spoil: impl FnOnce(&mut Value)) -> VolumeSnapshot {
    VolumeSnapshot {
        facts: Arc::new(facts.clone()),
        name: VOLUME.into(),
        volume: View::Known(volume_with(spoil)),
        deletion: None,
        attached_to: None,
        trace: Trace::None,
        told: Known::default(),
    }
}

fn decide_volume(s: &VolumeSnapshot) -> Decision {
    super::decide(&Snapshot::Volume(s.clone()), now())
}

#[test]
fn only_released_volumes_with_policy_delete_are_deleted() {
    let facts = facts();
    let cases: [(Spoil, bool); 6] = [
        (|volume| volume["status"]["phase"] = "Released".into(), true),
        (|volume| volume["status"]["phase"] = "Bound".into(), false),
        (|volume| volume["status"]["phase"] = "Available".into(), false),
        (|volume| volume["status"]["phase"] = "Failed".into(), false),
        (
            |volume| {
                volume["status"]["phase"] = "Released".into();
                volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
            },
            false,
        ),
        (
            |volume| {
                volume["status"]["phase"] = "Released".into();
                volume["spec"]["csi"]["driver"] = "other.example".into();
            },
            false,
        ),
    ];
    for (number, (spoil, deleted)) in cases.into_iter().enumerate() {
        let decision = decide_volume(&volume_snapshot(&facts, spoil));
        assert_eq!(
            matches!(decision.actions.as_slice(), [Action::Delete { .. }]),
            deleted,
            "case {number}: {decision:?}"
        );
    }
}

#[test]
fn the_data_goes_before_the_object_and_the_object_before_its_finalizer() {
    let facts = facts();
    let mut s = released(&facts);
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::Delete { handle, .. }] if handle == HANDLE));
    s.deletion = ended(State::Done("volume-1".into()), 0);
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::RemoveVolume(_)]));
    let deleting = |volume: &mut Value| {
        volume["status"]["phase"] = "Released".into();
        mark_deleting(volume);
    };
    s.volume = View::Known(volume_with(deleting));
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::RemoveFinalizer(_)]));
    s.volume = View::Known(volume_with(|volume| {
        deleting(volume);
        volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
    }));
    assert!(decide_volume(&s).actions.is_empty());
    s.volume = View::Absent;
    assert_eq!(decide_volume(&s), Decision::rest(Why::Gone));
}

#[test]
fn a_deletion_of_an_earlier_object_of_the_name_does_not_count() {
    let facts = facts();
    let mut s = released(&facts);
    s.deletion = ended(State::Done("volume-0".into()), 0);
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::Delete { .. }]));
}

#[test]
fn after_a_restart_a_half_deleted_volume_is_deleted_again_as_a_whole() {
    let facts = facts();
    let s = volume_snapshot(&facts, |volume| {
        volume["status"]["phase"] = "Released".into();
        mark_deleting(volume);
    });
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::Delete { .. }]));
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

#[test]
fn an_attached_volume_is_told_once_and_waits() {
    let facts = facts();
    let mut s = released(&facts);
    s.attached_to = Some("node-1".into());
    let decision = decide_volume(&s);
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(note.reason, "VolumeFailedDelete");
    assert!(note.message.contains("node-1"));
    s.told = Known::of((), note.clone(), later(2700));
    assert_eq!(decide_volume(&s), Decision::wait_until(later(2700), Why::Attached));
}

#[test]
fn a_failed_deletion_backs_off() {
    let facts = facts();
    let mut s = released(&facts);
    for state in [State::Failed(failure("Internal")), State::Uncertain(failure("Unavailable"))] {
        s.deletion = ended(state, 8);
        assert_eq!(decide_volume(&s), Decision::wait_until(later(8), Why::BacksOff));
    }
}

#[test]
fn the_deletion_secret_comes_from_the_annotations_or_else_from_the_class() {
    let facts = facts();
    let name = "volume.kubernetes.io/provisioner-deletion-secret-name";
    let namespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
    let cases: [(Value, DeletionSecret); 3] = [
        (json!({ name: "", namespace: "" }), DeletionSecret::None),
        (
            json!({ name: "a", namespace: "b" }),
            DeletionSecret::At(SecretRef { namespace: "b".into(), name: "a".into() }),
        ),
        (json!({}), DeletionSecret::FromClass),
    ];
    for (annotations, expected) in cases {
        let s = volume_snapshot(&facts, |volume| {
            volume["status"]["phase"] = "Released".into();
            volume["metadata"]["annotations"] = annotations;
        });
        let decision = decide_volume(&s);
        let [Action::Delete { secret, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
        assert_eq!(*secret, expected);
    }
}

#[test]
fn a_bound_volume_with_policy_delete_gets_the_finalizer_also_if_it_was_made_by_hand() {
    let facts = facts();
    let s = volume_snapshot(&facts, |volume| {
        volume["metadata"]["finalizers"] = json!([]);
        volume["metadata"]["annotations"] = json!({});
    });
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::AddFinalizer(_)]));
}

#[test]
fn a_retained_volume_is_let_go_but_never_while_a_replay_could_find_it() {
    let facts = facts();
    let retain = |volume: &mut Value| volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    let mut s = volume_snapshot(&facts, retain);
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::LetGo(_)]));
    for trace in [Trace::Live, Trace::Leaving] {
        s.trace = trace;
        assert_eq!(decide_volume(&s), Decision::rest(Why::Recorded));
    }
    s.volume = View::Known(volume_with(|volume| {
        retain(volume);
        mark_deleting(volume);
    }));
    assert_eq!(decide_volume(&s).actions, [Action::FlushJournal]);
    s.trace = Trace::Live;
    assert_eq!(decide_volume(&s), Decision::rest(Why::Recorded));
}

#[test]
fn a_released_volume_waits_for_the_record_of_its_claim() {
    let facts = facts();
    let mut s = released(&facts);
    s.trace = Trace::Live;
    assert_eq!(decide_volume(&s), Decision::rest(Why::Recorded));
    s.trace = Trace::Leaving;
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::Delete { .. }]));
}

/// What the driver answers to one call.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Done,
    /// The driver's last word about this call: it has made nothing. What an earlier one made is still there.
    Final,
    /// A word about the request itself: a driver that had made the volume would have found it first.
    Infeasible,
    /// The worst kind: done, and nobody knows.
    Uncertain,
}

/// A world small enough to be one struct: applies actions as `apply` would and lets the driver answer.
#[derive(Debug, Default)]
struct World {
    claim: Option<Arc<Claim>>,
    volume: bool,
    recorded: Option<Recorded>,
    creation: Option<Record<Made>>,
    cleanup: Option<Record<String>>,
    told: Known,
    in_driver: bool,
    clock: i64,
}

impl World {
    fn snapshot(&self, facts: &Facts) -> ClaimSnapshot {
        ClaimSnapshot {
            facts: Arc::new(facts.clone()),
            claim: self.claim.clone(),
            class: Some(Arc::new(class_with(|_| {}))),
            volume: if self.volume { View::Known(volume_with(|_| {})) } else { View::Absent },
            recorded: self.recorded.clone(),
            creation: self.creation.clone(),
            cleanup: self.cleanup.clone(),
            owner: None,
            cluster: Cluster::default(),
            bid: None,
            room: None,
            told: self.told.clone(),
        }
    }

    fn carry_out(&mut self, action: Action, answer: Answer) {
        let at = later(self.clock);
        let record = |state| Some(Record { state, since: at, failures: 1, retry_at: at });
        match action {
            Action::Record(intent) => self.recorded = Some(Recorded { intent, durable: true, maybe_made: false }),
            Action::Create { .. } => {
                let recorded = self.recorded.as_mut().expect("no call before its record");
                assert!(recorded.durable, "no call before its record is durable");
                // What `calls` concludes from the answer; what the driver has is not changed by a refusal.
                recorded.maybe_made = match answer {
                    Answer::Done | Answer::Uncertain => true,
                    Answer::Final => recorded.maybe_made,
                    Answer::Infeasible if self.in_driver => true,
                    Answer::Infeasible => false,
                };
                self.in_driver |= matches!(answer, Answer::Done | Answer::Uncertain);
                self.creation = record(match answer {
                    Answer::Done => State::Done(made()),
                    // A driver that has the volume finds it before it judges the request.
                    Answer::Infeasible if self.in_driver => State::Done(made()),
                    Answer::Infeasible => State::Failed(failure("InvalidArgument")),
                    Answer::Final => State::Failed(failure("Internal")),
                    Answer::Uncertain => State::Uncertain(failure("DeadlineExceeded")),
                });
            }
            Action::MakeVolume { .. } => {
                assert!(!self.volume, "one claim never has two volumes");
                self.volume = true;
            }
            Action::CleanUp { handle, .. } => {
                self.in_driver &= !matches!(answer, Answer::Done);
                self.cleanup = Some(Record {
                    state: match answer {
                        Answer::Done => State::Done(handle),
                        Answer::Final | Answer::Infeasible => State::Failed(failure("Internal")),
                        Answer::Uncertain => State::Uncertain(failure("DeadlineExceeded")),
                    },
                    since: at,
                    failures: 1,
                    retry_at: at,
                });
            }
            Action::Forget => (self.recorded, self.creation, self.cleanup) = (None, None, None),
            Action::Tell(note) => self.told = Known::of((), note, later(2700)),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// The process dies: only the API's and the driver's state remain, and of a record not that nothing was made.
    fn crash(&mut self) {
        self.creation = None;
        self.cleanup = None;
        self.told = Known::default();
        if let Some(recorded) = &mut self.recorded {
            recorded.maybe_made = true;
        }
    }
}

proptest! {
    #[test]
    fn whatever_the_driver_answers_and_whenever_we_crash_or_the_claim_goes_deciding_ends_without_a_leak(
        answers in proptest::collection::vec(
            prop_oneof![
                Just(Answer::Done), Just(Answer::Final), Just(Answer::Infeasible), Just(Answer::Uncertain),
            ], 0..6),
        crashes in proptest::collection::btree_set(0..16_usize, 0..4),
        deleted_at in proptest::option::of(0..12_usize),
    ) {
        let facts = facts();
        let mut answers = answers.into_iter();
        let mut world = World { claim: Some(Arc::new(claim_with(|_| {}))), ..World::default() };
        let mut resting = false;
        for round in 0..64 {
            if deleted_at == Some(round) {
                world.claim = None;
            }
            if crashes.contains(&round) {
                world.crash();
            }
            world.clock += 600;
            let decision = decide(&world.snapshot(&facts), later(world.clock));
            resting = decision.actions.is_empty();
            for action in decision.actions {
                let answer = if matches!(action, Action::Create { .. } | Action::CleanUp { .. }) {
                    answers.next().unwrap_or(Answer::Done)
                } else {
                    Answer::Done
                };
                world.carry_out(action, answer);
            }
        }
        prop_assert!(resting, "no fixpoint: {:?}", world);
        prop_assert!(world.recorded.is_none());
        prop_assert_eq!(world.in_driver, world.volume, "a volume without an owner, or an object without a volume");
        prop_assert!(world.volume || deleted_at.is_some());
    }
}

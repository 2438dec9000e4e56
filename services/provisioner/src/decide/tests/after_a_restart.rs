//! Crash points of reference section 2.17: the record is loaded, what was called is not known.

use serde_json::json;

use super::*;
use crate::fixture::{facts, made, volume_with};

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

/// It was deleted, and it may have been somebody's since the record was written.
#[test]
fn what_a_found_record_made_is_kept_where_its_class_retains_and_nobody_has_it() {
    let mut s = restarted(&facts());
    let mut retaining = (*intent()).clone();
    retaining.class.reclaim_policy = "Retain".into();
    let intent = Arc::new(retaining);
    s.recorded = Some(Recorded { intent: Arc::clone(&intent), durable: true, maybe_made: true, inherited: true });
    s.claim = None;
    s.creation = ended(State::Done(made()), 0);
    let keep = Action::Keep { intent: Arc::clone(&intent), made: made() };
    assert_eq!(decide(&s, now()), Decision::act([keep], Why::Retained));
    let owned = ClaimSnapshot { owner: Some("imported".into()), ..s.clone() };
    assert_eq!(decide(&owned, now()), Decision::act([Action::Forget], Why::OwnedBy("imported".into())));
    let spoils: [(Spoil, Why); 3] = [
        (bind, Why::Retained),
        (mark_deleting, Why::Unwanted),
        (|claim| claim["spec"]["volumeName"] = "static".into(), Why::Unwanted),
    ];
    for (spoil, why) in spoils {
        let mut there = s.clone();
        set_claim(&mut there, spoil);
        assert_eq!(decide(&there, now()).why, why, "one that never named it never had it");
    }
    // What this run has made was nobody's yet.
    s.recorded = Some(Recorded { intent, durable: true, maybe_made: true, inherited: false });
    assert_eq!(decide(&s, now()).why, Why::Unwanted);
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

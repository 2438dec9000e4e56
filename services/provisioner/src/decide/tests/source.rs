//! Claims that are filled from something, and what they are filled from.

use serde_json::json;

use stowage_model::object::Key as ObjectKey;

use super::*;
use crate::fixture::{DRIVER, facts};
use crate::snapshot::SourceSnapshot;
use crate::source::tests::{
    SNAPSHOT_UID, cloning, content_with, found_claim, found_snapshot, looked, restoring, snapshot_with,
    source_claim_with, source_volume_with,
};
use crate::source::{Found, Look, Need};

const HELD: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
const CLONED: &str = "provisioner.storage.kubernetes.io/cloning-protection";

fn content() -> Option<Record<Look>> {
    looked(State::Done(content_with(|_| {})))
}

fn restored() -> ClaimSnapshot {
    let mut s = fresh(&facts());
    set_claim(&mut s, |claim| claim["spec"]["dataSource"] = restoring());
    s.source = Some(found_snapshot(snapshot_with(|_| {}), content()));
    s
}

fn filled() -> Arc<Intent> {
    let decision = decide(&restored(), now());
    let [Action::Record(intent)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    Arc::clone(intent)
}

fn begun(maybe_made: bool) -> ClaimSnapshot {
    ClaimSnapshot {
        recorded: Some(Recorded { intent: filled(), durable: true, maybe_made, inherited: false }),
        ..restored()
    }
}

#[test]
fn the_record_comes_first_then_the_finalizer_then_the_call_with_the_content_source() {
    use stowage_csi::v1::volume_content_source::{SnapshotSource, Type};
    let mut s = begun(false);
    s.is_unprotected = true;
    let source = filled().request.source.clone().unwrap();
    assert_eq!(decide(&s, now()), Decision::act([Action::Protect(source)], Why::Unprotected));
    s.is_unprotected = false;
    assert_eq!(decide(&s, now()).actions, [Action::Create { intent: filled(), wanted: true }]);
    let call = filled().create_volume(Default::default());
    let empty = intent().create_volume(Default::default());
    let asked = call.volume_content_source.clone().unwrap().r#type;
    assert_eq!(asked, Some(Type::Snapshot(SnapshotSource { snapshot_id: "pool-a/s1".into() })));
    let rest = stowage_csi::v1::CreateVolumeRequest { volume_content_source: None, ..call };
    assert_eq!(rest, empty, "every other field is that of an empty volume");
}

#[test]
fn a_clone_asks_for_the_volume_of_the_other_claim() {
    use stowage_csi::v1::volume_content_source::{Type, VolumeSource};
    let mut s = fresh(&facts());
    set_claim(&mut s, |claim| claim["spec"]["dataSource"] = cloning());
    s.source = Some(found_claim(source_claim_with(|_| {}), View::Known(source_volume_with(|_| {}))));
    let decision = decide(&s, now());
    let [Action::Record(intent)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    let call = intent.create_volume(Default::default());
    let asked = call.volume_content_source.unwrap().r#type;
    assert_eq!(asked, Some(Type::Volume(VolumeSource { volume_id: "pool-a/0".into() })));
}

#[test]
fn a_request_that_may_have_been_sent_is_replayed_also_when_its_source_is_gone() {
    let mut s = begun(true);
    s.source = None;
    assert_eq!(decide(&s, now()).actions, [Action::Create { intent: filled(), wanted: true }]);
    s.claim = None;
    assert_eq!(decide(&s, now()).actions, [Action::Create { intent: filled(), wanted: false }]);
}

/// Our finalizer may have been taken away by another driver's sidecar, and the driver look at the source before the name.
#[test]
fn a_source_that_is_gone_and_missed_by_the_driver_does_not_say_that_nothing_was_made() {
    let mut s = begun(true);
    s.is_source_gone = true;
    s.source = None;
    s.creation = ended(State::Failed(failure("NotFound")), 4);
    assert_eq!(decide(&s, now()).why, Why::BacksOff, "the claim was told by the call");
    s.claim = None;
    let decision = decide(&s, now());
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    for part in ["volume pvc-7c9e", "VolumeSnapshot shop/nightly is gone", "intent.provisioner.stowage.dev/7c9e"] {
        assert!(note.message.contains(part), "{}", note.message);
    }
    s.told = Known::of((), note.clone(), later(2700));
    assert_eq!(decide(&s, now()), Decision::wait_until(later(300), Why::BacksOff), "and asked on");
    assert_eq!(decide(&s, later(300)).actions, [Action::Create { intent: filled(), wanted: false }]);
}

/// A crash between the record and the hold on its source left a record that was asked about for ever.
#[test]
fn a_found_record_whose_source_went_before_it_was_held_is_done_with_when_the_driver_misses_it_too() {
    let found = |intent| Some(Recorded { intent, durable: true, maybe_made: true, inherited: true });
    let mut s = begun(true);
    (s.recorded, s.claim, s.source, s.is_source_gone) = (found(filled()), None, None, true);
    let word = |state, failures| Some(Record { state, since: now(), failures, retry_at: now() });
    s.creation = word(State::Failed(failure("NotFound")), 4);
    assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::NothingMade));
    // Each of these alone leaves open whether an earlier call made a volume.
    let released = Arc::new((*filled()).clone().without_hold());
    let there = ClaimSnapshot { is_source_gone: false, ..s.clone() };
    assert_ne!(decide(&there, now()).why, Why::NothingMade);
    for creation in [
        word(State::Failed(failure("NotFound")), 3),
        word(State::Failed(failure("Internal")), 4),
        word(State::Uncertain(failure("NotFound")), 4),
    ] {
        assert_ne!(decide(&ClaimSnapshot { creation, ..s.clone() }, now()).why, Why::NothingMade);
    }
    s.recorded = found(released);
    assert_ne!(decide(&s, now()).why, Why::NothingMade);
}

/// It was held for ever, and its namespace with it.
#[test]
fn a_source_that_is_deleted_is_let_go_once_nobody_waits_and_the_driver_may_never_tell() {
    let released = Arc::new((*filled()).clone().without_hold());
    let words = [
        State::Failed(failure("NotFound")),
        State::Uncertain(failure("NotFound")),
        State::Uncertain(failure("SecretUnavailable")),
    ];
    for word in words {
        let mut s = begun(true);
        (s.claim, s.source, s.is_source_going) = (None, None, true);
        s.creation = ended(word, 4);
        let decision = decide(&s, now());
        let [Action::Release { intent, note }] = decision.actions.as_slice() else { panic!("{decision:?}") };
        assert_eq!((intent, note.reason), (&released, "SourceReleased"));
        assert!(note.message.contains("VolumeSnapshot shop/nightly is let go"), "{}", note.message);
        let intent = Arc::clone(&released);
        s.recorded = Some(Recorded { intent, durable: true, maybe_made: true, inherited: false });
        assert!(decide(&s, now()).actions.is_empty(), "once");
        assert_eq!(decide(&s, later(300)).actions, [Action::Create { intent: Arc::clone(&released), wanted: false }]);
        // Each of these alone is no reason.
        let there = ClaimSnapshot { is_source_going: false, recorded: begun(true).recorded, ..s.clone() };
        assert!(decide(&there, now()).actions.is_empty());
        let wanted = ClaimSnapshot { claim: restored().claim, recorded: begun(true).recorded, ..s.clone() };
        assert!(decide(&wanted, now()).actions.is_empty());
        let creation = ended(State::Failed(failure("Internal")), 4);
        let refused = ClaimSnapshot { creation, recorded: begun(true).recorded, ..s.clone() };
        assert!(decide(&refused, now()).actions.is_empty());
    }
    assert!(released.asks_the_same_besides_places(&filled()), "its backoff goes on");
}

#[test]
fn a_source_that_is_deleted_tells_for_whose_volume_it_is_held() {
    let mut s = held(content());
    s.users = waiting(1);
    assert_eq!(decide_source(&s), Decision::rest(Why::InUse));
    let Found { object, .. } = found_snapshot(
        snapshot_with(|s| {
            s["metadata"]["finalizers"] = json!([HELD]);
            mark_deleting(s);
        }),
        content(),
    );
    s.object = object;
    let decision = decide_source(&s);
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    for part in ["VolumeSnapshot shop/nightly is being deleted", HELD, "for shop/db-1; see the events", "has answered"]
    {
        assert!(note.message.contains(part), "{}", note.message);
    }
    assert_eq!((note.reason, decision.why), ("SourceInUse", Why::InUse));
}

#[test]
fn a_source_that_cannot_be_used_any_more_is_let_go_before_anything_is_said() {
    let mut s = begun(false);
    s.source = Some(found_snapshot(snapshot_with(|s| s["status"]["readyToUse"] = false.into()), content()));
    assert_eq!(decide(&s, now()), Decision::act([Action::Forget], Why::NothingMade));
    s.recorded = None;
    let decision = decide(&s, now());
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(note.reason, "ProvisioningFailed");
    assert!(note.message.contains("status.readyToUse"), "{}", note.message);
}

#[test]
fn a_snapshot_is_looked_at_before_its_claim_is_recorded() {
    let mut s = restored();
    s.source = Some(found_snapshot(snapshot_with(|_| {}), None));
    let origin = s.source.as_ref().unwrap().origin.clone();
    assert_eq!(decide(&s, now()), Decision::act([Action::Look(origin)], Why::Looking));
    s.source = Some(found_snapshot(snapshot_with(|_| {}), looked(State::Running)));
    assert_eq!(decide(&s, now()), Decision::rest(Why::Looking));
}

/// Reference table 1.8, as far as CreateVolume is concerned: what a code leaves of a request with a source.
#[test]
fn each_code_of_a_call_with_a_source_leads_to_its_state() {
    for code in ["Aborted", "DeadlineExceeded", "Unavailable", "Canceled"] {
        let mut s = begun(true);
        s.creation = ended(State::Uncertain(failure(code)), 4);
        assert_eq!(decide(&s, now()), Decision::wait_until(later(4), Why::BacksOff), "{code}");
        assert_eq!(decide(&s, later(4)).actions, [Action::Create { intent: filled(), wanted: true }], "{code}");
    }
    let finals = ["NotFound", "Internal", "AlreadyExists", "OutOfRange", "FailedPrecondition", "ResourceExhausted"];
    for code in
        finals.into_iter().chain(["Unimplemented", "PermissionDenied", "Unauthenticated", "DataLoss", "Unknown"])
    {
        let mut s = begun(false);
        s.creation = ended(State::Failed(failure(code)), 4);
        assert_eq!(decide(&s, now()), Decision::wait_until(later(4), Why::BacksOff), "{code}");
        // Certainly nothing was made, so the request follows what the source is now.
        let other = content_with(|content| content["status"]["snapshotHandle"] = "pool-b/s1".into());
        s.source = Some(found_snapshot(snapshot_with(|_| {}), looked(State::Done(other))));
        assert_eq!(decide(&s, now()).why, Why::RequestChanged, "{code}");
    }
    let mut s = begun(false);
    s.creation = ended(State::Failed(failure("InvalidArgument")), 4);
    assert_eq!(decide(&s, now()), Decision::wait_until(later(300), Why::BacksOff));
}

#[test]
fn a_claim_that_was_given_to_a_node_without_the_data_is_told_and_given_back() {
    let mut facts = Facts { topology: true, ..facts() };
    let segments = [("node".to_owned(), "b".to_owned())].into();
    facts.node = Some(crate::facts::NodeFacts { name: "b".into(), segments });
    facts.options.node_deployment = Some(crate::options::NodeDeployment { node: "b".into(), ..Default::default() });
    let managed =
        || content_with(|c| c["metadata"]["labels"] = json!({ "snapshot.storage.kubernetes.io/managed-by": "a" }));
    let mut s = ClaimSnapshot { facts: Arc::new(facts), ..restored() };
    s.source = Some(found_snapshot(snapshot_with(|_| {}), looked(State::Done(managed()))));
    assert_eq!(decide(&s, now()), Decision::rest(Why::OtherNode), "nobody's: the node with the data takes it");
    set_claim(&mut s, |claim| {
        claim["spec"]["dataSource"] = restoring();
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "b".into();
    });
    let decision = decide(&s, now());
    let [Action::Tell(note), Action::Reschedule(_)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert!(note.message.contains("node \"a\""), "{}", note.message);
}

fn source(found: Found) -> SourceSnapshot {
    let Found { origin, object, .. } = found;
    let facts = Arc::new(facts());
    let need = Need::default();
    let (users, others, told) = (Vec::new(), Vec::new(), Known::default());
    SourceSnapshot { facts, origin, object, users, others, need, is_awaited: false, told }
}

fn decide_source(s: &SourceSnapshot) -> Decision {
    super::super::decide(&Snapshot::Source(Box::new(s.clone())), now())
}

fn held(look: Option<Record<Look>>) -> SourceSnapshot {
    source(found_snapshot(snapshot_with(|s| s["metadata"]["finalizers"] = json!([HELD])), look))
}

fn unprotect(s: &SourceSnapshot, uid: &str) -> Decision {
    Decision::act([Action::Unprotect { origin: s.origin.clone(), uid: uid.into() }], Why::Unused)
}

fn waiting(count: usize) -> Vec<ObjectKey> {
    (1..=count).map(|number| ObjectKey::namespaced("shop", format!("db-{number}"))).collect()
}

#[test]
fn a_source_that_is_deleted_and_held_for_claims_tells_which_and_the_way_out() {
    let going = |look| {
        let snapshot = snapshot_with(|s| {
            s["metadata"]["finalizers"] = json!([HELD]);
            mark_deleting(s);
        });
        SourceSnapshot { others: waiting(7), ..source(found_snapshot(snapshot, look)) }
    };
    let mut s = going(content());
    let decision = decide_source(&s);
    let [Action::Tell(note)] = decision.actions.as_slice() else { panic!("{decision:?}") };
    for part in
        ["VolumeSnapshot shop/nightly is being deleted", HELD, "shop/db-1, shop/db-2", "and 2 more", "delete these"]
    {
        assert!(note.message.contains(part), "{}", note.message);
    }
    assert_eq!((note.reason, decision.why), ("SourceInUse", Why::InUse));
    s.told = Known::of((), note.clone(), later(60));
    assert_eq!(decide_source(&s), Decision::wait_until(later(60), Why::InUse));
    let foreign = going(looked(State::Done(content_with(|c| c["spec"]["driver"] = "x.example".into()))));
    assert_eq!(decide_source(&foreign), Decision::rest(Why::NotOurs), "its own driver's provisioner tells");
}

#[test]
fn a_snapshot_is_freed_when_no_volume_is_made_from_it_any_more() {
    let mut s = held(content());
    assert_eq!(decide_source(&s), unprotect(&s, SNAPSHOT_UID));
    s.users = waiting(1);
    assert_eq!(decide_source(&s), Decision::rest(Why::InUse));
    (s.users, s.others) = (Vec::new(), waiting(1));
    assert_eq!(decide_source(&s), Decision::rest(Why::InUse));
    let free = source(found_snapshot(snapshot_with(|_| {}), content()));
    assert_eq!(decide_source(&free), Decision::rest(Why::Unprotected));
}

#[test]
fn a_snapshot_that_somebody_left_is_freed_by_its_own_driver_only_and_not_without_the_sweep() {
    let mut s = held(None);
    assert_eq!(decide_source(&s), Decision::act([Action::Look(s.origin.clone())], Why::Looking));
    let foreign = held(looked(State::Done(content_with(|c| c["spec"]["driver"] = "x.example".into()))));
    assert_eq!(decide_source(&foreign), Decision::rest(Why::NotOurs));
    let without = held(looked(State::Done(Look { content: None, ..content_with(|_| {}) })));
    assert_eq!(decide_source(&without), unprotect(&without, SNAPSHOT_UID));
    let mut facts = facts();
    facts.options.sweep_snapshots = false;
    s.facts = Arc::new(facts.clone());
    assert_eq!(decide_source(&s), Decision::rest(Why::NotOurs));
    let own = SourceSnapshot { facts: Arc::new(facts), ..held(content()) };
    assert_eq!(decide_source(&own), unprotect(&own, SNAPSHOT_UID), "what we held ourselves is freed in any case");
}

#[test]
fn in_node_deployment_a_snapshot_is_freed_on_its_own_node() {
    let managed =
        || content_with(|c| c["metadata"]["labels"] = json!({ "snapshot.storage.kubernetes.io/managed-by": "a" }));
    for (node, freed) in [("a", true), ("b", false)] {
        let segments = [("node".to_owned(), node.to_owned())].into();
        let node = Some(crate::facts::NodeFacts { name: node.into(), segments });
        let s = SourceSnapshot { facts: Arc::new(Facts { node, ..facts() }), ..held(looked(State::Done(managed()))) };
        assert_eq!(!decide_source(&s).actions.is_empty(), freed);
    }
}

#[test]
fn in_node_deployment_without_a_label_only_who_held_a_snapshot_frees_it_at_once() {
    let segments = [("node".to_owned(), "a".to_owned())].into();
    let node = Some(crate::facts::NodeFacts { name: "a".into(), segments });
    let facts = Arc::new(Facts { node, ..facts() });
    let unbound = || {
        source(found_snapshot(
            snapshot_with(|s| {
                s["metadata"]["finalizers"] = json!([HELD]);
                s["status"] = json!({});
            }),
            None,
        ))
    };
    for seen in [held(content()), unbound()] {
        let mut s = SourceSnapshot { facts: Arc::clone(&facts), ..seen };
        // Another node's call may be under way, of a claim that is deleted meanwhile.
        assert_eq!(decide_source(&s), Decision::wait_until(later(300), Why::LeftOver));
        s.need.over_since = Some(later(-299));
        assert_eq!(decide_source(&s), Decision::wait_until(later(1), Why::LeftOver));
        s.need.over_since = Some(later(-300));
        assert_eq!(decide_source(&s), unprotect(&s, SNAPSHOT_UID));
        s.others = waiting(1);
        assert_eq!(decide_source(&s), Decision::rest(Why::InUse));
    }
    let need = Need { was_ours: true, over_since: None };
    let s = SourceSnapshot { facts, need, ..held(content()) };
    assert_eq!(decide_source(&s), unprotect(&s, SNAPSHOT_UID));
}

#[test]
fn a_cloned_claim_is_freed_by_the_driver_of_its_volume_whether_it_is_deleted_or_not() {
    let cloned = |spoil: Spoil, volume| {
        source(found_claim(
            source_claim_with(|claim| {
                claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection", CLONED]);
                spoil(claim);
            }),
            volume,
        ))
    };
    let ours = || View::Known(source_volume_with(|_| {}));
    for spoil in [(|_| {}) as Spoil, mark_deleting] {
        let s = cloned(spoil, ours());
        assert_eq!(decide_source(&s), unprotect(&s, "source-1"));
    }
    let foreign = View::Known(source_volume_with(|volume| volume["spec"]["csi"]["driver"] = "x.example".into()));
    assert_eq!(decide_source(&cloned(|_| {}, foreign)), Decision::rest(Why::NotOurs));
    let annotated = cloned(|_| {}, View::Absent);
    assert_eq!(decide_source(&annotated), unprotect(&annotated, "source-1"), "{DRIVER} was to make its volume");
    let stranger: Spoil = |claim| claim["metadata"]["annotations"] = json!({});
    assert_eq!(decide_source(&cloned(stranger, View::Absent)), Decision::rest(Why::NotOurs));
}

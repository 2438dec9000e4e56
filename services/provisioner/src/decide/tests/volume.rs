use serde_json::json;

use super::*;
use crate::fixture::{facts, volume_with};
use crate::journal::Trace;
use crate::library::IGNORED;
use crate::snapshot::VolumeSnapshot;

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
    super::super::decide(&Snapshot::Volume(s.clone()), now())
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
    assert!(
        matches!(decide_volume(&s).actions.as_slice(), [Action::Delete { handle, .. }] if handle.as_str() == HANDLE)
    );
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
fn what_is_left_to_another_instance_is_asked_about_rarely() {
    let facts = facts();
    let mut s = released(&facts);
    s.deletion = ended(State::Uncertain(failure(IGNORED)), 0);
    let longest = SignedDuration::try_from(facts.options.driver.retry.max).unwrap();
    let decision = decide_volume(&s);
    assert_eq!((decision.why, decision.wake_at), (Why::Ignored, now().checked_add(longest).ok()));
    s.deletion = ended(State::Uncertain(failure("Internal")), 0);
    assert!(matches!(decide_volume(&s).actions.as_slice(), [Action::Delete { .. }]));
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

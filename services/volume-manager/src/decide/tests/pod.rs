use stowage_model::phase::PodPhase;
use stowage_runtime::api::Patch;
use stowage_runtime::told::Known;

use super::super::Action;
use super::super::pod::{Snapshot, View, Why, decide};
use super::*;
use crate::desired::Resolution;

fn resolved() -> Resolution {
    Resolution { uses: [(volume(), usage())].into(), problems: Vec::new() }
}

/// A pod that has just been placed here.
fn placed() -> Snapshot {
    Snapshot {
        uid: "a".into(),
        pod: View::Known(pod("a", json!({}))),
        resolution: None,
        resolving: None,
        held: 0,
        mounted: 0,
        has_dir: false,
        has_records: false,
        told: Known::default(),
    }
}

fn deleting(rest: Value) -> View {
    let mut metadata = json!({ "deletionTimestamp": "2024-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30 });
    json_patch_merge(&mut metadata, &rest);
    View::Known(pod("a", json!({ "metadata": metadata, "status": { "phase": "Running" } })))
}

#[track_caller]
fn status(s: &Snapshot) -> (Why, Value) {
    let mut decision = decide(s, now());
    match decision.actions.pop() {
        Some(Action::PatchPodStatus { patch: Patch::Merge(body), target }) => {
            assert_eq!(target.revision, Some(7), "a status is written on the version it was decided on");
            (decision.why, body["status"].clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_pods_volumes_are_looked_up_once() {
    let mut s = placed();
    let decision = decide(&s, now());
    assert!(matches!(decision.actions[..], [Action::Resolve { .. }]), "{decision:?}");
    s.resolving = Some(running());
    assert_eq!(decide(&s, now()).why, Why::Resolving);
}

#[test]
fn a_pod_with_unmounted_volumes_is_pending_and_says_that_it_is_creating() {
    let (why, status) = status(&Snapshot { resolution: Some(resolved()), ..placed() });
    assert_eq!(why, Why::Mounting);
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    let ready = status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == "Ready");
    assert_eq!(ready.unwrap()["status"], "False");
}

#[test]
fn a_pod_whose_volumes_are_all_mounted_is_running_and_ready() {
    let (why, status) = status(&Snapshot { resolution: Some(resolved()), held: 1, mounted: 1, ..placed() });
    assert_eq!(why, Why::Mounted);
    assert_eq!(status["phase"], "Running");
    assert!(status["conditions"].as_array().unwrap().iter().all(|condition| condition["status"] == "True"));
}

#[test]
fn a_running_pod_needs_no_write_even_while_its_mounts_are_uncertain_after_a_restart() {
    let conditions = json!([{ "type": "Ready", "status": "True" }]);
    let running = pod("a", json!({ "status": { "phase": PodPhase::Running.as_str(), "conditions": conditions } }));
    let mut s = Snapshot { pod: View::Known(running), resolution: Some(resolved()), held: 1, ..placed() };
    assert_eq!(decide(&s, now()).actions, []);
    s.mounted = 1;
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.actions.len()), (Why::Running, 0));
}

#[test]
fn s74_s79_a_claim_that_cannot_be_used_is_told_at_once_and_looked_up_again_later() {
    let conditions = json!([{ "type": "Ready", "status": "False" }]);
    let status = json!({ "conditions": conditions, "startTime": "2024-01-01T00:00:00Z" });
    let mut s = Snapshot { pod: View::Known(pod("a", json!({ "status": status }))), ..placed() };
    s.resolution = Some(Resolution { problems: vec!["claim c is not bound yet".into()], ..Default::default() });
    s.resolving = Some(failed());
    let decision = decide(&s, now());
    let [Action::Explain { message, .. }] = &decision.actions[..] else { panic!("{decision:?}") };
    s.told = Known::of(message.clone(), (), Timestamp::MAX);
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.wake_at), (Why::BackingOff, Some(later(1))));
    assert!(matches!(decide(&s, later(1)).actions[..], [Action::Resolve { .. }]));
}

#[test]
fn a_deleted_pod_waits_for_its_volumes_then_its_directory_and_the_pod_go() {
    let mut s = Snapshot { pod: deleting(json!({})), resolution: Some(resolved()), held: 1, has_dir: true, ..placed() };
    assert_eq!(decide(&s, now()).why, Why::Unmounting);
    s.held = 0;
    let decision = decide(&s, now());
    let [Action::RemovePodDir { .. }, Action::DeletePod { target }] = &decision.actions[..] else {
        panic!("{decision:?}");
    };
    assert_eq!((target.uid.as_str(), target.revision), ("a", None));
}

#[test]
fn a_deletion_that_finalizers_hold_up_is_not_asked_for_again() {
    let held = deleting(json!({ "finalizers": ["example.com/x"], "deletionGracePeriodSeconds": 0 }));
    let decision = decide(&Snapshot { pod: held, ..placed() }, now());
    assert_eq!((decision.why, decision.actions.len()), (Why::HeldByFinalizers, 0));
}

#[test]
fn s81_a_pod_that_has_ended_is_unmounted_but_not_deleted() {
    let ended = View::Known(pod("a", json!({ "status": { "phase": "Failed" } })));
    let decision = decide(&Snapshot { pod: ended, has_dir: true, ..placed() }, now());
    assert_eq!(decision.actions, [Action::RemovePodDir { uid: "a".into() }]);
}

#[test]
fn a_pod_that_vanished_is_forgotten_once_its_volumes_are_unmounted() {
    let mut s = Snapshot { pod: View::Absent, resolution: Some(resolved()), held: 1, has_dir: true, ..placed() };
    assert_eq!(decide(&s, now()).why, Why::Unmounting);
    s.held = 0;
    let (dir, forget) = (Action::RemovePodDir { uid: "a".into() }, Action::ForgetPod { uid: "a".into() });
    assert_eq!(decide(&s, now()).actions, [dir, forget]);
    (s.has_dir, s.resolution) = (false, None);
    assert_eq!(decide(&s, now()).actions, []);
}

#[test]
fn a_pod_whose_write_got_no_answer_is_read_before_anything_else() {
    let key = stowage_model::Key::namespaced("default", "a");
    let decision = decide(&Snapshot { pod: View::Unknown(key.clone()), ..placed() }, now());
    assert_eq!(decision.actions, [Action::ReadPod(key)]);
}

/// A pod found at start was never looked up, so the records of its unmounting stayed for ever.
#[test]
fn of_a_pod_that_is_gone_the_operations_are_forgotten_even_if_its_volumes_were_never_looked_up() {
    let s = Snapshot { pod: View::Absent, has_records: true, ..placed() };
    assert_eq!(decide(&s, now()).actions, [Action::ForgetPod { uid: "a".into() }]);
    let s = Snapshot { has_records: false, resolving: Some(running()), ..s };
    assert_eq!(decide(&s, now()).actions, [], "what runs cannot be forgotten yet, and its end comes back here");
}

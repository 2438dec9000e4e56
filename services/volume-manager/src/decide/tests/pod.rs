use stowage_model::phase::PodPhase;
use stowage_runtime::api::Patch;
use stowage_runtime::told::Known;

use super::super::Action;
use super::super::pod::{Snapshot, View, Why, decide};
use super::super::waiting::Waiting;
use super::*;
use crate::desired_state::{PodVolumes, Problem};

fn known() -> Option<PodVolumes> {
    Some(PodVolumes { volumes: [(volume(), mount())].into(), problems: Vec::new() })
}

/// A pod that has just been placed here.
fn placed() -> Snapshot {
    Snapshot {
        uid: "a".into(),
        pod: View::Known(pod("a", json!({}))),
        found: known(),
        noted: None,
        problems_since: None,
        held: 0,
        mounted: 0,
        has_dir: false,
        has_records: false,
        waits_for: Waiting::default(),
        evicted: None,
        told: Known::default(),
        is_abandoned: false,
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
fn what_a_pods_volumes_turn_out_to_be_is_noted_before_anything_else_and_when_it_changes() {
    let mut s = placed();
    let decision = decide(&s, now());
    assert!(matches!(decision.actions[..], [Action::Populate { .. }]), "{decision:?}");
    s.noted = known();
    assert_ne!(decide(&s, now()).why, Why::Populate);
    s.found = Some(PodVolumes::default());
    assert_eq!(decide(&s, now()).why, Why::Populate);
}

#[test]
fn a_pod_with_unmounted_volumes_is_pending_and_says_that_it_is_creating() {
    let (why, status) = status(&Snapshot { noted: known(), ..placed() });
    assert_eq!(why, Why::Mounting);
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    let ready = status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == "Ready");
    assert_eq!(ready.unwrap()["status"], "False");
}

#[test]
fn a_pod_that_holds_too_much_is_told_once_and_failed_whatever_else_is_to_be_done() {
    let evicted = Some("too much".to_owned());
    let s = Snapshot { noted: None, evicted, held: 1, mounted: 1, ..placed() };
    let decision = decide(&s, now());
    assert!(
        matches!(decision.actions[..], [Action::TellEviction { .. }, Action::PatchPodStatus { .. }]),
        "{decision:?}"
    );
    let told = Known::of("too much".to_owned(), (), later(60));
    let (why, status) = status(&Snapshot { told, ..s });
    assert_eq!(why, Why::Evicted);
    assert_eq!(
        (&status["phase"], &status["reason"], &status["message"]),
        (&json!("Failed"), &json!("Evicted"), &json!("too much"))
    );
}

#[test]
fn a_pod_whose_volumes_are_all_mounted_is_running_and_ready() {
    let (why, status) = status(&Snapshot { noted: known(), held: 1, mounted: 1, ..placed() });
    assert_eq!(why, Why::Mounted);
    assert_eq!(status["phase"], "Running");
    assert!(status["conditions"].as_array().unwrap().iter().all(|condition| condition["status"] == "True"));
}

#[test]
fn a_running_pod_needs_no_write_even_while_its_mounts_are_uncertain_after_a_restart() {
    let conditions = json!([{ "type": "Ready", "status": "True" }]);
    let running = pod("a", json!({ "status": { "phase": PodPhase::Running.as_str(), "conditions": conditions } }));
    let mut s = Snapshot { pod: View::Known(running), noted: known(), held: 1, ..placed() };
    assert_eq!(decide(&s, now()).actions, []);
    s.mounted = 1;
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.actions.len()), (Why::Running, 0));
}

fn troubled(is_waiting: bool) -> Snapshot {
    let conditions = json!([{ "type": "Ready", "status": "False" }]);
    let status = json!({ "conditions": conditions, "startTime": "2024-01-01T00:00:00Z" });
    let problem =
        Problem { volume: "data".into(), message: "claim c is not bound yet".into(), is_waiting, labels_differ: None };
    let volumes = Some(PodVolumes { problems: vec![problem], ..PodVolumes::default() });
    let pod = View::Known(pod("a", json!({ "status": status })));
    Snapshot { pod, found: volumes.clone(), noted: volumes, problems_since: Some(now()), ..placed() }
}

#[test]
fn s74_s79_a_volume_that_cannot_be_had_is_told_at_once() {
    let mut s = troubled(false);
    let decision = decide(&s, now());
    let [Action::Explain { message, .. }] = &decision.actions[..] else { panic!("{decision:?}") };
    s.told = Known::of(message.clone(), (), later(9));
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.wake_at), (Why::Problem, Some(later(9))));
}

#[test]
fn a_claim_that_may_be_bound_in_a_moment_is_worth_an_event_only_after_it() {
    let decision = decide(&troubled(true), now());
    assert_eq!((decision.why, decision.wake_at, decision.actions.len()), (Why::Problem, Some(later(1)), 0));
    assert!(matches!(decide(&troubled(true), later(1)).actions[..], [Action::Explain { .. }]));
}

/// A pod whose status was written when it came, a while ago.
fn waiting(sentence: &str) -> Snapshot {
    let message = "containers with unready status: [c]";
    let conditions = json!([{
        "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": message,
        "lastTransitionTime": later(-9).to_string(),
    }]);
    let status = json!({ "phase": "Pending", "conditions": conditions, "startTime": later(-9).to_string() });
    let waits_for = Waiting { sentence: Some(sentence.into()), ..Waiting::default() };
    Snapshot { pod: View::Known(pod("a", json!({ "status": status }))), noted: known(), waits_for, ..placed() }
}

#[track_caller]
fn patched(s: &Snapshot) -> Vec<Value> {
    match decide(s, now()).actions.pop() {
        Some(Action::PatchPodStatus { patch: Patch::Json(operations), .. }) => operations,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_says_which_volume_it_waits_for_and_why_and_says_it_once() {
    let cause = "volume \"data\": it is not attached to the node yet";
    let mut s = waiting(cause);
    let operations = patched(&s);
    let value = |path: &str| &operations.iter().rfind(|one| one["path"] == path).unwrap()["value"];
    let said = format!("containers with unready status: [c]; {cause}");
    assert_eq!(value("/status/conditions/0")["message"], said);
    assert_eq!(value("/status/conditions/0")["lastTransitionTime"], later(-9).to_string(), "its status is the same");
    assert_eq!(value("/status/containerStatuses")[0]["state"]["waiting"]["message"], cause);

    let conditions = json!([{ "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": said }]);
    let status = json!({ "conditions": conditions, "startTime": later(-9).to_string() });
    s.pod = View::Known(pod("a", json!({ "status": status })));
    assert_eq!(decide(&s, now()).actions, []);
    s.waits_for.sentence = None;
    assert_eq!(decide(&s, now()).actions, [], "while something is on its way the last word stands");
    s.waits_for.sentence = Some("volume \"data\": it cannot be mounted: no".into());
    assert_eq!(decide(&s, now()).actions.len(), 1);
}

#[test]
fn what_is_settled_within_a_second_is_not_worth_a_write() {
    let mut s = waiting("volume \"data\": it is not attached to the node yet");
    let conditions = json!([{ "type": "Ready", "status": "False" }]);
    let status = json!({ "conditions": conditions, "startTime": now().to_string() });
    s.pod = View::Known(pod("a", json!({ "status": status })));
    let decision = decide(&s, now());
    assert_eq!((decision.actions.len(), decision.wake_at), (0, Some(later(1))));
    assert_eq!(decide(&s, later(1)).actions.len(), 1);
}

#[test]
fn s75_a_pod_whose_volume_the_node_cannot_take_is_rejected_and_the_limit_asked_for_again() {
    let mut s = waiting("volume \"data\": it is not attached to the node: full");
    s.waits_for.sentence = None;
    s.waits_for.over_limit.insert("driver".into());
    let decision = decide(&s, now());
    assert_eq!((decision.actions.len(), decision.wake_at), (0, Some(later(123 - 9))));
    let decision = decide(&s, later(123 - 9));
    let [Action::Refresh { driver }, Action::PatchPodStatus { patch: Patch::Merge(body), .. }] = &decision.actions[..]
    else {
        panic!("{decision:?}");
    };
    assert_eq!((driver.as_str(), decision.why), ("driver", Why::Rejected));
    assert_eq!(body["status"]["phase"], "Failed");
    assert_eq!(body["status"]["reason"], "VolumeAttachmentLimitExceeded");
}

#[test]
fn a_deleted_pod_waits_for_its_volumes_then_its_directory_and_the_pod_go() {
    let mut s = Snapshot { pod: deleting(json!({})), noted: known(), held: 1, has_dir: true, ..placed() };
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

/// What it was made of stayed watched until somebody deleted it, and a pod that has ended may stay for ever.
#[test]
fn of_a_pod_that_has_ended_nothing_is_remembered_once_its_volumes_are_unmounted() {
    let ended = View::Known(pod("a", json!({ "status": { "phase": "Succeeded" } })));
    let mut s = Snapshot { pod: ended, noted: known(), held: 1, ..placed() };
    assert_eq!(decide(&s, now()).actions, []);
    s.held = 0;
    assert_eq!(decide(&s, now()).actions, [Action::ForgetPod { uid: "a".into() }]);
    s.noted = None;
    assert_eq!(decide(&s, now()).actions, []);
}

#[test]
fn a_pod_that_is_to_go_when_nobody_holds_it_is_deleted_once() {
    let s = Snapshot { is_abandoned: true, noted: known(), held: 1, mounted: 1, ..placed() };
    assert!(matches!(decide(&s, now()).actions[..], [Action::EndPod { .. }]), "{s:?}");
    let leaving = Snapshot { pod: deleting(json!({})), ..s };
    assert_eq!(decide(&leaving, now()).why, Why::Unmounting);
}

#[test]
fn a_pod_that_vanished_is_forgotten_once_its_volumes_are_unmounted() {
    let mut s = Snapshot { pod: View::Absent, noted: known(), held: 1, has_dir: true, ..placed() };
    assert_eq!(decide(&s, now()).why, Why::Unmounting);
    s.held = 0;
    let (dir, forget) = (Action::RemovePodDir { uid: "a".into() }, Action::ForgetPod { uid: "a".into() });
    assert_eq!(decide(&s, now()).actions, [dir, forget]);
    (s.has_dir, s.noted) = (false, None);
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
    assert_eq!(decide(&Snapshot { has_records: false, ..s }, now()).actions, []);
}

//! Section 4.3 of reference/sidecars-and-csi.md.

use super::*;

fn at() -> &'static str {
    "2026-01-01T00:00:00Z"
}

fn holds(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "lastProbeTime": at(), "lastTransitionTime": at() })
}

fn begun(target: &str) -> Value {
    json!({ "claim": { "status": {
        "allocatedResources": { "storage": target },
        "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
        "conditions": [holds("Resizing")],
    } } })
}

fn called(target: &str, in_doubt: bool, read_first: bool) -> Value {
    json!({ "call": { "expand": target, "by driver": true }, "in doubt": in_doubt, "read first": read_first })
}

#[test]
fn steps_7_to_12_an_expansion_that_the_node_finishes() {
    let mut world = growing();
    world.settle();
    world.expanded("5Gi", 5, true);
    assert_eq!(world.settle().why.resize, Reason::NodesTurn);
    let pending = json!({
        "type": "FileSystemResizePending", "status": "True", "lastProbeTime": at(), "lastTransitionTime": at(),
        "message": "waiting for a node that uses the volume to grow its file system",
    });
    assert_eq!(
        world.log,
        [
            begun("5Gi"),
            called("5Gi", false, false),
            json!({ "volume": {
                "metadata": { "annotations": { PRE_RESIZE_CAPACITY: "1Gi" } },
                "spec": { "capacity": { "storage": "5Gi" } },
            } }),
            json!({ "claim": { "status": {
                "allocatedResourceStatuses": { "storage": "NodeResizePending" },
                "conditions": [holds("Resizing"), pending],
            } } }),
        ]
    );
    assert_eq!(world.told, ["Resizing", "FileSystemResizeRequired"]);

    // The node ends it, as node-and-attach.md 3.12 says: only then the volume's note goes.
    merge(
        &mut world.claim,
        &json!({ "status": {
            "capacity": { "storage": "5Gi" }, "allocatedResourceStatuses": null, "conditions": null,
        } }),
    );
    world.log.clear();
    assert_eq!(world.settle().why.resize, Reason::Settled);
    assert_eq!(world.log, [json!({ "volume": { "metadata": { "annotations": { PRE_RESIZE_CAPACITY: null } } } })]);
}

#[test]
fn steps_7_to_12_an_expansion_without_the_node() {
    let mut world = growing();
    world.settle();
    world.expanded("5Gi", 6, false);
    assert_eq!(world.settle().why.resize, Reason::Settled);
    assert_eq!(
        world.log[2..],
        [
            json!({ "volume": { "spec": { "capacity": { "storage": "6Gi" } } } }),
            json!({ "claim": {
                "metadata": { "annotations": { NODE_EXPANSION_NOT_REQUIRED: "true" } },
                "status": {
                    "capacity": { "storage": "6Gi" }, "allocatedResourceStatuses": { "storage": null },
                    "conditions": null,
                },
            } }),
        ]
    );
    assert_eq!(world.status()["allocatedResources"]["storage"], "5Gi", "kept, as the original keeps it");
    assert_eq!(world.told, ["Resizing", "VolumeResizeSuccessful"]);
}

#[test]
fn what_an_earlier_expansion_left_goes_with_the_next() {
    let mut world = growing();
    world.claim["metadata"]["annotations"] = json!({ NODE_EXPANSION_NOT_REQUIRED: "true" });
    world.claim["status"]["allocatedResources"]["storage"] = json!("1Gi");
    let old = |kind: &str| json!({ "type": kind, "status": "True" });
    world.claim["status"]["conditions"] = json!([old("Unused"), old("NodeResizeError"), old("Resizing")]);
    world.settle();
    let annotations = json!({ NODE_EXPANSION_NOT_REQUIRED: null });
    assert_eq!(world.log[0]["claim"]["metadata"]["annotations"], annotations);
    assert_eq!(world.conditions(), ["Unused", "Resizing"]);
    assert_eq!(world.claim["status"]["conditions"][0], old("Unused"));
}

#[test]
fn a_claim_rests_unless_it_is_bound_to_a_volume_of_ours_and_asks_for_more() {
    let rests = |spoil: fn(&mut World)| {
        let mut world = growing();
        spoil(&mut world);
        world.decide().actions.is_empty()
    };
    assert!(!rests(|_| {}));
    assert!(rests(|world| world.request("1Gi")));
    assert!(rests(|world| world.claim["status"]["phase"] = json!("Pending")));
    assert!(rests(|world| world.facts.expansion = Expansion::Nobody));
}

/// Section 1.8: what each code leaves behind.
#[test]
fn every_code_of_controller_expand_volume_leads_to_its_state() {
    for number in 1..=16 {
        let code = Code::from_i32(number);
        let mut world = growing();
        world.settle();
        world.fail(Kind::Expand, code);
        let decision = world.settle();
        let (resize, conditions, wait) = match code {
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
                ("ControllerResizeInfeasible", vec!["Resizing", "ControllerResizeError"], 300)
            }
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted | Code::ResourceExhausted => {
                ("ControllerResizeInProgress", vec!["Resizing"], 1)
            }
            _ => ("ControllerResizeInProgress", vec!["Resizing", "ControllerResizeError"], 1),
        };
        assert_eq!(world.status()["allocatedResourceStatuses"]["storage"], resize, "{code:?}");
        assert_eq!(world.status()["capacity"]["storage"], "1Gi", "{code:?}");
        assert_eq!(world.conditions(), conditions, "{code:?}");
        assert_eq!(decision.wake_at, Some(now() + SignedDuration::from_secs(wait)), "{code:?}");
        assert_eq!(world.told, ["Resizing", "VolumeResizeFailed"], "{code:?}");

        // And the next attempt of the same size; before it the error goes, so that what is there is the last word.
        world.pass(300);
        world.users = Users::Pods(Vec::new());
        world.settle();
        let in_doubt = conditions.len() == 1;
        assert_eq!(world.calls()[1], &called("5Gi", in_doubt, in_doubt), "{code:?}");
        assert_eq!(world.conditions(), ["Resizing"], "{code:?}");
        assert_eq!(world.told, ["Resizing", "VolumeResizeFailed"], "{code:?}: people know already");
    }
}

#[test]
fn the_error_names_the_code_and_what_the_driver_said() {
    let mut world = growing();
    world.settle();
    world.fail(Kind::Expand, Code::Internal);
    world.settle();
    let error = &world.status()["conditions"][1];
    assert_eq!((&error["reason"], &error["message"]), (&json!("Internal"), &json!("no: Internal")));
}

#[test]
fn an_answer_that_is_too_small_is_a_failure_and_nothing_shrinks() {
    let mut world = growing();
    world.settle();
    world.end(Kind::Expand, State::Failed(Failure { code: TOO_SMALL.into(), message: "0 bytes".into() }));
    world.settle();
    assert_eq!(world.volume["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(world.status()["conditions"][1]["reason"], TOO_SMALL);
    // A volume that was said to be larger stays so, whatever the driver answers.
    let mut world = growing();
    world.volume["spec"]["capacity"]["storage"] = json!("8Gi");
    world.settle();
    world.expanded("5Gi", 5, true);
    world.settle();
    assert_eq!(world.volume["spec"]["capacity"]["storage"], "8Gi");
}

#[test]
fn a_secret_that_is_missing_is_told_and_says_nothing_about_the_volume() {
    let mut world = growing();
    world.settle();
    let missing = Failure { code: "SecretUnavailable".into(), message: "secret shop/s does not exist".into() };
    world.end(Kind::Expand, State::Failed(missing));
    world.settle();
    assert_eq!(world.conditions(), ["Resizing"]);
    assert_eq!(world.told, ["Resizing", "VolumeResizeFailed"]);
}

/// external-resizer#132: an impossible request must not wedge the claim.
#[test]
fn an_impossible_request_is_taken_back_at_once_and_the_smaller_size_is_tried() {
    for code in [Code::OutOfRange, Code::Internal] {
        let mut world = growing();
        world.settle();
        world.fail(Kind::Expand, code);
        world.settle();
        world.request("3Gi");
        world.settle();
        assert_eq!(world.calls()[1], &called("3Gi", false, false), "{code:?}");
        assert_eq!(world.status()["allocatedResources"]["storage"], "3Gi", "{code:?}");
        assert_eq!(world.conditions(), ["Resizing"], "{code:?}");
    }
}

#[test]
fn an_expansion_that_may_be_under_way_is_followed_up_before_a_smaller_size_is_tried() {
    let mut world = growing();
    world.settle();
    world.fail(Kind::Expand, Code::DeadlineExceeded);
    world.request("3Gi");
    world.settle();
    assert_eq!(world.calls().len(), 1);
    world.pass(1);
    world.settle();
    assert_eq!(world.calls()[1], &called("5Gi", true, true));
    world.fail(Kind::Expand, Code::OutOfRange);
    world.settle();
    assert_eq!(world.calls()[2], &called("3Gi", false, false));
}

/// 4.7: after a restart the claim alone tells.
#[test]
fn after_a_restart_the_claims_own_words_say_whether_anything_may_be_growing() {
    for (code, target) in [(Some(Code::Internal), "3Gi"), (Some(Code::Aborted), "5Gi"), (None, "5Gi")] {
        let mut world = growing();
        world.settle();
        if let Some(code) = code {
            world.fail(Kind::Expand, code);
            world.settle();
        }
        (world.expand, world.known, world.log) = (None, Known::default(), Vec::new());
        world.request("3Gi");
        world.settle();
        let in_doubt = target == "5Gi";
        assert_eq!(world.calls(), [&called(target, in_doubt, in_doubt)], "{code:?}");
    }
    // The original's error has no reason, and may be older than its last call.
    let mut world = growing();
    world.settle();
    world.claim["status"]["conditions"] = json!([holds("Resizing"), holds("ControllerResizeError")]);
    world.expand = None;
    world.request("3Gi");
    world.settle();
    assert_eq!(world.calls()[1]["call"]["expand"], "5Gi");
}

/// 4.7: expand OK, PV not patched; PV patched, PVC not.
#[test]
fn a_crash_after_the_call_repeats_it_and_goes_on() {
    for volume in ["1Gi", "5Gi"] {
        let mut world = growing();
        world.settle();
        world.volume["spec"]["capacity"]["storage"] = json!(volume);
        (world.expand, world.known, world.log) = (None, Known::default(), Vec::new());
        world.settle();
        assert_eq!(world.calls(), [&called("5Gi", true, true)], "{volume}");
        world.expanded("5Gi", 5, false);
        world.settle();
        assert_eq!(world.status()["capacity"]["storage"], "5Gi");
    }
}

/// kubernetes/kubernetes#131402: a write without an answer that was done after all is not done again.
#[test]
fn what_the_claim_says_already_is_not_said_again() {
    let mut world = growing();
    world.settle();
    world.expanded("5Gi", 5, true);
    let done = world.expand.clone();
    world.settle();
    world.expand = done.clone();
    assert_eq!(world.settle().why.resize, Reason::NodesTurn);
    let lines = world.log.len();
    merge(
        &mut world.claim,
        &json!({ "status": { "capacity": { "storage": "5Gi" }, "allocatedResourceStatuses": null } }),
    );
    world.expand = done;
    world.settle();
    assert_eq!(world.log.len(), lines + 1, "only the volume's note goes: {:#?}", world.log);
}

#[test]
fn a_request_that_grew_meanwhile_is_served_after_the_one_under_way() {
    let mut world = growing();
    world.settle();
    world.request("9Gi");
    world.expanded("5Gi", 5, false);
    world.settle();
    assert_eq!(world.status()["allocatedResources"]["storage"], "9Gi");
    assert_eq!(world.calls()[1]["call"]["expand"], "9Gi");
    assert_eq!(world.told, ["Resizing", "VolumeResizeSuccessful", "Resizing"]);
}

#[test]
fn a_volume_in_use_waits_for_its_pods_and_not_for_a_timer() {
    let mut world = growing();
    world.settle();
    world.fail(Kind::Expand, Code::FailedPrecondition);
    let decision = world.settle();
    assert_eq!((decision.why.resize, &world.users), (Reason::Waiting, &Users::Unlisted), "pods are looked at");
    world.users = Users::Pods(vec!["web".into()]);
    world.pass(3600);
    let decision = world.settle();
    assert_eq!(decision.why.resize, Reason::InUse);
    assert_eq!(world.calls().len(), 1);
    assert_eq!(world.conditions(), ["Resizing", "ControllerResizeError"]);
    world.users = Users::Pods(Vec::new());
    world.settle();
    assert_eq!(world.calls().len(), 2, "at once, for its backoff is over");
}

#[test]
fn without_handle_volume_inuse_error_pods_are_never_looked_at() {
    let mut world = growing();
    world.facts.options.handle_volume_in_use = false;
    world.settle();
    world.fail(Kind::Expand, Code::FailedPrecondition);
    world.settle();
    assert_eq!(world.users, Users::Unwatched);
    world.pass(1);
    world.settle();
    assert_eq!(world.calls().len(), 2);
}

/// A node's last word about a size that only we had said.
#[test]
fn where_only_nodes_expand_a_size_that_none_reached_is_taken_back_from_the_volume_too() {
    let mut world = growing();
    world.facts.expansion = Expansion::Node;
    world.request("10Gi");
    world.settle();
    world.expanded("10Gi", 10, true);
    world.settle();
    assert_eq!(world.volume["spec"]["capacity"]["storage"], "10Gi");
    merge(
        &mut world.claim,
        &json!({ "status": { "allocatedResourceStatuses": { "storage": "NodeResizeInfeasible" } } }),
    );
    world.request("5Gi");
    world.settle();
    world.expanded("5Gi", 5, true);
    assert_eq!(world.settle().why.resize, Reason::NodesTurn);
    assert_eq!(world.volume["spec"]["capacity"]["storage"], "5Gi");
    merge(
        &mut world.claim,
        &json!({ "status": {
            "capacity": { "storage": "5Gi" }, "allocatedResourceStatuses": null, "conditions": null,
        } }),
    );
    assert_eq!(world.settle().why.resize, Reason::Settled);
    assert!(world.volume["metadata"]["annotations"].get(PRE_RESIZE_CAPACITY).is_none(), "nothing is left of it");
}

#[test]
fn what_became_of_one_size_is_not_said_of_another_whose_write_lost_its_answer() {
    let mut world = growing();
    world.request("100Gi");
    world.settle();
    world.fail(Kind::Expand, Code::OutOfRange);
    world.settle();
    let refused = world.expand.clone();
    world.request("3Gi");
    world.settle();
    // The write that begins the second is stored, its answer is lost, and so no call was begun.
    (world.expand, world.log) = (refused, Vec::new());
    world.settle();
    assert_eq!(world.calls(), [&called("3Gi", false, true)]);
    assert_eq!(world.status()["allocatedResourceStatuses"]["storage"], "ControllerResizeInProgress");
    assert_eq!(world.conditions(), ["Resizing"]);
}

#[test]
fn where_only_nodes_expand_the_node_is_asked_at_once() {
    let mut world = growing();
    world.facts.expansion = Expansion::Node;
    world.settle();
    assert_eq!(world.calls()[0]["call"], json!({ "expand": "5Gi", "by driver": false }));
}

#[test]
fn without_recovery_only_conditions_tell() {
    let mut world = growing();
    world.facts.options.gates = Gates { recover_volume_expansion_failure: false, ..Gates::default() };
    world.settle();
    assert_eq!(world.log[0], json!({ "claim": { "status": { "conditions": [holds("Resizing")] } } }));
    world.fail(Kind::Expand, Code::OutOfRange);
    world.settle();
    assert_eq!((world.conditions(), world.told.len()), (vec!["Resizing"], 2));
    world.pass(1);
    world.settle();
    assert_eq!(world.calls().len(), 2, "nothing is slow without recovery");
    world.fail(Kind::Expand, Code::OutOfRange);
    world.request("6Gi");
    world.settle();
    assert_eq!(world.calls()[2]["call"]["expand"], "6Gi", "another size is tried at once");
    world.expanded("6Gi", 6, true);
    assert_eq!(world.settle().why.resize, Reason::NodesTurn);
    assert_eq!(world.conditions(), ["FileSystemResizePending"]);
    assert!(world.status().get("allocatedResources").is_none());

    let mut world = growing();
    world.facts.options.gates = Gates { recover_volume_expansion_failure: false, ..Gates::default() };
    world.settle();
    world.expanded("5Gi", 5, false);
    world.settle();
    assert_eq!(world.status()["capacity"]["storage"], "5Gi");
    assert!(world.conditions().is_empty() && world.claim["metadata"].get("annotations").is_none());
}

#[test]
fn without_annotate_fs_resize_the_volume_gets_no_note_and_loses_none() {
    let mut world = growing();
    world.facts.options.gates = Gates { annotate_fs_resize: false, ..Gates::default() };
    world.settle();
    world.expanded("5Gi", 5, true);
    world.settle();
    assert_eq!(world.log[2], json!({ "volume": { "spec": { "capacity": { "storage": "5Gi" } } } }));
}

#[test]
fn what_cannot_be_asked_is_told_and_not_tried() {
    let mut world = growing();
    world.volume["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadWriteOncePod"]);
    assert!(matches!(world.settle().why.resize, Reason::Blocked(Problem::MapModes { .. })));
    assert_eq!((world.told, world.log), (vec!["VolumeResizeFailed"], Vec::new()));
}

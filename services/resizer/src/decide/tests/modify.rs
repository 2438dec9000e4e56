//! Section 4.4 of reference/sidecars-and-csi.md.

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;

use super::*;

fn modifying(world: &World) -> (Option<&str>, Option<&str>) {
    let state = &world.status()["modifyVolumeStatus"];
    (state["targetVolumeAttributesClassName"].as_str(), state["status"].as_str())
}

#[test]
fn steps_6_to_8_a_change_of_class() {
    let mut world = changing();
    world.settle();
    world.end(Kind::Modify, State::Done(Answer::Modified("gold".into())));
    assert_eq!(world.settle().why.modify, Reason::Settled);
    let at = "2026-01-01T00:00:00Z";
    assert_eq!(
        world.log,
        [
            json!({ "claim": { "status": {
                "modifyVolumeStatus": { "targetVolumeAttributesClassName": "gold", "status": "InProgress" },
                "conditions": [{
                    "type": "ModifyingVolume", "status": "True", "lastProbeTime": at, "lastTransitionTime": at,
                    "message": "the volume is being changed to \"gold\"",
                }],
            } } }),
            json!({ "call": { "modify": "gold" }, "in doubt": false, "read first": false }),
            json!({ "volume": { "spec": { "volumeAttributesClassName": "gold" } } }),
            json!({ "claim": { "status": {
                "currentVolumeAttributesClassName": "gold", "modifyVolumeStatus": null, "conditions": null,
            } } }),
        ]
    );
    assert_eq!(world.told, ["VolumeModify", "VolumeModifySuccessful"]);
}

#[test]
fn every_code_of_controller_modify_volume_leads_to_its_state() {
    for number in 1..=16 {
        let code = Code::from_i32(number);
        let mut world = changing();
        world.settle();
        world.fail(Kind::Modify, code);
        let decision = world.settle();
        let (status, wait) = match code {
            Code::InvalidArgument => ("Infeasible", 300),
            _ => ("InProgress", 1),
        };
        assert_eq!(modifying(&world), (Some("gold"), Some(status)), "{code:?}");
        assert_eq!(world.conditions(), ["ModifyingVolume", "ModifyVolumeError"], "{code:?}");
        assert_eq!(world.status()["conditions"][1]["reason"], code::name(code));
        assert_eq!(world.status()["currentVolumeAttributesClassName"], "silver", "{code:?}");
        assert_eq!(decision.wake_at, Some(now() + SignedDuration::from_secs(wait)), "{code:?}");
        assert_eq!(world.told, ["VolumeModify", "VolumeModifyFailed"], "{code:?}");
        world.pass(wait.unsigned_abs());
        world.settle();
        assert_eq!(world.calls().len(), 2, "{code:?}");

        // Another class is tried at once, unless the first may still come into effect.
        let mut world = changing();
        world.settle();
        world.fail(Kind::Modify, code);
        world.settle();
        world.claim["spec"]["volumeAttributesClassName"] = json!("bronze");
        world.settle();
        let uncertain = outcome(Kind::Modify, &failure(code)) == Some(Outcome::Uncertain);
        let expected = if uncertain { 1 } else { 2 };
        assert_eq!(world.calls().len(), expected, "{code:?}");
        world.pass(1);
        world.settle();
        let class = if uncertain { "gold" } else { "bronze" };
        assert_eq!(world.calls()[1]["call"]["modify"], class, "{code:?}");
    }
}

#[test]
fn after_a_restart_what_is_in_progress_is_followed_up_first() {
    let mut world = changing();
    world.settle();
    (world.modify, world.known, world.log) = (None, Known::default(), Vec::new());
    world.claim["spec"]["volumeAttributesClassName"] = json!("bronze");
    world.settle();
    assert_eq!(world.log, [json!({ "call": { "modify": "gold" }, "in doubt": true, "read first": true })]);
    world.end(Kind::Modify, State::Done(Answer::Modified("gold".into())));
    world.settle();
    assert_eq!(world.status()["currentVolumeAttributesClassName"], "gold");
    assert_eq!(modifying(&world), (Some("bronze"), Some("InProgress")));
}

#[test]
fn a_class_that_does_not_exist_is_waited_for() {
    let mut world = changing();
    world.class = None;
    assert_eq!(world.settle().why.modify, Reason::AwaitingClass);
    assert_eq!((modifying(&world), world.conditions()), ((Some(""), Some("Pending")), vec![]));
    assert_eq!(world.told, ["VolumeModifyFailed"]);
    world.class = Some("d.example");
    world.settle();
    assert_eq!(modifying(&world), (Some("gold"), Some("InProgress")));
    assert_eq!(world.calls().len(), 1);
}

#[test]
fn a_class_of_another_driver_is_not_sent_to_ours() {
    let mut world = changing();
    world.class = Some("other.example");
    assert_eq!(world.settle().why.modify, Reason::AwaitingClass);
    assert!(world.calls().is_empty());
    assert_eq!(modifying(&world).1, Some("Pending"));
}

#[test]
fn a_class_that_went_while_a_change_to_it_may_be_under_way_leaves_the_status_alone() {
    let mut world = changing();
    world.settle();
    (world.modify, world.class) = (None, None);
    world.settle();
    assert_eq!(modifying(&world), (Some("gold"), Some("InProgress")));
    assert_eq!(world.told, ["VolumeModify", "VolumeModifyFailed"]);
}

#[test]
fn a_change_that_nobody_wants_any_more_is_canceled_once_nothing_is_under_way() {
    let mut world = changing();
    world.claim["status"].as_object_mut().unwrap().remove("currentVolumeAttributesClassName");
    world.settle();
    world.fail(Kind::Modify, Code::InvalidArgument);
    world.settle();
    world.claim["spec"]["volumeAttributesClassName"] = Value::Null;
    world.settle();
    assert_eq!(world.conditions(), ["ModifyVolumeError"]);
    assert_eq!(world.told.last(), Some(&"VolumeModifyCanceled"));
    // In progress it is followed up.
    let mut world = changing();
    world.settle();
    world.fail(Kind::Modify, Code::Internal);
    world.claim["spec"]["volumeAttributesClassName"] = Value::Null;
    world.settle();
    world.pass(1);
    world.settle();
    assert_eq!(world.calls()[1]["call"]["modify"], "gold");
}

/// external-resizer#458: the two do not write over each other, nor call at the same time.
#[test]
fn a_claim_that_grows_and_changes_does_one_after_the_other() {
    let mut world = growing();
    world.claim["spec"]["volumeAttributesClassName"] = json!("gold");
    world.settle();
    assert_eq!(world.calls().len(), 1, "one call at a time");
    world.expanded("5Gi", 5, false);
    world.settle();
    assert_eq!(world.calls()[1]["call"]["modify"], "gold");
    world.request("9Gi");
    world.settle();
    assert_eq!(world.calls().len(), 2);
    world.end(Kind::Modify, State::Done(Answer::Modified("gold".into())));
    world.settle();
    assert_eq!(world.calls()[2]["call"]["expand"], "9Gi");
    assert_eq!(world.conditions(), ["Resizing"]);
    // While the one waits for its next try, the other goes on.
    world.fail(Kind::Expand, Code::Internal);
    world.claim["spec"]["volumeAttributesClassName"] = json!("bronze");
    world.settle();
    assert_eq!(world.calls()[3]["call"]["modify"], "bronze");
    assert_eq!(world.conditions(), ["Resizing", "ControllerResizeError", "ModifyingVolume"]);
}

#[test]
fn what_is_switched_off_or_not_of_csi_is_left_alone() {
    let spoils: [fn(&mut World); 3] = [
        |world| {
            world.facts.modifies = false;
            world.facts.options.gates.volume_attributes_class = false;
        },
        |world| {
            world.facts.modifies = false;
            world.facts.calls.insert(Call::ModifyVolume);
        },
        |world| {
            world.volume["spec"].as_object_mut().unwrap().remove("csi");
            world.volume["spec"]["hostPath"] = json!({ "path": "/data" });
        },
    ];
    for spoil in spoils {
        let mut world = changing();
        spoil(&mut world);
        assert_eq!(world.settle().why.modify, Reason::Unsupported);
        assert!(world.log.is_empty() && world.told.is_empty());
    }
}

#[test]
fn who_asks_a_driver_for_a_change_that_makes_none_hears_so_and_nothing_is_written() {
    let mut world = changing();
    world.facts.modifies = false;
    assert!(matches!(world.settle().why.modify, Reason::Blocked(Problem::ModifyNothing { .. })));
    assert_eq!((world.told.as_slice(), world.log.len()), (&["VolumeModifyFailed"][..], 0));
    world.claim["spec"]["volumeAttributesClassName"] = json!("silver");
    assert_eq!(world.settle().why.modify, Reason::Unsupported);
}

#[test]
fn what_became_of_one_class_is_not_said_of_another_whose_write_lost_its_answer() {
    let mut world = changing();
    world.settle();
    world.fail(Kind::Modify, Code::InvalidArgument);
    world.settle();
    let refused = world.modify.clone();
    world.claim["spec"]["volumeAttributesClassName"] = json!("bronze");
    world.settle();
    assert_eq!(world.calls().len(), 2);
    // The write that begins the second is stored, its answer is lost, and so no call was begun.
    world.modify = refused;
    world.settle();
    assert_eq!(modifying(&world), (Some("bronze"), Some("InProgress")));
    assert_eq!((world.conditions(), world.calls().len()), (vec!["ModifyingVolume"], 3));
}

#[test]
fn a_change_that_waits_for_its_turn_lets_the_size_go_first_and_one_that_was_sent_does_not() {
    for is_in_line in [true, false] {
        let mut world = changing();
        world.settle();
        world.modify.as_mut().unwrap().is_in_line = is_in_line;
        world.request("9Gi");
        world.settle();
        let asked = |world: &World| world.calls().last().unwrap()["call"].clone();
        let first = if is_in_line { "expand" } else { "modify" };
        assert!(!asked(&world)[first].is_null(), "{}", asked(&world));
        if is_in_line {
            world.expanded("9Gi", 9, false);
            world.pass(1);
            world.settle();
            assert_eq!(asked(&world)["modify"], "gold");
        }
        assert!(!world.told.contains(&"VolumeModifyFailed"));
    }
}

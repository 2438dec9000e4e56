//! Whatever a claim says and however calls end: deciding comes to rest, and nothing shrinks.

use proptest::prelude::*;

use stowage_model::resize::ResizeStatus;

use super::*;

fn size() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["1Gi", "3Gi", "5Gi", "9Gi"])
}

fn resize_status() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NewerThanUs",
    ])
}

fn conditions() -> impl Strategy<Value = Value> {
    let kinds = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "ModifyingVolume", "Unused"];
    let condition = |(kind, reason): (&str, &str)| json!({ "type": kind, "status": "True", "reason": reason });
    let each = (prop::sample::select(kinds.to_vec()), prop::sample::select(vec!["", "Internal"])).prop_map(condition);
    prop::collection::vec(each, 0..3).prop_map(|list| {
        let mut seen = std::collections::BTreeSet::new();
        list.into_iter().filter(|c| seen.insert(c["type"].to_string())).collect()
    })
}

fn class() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::of(prop::sample::select(vec!["gold", "silver"]))
}

fn modify_status() -> impl Strategy<Value = Option<(&'static str, &'static str)>> {
    let words = prop::sample::select(vec!["Pending", "InProgress", "Infeasible"]);
    prop::option::of((prop::sample::select(vec!["gold", "silver"]), words))
}

prop_compose! {
    fn worlds()(
        requested in size(), allocated in prop::option::of(size()), volume in size(),
        resize in resize_status(), conditions in conditions(),
        wanted in class(), current in class(), modifying in modify_status(),
        has_class in any::<bool>(), recovers in any::<bool>(), annotated in any::<bool>(),
        expansion in prop::sample::select(vec![Expansion::Controller, Expansion::Node, Expansion::Nobody]),
    ) -> World {
        let mut world = growing();
        world.request(requested);
        world.volume["spec"]["capacity"]["storage"] = json!(volume);
        if annotated {
            world.volume["metadata"]["annotations"] = json!({ PRE_RESIZE_CAPACITY: "1Gi" });
        }
        world.claim["spec"]["volumeAttributesClassName"] = json!(wanted);
        let status = &mut world.claim["status"];
        status["allocatedResources"]["storage"] = json!(allocated);
        status["allocatedResourceStatuses"]["storage"] = json!(resize);
        status["conditions"] = conditions;
        status["currentVolumeAttributesClassName"] = json!(current);
        status["modifyVolumeStatus"] =
            modifying.map_or(Value::Null, |(target, status)| json!({ "targetVolumeAttributesClassName": target, "status": status }));
        world.class = has_class.then_some("d.example");
        world.facts.expansion = expansion;
        world.facts.options.gates.recover_volume_expansion_failure = recovers;
        world
    }
}

/// At rest a claim has what it asks for, or it is said who has to do something.
fn has_come_to(world: &World, why: &Why) -> Result<(), TestCaseError> {
    let claim = world.claim();
    match why.resize {
        Reason::Settled => prop_assert!(claim.capacity() >= claim.requested()),
        Reason::NodesTurn => {
            prop_assert!(world.volume().capacity() > claim.capacity() || claim.resize() != ResizeStatus::Nothing)
        }
        Reason::Unsupported => prop_assert_eq!(world.facts.expansion, Expansion::Nobody),
        _ => prop_assert!(false, "{:?}", why),
    }
    match why.modify {
        Reason::Settled => {
            prop_assert!(claim.wanted_class().is_empty() || claim.wanted_class() == claim.current_class())
        }
        Reason::AwaitingClass => prop_assert!(world.class.is_none()),
        _ => prop_assert!(false, "{:?}", why),
    }
    Ok(())
}

/// How calls end, one after the other; then they go well.
fn endings() -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(0..=16, 0..4)
}

fn bytes(world: &World) -> (i128, i128) {
    (world.claim().capacity().bytes(), world.volume().capacity().bytes())
}

proptest! {
    #[test]
    fn it_comes_to_rest_whatever_the_driver_answers(world in worlds(), endings in endings(), for_node in any::<bool>()) {
        let mut world = world;
        let mut endings = endings.into_iter();
        for round in 0..30 {
            let before = bytes(&world);
            let decision = world.settle();
            let after = bytes(&world);
            // Where only nodes expand, the volume's size is what we say ourselves.
            let by_nodes = world.facts.expansion == Expansion::Node;
            prop_assert!(after.0 >= before.0 && after.1 >= after.0.min(before.1), "from {before:?} to {after:?}");
            prop_assert!(by_nodes || after.1 >= before.1, "shrunk from {before:?} to {after:?}");
            let running = |tried: &Option<Tried>| tried.as_ref().is_some_and(|tried| tried.record.is_running());
            let kind = match (running(&world.expand), running(&world.modify)) {
                (true, true) => panic!("two calls at a time"),
                (true, false) => Kind::Expand,
                (false, true) => Kind::Modify,
                (false, false) => {
                    // Events that are told again before the server forgets them go on for ever.
                    let again = world.now + SignedDuration::from_mins(10);
                    let Some(at) = decision.wake_at.filter(|at| *at <= again) else { return has_come_to(&world, &decision.why) };
                    prop_assert!(round < 29, "no rest: {:?}", decision.why);
                    world.now = at;
                    continue;
                }
            };
            match (endings.next().map(Code::from_i32), kind) {
                (Some(code), kind) if code != Code::Ok => {
                    world.users = Users::Pods(Vec::new());
                    world.fail(kind, code);
                }
                (_, Kind::Expand) => {
                    let called = world.calls().last().unwrap()["call"]["expand"].as_str().unwrap().to_owned();
                    let size: Quantity = called.parse().unwrap();
                    let for_node = for_node || world.facts.expansion == Expansion::Node;
                    let expanded = Expanded { target: size, size, for_node };
                    world.end(Kind::Expand, State::Done(Answer::Expanded(expanded)));
                }
                (_, Kind::Modify) => {
                    let class = world.calls().last().unwrap()["call"]["modify"].as_str().unwrap().to_owned();
                    world.end(Kind::Modify, State::Done(Answer::Modified(class)));
                }
            }
        }
        prop_assert!(false, "no rest");
    }
}

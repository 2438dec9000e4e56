//! The resync looks at everything, and looking is only looking.

use stowage_runtime::engine::assert_quiet;

use super::*;

/// Pods and nodes in every state that has a snapshot of its own.
fn busy_cluster() -> World {
    let mut world = two_nodes();
    world.limit("a", 1).limit("b", 1);
    let mut silent = node("silent");
    silent["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    world.node(silent).node(node("unknown"));
    world.caches.nodes.mark_unknown(&Key::cluster("unknown"));
    for name in ["a", "b", "silent"] {
        world.controller.heartbeats.appeared(name, Duration::ZERO);
    }

    world.volume(volume("v1", "1Gi", "a")).volume(volume("free", "5Gi", "b")).claim(bound("bound", "v1"));
    world.claim(claim("matched", "waits", "5Gi")).claim(claim("made", "waits", "9Gi"));
    world.claim(claim("given-back", "waits", "1Gi"));
    world.controller.failures.add(&key("given-back"), "a", NOW);
    world.pod(pod("bound", &["bound"])).pod(pod("prepared", &["matched"])).pod(pod("stuck", &["missing"]));
    world.pod(pod("mixed", &["matched", "made"])).pod(pod("backs-off", &["given-back"])).pod(pod("plain", &[]));

    let mut placed = pod("placed", &["bound"]);
    placed["spec"]["nodeName"] = "a".into();
    let mut orphan = pod("orphan", &[]);
    orphan["spec"]["nodeName"] = "gone".into();
    let mut anothers = pod("anothers", &[]);
    anothers["spec"]["schedulerName"] = "another".into();
    world.pod(placed).pod(orphan).pod(anothers).pod(pod("unanswered", &[]));
    world.caches.pods.mark_unknown(&key("unanswered"));
    world
}

/// Looks now and later, as the resync does.
fn look(world: &World) {
    let memory =
        || (world.controller.assumed.all(), world.controller.heartbeats.len(), world.queue.adds(), world.queue.len());
    for now in [NOW, NOW + SignedDuration::from_mins(2)] {
        *world.clock.0.lock().unwrap() = now;
        let before = memory();
        assert_quiet(&world.controller, now);
        assert_eq!(memory(), before);
    }
}

#[test]
fn gathering_and_deciding_change_nothing_before_and_after_decisions_are_noted() {
    let mut world = busy_cluster();
    look(&world);
    for name in ["bound", "prepared", "mixed", "backs-off", "orphan", "unanswered"] {
        world.decide(name);
    }
    world.settle("stuck");
    assert!(!world.controller.assumed.all().is_empty());
    look(&world);
}

/// The probe noticed for the first time that a node was missing, and so began the quarantine.
#[test]
fn only_a_decision_that_is_noted_begins_the_quarantine_of_a_missing_node() {
    let mut world = World::default();
    let mut orphan = pod("orphan", &[]);
    orphan["spec"]["nodeName"] = "gone".into();
    world.pod(orphan);
    assert_quiet(&world.controller, NOW);
    assert_eq!(world.controller.heartbeats.missing_since("gone"), None);
    world.decide("orphan");
    assert_eq!(world.controller.heartbeats.missing_since("gone"), Some(Duration::ZERO));
}

//! Scenarios of the reference, 8.15 and 8.16: room that provisioners publish, and drivers that pods are kept near to.

use super::*;
use crate::decide::obstacle::{Reason, Unschedulable};
use crate::snapshot::rooms::LOOKS;

impl World {
    fn driver(&mut self, spec: Value) -> &mut Self {
        self.put(|caches| &caches.drivers, json!({ "metadata": { "name": DRIVER }, "spec": spec }));
        self
    }

    /// What is published for one node.
    fn room(&mut self, node: &str, class: &str, spoil: impl FnOnce(&mut Value)) -> &mut Self {
        let mut object = json!({
            "metadata": { "namespace": "storage", "name": format!("csisc-{node}-{class}") },
            "storageClassName": class,
            "nodeTopology": { "matchLabels": { "kubernetes.io/hostname": node } },
        });
        spoil(&mut object);
        self.put(|caches| &caches.capacities, object);
        self
    }

    fn size(&mut self, node: &str, class: &str, size: &str) -> &mut Self {
        self.room(node, class, |object| object["capacity"] = size.into())
    }

    /// Where the pod is sent first.
    fn sent_to(&self, name: &str) -> String {
        let decision = self.decide(name);
        decision.why.heading_for().unwrap_or_else(|| panic!("it is sent nowhere: {:?}", decision.why)).to_owned()
    }
}

/// Two nodes, and a pod whose claim needs a new volume of 10Gi from a driver that wants room looked at.
fn wanting_room() -> World {
    let mut world = two_nodes();
    world.driver(json!({ "storageCapacity": true })).claim(claim("c", "waits", "10Gi")).pod(pod("p", &["c"]));
    world
}

const FULL: &str = "no node of 2 will do: 2 without enough free storage for a new volume (a, b)";

#[test]
fn s8_15_a_node_with_room_is_chosen_and_one_without_is_not() {
    let mut world = wanting_room();
    world.size("a", "waits", "9Gi").size("b", "waits", "10Gi");
    assert_eq!(world.sent_to("p"), "b");
}

#[test]
fn s8_15_too_little_elsewhere_of_another_class_or_unknown_is_no_room() {
    type Spoil = fn(&mut Value);
    let spoiled: [Spoil; 6] = [
        |object| object["capacity"] = "9Gi".into(),
        |object| object["capacity"] = "0".into(),
        |_| {},
        // The largest volume counts before all the room there is.
        |object| (object["capacity"], object["maximumVolumeSize"]) = ("100Gi".into(), "9Gi".into()),
        |object| {
            object["capacity"] = "100Gi".into();
            object["nodeTopology"]["matchLabels"]["kubernetes.io/hostname"] = "elsewhere".into();
        },
        |object| {
            object["capacity"] = "100Gi".into();
            object["nodeTopology"] = json!({ "matchLabels": { "zone": "a" } });
        },
    ];
    for spoil in spoiled {
        let mut world = wanting_room();
        world.room("a", "waits", spoil);
        assert_eq!(world.message("p"), FULL);
    }
    let mut world = wanting_room();
    world.size("a", "other", "100Gi");
    let message = world.message("p");
    assert!(message.contains("no CSIStorageCapacity tells the room of class \"waits\""), "{message}");
}

#[test]
fn s8_15_storage_that_is_reached_from_everywhere_is_room_everywhere() {
    let mut world = wanting_room();
    world.room("x", "waits", |object| (object["capacity"], object["nodeTopology"]) = ("10Gi".into(), json!({})));
    assert_eq!(world.sent_to("p"), "a");
}

#[test]
fn s8_15_room_matters_only_where_the_driver_asks_for_it() {
    for spec in [json!({ "storageCapacity": false }), json!({})] {
        let mut world = wanting_room();
        world.driver(spec).size("a", "waits", "1Gi");
        assert_eq!(world.sent_to("p"), "a");
    }
    let mut world = two_nodes();
    world.claim(claim("c", "waits", "10Gi")).pod(pod("p", &["c"])).size("a", "waits", "1Gi");
    assert_eq!(world.sent_to("p"), "a", "without a CSIDriver");
}

#[test]
fn s8_15_a_free_volume_needs_no_room() {
    let mut world = wanting_room();
    world.size("a", "waits", "0").size("b", "waits", "0").volume(volume("v", "10Gi", "b"));
    assert_eq!(world.sent_to("p"), "b");
}

#[test]
fn a_volume_that_is_being_made_is_waited_for_although_it_takes_the_last_room() {
    let mut world = wanting_room();
    world.size("a", "waits", "10Gi");
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "a".into() });
    world.size("a", "waits", "0");
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "a".into() });
}

#[test]
fn many_nodes_without_room_are_not_all_named() {
    let full = (0..7).map(|n| format!("n{n}")).collect();
    let reasons = [(Reason::NoRoom, 7), (Reason::Affinity, 1)].into();
    assert_eq!(
        Unschedulable::Nodes { nodes: 8, reasons, full }.to_string(),
        "no node of 8 will do: 1 outside of the pod's node selector or affinity, 7 without enough free storage for a new \
         volume (n0, n1, n2, n3, n4 and 2 more)"
    );
}

#[test]
fn s8_16_the_node_with_most_room_left_is_preferred() {
    for (sizes, best) in [(["100Gi", "50Gi"], "a"), (["50Gi", "100Gi"], "b"), (["10Gi", "11Gi"], "b")] {
        let mut world = wanting_room();
        world.size("a", "waits", sizes[0]).size("b", "waits", sizes[1]);
        assert_eq!(world.sent_to("p"), best, "{sizes:?}");
    }
}

#[test]
fn s8_16_scores_are_those_of_kube_scheduler() {
    use crate::decide::room::{Demand, score};
    use crate::decide::volumes::PodVolumes;
    let size = |gi: i64| stowage_model::Quantity::from_bytes(gi << 30);
    let dynamic = |demands: &[(&'static str, i64, i64)]| {
        let demand = |(class, requested, capacity): &(&'static str, i64, i64)| Demand {
            class,
            requested: size(*requested),
            capacity: size(*capacity),
        };
        score(&PodVolumes { demands: demands.iter().map(demand).collect(), ..PodVolumes::default() })
    };
    assert_eq!([100, 50, 10].map(|capacity| dynamic(&[("c", 10, capacity)])), [90, 80, 0]);
    assert_eq!(dynamic(&[("c", 50, 100), ("c", 50, 100)]), 0, "sizes of one class are summed, its room is not");
    assert_eq!(dynamic(&[("c", 50, 200), ("d", 50, 100)]), 63, "the mean of classes, rounded");
    assert_eq!((dynamic(&[]), dynamic(&[("c", 10, 0)]), dynamic(&[("c", 20, 10)])), (0, 0, 0));
    let claims = [claim("c", "one", "50Gi"), claim("d", "two", "50Gi")].map(|c| serde_json::from_value(c).unwrap());
    let volumes = [volume("v", "200Gi", ""), volume("w", "100Gi", "")].map(|v| serde_json::from_value(v).unwrap());
    let fixed = |pairs: &[(usize, usize)]| {
        let static_bindings = pairs.iter().map(|(claim, volume)| (&claims[*claim], &volumes[*volume])).collect();
        // With static bindings new volumes do not count.
        let demands = vec![Demand { class: "three", requested: size(1), capacity: size(1) }];
        score(&PodVolumes { static_bindings, demands, ..PodVolumes::default() })
    };
    assert_eq!((fixed(&[(0, 0)]), fixed(&[(0, 1)]), fixed(&[(0, 0), (1, 1)])), (75, 50, 63));
}

#[test]
fn room_that_comes_or_grows_wakes_the_pods_that_wait_for_it_and_less_wakes_nobody() {
    let mut world = wanting_room();
    let woken = |world: &mut World, size: &str| {
        let before = world.caches.capacities.get(&Key::namespaced("storage", "csisc-a-waits"));
        world.size("a", "waits", size);
        let after = world.caches.capacities.get(&Key::namespaced("storage", "csisc-a-waits"));
        let key = Key::namespaced("storage", "csisc-a-waits");
        let change = stowage_runtime::cache::Change::new(&key, before.as_ref(), after.as_ref());
        world.controller.capacity_changed(&change).len()
    };
    assert_eq!(["5Gi", "5Gi", "4Gi", "6Gi"].map(|size| woken(&mut world, size)), [1, 0, 0, 1]);
}

#[test]
fn s8_16_a_pod_stays_away_from_nodes_without_a_driver_that_asks_for_it() {
    let mut world = two_nodes();
    world.driver(json!({ "preventPodSchedulingIfMissing": true }));
    world.volume(volume("v", "1Gi", "")).claim(bound("c", "v")).pod(pod("p", &["c"]));
    let nowhere =
        format!("no node of 2 will do: 2 where the driver {DRIVER:?} is not installed (its CSIDriver asks for that)");
    assert_eq!(world.message("p"), nowhere);
    world.limit("b", 5);
    assert_eq!(world.sent_to("p"), "b");
    let mut world = two_nodes();
    world.driver(json!({})).volume(volume("v", "1Gi", "")).claim(bound("c", "v")).pod(pod("p", &["c"]));
    assert_eq!(world.sent_to("p"), "a");
    // For a volume that is still to be made the same holds.
    let mut world = two_nodes();
    world.driver(json!({ "preventPodSchedulingIfMissing": true }));
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), nowhere);
}

/// Five thousand nodes with room of their own: what one decision costs grows with nodes, not with nodes times objects.
#[test]
fn thousands_of_nodes_are_each_looked_at_once() {
    const NODES: usize = 5_000;
    let mut world = World::default();
    world.class(class("waits", "WaitForFirstConsumer", DRIVER)).driver(json!({ "storageCapacity": true }));
    for n in 0..NODES {
        let name = format!("n{n:04}");
        world.node(node(&name)).size(&name, "waits", if n == 4_321 { "20Gi" } else { "1Gi" });
    }
    world.claim(claim("c", "waits", "10Gi")).pod(pod("p", &["c"]));
    LOOKS.set(0);
    assert_eq!(world.sent_to("p"), "n4321");
    // Each object when they are grouped, then of each node the one group and the one object in it.
    assert_eq!(LOOKS.get(), 3 * NODES);
}

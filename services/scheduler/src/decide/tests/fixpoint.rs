//! Whatever the world is: repeated deciding comes to rest, and what it chose is sound.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::apply::touches;

#[derive(Debug, Clone)]
struct Setup {
    slots: Vec<u32>,
    /// Size in Gi and node of each static volume; past the last node means reachable from everywhere.
    volumes: Vec<(u32, usize)>,
    /// Size in Gi of each claim, and whether only one pod may have it.
    claims: Vec<(u32, bool)>,
    /// Claims of each pod.
    pods: Vec<BTreeSet<usize>>,
    provisions: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    let slots = prop::collection::vec(0_u32..4, 1..4);
    let volumes = prop::collection::vec((1_u32..5, 0_usize..5), 0..5);
    let claims = prop::collection::vec((1_u32..5, any::<bool>()), 1..5);
    let pods = prop::collection::vec(prop::collection::btree_set(0_usize..5, 0..3), 1..5);
    (slots, volumes, claims, pods, any::<bool>()).prop_map(|(slots, volumes, claims, pods, provisions)| Setup {
        slots,
        volumes,
        claims,
        pods,
        provisions,
    })
}

fn build(setup: &Setup) -> World {
    let mut world = World::default();
    for (index, slots) in setup.slots.iter().enumerate() {
        world.node(node(&format!("n{index}"))).limit(&format!("n{index}"), *slots);
    }
    let provisioner = if setup.provisions { DRIVER } else { "kubernetes.io/no-provisioner" };
    world.class(class("waits", "WaitForFirstConsumer", provisioner));
    for (index, (size, on)) in setup.volumes.iter().enumerate() {
        let on = if *on < setup.slots.len() { format!("n{on}") } else { String::new() };
        let mut volume = volume(&format!("v{index}"), &format!("{size}Gi"), &on);
        volume["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadWriteOncePod"]);
        world.volume(volume);
    }
    for (index, (size, once)) in setup.claims.iter().enumerate() {
        let mut claim = claim(&format!("c{index}"), "waits", &format!("{size}Gi"));
        claim["spec"]["accessModes"] = json!([if *once { "ReadWriteOncePod" } else { "ReadWriteOnce" }]);
        world.claim(claim);
    }
    for (index, claims) in setup.pods.iter().enumerate() {
        let names: Vec<String> = claims.iter().map(|claim| format!("c{claim}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        world.pod(pod(&format!("p{index}"), &names));
    }
    world
}

impl World {
    /// What pv-controller and provisioner do meanwhile: volumes that were taken or asked for become bound.
    fn bind_claims(&mut self) {
        for claim in self.caches.claims.list().into_iter().filter(|claim| !claim.is_fully_bound()) {
            let key = claim.key();
            let pointing = self.caches.volumes.list().into_iter().find(|volume| volume.is_bound_to(&claim));
            let name = match (pointing, claim.selected_node()) {
                (Some(volume), _) => volume.meta.name.clone(),
                (None, Some(node)) => {
                    let name = format!("made-{}", key.name);
                    let mut made = volume(&name, "9Gi", node);
                    made["spec"]["claimRef"] =
                        json!({ "namespace": "default", "name": key.name, "uid": claim.meta.uid });
                    self.volume(made);
                    name
                }
                (None, None) => continue,
            };
            self.change(
                |caches| &caches.claims,
                &key,
                |claim| {
                    claim["spec"]["volumeName"] = name.into();
                    claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
                },
            );
        }
    }
}

fn check_sound(world: &World) {
    let mut on_node: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut users: BTreeMap<Key, usize> = BTreeMap::new();
    for pod in world.caches.pods.list().into_iter().filter(|pod| pod.is_scheduled()) {
        let node = world.caches.nodes.get(&Key::cluster(pod.spec.node_name.clone())).unwrap();
        for key in pod.claims() {
            let claim = world.caches.claims.get(&key).unwrap();
            let volume = world.caches.volumes.get(&Key::cluster(claim.spec.volume_name.clone())).unwrap();
            assert!(volume.is_bound_to(&claim), "B1: {key} and {}", volume.meta.name);
            assert!(volume.capacity() >= claim.requested(), "B2: {key} and {}", volume.meta.name);
            assert!(stowage_model::topology::reaches(&volume, &node).unwrap(), "B2: {key} on {}", node.meta.name);
            on_node.entry(node.meta.name.clone()).or_default().insert(volume.meta.name.clone());
            if claim.spec.access_modes.contains(stowage_model::AccessMode::ReadWriteOncePod) {
                *users.entry(key).or_default() += 1;
            }
        }
    }
    for (node, volumes) in on_node {
        let limit = world.caches.csi_nodes.get(&Key::cluster(node.clone())).unwrap().limit(DRIVER).unwrap();
        assert!(volumes.len() <= limit as usize, "{node} has {volumes:?}, room for {limit}");
    }
    assert!(users.values().all(|count| *count == 1), "ReadWriteOncePod is shared: {users:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn deciding_comes_to_rest_and_nothing_is_used_twice(setup in setup(), interleave in any::<bool>()) {
        let mut world = build(&setup);
        let names: Vec<String> = (0..setup.pods.len()).map(|index| format!("p{index}")).collect();
        let mut rounds = 0;
        loop {
            rounds += 1;
            prop_assert!(rounds < 60, "no rest");
            let mut quiet = true;
            // All are decided before anything is written, as when answers are slow; or one after the other.
            let mut decided = Vec::new();
            for name in &names {
                let actions = world.decide(name).actions;
                quiet &= actions.is_empty();
                if interleave {
                    decided.push((name, actions));
                } else {
                    actions.into_iter().for_each(|action| world.write(name, action));
                }
            }
            let mut touched = BTreeSet::new();
            for (name, actions) in decided {
                // The engine lets only one of several decisions on an object through.
                let wider: Vec<Action> = actions.iter().cloned().map(Action::Pod).collect();
                let all = BTreeSet::from_iter(touches(&wider));
                if touched.is_disjoint(&all) {
                    touched.extend(all);
                    actions.into_iter().for_each(|action| world.write(name, action));
                }
            }
            check_sound(&world);
            if quiet {
                let before = world.revision;
                world.bind_claims();
                if world.revision == before {
                    break;
                }
            }
        }
        for name in &names {
            prop_assert_eq!(world.decide(name).actions, []);
        }
    }
}

//! Two claims and two volumes: every order of a controller's steps, and a rival that sees late, end in one valid matching.

use std::collections::BTreeSet;

use stowage_model::Claim;
use stowage_model::object::kinds;

use super::fixtures::{Fixture, claim_named, class, volume};
use super::invariants::{check, check_agreed, check_chosen, check_kept, check_single, held, references};
use super::world::World;
use crate::watches::Key;

/// Runs one order of steps, as `path` says at each fork, and adds the forks it meets. Nothing when it comes to a state
/// that was seen: how it goes on from there was tried.
fn run(objects: &[Fixture], path: &mut Vec<(usize, usize)>, seen: &mut BTreeSet<String>) -> Option<World> {
    let mut world = World::new(objects.iter().cloned());
    let known = path.len();
    for depth in 0.. {
        if depth >= known && depth > 0 && !seen.insert(world.state()) {
            return None;
        }
        assert!(depth < 40, "no fixpoint: {:#?}", world.log);
        // Each step is one decision of one key.
        let ready: Vec<Key> = world.keys().into_iter().filter(|key| !world.decide(key).0.is_empty()).collect();
        if ready.is_empty() {
            break;
        }
        if path.len() == depth {
            path.push((0, ready.len()));
        }
        let (choice, ways) = path[depth];
        assert_eq!(ways, ready.len(), "the same path gives the same forks");
        step(&mut world, &ready[choice]);
        check_single(&world);
    }
    Some(world)
}

/// Says whether there was anything to do.
fn step(world: &mut World, key: &Key) -> bool {
    if world.decide(key).0.is_empty() {
        return false;
    }
    let (before, chosen) = (held(world), names(world));
    world.step(key);
    check(world);
    check_kept(&before, world);
    names(world).difference(&chosen).for_each(|(volume, _)| check_chosen(volume, world));
    true
}

fn names(world: &World) -> BTreeSet<(String, String)> {
    references(world).into_iter().map(|(volume, uid)| (volume.to_owned(), uid.to_owned())).collect()
}

/// At rest, with as many claims bound as can be.
fn check_end(world: &World, bound: usize) {
    let claims = world.all::<Claim>();
    assert_eq!(claims.iter().filter(|claim| claim.is_fully_bound()).count(), bound, "{:#?}", world.log);
    check(world);
    check_agreed(world, &BTreeSet::new());
}

fn every_order((objects, bound): &(Vec<Fixture>, usize)) -> usize {
    let mut path: Vec<(usize, usize)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut runs = 0;
    loop {
        runs += 1;
        if let Some(world) = run(objects, &mut path, &mut seen) {
            check_end(&world, *bound);
        }
        // The next order: the last fork that has another way takes it.
        while path.last().is_some_and(|(choice, ways)| choice + 1 == *ways) {
            path.pop();
        }
        match path.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => return runs,
        }
    }
}

fn two(first: Fixture, second: Fixture) -> Vec<Fixture> {
    vec![claim_named("a", "ua"), claim_named("b", "ub"), first, second]
}

/// Claims and volumes, and how many claims are bound whatever the order.
fn scenes() -> Vec<(Vec<Fixture>, usize)> {
    let free = |name: &str, size: &str| volume(name, size).available();
    let gold = class("gold", "kubernetes.io/no-provisioner");
    vec![
        // Alike.
        (two(volume("v", "1Gi"), volume("w", "1Gi")), 2),
        (two(free("v", "1Gi"), free("w", "1Gi")), 2),
        // One too small; one reserved for b; both reserved for a, by name and by uid.
        (two(volume("v", "1Gi"), volume("w", "1Mi")), 1),
        (two(volume("v", "1Gi"), volume("w", "1Gi").refers("b", "")), 2),
        (two(volume("v", "1Gi").refers("a", ""), volume("w", "1Gi").refers("a", "ua")), 1),
        // The large claim must find the large volume left, whoever is first.
        (vec![claim_named("a", "ua"), claim_named("b", "ub").size("5Gi"), free("v", "5Gi"), free("w", "1Gi")], 2),
        // Of two classes, with a volume of each that would be large enough for both.
        (
            vec![
                claim_named("a", "ua").class("gold"),
                claim_named("b", "ub").size("2Gi").class(""),
                gold,
                free("v", "9Gi").class("gold"),
                free("w", "8Gi"),
            ],
            2,
        ),
        // One claim names its volume.
        (vec![claim_named("a", "ua"), claim_named("b", "ub").names("w"), free("v", "1Gi"), free("w", "2Gi")], 2),
    ]
}

#[test]
fn every_order_of_two_claims_and_two_volumes_ends_in_one_valid_matching() {
    let runs: usize = scenes().iter().map(every_order).sum();
    println!("{runs} steps from all states that any order reaches");
    assert!(runs > 100, "{runs} steps are not all");
}

/// All orders of these.
fn orders(keys: &[Key]) -> Vec<Vec<Key>> {
    if keys.is_empty() {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for (at, first) in keys.iter().enumerate() {
        let rest: Vec<Key> = [&keys[..at], &keys[at + 1..]].concat();
        all.extend(orders(&rest).into_iter().map(|order| [vec![first.clone()], order].concat()));
    }
    all
}

/// Nobody is told that data may be lost because somebody else has not seen it.
fn check_told(world: &World) {
    let told = world.log.iter().find(|line| line.contains("Lost") || line.contains("Misbound"));
    assert_eq!(told, None, "{:#?}", world.log);
}

/// Every step of one controller is followed by a step of a rival that has the same store, and sees of one kind what the
/// other did late, one version at a time, and of the others nothing but what its own looks and conflicts show.
fn rival(objects: &[Fixture], order: &[Key], others_step: &[Key], seen_late: &'static str) -> World {
    let mut world = World::new(objects.iter().cloned());
    let mut rival = World::new([]);
    let mut idle = 0;
    for (key, others) in order.iter().cycle().zip(others_step.iter().cycle()) {
        let mut acted = step(&mut world, key);
        rival.lagging = true;
        world.copy_to(&mut rival);
        rival.deliver(kinds::STORAGE_CLASS.plural);
        acted |= rival.deliver(seen_late);
        rival.lagging = false;
        acted |= step(&mut rival, others);
        rival.copy_to(&mut world);
        idle = if acted { 0 } else { idle + 1 };
        if idle > order.len() {
            break;
        }
        check_told(&world);
        check_told(&rival);
    }
    while [kinds::VOLUME, kinds::CLAIM].iter().any(|kind| rival.deliver(kind.plural)) {}
    let last = rival.settle();
    rival.log.extend(last);
    check_told(&rival);
    rival
}

#[test]
fn what_changes_between_decision_and_write_is_a_conflict_and_never_a_second_binding() {
    for (objects, bound) in scenes() {
        let keys = World::new(objects.iter().cloned()).keys();
        for order in orders(&keys) {
            let backwards: Vec<Key> = order.iter().rev().cloned().collect();
            for (others, seen_late) in [(&order, kinds::VOLUME.plural), (&backwards, kinds::CLAIM.plural)] {
                check_end(&rival(&objects, &order, others, seen_late), bound);
            }
        }
    }
}

//! Two claims and two volumes: every order of a controller's steps, and a rival that sees late, end in one valid matching.

use std::collections::BTreeSet;

use stowage_model::object::kinds;
use stowage_model::{Claim, Volume};

use super::fixtures::{Fixture, claim_named, volume};
use super::world::World;
use crate::decide::Subject;

/// Runs one order of steps, as `path` says at each fork, and adds the forks it meets. Nothing when it comes to a state
/// that was seen: how it goes on from there was tried.
fn run(
    objects: &dyn Fn() -> Vec<Fixture>,
    path: &mut Vec<(usize, usize)>,
    seen: &mut BTreeSet<String>,
) -> Option<World> {
    let mut world = World::new(objects());
    let known = path.len();
    for depth in 0.. {
        if depth >= known && depth > 0 && !seen.insert(world.state()) {
            return None;
        }
        assert!(depth < 40, "no fixpoint: {:#?}", world.log);
        // Each step is one decision of one subject.
        let ready: Vec<Subject> =
            world.subjects().into_iter().filter(|subject| !world.decide(subject).0.is_empty()).collect();
        if ready.is_empty() {
            break;
        }
        if path.len() == depth {
            path.push((0, ready.len()));
        }
        let (choice, ways) = path[depth];
        assert_eq!(ways, ready.len(), "the same path gives the same forks");
        world.step(&ready[choice]);
        check(&world);
    }
    Some(world)
}

/// B1 at every moment: a completed claim's volume points back at it, and nobody shares a volume.
pub fn check(world: &World) {
    let (claims, volumes) = (world.all::<Claim>(), world.all::<Volume>());
    for claim in claims.iter().filter(|claim| claim.is_fully_bound()) {
        let named = volumes.iter().find(|volume| volume.meta.name == claim.spec.volume_name);
        let held = named.and_then(|volume| volume.spec.claim_ref.as_ref());
        assert_eq!(held.map(|held| held.uid.as_str()), Some(claim.meta.uid.as_str()), "{:#?}", world.log);
        let same = |other: &&Claim| other.is_fully_bound() && other.spec.volume_name == claim.spec.volume_name;
        assert_eq!(claims.iter().filter(same).count(), 1, "two claims have {}", claim.spec.volume_name);
    }
}

/// B2: whoever the controller matched fits; what a user reserved need not.
pub fn check_fits(world: &World) {
    let volumes = world.all::<Volume>();
    for claim in world.all::<Claim>().iter().filter(|claim| claim.is_fully_bound()) {
        let volume = volumes.iter().find(|volume| volume.meta.name == claim.spec.volume_name).unwrap();
        if !volume.is_bound_by_controller() {
            continue;
        }
        assert!(volume.capacity() >= claim.requested(), "{} is too small", volume.meta.name);
        assert_eq!(volume.class_name(), claim.class_name());
        assert_eq!(volume.spec.volume_mode, claim.spec.volume_mode);
        assert!(volume.spec.access_modes.contains_all(claim.spec.access_modes));
    }
}

fn every_order(objects: &dyn Fn() -> Vec<Fixture>, bound: usize) -> usize {
    let mut path: Vec<(usize, usize)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut runs = 0;
    loop {
        runs += 1;
        if let Some(world) = run(objects, &mut path, &mut seen) {
            let claims = world.all::<Claim>();
            let count = claims.iter().filter(|claim| claim.is_fully_bound()).count();
            assert_eq!(count, bound, "{path:?} {:#?}", world.log);
            check_fits(&world);
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

fn two(first: Fixture, second: Fixture) -> impl Fn() -> Vec<Fixture> {
    move || vec![claim_named("a", "ua"), claim_named("b", "ub"), first.clone(), second.clone()]
}

#[test]
fn every_order_of_two_claims_and_two_volumes_ends_in_one_valid_matching() {
    let mut runs = 0;
    // Alike; one too small; one reserved for b; both reserved for a, by name and by uid.
    runs += every_order(&two(volume("v", "1Gi"), volume("w", "1Gi")), 2);
    runs += every_order(&two(volume("v", "1Gi"), volume("w", "1Mi")), 1);
    runs += every_order(&two(volume("v", "1Gi"), volume("w", "1Gi").refers("b", "")), 2);
    runs += every_order(&two(volume("v", "1Gi").refers("a", ""), volume("w", "1Gi").refers("a", "ua")), 1);
    println!("{runs} steps from all states that any order reaches");
    assert!(runs > 100, "{runs} steps are not all");
}

#[test]
fn what_changes_between_decision_and_write_is_a_conflict_and_never_a_second_binding() {
    // Every step of one controller may be followed by the same step of a rival whose cache is late.
    for seen_late in [kinds::VOLUME.plural, kinds::CLAIM.plural] {
        let objects = two(volume("v", "1Gi").available(), volume("w", "1Gi").available());
        let mut world = World::new(objects());
        let mut rival = World::new([]);
        for subject in world.subjects().into_iter().cycle().take(40) {
            world.step(&subject);
            // The rival's store is the same; only its caches lag behind by everything but one kind.
            rival.lagging = true;
            world.copy_to(&mut rival);
            rival.deliver(seen_late);
            rival.lagging = false;
            rival.step(&subject);
            check(&rival);
            rival.copy_to(&mut world);
            check(&world);
        }
        while rival.deliver(kinds::VOLUME.plural) || rival.deliver(kinds::CLAIM.plural) {}
        rival.settle();
        check(&rival);
        check_fits(&rival);
        let bound = rival.all::<Claim>().iter().filter(|claim| claim.is_fully_bound()).count();
        assert_eq!(bound, 2);
    }
}

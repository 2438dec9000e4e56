//! Random worlds of 200 objects, seen late and in any order: they converge, and nothing is bound twice.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Volume};

use super::fixtures::{Fixture, claim_named, class, pod, volume};
use super::invariants::{check, check_fits};
use super::world::World;

const CLASSES: [&str; 3] = ["", "gold", "late"];
const SIZES: [&str; 4] = ["1Gi", "2Gi", "5Gi", "10Gi"];

fn pick<'a>(random: &mut StdRng, from: &[&'a str]) -> &'a str {
    from[random.random_range(0..from.len())]
}

fn any_claim(random: &mut StdRng, n: usize) -> Fixture {
    let name = format!("c{n}");
    let mut claim = claim_named(&name, &format!("u{n}")).size(pick(random, &SIZES));
    claim = claim.class(pick(random, &CLASSES)).modes(&["ReadWriteOnce"]);
    match random.random_range(0..12) {
        0 => claim.mode("Block"),
        1 => claim.selects("tier", "fast"),
        2 => claim.names(&format!("v{}", random.random_range(0..100))),
        3 => claim.deleting(),
        _ => claim,
    }
}

/// A pod that uses some claim, placed or not.
fn any_pod(random: &mut StdRng, n: usize) -> Fixture {
    let claim = format!("c{}", random.random_range(0..80));
    let volumes = serde_json::json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    let pod = pod(&format!("p{n}")).with("spec.volumes", volumes);
    match random.random_range(0..3) {
        0 => pod.unplaced(),
        1 => pod.phase("Succeeded"),
        _ => pod,
    }
}

fn any_volume(random: &mut StdRng, n: usize) -> Fixture {
    let mut volume = volume(&format!("v{n}"), pick(random, &SIZES)).class(pick(random, &CLASSES));
    if random.random_bool(0.3) {
        volume = volume.label("tier", "fast");
    }
    match random.random_range(0..12) {
        0 => volume.mode("Block"),
        1 => volume.refers(&format!("c{}", random.random_range(0..80)), ""),
        2 => volume.refers("gone", "gone").policy("Recycle"),
        3 => volume.refers("gone", "gone").policy("Delete").csi(),
        4 => volume.refers("gone", "gone").policy("Delete"),
        5 => volume.deleting(),
        _ => volume,
    }
}

/// Creates, deletes and sees in random order; then sees everything and settles.
fn live(seed: u64) -> World {
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = World::new([class("gold", "kubernetes.io/no-provisioner"), class("late", "d").late()]);
    world.lagging = true;
    let mut objects: Vec<Fixture> = (0..80).map(|n| any_claim(&mut random, n)).collect();
    objects.extend((0..100).map(|n| any_volume(&mut random, n)));
    objects.extend((0..20).map(|n| any_pod(&mut random, n)));
    let kinds_of = [kinds::CLAIM, kinds::VOLUME, kinds::POD];
    for turn in 0..2500 {
        world.log.clear();
        match random.random_range(0..100) {
            0..25 if !objects.is_empty() => {
                let next = random.random_range(0..objects.len());
                world.put(objects.swap_remove(next));
            }
            25..60 => {
                world.deliver(kinds_of[random.random_range(0..3)].plural);
            }
            60 => {
                // Somebody takes a claim away by force, or a pod ends.
                if random.random_bool(0.5) {
                    world.take(kinds::CLAIM, &Key::namespaced("n", format!("c{}", random.random_range(0..80))));
                } else {
                    world.take(kinds::POD, &Key::namespaced("n", format!("p{}", random.random_range(0..20))));
                }
            }
            _ => {
                // Writes under way keep some volumes from being chosen.
                world.busy = (0..random.random_range(0..4))
                    .map(|_| ObjectId {
                        kind: kinds::VOLUME,
                        key: Key::cluster(format!("v{}", random.random_range(0..100))),
                    })
                    .collect();
                let subjects = world.subjects();
                if !subjects.is_empty() {
                    world.step(&subjects[random.random_range(0..subjects.len())]);
                }
                world.busy.clear();
            }
        }
        // A double binding stays, so it is found at the next look.
        if turn % 50 == 0 {
            check(&world);
        }
    }
    objects.into_iter().for_each(|object| world.put(object));
    while kinds_of.iter().any(|kind| world.deliver(kind.plural)) {}
    world.lagging = false;
    for pass in 0.. {
        assert!(pass < 50, "no fixpoint: {:#?}", world.log);
        world.log.clear();
        let mut acted = false;
        for subject in world.subjects() {
            acted |= world.step(&subject);
        }
        if !acted {
            break;
        }
    }
    world
}

/// A claim that waits although a free volume fits would wait for ever.
fn check_maximal(world: &World) {
    let volumes = world.all::<Volume>();
    let waits = |claim: &&Claim| !claim.names_volume() && claim.class_name() != "late" && !claim.meta.is_deleting();
    for claim in world.all::<Claim>().iter().filter(waits) {
        let free = volumes.iter().find(|volume| {
            volume.status.phase == VolumePhase::Available
                && stowage_model::matching::fits(volume, claim, stowage_model::matching::Place::Anywhere).is_ok()
        });
        assert!(free.is_none(), "{} waits although {} is free", claim.meta.name, free.unwrap().meta.name);
    }
}

/// How many worlds are tried; `PROPTEST_CASES` says otherwise.
fn worlds() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: worlds(), ..ProptestConfig::default() })]

    #[test]
    fn random_worlds_converge_and_nothing_is_bound_twice(seed in any::<u64>()) {
        let world = live(seed);
        for subject in world.subjects() {
            prop_assert!(world.decide(&subject).0.is_empty(), "{subject:?} is not at rest");
        }
        check(&world);
        check_fits(&world);
        check_maximal(&world);
    }
}

//! Random worlds of 200 objects, seen late and in any order while others change them: they converge, nothing is bound
//! twice, and nobody's data goes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use stowage_model::object::{self, ObjectId, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, Volume, annotations};

use super::fixtures::{Fixture, claim_named, class, pod, volume};
use super::invariants::{check_agreed, check_chosen, check_except, check_kept, check_reclaimed, held, references};
use super::world::World;
use crate::watches::Key;

/// By hand, late and from outside; outside is the default.
const CLASSES: [&str; 4] = ["", "gold", "late", "outside"];
const SIZES: [&str; 4] = ["1Gi", "2Gi", "5Gi", "10Gi"];
const TURNS: usize = 2500;

fn pick<'a>(random: &mut StdRng, from: &[&'a str]) -> &'a str {
    from[random.random_range(0..from.len())]
}

fn any_claim(random: &mut StdRng, n: usize) -> Fixture {
    let mut claim =
        claim_named(&format!("c{n}"), &format!("u{n}")).size(pick(random, &SIZES)).modes(&["ReadWriteOnce"]);
    if random.random_bool(0.8) {
        claim = claim.class(pick(random, &CLASSES));
    }
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
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
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

/// Who has what, at one moment.
#[derive(Default)]
struct Before {
    revision: u64,
    held: BTreeMap<String, String>,
    owned: BTreeSet<(String, String)>,
}

/// A world, those who change it beside the controller, and what they did to it.
struct Play {
    world: World,
    before: Before,
    random: StdRng,
    unborn: Vec<Fixture>,
    /// Volumes that the provisioner was asked for, and has not made yet.
    asked: Vec<Fixture>,
    promised: BTreeSet<String>,
    /// Volumes that somebody took from whoever they referred to.
    taken: BTreeSet<String>,
    /// Volumes that somebody changed in any way that matters for a match.
    changed: BTreeSet<String>,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new([
            class("gold", "kubernetes.io/no-provisioner"),
            class("late", "d").late(),
            class("outside", "d").default_class(),
        ]);
        world.lagging = true;
        let mut unborn: Vec<Fixture> = (0..80).map(|n| any_claim(&mut random, n)).collect();
        unborn.extend((0..100).map(|n| any_volume(&mut random, n)));
        unborn.extend((0..20).map(|n| any_pod(&mut random, n)));
        let (taken, changed) = (BTreeSet::new(), BTreeSet::new());
        Self {
            world,
            before: Before::default(),
            random,
            unborn,
            asked: vec![],
            promised: BTreeSet::new(),
            taken,
            changed,
        }
    }

    fn any_key(&mut self, letter: char, count: usize) -> object::Key {
        let name = format!("{letter}{}", self.random.random_range(0..count));
        if letter == 'v' { object::Key::cluster(name) } else { object::Key::namespaced("n", name) }
    }

    /// A user, an administrator or a scheduler changes something that the caches then have an older version of.
    fn meddle(&mut self) {
        let (volume, claim) = (self.any_key('v', 100), self.any_key('c', 80));
        let (size, policy) = (pick(&mut self.random, &SIZES), pick(&mut self.random, &["Retain", "Recycle", "Delete"]));
        let tier = pick(&mut self.random, &["fast", "slow"]);
        let note = self.world.revision.to_string();
        let what = self.random.random_range(0..8);
        if matches!(what, 0..=1) {
            self.changed.insert(volume.name.clone());
        }
        let is_there = self.world.get(kinds::VOLUME, &volume).is_some();
        match what {
            0 => self.world.edit(kinds::VOLUME, &volume, |tree| tree["metadata"]["labels"] = json!({ "tier": tier })),
            1 => self.world.edit(kinds::VOLUME, &volume, |tree| tree["spec"]["capacity"]["storage"] = size.into()),
            2 => self.world.edit(kinds::VOLUME, &volume, |tree| {
                tree["spec"]["persistentVolumeReclaimPolicy"] = policy.into();
            }),
            3 if is_there => {
                self.world.edit(kinds::VOLUME, &volume, |tree| tree["spec"]["claimRef"] = Value::Null);
                self.taken.insert(volume.name);
            }
            4 => self.world.edit(kinds::VOLUME, &volume, |tree| {
                tree["metadata"]["annotations"]["example.com/note"] = note.into();
            }),
            5 => self.world.edit(kinds::CLAIM, &claim, |tree| tree["metadata"]["labels"]["note"] = note.into()),
            6 => self.world.edit(kinds::CLAIM, &claim, |tree| {
                let is_bound = tree["status"]["phase"] == "Bound";
                if is_bound {
                    tree["spec"]["resources"]["requests"]["storage"] = "20Gi".into();
                }
            }),
            _ => self.world.edit(kinds::CLAIM, &claim, |tree| {
                if tree["spec"]["storageClassName"] == "late" {
                    tree["metadata"]["annotations"][annotations::SELECTED_NODE] = "node".into();
                }
            }),
        }
    }

    /// The provisioner begins on everything that it was asked for by now.
    fn promise(&mut self) {
        let is_asked = |claim: &Claim| claim.storage_provisioner().is_some() && !claim.meta.is_deleting();
        for claim in self.world.all::<Claim>().into_iter().filter(|claim| is_asked(claim) && !claim.names_volume()) {
            let name = claim.provisioned_volume_name();
            if self.promised.insert(name.clone()) {
                let made = volume(&name, &claim.requested().to_string()).class(claim.class_name());
                let made = made.csi().provisioned("d").policy("Delete").refers(&claim.meta.name, &claim.meta.uid);
                self.asked.push(made.mode(&claim.spec.volume_mode.to_string()).modes(&["ReadWriteOnce"]));
            }
        }
    }

    /// One decision and what follows from it, and everything that must hold after it.
    fn step(&mut self, key: &Key) -> bool {
        self.look();
        let acted = self.world.step(key);
        if acted {
            let (world, before) = (&self.world, &self.before);
            check_kept(&before.held, world);
            check_reclaimed(&before.held, world);
            owned(world).difference(&before.owned).for_each(|(volume, _)| check_chosen(volume, world));
        }
        acted
    }

    /// Looks at who has what, if anything changed since.
    fn look(&mut self) {
        if self.before.revision != self.world.revision {
            self.before = Before { revision: self.world.revision, held: held(&self.world), owned: owned(&self.world) };
            check_except(&self.world, &self.taken);
        }
    }

    fn turn(&mut self) {
        let kinds_of = [kinds::CLAIM, kinds::VOLUME, kinds::POD];
        self.world.log.clear();
        match self.random.random_range(0..100) {
            0..20 if !self.unborn.is_empty() => {
                let next = self.random.random_range(0..self.unborn.len());
                self.world.put(self.unborn.swap_remove(next));
            }
            20..42 => {
                self.world.deliver(kinds_of[self.random.random_range(0..3)].plural);
            }
            42..58 => self.meddle(),
            58 => self.promise(),
            59 if !self.asked.is_empty() => {
                let next = self.random.random_range(0..self.asked.len());
                self.world.put(self.asked.swap_remove(next));
            }
            60 => {
                // Somebody takes a claim away by force, or a pod ends.
                let (claim, pod) = (self.any_key('c', 80), self.any_key('p', 20));
                if self.random.random_bool(0.5) {
                    self.world.take(kinds::CLAIM, &claim);
                } else {
                    self.world.take(kinds::POD, &pod);
                }
            }
            _ => {
                // Writes under way keep some volumes from being chosen.
                self.world.busy = (0..self.random.random_range(0..4))
                    .map(|_| ObjectId { kind: kinds::VOLUME, key: self.any_key('v', 100) })
                    .collect();
                let keys = self.world.keys();
                if !keys.is_empty() {
                    let next = self.random.random_range(0..keys.len());
                    self.step(&keys[next]);
                }
                self.world.busy.clear();
            }
        }
        self.look();
    }

    /// Everything is seen and made that was begun, and nobody changes anything any more.
    fn finish(&mut self) {
        for object in std::mem::take(&mut self.unborn) {
            self.world.put(object);
        }
        while [kinds::CLAIM, kinds::VOLUME, kinds::POD].iter().any(|kind| self.world.deliver(kind.plural)) {}
        self.world.lagging = false;
        for pass in 0.. {
            assert!(pass < 50, "no fixpoint: {:#?}", self.world.log);
            self.world.log.clear();
            let mut acted = false;
            for key in self.world.keys() {
                acted |= self.step(&key);
            }
            self.promise();
            if !acted && self.asked.is_empty() {
                break;
            }
            std::mem::take(&mut self.asked).into_iter().for_each(|object| self.world.put(object));
        }
        self.look();
    }
}

fn owned(world: &World) -> BTreeSet<(String, String)> {
    references(world).into_iter().map(|(volume, uid)| (volume.to_owned(), uid.to_owned())).collect()
}

/// A claim that waits although a free volume fits, or after its own was made, would wait for ever.
fn check_maximal(world: &World) {
    let volumes = world.all::<Volume>();
    let waits = |claim: &&Claim| !claim.names_volume() && !claim.meta.is_deleting();
    for claim in world.all::<Claim>().iter().filter(waits) {
        assert_eq!(claim.status.phase, ClaimPhase::Pending, "{}", claim.meta.name);
        assert_eq!(claim.storage_provisioner(), None, "{} waits although its volume was made", claim.meta.name);
        let free = volumes.iter().find(|volume| {
            claim.class_name() != "late"
                && volume.status.phase == VolumePhase::Available
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
    // A smaller seed makes no smaller world.
    #![proptest_config(ProptestConfig { cases: worlds(), max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn random_worlds_converge_and_nothing_is_bound_twice(seed in any::<u64>()) {
        let mut play = Play::new(seed);
        (0..TURNS).for_each(|_| play.turn());
        prop_assert!(play.world.conflicts > 10, "{} conflicts", play.world.conflicts);
        play.finish();
        for key in play.world.keys() {
            prop_assert_eq!(play.world.gather(&key), play.world.gather(&key));
            prop_assert!(play.world.decide(&key).0.is_empty(), "{key:?} is not at rest");
        }
        check_agreed(&play.world, &play.changed);
        check_maximal(&play.world);
    }
}

//! What must hold of a world's claims and volumes, at every moment or at its end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use stowage_model::matching::{self, Place};
use stowage_model::object::{Key, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, Volume, annotations};

use super::world::World;

/// B1 at every moment: a completed claim's volume points back at it, and nobody shares a volume.
pub fn check(world: &World) {
    check_except(world, &BTreeSet::new());
}

/// The same, but for volumes that somebody took from their claims.
pub fn check_except(world: &World, taken: &BTreeSet<String>) {
    let held = references(world);
    let mut owners: BTreeMap<&str, &Key> = BTreeMap::new();
    // As they are stored: looked at after every step.
    for (key, claim) in world.trees(kinds::CLAIM) {
        let volume = volume_name(claim);
        let completed = !claim["metadata"]["annotations"][annotations::BIND_COMPLETED].is_null();
        if !completed || volume.is_empty() || taken.contains(volume) {
            continue;
        }
        assert_eq!(
            held.get(volume).copied(),
            claim["metadata"]["uid"].as_str(),
            "{key} and {volume}: {:#?}",
            world.log
        );
        assert_eq!(owners.insert(volume, key), None, "{key} has {volume} too");
    }
}

fn volume_name(claim: &Value) -> &str {
    claim["spec"]["volumeName"].as_str().unwrap_or_default()
}

/// The claims that volumes refer to by uid, by the volumes' names.
pub fn references(world: &World) -> BTreeMap<&str, &str> {
    let uid = |tree: &'_ Value| tree["spec"]["claimRef"]["uid"].as_str().is_some_and(|uid| !uid.is_empty());
    let referring = world.trees(kinds::VOLUME).filter(move |(_, tree)| uid(tree));
    referring.map(|(key, tree)| (key.name.as_str(), tree["spec"]["claimRef"]["uid"].as_str().unwrap())).collect()
}

/// The volumes that refer to a claim that is there and names no other, with that claim's uid.
pub fn held(world: &World) -> BTreeMap<String, String> {
    let uid = |claim: &'_ Value| claim["metadata"]["uid"].as_str().map(str::to_owned);
    let names: BTreeMap<String, &str> =
        world.trees(kinds::CLAIM).filter_map(|(_, claim)| Some((uid(claim)?, volume_name(claim)))).collect();
    let is_kept = |volume: &str, uid: &str| names.get(uid).is_some_and(|named| named.is_empty() || *named == volume);
    let referring = references(world).into_iter().filter(|(volume, uid)| is_kept(volume, uid));
    referring.map(|(volume, uid)| (volume.to_owned(), uid.to_owned())).collect()
}

/// No step of a controller takes a volume from a claim that is there and has or may get it.
pub fn check_kept(before: &BTreeMap<String, String>, world: &World) {
    let now = references(world);
    let is_there = |uid: &str| world.trees(kinds::CLAIM).any(|(_, claim)| claim["metadata"]["uid"] == uid);
    for (volume, uid) in before.iter().filter(|(volume, uid)| now.get(volume.as_str()) != Some(&uid.as_str())) {
        assert!(!is_there(uid), "{volume} was taken from {uid}: {:#?}", world.log);
    }
}

/// No step of a controller erases or deletes what is to be retained, or what a claim that is there has or may get.
pub fn check_reclaimed(before: &BTreeMap<String, String>, world: &World) {
    for line in &world.log {
        let erased = line.strip_prefix("Recycle ").map(|volume| ("Recycle", volume));
        let Some((policy, name)) = erased.or_else(|| line.strip_prefix("DeleteData ").map(|volume| ("Delete", volume)))
        else {
            continue;
        };
        assert!(!before.contains_key(name), "{name} is not free");
        let stored = world.get(kinds::VOLUME, &Key::cluster(name)).unwrap();
        assert_eq!(stored["spec"]["persistentVolumeReclaimPolicy"], policy, "{name}");
    }
}

/// B2: a pair that a controller just chose fits; what a user reserved or named need not in all.
pub fn check_chosen(volume: &str, world: &World) {
    let tree = world.get(kinds::VOLUME, &Key::cluster(volume)).unwrap().clone();
    let mut volume: Volume = serde_json::from_value(tree).unwrap();
    if !volume.is_bound_by_controller() {
        return;
    }
    let uid = volume.spec.claim_ref.take().unwrap().uid;
    // One that just went does not matter; one that had the volume before has it again as it is (3-3, 3-7).
    let Some((_, tree)) = world.trees(kinds::CLAIM).find(|(_, tree)| tree["metadata"]["uid"] == uid.as_str()) else {
        return;
    };
    let claim: Claim = serde_json::from_value(tree.clone()).unwrap();
    if claim.is_bind_completed() {
        return;
    }
    let misfit = if claim.names_volume() {
        matching::satisfies(&volume, &claim).err()
    } else {
        matching::fits(&volume, &claim, Place::Anywhere).err()
    };
    assert!(misfit.is_none(), "{} for {}: {misfit:?}", volume.meta.name, claim.meta.name);
}

/// One controller alone never marks two volumes for one claim, nor calls two bound to it.
pub fn check_single(world: &World) {
    let volumes = world.all::<Volume>();
    let is_taken = |volume: &&Volume| volume.is_bound_by_controller() || volume.status.phase == VolumePhase::Bound;
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for volume in volumes.iter().filter(is_taken) {
        let Some(held) = volume.spec.claim_ref.as_ref().filter(|held| !held.uid.is_empty()) else { continue };
        let other = taken.insert(&held.uid, &volume.meta.name);
        assert_eq!(other, None, "{} has {} too: {:#?}", held.name, volume.meta.name, world.log);
    }
}

/// At the end both sides of each pair agree, but for claims that are lost, and no volume refers by uid to a claim that has
/// another, or none. One that somebody changed after it was reserved may go on waiting for its claim.
pub fn check_agreed(world: &World, changed: &BTreeSet<String>) {
    let (claims, volumes) = (world.all::<Claim>(), world.all::<Volume>());
    for claim in claims.iter().filter(|claim| claim.is_fully_bound() && claim.status.phase != ClaimPhase::Lost) {
        let volume = volumes.iter().find(|volume| volume.meta.name == claim.spec.volume_name).unwrap();
        assert!(volume.is_bound_to(claim), "{} has no word of its volume", claim.meta.name);
        let phases = (claim.status.phase, volume.status.phase);
        assert_eq!(phases, (ClaimPhase::Bound, VolumePhase::Bound), "{} {:#?}", claim.meta.name, world.log);
    }
    for volume in &volumes {
        let Some(held) = volume.spec.claim_ref.as_ref().filter(|held| !held.uid.is_empty()) else {
            assert_ne!(volume.status.phase, VolumePhase::Bound, "{} to nobody", volume.meta.name);
            continue;
        };
        match claims.iter().find(|claim| claim.meta.uid == held.uid) {
            Some(claim) if !claim.names_volume() && changed.contains(&volume.meta.name) => {}
            // Made too late: left to whoever made it.
            Some(_) if volume.provisioned_by().is_some() && volume.status.phase == VolumePhase::Released => {}
            Some(claim) => assert_eq!(claim.spec.volume_name, volume.meta.name, "{} is left over", volume.meta.name),
            None => assert_ne!(volume.status.phase, VolumePhase::Bound, "{} to nobody", volume.meta.name),
        }
    }
}

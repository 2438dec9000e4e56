//! What must hold of a world's claims and volumes, at every moment or at its end.

use std::collections::BTreeMap;

use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, Volume};

use super::world::World;

/// B1 at every moment: a completed claim's volume points back at it, and nobody shares a volume.
pub fn check(world: &World) {
    check_except(world, |_| false);
}

/// The same, but for claims that somebody broke.
pub fn check_except(world: &World, is_broken: impl Fn(&Claim) -> bool) {
    let volumes = world.all::<Volume>();
    let held: BTreeMap<&str, Option<&str>> = volumes
        .iter()
        .map(|volume| (volume.meta.name.as_str(), volume.spec.claim_ref.as_ref().map(|held| held.uid.as_str())))
        .collect();
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for claim in world.all::<Claim>().into_iter().filter(|claim| claim.is_fully_bound() && !is_broken(claim)) {
        let held = held.get(claim.spec.volume_name.as_str()).copied().flatten();
        assert_eq!(
            held,
            Some(claim.meta.uid.as_str()),
            "{} has no word of its volume: {:#?}",
            claim.meta.name,
            world.log
        );
        let other = owners.insert(claim.spec.volume_name.clone(), claim.meta.name.clone());
        assert_eq!(other, None, "{} has that volume too", claim.meta.name);
    }
}

/// The volumes that refer to a claim that is there and names no other, by name.
pub fn held(world: &World) -> BTreeMap<String, String> {
    let claims = world.all::<Claim>();
    let claims: BTreeMap<&str, &Claim> = claims.iter().map(|claim| (claim.meta.uid.as_str(), claim)).collect();
    let mut held = BTreeMap::new();
    for volume in world.all::<Volume>() {
        let Some(uid) = volume.spec.claim_ref.map(|held| held.uid) else { continue };
        let claim = claims.get(uid.as_str());
        if claim.is_some_and(|claim| !claim.names_volume() || claim.spec.volume_name == volume.meta.name) {
            held.insert(volume.meta.name, uid);
        }
    }
    held
}

/// No step of a controller takes a volume from a claim that is there and has or may get it.
pub fn check_kept(before: &BTreeMap<String, String>, world: &World) {
    let claims = world.all::<Claim>();
    for volume in world.all::<Volume>() {
        let now = volume.spec.claim_ref.map(|held| held.uid);
        let kept = before.get(&volume.meta.name).filter(|uid| claims.iter().any(|claim| claim.meta.uid == **uid));
        assert!(
            kept.is_none() || now.as_ref() == kept,
            "{} was taken from {kept:?}: {:#?}",
            volume.meta.name,
            world.log
        );
    }
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

/// At the end both sides of each pair agree, and no volume refers by uid to a claim that does not have it, unless that is
/// gone and the volume says so.
pub fn check_agreed(world: &World) {
    let (claims, volumes) = (world.all::<Claim>(), world.all::<Volume>());
    for claim in claims.iter().filter(|claim| claim.is_fully_bound()) {
        let volume = volumes.iter().find(|volume| volume.is_bound_to(claim)).unwrap();
        assert_eq!(volume.meta.name, claim.spec.volume_name);
        let phases = (claim.status.phase, volume.status.phase);
        assert_eq!(phases, (ClaimPhase::Bound, VolumePhase::Bound), "{} {:#?}", claim.meta.name, world.log);
    }
    for volume in &volumes {
        let Some(held) = volume.spec.claim_ref.as_ref().filter(|held| !held.uid.is_empty()) else {
            assert_ne!(volume.status.phase, VolumePhase::Bound, "{} to nobody", volume.meta.name);
            continue;
        };
        match claims.iter().find(|claim| claim.meta.uid == held.uid) {
            Some(claim) => assert_eq!(claim.spec.volume_name, volume.meta.name, "{} is left over", volume.meta.name),
            None => assert_ne!(volume.status.phase, VolumePhase::Bound, "{} to nobody", volume.meta.name),
        }
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

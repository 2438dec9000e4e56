//! Volumes that people make: which of them a claim may have, and why it has none.

use stowage_model::class::NO_PROVISIONER;
use stowage_model::matching::{self, Misfit, Place};
use stowage_model::object::kinds;
use stowage_model::{Claim, StorageClass, Volume};

use super::binding::binder;
use super::{View, placing, some};
use crate::explain::report::{Cause, Who};

/// More volumes of other classes are not compared for each claim.
const MOST_COMPARED: usize = 1_000;

/// Whether a volume is there that the pv-controller has only to bind.
pub fn has_fit(view: &View<'_>, claim: &Claim) -> bool {
    matches!(view.index.matching().smallest_fit(claim, Place::Anywhere), Ok(Some(_)))
}

/// How many volumes do not fit for what reason, and the one that comes nearest.
pub fn misfits(view: &View<'_>, claim: &Claim) -> String {
    let index = view.index.matching();
    // People most often mean a volume that they have made for the claim, or one of its class that nobody has.
    let key = claim.meta.key();
    let own = index.claimed_by_name(&key).filter(|volume| volume.is_bound_to(claim));
    let nearest = nearest(own, claim)
        .or_else(|| nearest(view.index.free_of(claim.class_name()).iter().copied(), claim))
        .or_else(|| nearest(view.g.volumes.all().iter().take(MOST_COMPARED), claim));
    let nearest = nearest.map(|(volume, misfit)| format!("; nearest: {}", misfit.describe(volume, claim)));
    format!("{}{}", index.explain(claim, Place::Anywhere), nearest.unwrap_or_default())
}

fn nearest<'v>(volumes: impl Iterator<Item = &'v Volume>, claim: &Claim) -> Option<(&'v Volume, Misfit)> {
    let unfit = volumes.filter_map(|volume| Some((volume, matching::fits(volume, claim, Place::Anywhere).err()?)));
    unfit.max_by_key(|(_, misfit)| *misfit)
}

fn create_one(claim: &Claim) -> String {
    format!(
        "create a PersistentVolume with at least {}, access modes [{}], storageClassName {:?}",
        claim.requested(),
        claim.spec.access_modes,
        claim.class_name()
    )
}

/// Volumes of the class are made by hand, and none fits.
pub fn causes(view: &View<'_>, claim: &Claim, class: Option<&StorageClass>) -> Vec<Cause> {
    // One with a node has had its consumer: asking that pod again, which asks its claims, would have no end.
    if let Some(class) = class.filter(|class| class.waits_for_consumer() && claim.selected_node().is_none()) {
        return placing::first_consumer(view, claim, class);
    }
    if has_fit(view, claim) {
        return vec![binder(view, claim)];
    }
    if !view.g.volumes.is_known {
        let why = "only a volume that somebody has made will do, and none that fits was seen";
        return vec![view.unseen(kinds::VOLUME, claim.meta.creation_timestamp, why)];
    }
    let of = match class {
        Some(class) => {
            format!("class {:?} has provisioner {NO_PROVISIONER:?}: nobody makes volumes of it", class.meta.name)
        }
        None => "spec.storageClassName is \"\": only a volume without a class will do".to_owned(),
    };
    let why = format!("{of}, and no PersistentVolume fits ({})", misfits(view, claim));
    vec![Cause::stuck("no-fitting-volume", Who::user(), why, create_one(claim))]
}

/// There is no class of that name: some name one only to tell the volumes that they make from others.
pub fn class_missing(view: &View<'_>, claim: &Claim) -> Vec<Cause> {
    if has_fit(view, claim) {
        return vec![binder(view, claim)];
    }
    let name = claim.class_name();
    let names: Vec<&str> = view.g.classes.all().iter().map(|class| class.meta.name.as_str()).collect();
    let others = if names.is_empty() { "there is none".to_owned() } else { format!("there are {}", some(names)) };
    let mut way_out =
        format!("create StorageClass {name:?}, or delete the claim and create it anew with another class ({others})");
    let mut why = format!("spec.storageClassName is {name:?}, and there is no such StorageClass");
    if view.index.has_volume_of(name) {
        why = format!("{why}, and no PersistentVolume fits ({})", misfits(view, claim));
        way_out = format!("{}; or {way_out}", create_one(claim));
    } else if !view.g.volumes.is_known {
        why.push_str("; whether somebody has made a volume for it is not known, for not all of them could be read");
    }
    vec![Cause::stuck("class-missing", Who::user(), why, way_out)]
}

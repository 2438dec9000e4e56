//! How many volumes there are of each sort, so that telling why a claim finds none need not look at each of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::access_mode::AccessModes;
use crate::claim::{Claim, ClaimSpec};
use crate::matching::misfit::{Misfit, Misfits};
use crate::matching::{Place, fits};
use crate::phase::{VolumeMode, VolumePhase};
use crate::quantity::Quantity;
use crate::volume::Volume;

/// All volumes, counted. Modes, claims and classes are asked first, so that volumes of other classes are but a number.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Census {
    totals: BTreeMap<AccessModes, Total>,
    /// The volumes without a claim, by class.
    unclaimed: BTreeMap<String, BTreeMap<Profile, Sizes>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Total {
    claimed: usize,
    unclaimed: usize,
}

impl Total {
    fn of(&mut self, volume: &Volume) -> &mut usize {
        if volume.spec.claim_ref.is_some() { &mut self.claimed } else { &mut self.unclaimed }
    }
}

/// How many volumes there are of each size.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sizes {
    total: usize,
    counts: BTreeMap<Quantity, usize>,
}

/// Everything about an unclaimed volume of a class that decides why it does not fit, except its size and its labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Profile {
    pub(super) modes: AccessModes,
    pub(super) volume_mode: VolumeMode,
    pub(super) attributes_class: String,
    phase: VolumePhase,
    deleting: bool,
}

impl Profile {
    fn of(volume: &Volume) -> Self {
        Self {
            modes: volume.spec.access_modes,
            volume_mode: volume.spec.volume_mode,
            attributes_class: volume.attributes_class().to_owned(),
            phase: volume.status.phase,
            deleting: volume.meta.is_deleting(),
        }
    }

    /// A volume that stands for all of the class, profile and size.
    fn example(&self, class: &str, size: Quantity) -> Volume {
        let mut volume = Volume::default();
        class.clone_into(&mut volume.spec.storage_class_name);
        volume.spec.access_modes = self.modes;
        volume.spec.volume_mode = self.volume_mode;
        volume.spec.volume_attributes_class_name = Some(self.attributes_class.clone());
        volume.spec.capacity = Some(size);
        volume.status.phase = self.phase;
        volume.meta.deletion_timestamp = self.deleting.then_some(jiff::Timestamp::UNIX_EPOCH);
        volume
    }
}

impl Census {
    pub(super) fn add(&mut self, volume: &Volume) {
        *self.totals.entry(volume.spec.access_modes).or_default().of(volume) += 1;
        if volume.spec.claim_ref.is_none() {
            let profiles = self.unclaimed.entry(volume.class_name().to_owned()).or_default();
            let sizes = profiles.entry(Profile::of(volume)).or_default();
            sizes.total += 1;
            *sizes.counts.entry(volume.capacity()).or_default() += 1;
        }
    }

    /// Takes away a volume that was added just so.
    pub(super) fn remove(&mut self, volume: &Volume) {
        let modes = volume.spec.access_modes;
        if let Some(total) = self.totals.get_mut(&modes) {
            *total.of(volume) -= 1;
            if *total == Total::default() {
                self.totals.remove(&modes);
            }
        }
        if volume.spec.claim_ref.is_none() {
            self.remove_unclaimed(volume);
        }
    }

    fn remove_unclaimed(&mut self, volume: &Volume) {
        let Some(profiles) = self.unclaimed.get_mut(volume.class_name()) else { return };
        let profile = Profile::of(volume);
        if let Some(sizes) = profiles.get_mut(&profile) {
            sizes.total -= 1;
            if let Some(count) = sizes.counts.get_mut(&volume.capacity()) {
                *count -= 1;
                if *count == 0 {
                    sizes.counts.remove(&volume.capacity());
                }
            }
            if sizes.total == 0 {
                profiles.remove(&profile);
            }
        }
        if profiles.is_empty() {
            self.unclaimed.remove(volume.class_name());
        }
    }

    /// Why the claim gets none of the volumes, away from nodes: there modes are asked last and each volume's own affinity
    /// counts. `reserved` are those that refer to it, `large_enough` the free ones of its class and of a profile.
    pub(super) fn explain<'a>(
        &self,
        claim: &Claim,
        place: Place<'_>,
        reserved: impl Iterator<Item = &'a Volume>,
        large_enough: impl Fn(&Profile) -> Vec<&'a Volume>,
    ) -> Misfits {
        let mut misfits = Misfits::default();
        let mut apart: BTreeMap<AccessModes, usize> = BTreeMap::new();
        for volume in reserved {
            *apart.entry(volume.spec.access_modes).or_default() += 1;
            misfits.add(fits(volume, claim, place), 1);
        }
        let mut of_other_class = 0;
        for (modes, total) in &self.totals {
            let claimed = total.claimed - apart.get(modes).copied().unwrap_or_default();
            if modes.contains_all(claim.spec.access_modes) {
                misfits.add(Err(Misfit::OtherClaim), claimed);
                of_other_class += total.unclaimed;
            } else {
                misfits.add(Err(Misfit::AccessModes), claimed + total.unclaimed);
            }
        }
        let without_selector = match &claim.spec.selector {
            None => Cow::Borrowed(claim),
            Some(_) => {
                let spec = ClaimSpec { selector: None, ..claim.spec.clone() };
                Cow::Owned(Claim { spec, ..claim.clone() })
            }
        };
        let wanted = claim.requested();
        for (profile, sizes) in self.profiles_asked(claim) {
            of_other_class -= sizes.total;
            let small: usize = sizes.counts.range(..wanted).map(|(_, count)| count).sum();
            misfits.add(Err(Misfit::TooSmall), small);
            let first = fits(&profile.example(claim.class_name(), wanted), &without_selector, place);
            // Only the selector asks for labels, and only of volumes that pass everything before it.
            if first.is_ok() && claim.spec.selector.is_some() {
                large_enough(profile).into_iter().for_each(|volume| misfits.add(fits(volume, claim, place), 1));
            } else {
                misfits.add(first, sizes.total - small);
            }
        }
        misfits.add(Err(Misfit::OtherClass), of_other_class);
        misfits
    }

    /// The profiles that must be looked at to tell why the claim finds nothing: those of its own class, with its modes.
    pub(super) fn profiles_asked<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = (&'a Profile, &'a Sizes)> {
        let profiles = self.unclaimed.get(claim.class_name()).into_iter().flatten();
        profiles.filter(|(profile, _)| profile.modes.contains_all(claim.spec.access_modes))
    }
}

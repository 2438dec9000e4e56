//! Volumes kept so that a claim finds its match without looking at all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access_mode::AccessModes;
use crate::claim::Claim;
use crate::matching::{Error, Place, check_selector, fits, smallest_fit};
use crate::object::Key;
use crate::phase::VolumePhase;
use crate::quantity::Quantity;
use crate::volume::Volume;

/// All volumes by name, the free ones also by class, modes and size, the others by their claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Index {
    volumes: BTreeMap<String, Arc<Volume>>,
    free: BTreeMap<String, BTreeMap<AccessModes, BTreeSet<(Quantity, String)>>>,
    claimed: BTreeMap<Key, BTreeSet<String>>,
}

/// Where a volume is filed besides its name.
enum Shelf {
    Free { class: String, modes: AccessModes, size: Quantity },
    Claimed(Key),
    None,
}

fn shelf(volume: &Volume) -> Shelf {
    match &volume.spec.claim_ref {
        Some(reference) => Shelf::Claimed(reference.key()),
        None if volume.status.phase == VolumePhase::Available && !volume.meta.is_deleting() => Shelf::Free {
            class: volume.class_name().to_owned(),
            modes: volume.spec.access_modes,
            size: volume.capacity(),
        },
        None => Shelf::None,
    }
}

impl Index {
    /// Puts a volume in, in place of the one of the same name.
    pub fn insert(&mut self, volume: Arc<Volume>) {
        let name = volume.meta.name.clone();
        self.remove(&name);
        match shelf(&volume) {
            Shelf::Free { class, modes, size } => {
                self.free.entry(class).or_default().entry(modes).or_default().insert((size, name.clone()));
            }
            Shelf::Claimed(claim) => {
                self.claimed.entry(claim).or_default().insert(name.clone());
            }
            Shelf::None => {}
        }
        self.volumes.insert(name, volume);
    }

    /// Takes a volume out.
    pub fn remove(&mut self, name: &str) -> Option<Arc<Volume>> {
        let volume = self.volumes.remove(name)?;
        match shelf(&volume) {
            Shelf::Free { class, modes, size } => {
                let Some(groups) = self.free.get_mut(&class) else { return Some(volume) };
                if let Some(group) = groups.get_mut(&modes) {
                    group.remove(&(size, name.to_owned()));
                }
                groups.retain(|_, group| !group.is_empty());
                if groups.is_empty() {
                    self.free.remove(&class);
                }
            }
            Shelf::Claimed(claim) => {
                if let Some(names) = self.claimed.get_mut(&claim) {
                    names.remove(name);
                    if names.is_empty() {
                        self.claimed.remove(&claim);
                    }
                }
            }
            Shelf::None => {}
        }
        Some(volume)
    }

    /// The volume of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Volume>> {
        self.volumes.get(name)
    }

    /// All volumes, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values().map(AsRef::as_ref)
    }

    /// The volumes bound to or reserved for a claim of that name, whatever its uid.
    pub fn claimed_by(&self, claim: &Key) -> impl Iterator<Item = &Volume> {
        self.claimed.get(claim).into_iter().flatten().filter_map(|name| self.volumes.get(name).map(AsRef::as_ref))
    }

    /// The same answer as [`smallest_fit`] over all volumes. Of each group of free volumes only the first that fits is
    /// weighed, found by size.
    pub fn smallest_fit(&self, claim: &Claim, place: Place<'_>) -> Result<Option<&Volume>, Error> {
        check_selector(claim)?;
        let mut candidates: Vec<&Volume> = self.claimed_by(&claim.meta.key()).collect();
        for (modes, group) in self.free.get(claim.class_name()).into_iter().flatten() {
            if modes.contains_all(claim.spec.access_modes) {
                let large_enough = group.range((claim.requested(), String::new())..);
                let volumes = large_enough.filter_map(|(_, name)| self.volumes.get(name).map(AsRef::as_ref));
                candidates.extend(volumes.into_iter().find(|volume| fits(volume, claim, place).is_ok()));
            }
        }
        smallest_fit(candidates, claim, place)
    }
}

//! Volumes kept so that a claim finds its match without looking at all of them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::access_mode::AccessModes;
use crate::claim::Claim;
use crate::matching::census::Census;
use crate::matching::misfit::Misfits;
use crate::matching::{Error, Place, check_selector, fits, smallest_fit};
use crate::object::Key;
use crate::phase::{VolumeMode, VolumePhase};
use crate::quantity::Quantity;
use crate::volume::{ClaimRef, Volume};

/// Volumes by size and name, the smallest first.
type BySize = BTreeMap<(Quantity, String), Arc<Volume>>;

/// All volumes by name, the free ones also by class, modes and size, the others by their claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Index {
    volumes: BTreeMap<String, Arc<Volume>>,
    free: BTreeMap<String, BTreeMap<(AccessModes, VolumeMode), BySize>>,
    claimed: BTreeSet<Claimed>,
    pub(super) census: Census,
}

/// A volume in the order of the claim it refers to. Neither name is stored again.
#[derive(Debug, Clone)]
struct Claimed(Arc<Volume>);

/// Namespace, name and uid of the claim, and name of the volume.
trait ClaimOrder {
    fn order(&self) -> (&str, &str, &str, &str);
}

impl ClaimOrder for Claimed {
    fn order(&self) -> (&str, &str, &str, &str) {
        let held = self.0.spec.claim_ref.as_ref();
        let (namespace, name, uid) = held.map_or(("", "", ""), |held| (&held.namespace, &held.name, &held.uid));
        (namespace, name, uid, &self.0.meta.name)
    }
}

/// Before all volumes of a claim of that name, and of that uid among them.
struct First<'a>(&'a Key, &'a str);

impl ClaimOrder for First<'_> {
    fn order(&self) -> (&str, &str, &str, &str) {
        (&self.0.namespace, &self.0.name, self.1, "")
    }
}

impl PartialEq for dyn ClaimOrder + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for dyn ClaimOrder + '_ {}

impl PartialOrd for dyn ClaimOrder + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn ClaimOrder + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialEq for Claimed {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Claimed {}

impl PartialOrd for Claimed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Claimed {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl<'a> Borrow<dyn ClaimOrder + 'a> for Claimed {
    fn borrow(&self) -> &(dyn ClaimOrder + 'a) {
        self
    }
}

fn is_free(volume: &Volume) -> bool {
    volume.spec.claim_ref.is_none() && !volume.meta.is_deleting() && volume.status.phase == VolumePhase::Available
}

impl Index {
    /// Puts a volume in, in place of the one of the same name.
    pub fn insert(&mut self, volume: Arc<Volume>) {
        let before = self.volumes.insert(volume.meta.name.clone(), Arc::clone(&volume));
        if let Some(before) = &before
            && before.spec.claim_ref.is_some()
            && before.spec.claim_ref == volume.spec.claim_ref
            && before.spec.access_modes == volume.spec.access_modes
        {
            // It stays where it is, and counts as it did.
            self.claimed.replace(Claimed(volume));
            return;
        }
        if let Some(before) = before {
            self.take_off(&before);
        }
        self.census.add(&volume);
        if volume.spec.claim_ref.is_some() {
            self.claimed.insert(Claimed(volume));
        } else if is_free(&volume) {
            let groups = self.free.entry(volume.class_name().to_owned()).or_default();
            let group = groups.entry((volume.spec.access_modes, volume.spec.volume_mode)).or_default();
            group.insert((volume.capacity(), volume.meta.name.clone()), volume);
        }
    }

    /// Takes a volume out.
    pub fn remove(&mut self, name: &str) -> Option<Arc<Volume>> {
        let volume = self.volumes.remove(name)?;
        self.take_off(&volume);
        Some(volume)
    }

    fn take_off(&mut self, volume: &Arc<Volume>) {
        if volume.spec.claim_ref.is_some() {
            self.claimed.remove(&Claimed(Arc::clone(volume)));
        } else if is_free(volume) {
            self.take_off_shelf(volume);
        }
        self.census.remove(volume);
    }

    fn take_off_shelf(&mut self, volume: &Volume) {
        let Some(groups) = self.free.get_mut(volume.class_name()) else { return };
        let at = (volume.spec.access_modes, volume.spec.volume_mode);
        if let Some(group) = groups.get_mut(&at) {
            group.remove(&(volume.capacity(), volume.meta.name.clone()));
            if group.is_empty() {
                groups.remove(&at);
            }
        }
        if groups.is_empty() {
            self.free.remove(volume.class_name());
        }
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
    pub fn claimed_by_name(&self, claim: &Key) -> impl Iterator<Item = &Volume> {
        self.claimed_from(claim, "", |_| true).map(AsRef::as_ref)
    }

    /// The volumes bound to or reserved for this claim: those that have its uid, and those that have none. Others of the
    /// name are an earlier claim's, and there may be many.
    pub fn claimed_by(&self, claim: &Key, uid: &str) -> impl Iterator<Item = &Volume> {
        self.claimed_handles(claim, uid).map(AsRef::as_ref)
    }

    fn claimed_handles<'a>(&'a self, claim: &Key, uid: &str) -> impl Iterator<Item = &'a Arc<Volume>> + use<'a> {
        let with = |uid: &str| {
            let wanted = uid.to_owned();
            self.claimed_from(claim, uid, move |held| held.uid == wanted)
        };
        let with_uid = (!uid.is_empty()).then(|| with(uid));
        with("").chain(with_uid.into_iter().flatten())
    }

    fn claimed_from<'a, F: Fn(&ClaimRef) -> bool>(
        &'a self,
        claim: &Key,
        uid: &str,
        suits: F,
    ) -> impl Iterator<Item = &'a Arc<Volume>> + use<'a, F> {
        let first: &dyn ClaimOrder = &First(claim, uid);
        let from = self.claimed.range::<dyn ClaimOrder, _>((Bound::Included(first), Bound::Unbounded));
        let claim = claim.clone();
        let of_claim =
            move |held: &ClaimRef| held.namespace == claim.namespace && held.name == claim.name && suits(held);
        from.map(|Claimed(volume)| volume)
            .take_while(move |volume| volume.spec.claim_ref.as_ref().is_some_and(&of_claim))
    }

    /// A few volumes among which the claim's best match is, if there is one: those that refer to it, and of each group
    /// of free volumes the smallest that fits and may be taken.
    pub fn candidates(&self, claim: &Claim, place: Place<'_>, may_take: impl Fn(&Volume) -> bool) -> Vec<Arc<Volume>> {
        let claimed = self.claimed_handles(&claim.meta.key(), &claim.meta.uid).filter(|volume| may_take(volume));
        let mut candidates: Vec<Arc<Volume>> = claimed.cloned().collect();
        if matches!(place, Place::Undecided) || claim.data_source().is_some() {
            return candidates;
        }
        for ((modes, volume_mode), group) in self.free.get(claim.class_name()).into_iter().flatten() {
            let suits = modes.contains_all(claim.spec.access_modes) && *volume_mode == claim.spec.volume_mode;
            if suits {
                let mut large_enough = group.range((claim.requested(), String::new())..).map(|(_, volume)| volume);
                let first = large_enough.find(|volume| fits(volume, claim, place).is_ok() && may_take(volume));
                candidates.extend(first.cloned());
            }
        }
        candidates
    }

    /// The same answer as [`smallest_fit`] over all volumes. Of each group of free volumes only the first that fits is
    /// weighed, found by size.
    pub fn smallest_fit(&self, claim: &Claim, place: Place<'_>) -> Result<Option<&Volume>, Error> {
        check_selector(claim)?;
        let candidates = self.candidates(claim, place, |_| true);
        let best = smallest_fit(candidates.iter().map(AsRef::as_ref), claim, place)?.map(|best| best.meta.name.clone());
        Ok(best.and_then(|name| self.volumes.get(&name).map(AsRef::as_ref)))
    }

    /// The same summary as [`explain`](super::explain) over all volumes; away from nodes from counts.
    pub fn explain(&self, claim: &Claim, place: Place<'_>) -> Misfits {
        if matches!(place, Place::On(_)) {
            return super::explain(self.iter(), claim, place);
        }
        let key = claim.meta.key();
        let reserved = self.claimed_by(&key, &claim.meta.uid);
        self.census.explain(claim, place, reserved, |profile| {
            let groups = self.free.get(claim.class_name());
            let shelf = groups.and_then(|groups| groups.get(&(profile.modes, profile.volume_mode)));
            let volumes = shelf.into_iter().flat_map(|shelf| shelf.range((claim.requested(), String::new())..));
            let volumes = volumes.map(|(_, volume)| volume.as_ref());
            volumes.filter(|volume: &&Volume| volume.attributes_class() == profile.attributes_class).collect()
        })
    }
}

//! Claims that wait for any fitting volume, kept so that a volume that becomes free finds the best of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::access_mode::AccessModes;
use crate::claim::Claim;
use crate::object::Key;
use crate::phase::VolumeMode;
use crate::quantity::Quantity;
use crate::selector::LabelSelector;
use crate::volume::Volume;

/// What all claims of a group ask for; a volume suits all of them or only the smaller ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Wish {
    class: String,
    volume_mode: VolumeMode,
    attributes_class: String,
    modes: AccessModes,
    /// The selector's text, which tells groups apart as well as the selector itself.
    selector: String,
}

/// The largest request goes first, so that little of a volume is wasted; then the claim that waits longest.
type Rank = (Quantity, Reverse<Option<Timestamp>>, Reverse<Key>);

#[derive(Debug, Clone, Default)]
struct Group {
    selector: Option<Box<LabelSelector>>,
    ranks: BTreeSet<Rank>,
}

/// Waiting claims by what they ask for and by size.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    groups: BTreeMap<Wish, Group>,
    filed: BTreeMap<Key, (Wish, Rank)>,
}

impl Waiters {
    /// Files a claim, in place of the one of the same name.
    pub fn insert(&mut self, claim: &Claim) {
        let key = claim.meta.key();
        self.remove(&key);
        let wish = Wish {
            class: claim.class_name().to_owned(),
            volume_mode: claim.spec.volume_mode,
            attributes_class: claim.attributes_class().to_owned(),
            modes: claim.spec.access_modes,
            selector: claim.spec.selector.as_ref().map(|selector| format!("{selector:?}")).unwrap_or_default(),
        };
        let rank = (claim.requested(), Reverse(claim.meta.creation_timestamp), Reverse(key.clone()));
        let group = self.groups.entry(wish.clone()).or_default();
        group.selector.clone_from(&claim.spec.selector);
        group.ranks.insert(rank.clone());
        self.filed.insert(key, (wish, rank));
    }

    /// Takes a claim out; says whether it was there.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some((wish, rank)) = self.filed.remove(key) else { return false };
        if let Some(group) = self.groups.get_mut(&wish) {
            group.ranks.remove(&rank);
            if group.ranks.is_empty() {
                self.groups.remove(&wish);
            }
        }
        true
    }

    /// How many claims wait.
    pub fn len(&self) -> usize {
        self.filed.len()
    }

    /// Whether no claim waits.
    pub fn is_empty(&self) -> bool {
        self.filed.is_empty()
    }

    /// The best claim for a free volume, of those that it was not refused to: of each group only the largest that fits is
    /// weighed, found by size.
    pub fn best(&self, volume: &Volume, is_refused: impl Fn(&Key) -> bool) -> Option<Key> {
        let first = Wish {
            class: volume.class_name().to_owned(),
            volume_mode: volume.spec.volume_mode,
            attributes_class: volume.attributes_class().to_owned(),
            modes: AccessModes::default(),
            selector: String::new(),
        };
        let same = |wish: &Wish| {
            wish.class == first.class
                && wish.volume_mode == first.volume_mode
                && wish.attributes_class == first.attributes_class
        };
        let groups = self.groups.range(&first..).take_while(|(wish, _)| same(wish));
        let suiting = groups.filter(|(wish, group)| {
            volume.spec.access_modes.contains_all(wish.modes)
                && group.selector.as_ref().is_none_or(|s| s.matches(&volume.meta.labels).unwrap_or(false))
        });
        let largest = |group: &Group| {
            let bound = (volume.capacity(), Reverse(None), Reverse(Key::default()));
            group.ranks.range(..=bound).rev().find(|(_, _, Reverse(key))| !is_refused(key)).cloned()
        };
        suiting.filter_map(|(_, group)| largest(group)).max().map(|(_, _, Reverse(key))| key)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(name: &str, size: &str, class: &str, modes: &[&str]) -> Claim {
        serde_json::from_value(json!({
            "metadata": { "namespace": "n", "name": name, "creationTimestamp": format!("2026-01-01T00:00:0{}Z", name.len()) },
            "spec": {
                "storageClassName": class, "accessModes": modes, "resources": { "requests": { "storage": size } },
            },
        }))
        .unwrap()
    }

    fn volume(size: &str, class: &str) -> Volume {
        serde_json::from_value(json!({
            "metadata": { "name": "v", "labels": { "tier": "fast" } },
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": { "storage": size },
            },
            "status": { "phase": "Available" },
        }))
        .unwrap()
    }

    const RWO: &[&str] = &["ReadWriteOnce"];

    fn best(waiters: &Waiters, volume: &Volume) -> Option<String> {
        waiters.best(volume, |_| false).map(|key| key.name)
    }

    #[test]
    fn the_largest_request_that_fits_is_the_best() {
        let mut waiters = Waiters::default();
        for (name, size) in [("small", "1Gi"), ("middle", "5Gi"), ("huge", "50Gi")] {
            waiters.insert(&claim(name, size, "gold", RWO));
        }
        assert_eq!(best(&waiters, &volume("10Gi", "gold")).as_deref(), Some("middle"));
        assert!(waiters.remove(&Key::namespaced("n", "middle")));
        assert_eq!(best(&waiters, &volume("10Gi", "gold")).as_deref(), Some("small"));
        assert_eq!(best(&waiters, &volume("10Gi", "silver")), None);
        assert_eq!(best(&waiters, &volume("1Mi", "gold")), None);
        assert_eq!(waiters.len(), 2);
    }

    #[test]
    fn of_equal_requests_the_one_that_waits_longest_is_the_best() {
        let mut waiters = Waiters::default();
        for name in ["bbb", "a", "cc"] {
            waiters.insert(&claim(name, "1Gi", "", RWO));
        }
        assert_eq!(best(&waiters, &volume("1Gi", "")).as_deref(), Some("a"));
    }

    #[test]
    fn modes_and_selectors_keep_a_claim_from_a_volume() {
        let mut waiters = Waiters::default();
        waiters.insert(&claim("many", "1Gi", "", &["ReadWriteMany"]));
        let mut picky = claim("picky", "1Gi", "", RWO);
        picky.spec.selector = serde_json::from_value(json!({ "matchLabels": { "tier": "slow" } })).unwrap();
        waiters.insert(&picky);
        assert_eq!(best(&waiters, &volume("1Gi", "")), None);
        picky.spec.selector = serde_json::from_value(json!({ "matchLabels": { "tier": "fast" } })).unwrap();
        waiters.insert(&picky);
        assert_eq!(best(&waiters, &volume("1Gi", "")).as_deref(), Some("picky"));
    }
}

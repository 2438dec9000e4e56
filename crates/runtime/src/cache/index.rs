//! Finds objects by values that are computed of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use stowage_model::object::Projection;

/// The values that an object is found by.
pub(super) type Values<T> = fn(&T) -> Vec<String>;

/// Hashes of a value and of the key of an object that has it.
type Place = (u64, u64);

/// One index. Most values belong to one object, and the values themselves, or a set of keys for each of them, would take more
/// memory than the objects; so only hashes are kept, and whoever is found is asked whether it is meant.
pub(super) struct Index<T> {
    pub name: &'static str,
    values: Values<T>,
    hash: fn(&[&str]) -> u64,
    objects: BTreeMap<Place, Arc<T>>,
    /// Whose place was taken by another, which hardly ever happens.
    crowded: Vec<(Place, Arc<T>)>,
}

fn hash(texts: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    hasher.finish()
}

fn key<T: Projection>(object: &T) -> [&str; 2] {
    [&object.meta().namespace, &object.meta().name]
}

impl<T: Projection> Index<T> {
    pub fn new(name: &'static str, values: Values<T>) -> Self {
        Self { name, values, hash, objects: BTreeMap::new(), crowded: Vec::new() }
    }

    /// An object was replaced by a newer version of it, came or went.
    pub fn change(&mut self, before: Option<&Arc<T>>, after: Option<&Arc<T>>) {
        let places = |object: Option<&Arc<T>>| object.map(|object| self.places(object)).unwrap_or_default();
        let (old, new) = (places(before), places(after));
        if let Some(before) = before {
            old.difference(&new).for_each(|place| self.remove(*place, before));
        }
        if let Some(after) = after {
            new.into_iter().for_each(|place| self.insert(place, after));
        }
    }

    fn places(&self, object: &T) -> BTreeSet<Place> {
        let values = (self.values)(object);
        if values.is_empty() {
            return BTreeSet::new();
        }
        let of_key = (self.hash)(&key(object));
        let place = |value: &String| ((self.hash)(&[value]), of_key);
        values.iter().map(place).collect()
    }

    /// Takes the place of an older version, if there is one.
    fn insert(&mut self, place: Place, object: &Arc<T>) {
        // Its own place may have become free since.
        self.crowded.retain(|(at, other)| *at != place || key(&**other) != key(&**object));
        match self.objects.entry(place) {
            Entry::Vacant(free) => drop(free.insert(Arc::clone(object))),
            Entry::Occupied(mut taken) if key(&**taken.get()) == key(&**object) => {
                drop(taken.insert(Arc::clone(object)))
            }
            Entry::Occupied(_) => self.crowded.push((place, Arc::clone(object))),
        }
    }

    fn remove(&mut self, place: Place, object: &T) {
        match self.objects.entry(place) {
            Entry::Occupied(taken) if key(&**taken.get()) == key(object) => drop(taken.remove()),
            _ => self.crowded.retain(|(at, other)| *at != place || key(&**other) != key(object)),
        }
    }

    /// The objects with the value, in the order of their keys.
    pub fn with(&self, value: &str) -> Vec<Arc<T>> {
        let hash = (self.hash)(&[value]);
        let placed = self.objects.range((hash, 0)..=(hash, u64::MAX)).map(|(_, object)| object);
        let crowded = self.crowded.iter().filter(|((of, _), _)| *of == hash).map(|(_, object)| object);
        let is_meant = |object: &&Arc<T>| (self.values)(object).iter().any(|has| has == value);
        let mut found: Vec<Arc<T>> = placed.chain(crowded).filter(is_meant).cloned().collect();
        found.sort_by(|one, other| key(&**one).cmp(&key(&**other)));
        found
    }
}

#[cfg(test)]
mod tests {
    use stowage_model::Claim;

    use super::*;

    fn claim(name: &str, class: &str, volume: &str) -> Arc<Claim> {
        let mut claim = Claim::default();
        claim.meta.name = name.to_owned();
        claim.spec.storage_class_name = Some(class.to_owned());
        claim.spec.volume_name = volume.to_owned();
        Arc::new(claim)
    }

    /// Also where every hash is the same.
    #[test]
    fn whoever_has_a_value_is_found_and_nobody_else() {
        let by: Values<Claim> = |claim| vec![claim.class_name().to_owned(), claim.spec.volume_name.clone()];
        for hash in [hash, |_: &[&str]| 7] {
            let mut index = Index { hash, ..Index::new("any", by) };
            let names = |index: &Index<Claim>, value: &str| -> Vec<String> {
                index.with(value).iter().map(|claim| claim.meta.name.clone()).collect()
            };
            let (b, a, twice) = (claim("b", "gold", "v1"), claim("a", "gold", "v2"), claim("c", "same", "same"));
            for object in [&b, &a, &twice] {
                index.change(None, Some(object));
            }
            assert_eq!(names(&index, "gold"), ["a", "b"]);
            assert_eq!(names(&index, "v2"), ["a"]);
            assert_eq!(names(&index, "same"), ["c"]);
            assert!(names(&index, "v3").is_empty());
            let newer = claim("a", "gold", "v3");
            index.change(Some(&a), Some(&newer));
            assert_eq!(names(&index, "gold"), ["a", "b"]);
            assert!(names(&index, "v2").is_empty());
            assert!(Arc::ptr_eq(&index.with("v3")[0], &newer));
            index.change(Some(&b), None);
            let newest = claim("a", "gold", "v3");
            index.change(Some(&newer), Some(&newest));
            assert_eq!(names(&index, "gold"), ["a"]);
            assert!(Arc::ptr_eq(&index.with("v3")[0], &newest));
            for object in [&newest, &twice] {
                index.change(Some(object), None);
            }
            assert!(index.objects.is_empty() && index.crowded.is_empty());
        }
    }
}

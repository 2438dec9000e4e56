//! Which objects are written to, and who waits for them.

use std::collections::{BTreeMap, BTreeSet};

use stowage_model::object::{Kind, ObjectId};

/// Objects with a pending action; nobody else may decide on them.
#[derive(Debug, Clone, Default)]
pub struct Reserved(BTreeMap<Kind, BTreeMap<String, BTreeSet<String>>>);

impl Reserved {
    /// These objects, for deciding outside the engine.
    pub fn of(ids: impl IntoIterator<Item = ObjectId>) -> Self {
        let mut reserved = Self::default();
        ids.into_iter().for_each(|id| reserved.insert(id));
        reserved
    }

    /// Whether an action on this object is under way.
    pub fn contains(&self, id: &ObjectId) -> bool {
        self.has(id.kind, &id.key.namespace, &id.key.name)
    }

    /// The same, where the object's key is at hand in parts.
    pub fn has(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        let names = self.0.get(&kind).and_then(|namespaces| namespaces.get(namespace));
        names.is_some_and(|names| names.contains(name))
    }

    pub(super) fn insert(&mut self, id: ObjectId) {
        self.0.entry(id.kind).or_default().entry(id.key.namespace).or_default().insert(id.key.name);
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        let Some(namespaces) = self.0.get_mut(&id.kind) else { return };
        let Some(names) = namespaces.get_mut(&id.key.namespace) else { return };
        names.remove(&id.key.name);
        if names.is_empty() {
            namespaces.remove(&id.key.namespace);
        }
    }

    pub(super) fn overlaps(&self, ids: &[ObjectId]) -> Option<ObjectId> {
        ids.iter().find(|id| self.contains(id)).cloned()
    }
}

/// Keys that wait until an object is not busy any more, in the order in which they came: who was woken first, because the
/// object is his before it is anybody's, is decided on first.
pub(super) struct Parked<K> {
    /// With the place of each in that order.
    waiting: BTreeMap<ObjectId, BTreeMap<K, u64>>,
    count: u64,
}

impl<K> Default for Parked<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), count: 0 }
    }
}

impl<K: Ord> Parked<K> {
    pub(super) fn insert(&mut self, busy: ObjectId, key: K) {
        self.count += 1;
        self.waiting.entry(busy).or_default().entry(key).or_insert(self.count);
    }

    pub(super) fn take(&mut self, id: &ObjectId) -> impl Iterator<Item = K> {
        let mut waiting: Vec<(K, u64)> = self.waiting.remove(id).into_iter().flatten().collect();
        waiting.sort_unstable_by_key(|(_, place)| *place);
        waiting.into_iter().map(|(key, _)| key)
    }

    pub(super) fn keys(&self) -> BTreeSet<&K> {
        self.waiting.values().flat_map(BTreeMap::keys).collect()
    }
}

#[cfg(test)]
mod tests {
    use stowage_model::object::{Key, kinds};

    use super::*;

    #[test]
    fn who_waits_for_an_object_goes_on_in_the_order_in_which_he_came() {
        let object = |name: &str| ObjectId { kind: kinds::VOLUME, key: Key::cluster(name) };
        let mut parked = Parked::default();
        for key in ["z", "a", "z", "m"] {
            parked.insert(object("v"), key);
        }
        parked.insert(object("w"), "b");
        assert_eq!(parked.keys().len(), 4);
        assert_eq!(parked.take(&object("v")).collect::<Vec<_>>(), ["z", "a", "m"]);
        assert_eq!(parked.take(&object("v")).count(), 0);
    }
}

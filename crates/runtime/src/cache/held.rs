//! The objects of a cache by namespace and name, which are in each object already and not kept a second time.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::object::{Key, Projection};

/// Objects in the order of their keys.
pub(super) struct Objects<T>(BTreeSet<Held<T>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Projection> Objects<T> {
    pub fn get(&self, key: &Key) -> Option<&Arc<T>> {
        self.0.get::<dyn Keyed>(key).map(|held| &held.0)
    }

    /// Adds the object, or puts it in the place of the one with its key.
    pub fn insert(&mut self, object: Arc<T>) {
        self.0.replace(Held(object));
    }

    pub fn remove(&mut self, key: &Key) -> Option<Arc<T>> {
        self.0.take::<dyn Keyed>(key).map(|held| held.0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.iter().map(|held| &held.0)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

struct Held<T>(Arc<T>);

/// What has a namespace and a name: a key, and an object.
trait Keyed {
    fn parts(&self) -> (&str, &str);
}

impl Keyed for Key {
    fn parts(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl<T: Projection> Keyed for Held<T> {
    fn parts(&self) -> (&str, &str) {
        let meta = self.0.meta();
        (&meta.namespace, &meta.name)
    }
}

impl<'a, T: Projection> Borrow<dyn Keyed + 'a> for Held<T> {
    fn borrow(&self) -> &(dyn Keyed + 'a) {
        self
    }
}

impl PartialEq for dyn Keyed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Keyed + '_ {}

impl PartialOrd for dyn Keyed + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Keyed + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl<T: Projection> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl<T: Projection> Eq for Held<T> {}

impl<T: Projection> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Projection> Ord for Held<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

//! What is published: one object for each class in each place.

use std::fmt;
use std::sync::Arc;

use stowage_model::storage_capacity::StorageCapacity;
use stowage_model::topology::Segments;

/// A class in a place. Places come first, so that the items of one are side by side.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    pub place: Arc<Segments>,
    pub class: Arc<str>,
}

impl Item {
    pub fn new(place: &Arc<Segments>, class: &str) -> Self {
        Self { place: Arc::clone(place), class: class.into() }
    }

    /// What the object speaks of; none if its nodes are chosen in another way than by labels, which nobody here does.
    pub fn of(object: &StorageCapacity) -> Option<Self> {
        let nodes = object.node_topology.as_ref().filter(|nodes| nodes.match_expressions.is_empty())?;
        Some(Self::new(&Arc::new(nodes.match_labels.clone()), &object.storage_class_name))
    }
}

/// Also the value of the index by which its objects are found.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in", self.class)?;
        self.place.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

//! What is published of the room for new volumes of one class, so that a node's part of it is found without looking at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use stowage_model::object;
use stowage_model::{Claim, Node, StorageCapacity, StorageClass};

use crate::watches::{BY_CLASS, Caches};

/// Those that name one set of keys, by the values of these.
type OfValues = BTreeMap<Vec<String>, Vec<Arc<StorageCapacity>>>;

/// The CSIStorageCapacities of a class. Provisioners choose nodes by labels alone, so those are grouped by the keys that
/// they name: one look per group and node, where there may be as many objects as nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rooms {
    groups: BTreeMap<Vec<String>, OfValues>,
    /// Those that choose nodes in another way.
    others: Vec<Arc<StorageCapacity>>,
}

#[cfg(test)]
thread_local! {
    /// Groups and objects that were looked at.
    pub static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn look() {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
}

impl Rooms {
    pub fn new(objects: Vec<Arc<StorageCapacity>>) -> Self {
        let mut rooms = Self::default();
        for object in objects {
            look();
            // One that names no nodes is of no use to any.
            let Some(nodes) = &object.node_topology else { continue };
            if !nodes.match_expressions.is_empty() {
                rooms.others.push(object);
                continue;
            }
            let keys: Vec<String> = nodes.match_labels.keys().cloned().collect();
            let values: Vec<String> = nodes.match_labels.values().cloned().collect();
            rooms.groups.entry(keys).or_default().entry(values).or_default().push(object);
        }
        rooms
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.others.is_empty()
    }

    /// What is published for the node.
    pub fn at<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a StorageCapacity> {
        let labels = &node.meta.labels;
        let grouped = self.groups.iter().filter_map(move |(keys, of_values)| {
            look();
            let values = keys.iter().map(|key| labels.get(key).cloned()).collect::<Option<Vec<_>>>()?;
            of_values.get(&values)
        });
        // A selector nobody can read chooses no node.
        let chosen = |object: &&Arc<StorageCapacity>| {
            look();
            object.node_topology.as_ref().is_some_and(|nodes| nodes.matches(labels).unwrap_or(false))
        };
        grouped.flatten().inspect(|_| look()).chain(self.others.iter().filter(chosen)).map(AsRef::as_ref)
    }
}

impl Caches {
    /// What is published for new volumes of the claim; none if its driver does not want that looked at.
    pub(super) fn rooms(&self, claim: &Claim, class: Option<&StorageClass>) -> Option<Arc<Rooms>> {
        let class = class.filter(|_| !claim.requested().is_zero())?;
        let driver = self.drivers.get(&object::Key::cluster(&class.provisioner))?;
        let objects = || self.capacities.by_index(BY_CLASS, &class.meta.name);
        driver.spec.storage_capacity.then(|| Arc::new(Rooms::new(objects())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn capacity(name: &str, topology: Value) -> Arc<StorageCapacity> {
        let object = json!({ "metadata": { "name": name }, "nodeTopology": topology });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn node(labels: Value) -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "n", "labels": labels } })).unwrap()
    }

    #[test]
    fn a_node_finds_what_selects_it_by_any_kind_of_selector() {
        let expression =
            |key: &str, operator: &str| json!({ "matchExpressions": [{ "key": key, "operator": operator }] });
        let rooms = Rooms::new(vec![
            capacity("zone-a", json!({ "matchLabels": { "zone": "a" } })),
            capacity("zone-b", json!({ "matchLabels": { "zone": "b" } })),
            capacity("zone-a-rack-1", json!({ "matchLabels": { "zone": "a", "rack": "1" } })),
            capacity("everywhere", json!({})),
            capacity("nowhere", Value::Null),
            capacity("with-a-disk", expression("disk", "Exists")),
            capacity("unreadable", expression("disk", "Resembles")),
        ]);
        let at = |labels| {
            let node = node(labels);
            let mut names: Vec<_> = rooms.at(&node).map(|object| object.meta.name.clone()).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(at(json!({ "zone": "a" })), "everywhere zone-a");
        assert_eq!(at(json!({ "zone": "a", "rack": "1", "disk": "x" })), "everywhere with-a-disk zone-a zone-a-rack-1");
        assert_eq!(at(json!({ "rack": "1" })), "everywhere");
    }
}

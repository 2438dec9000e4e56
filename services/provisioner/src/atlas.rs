//! Where the nodes are: looked through once after each change of them, and not for each claim.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stowage_model::claim::Claim;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::object::Key as ObjectKey;
use stowage_model::topology::{self, Segments};
use stowage_runtime::cache::{Cache, Change};

use crate::places::Places;
use crate::requirement::Cluster;

/// Whether something changed that requests look at: heartbeats change everything but the labels.
pub fn is_moved(change: &Change<'_, Node>) -> bool {
    change.before.map(|node| &node.meta.labels) != change.after.map(|node| &node.meta.labels)
}

/// Whether the driver came, went or names places by other keys there, or the node did.
pub fn is_registered_anew(change: &Change<'_, CsiNode>, driver: &str) -> bool {
    change.before.map(|node| keys_on(node, driver)) != change.after.map(|node| keys_on(node, driver))
}

/// The keys that the driver reported on a node; none while it is not registered there.
pub fn keys_on<'a>(node: &'a CsiNode, driver: &str) -> Option<&'a [String]> {
    node.driver(driver).map(|driver| driver.topology_keys.as_slice()).filter(|keys| !keys.is_empty())
}

/// The places of the nodes as they were last asked for.
pub struct Atlas {
    driver: String,
    nodes: Cache<Node>,
    csi_nodes: Cache<CsiNode>,
    drawn: Arc<Mutex<Drawn>>,
}

#[derive(Default)]
struct Drawn {
    /// Raised by each change of nodes that counts.
    edition: u64,
    /// By the keys that places are named by; with the edition that they are of.
    places: BTreeMap<Vec<String>, (u64, Places)>,
    /// The first node's keys, and their edition.
    keys: Option<(u64, Option<Vec<String>>)>,
    /// How often all nodes were looked through.
    looks: usize,
}

impl Atlas {
    pub fn new(driver: &str, nodes: &Cache<Node>, csi_nodes: &Cache<CsiNode>) -> Self {
        let drawn = Arc::<Mutex<Drawn>>::default();
        let (outdated, driver_name) = (Arc::clone(&drawn), driver.to_owned());
        csi_nodes.on_change(move |change| {
            if is_registered_anew(change, &driver_name) {
                lock(&outdated).edition += 1;
            }
        });
        let outdated = Arc::clone(&drawn);
        nodes.on_change(move |change| {
            if is_moved(change) {
                lock(&outdated).edition += 1;
            }
        });
        Self { driver: driver.to_owned(), nodes: nodes.clone(), csi_nodes: csi_nodes.clone(), drawn }
    }

    /// What a request for the claim has to know of the nodes.
    pub fn around(&self, claim: &Claim) -> Cluster {
        let Some(name) = claim.node_of_volume() else {
            let places = self.some_keys().map(|keys| self.places(&keys)).unwrap_or_default();
            return Cluster { places, ..Cluster::default() };
        };
        let key = ObjectKey::cluster(name);
        let csi_node = self.csi_nodes.get(&key);
        let keys = csi_node.as_ref().and_then(|node| keys_on(node, &self.driver));
        let places = keys.map(|keys| self.places(keys)).unwrap_or_default();
        Cluster { node: self.nodes.get(&key), csi_node, places }
    }

    /// The first node's keys, by name; all nodes of one driver are expected to have the same.
    fn some_keys(&self) -> Option<Vec<String>> {
        let edition = {
            let drawn = self.lock();
            if let Some((_, keys)) = drawn.keys.as_ref().filter(|(of, _)| *of == drawn.edition) {
                return keys.clone();
            }
            drawn.edition
        };
        let keys = self.csi_nodes.list().iter().find_map(|node| keys_on(node, &self.driver).map(<[String]>::to_vec));
        self.lock().keys = Some((edition, keys.clone()));
        keys
    }

    /// The places of all nodes that have all the keys, sorted, each once.
    fn places(&self, keys: &[String]) -> Places {
        let edition = {
            let drawn = self.lock();
            if let Some((_, places)) = drawn.places.get(keys).filter(|(of, _)| *of == drawn.edition) {
                return places.clone();
            }
            drawn.edition
        };
        // Without the lock: what changes meanwhile is of the next edition.
        let nodes = self.nodes.list();
        let mut places: Vec<Segments> = nodes.iter().filter_map(|node| topology::of_node(node, keys).ok()).collect();
        places.sort();
        places.dedup();
        let mut drawn = self.lock();
        drawn.looks += 1;
        // Most changes of nodes do not move them, and what is shared already goes on being shared.
        let known = drawn.places.get(keys).map(|(_, known)| known.clone()).filter(|known| known.all() == places);
        let places = known.unwrap_or_else(|| Places::of(places));
        drawn.places.insert(keys.to_vec(), (edition, places.clone()));
        places
    }

    /// How often all nodes were looked through.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.lock().looks
    }

    fn lock(&self) -> MutexGuard<'_, Drawn> {
        lock(&self.drawn)
    }
}

fn lock(drawn: &Mutex<Drawn>) -> MutexGuard<'_, Drawn> {
    drawn.lock().expect("no code panics while holding the atlas")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{DRIVER, claim_with};

    const KEY: &str = "topology.stowage.dev/node";

    struct Nodes {
        nodes: Cache<Node>,
        csi_nodes: Cache<CsiNode>,
        atlas: Atlas,
        revision: u64,
    }

    impl Nodes {
        fn new(count: usize) -> Self {
            let (nodes, csi_nodes) = (Cache::new(), Cache::new());
            let atlas = Atlas::new(DRIVER, &nodes, &csi_nodes);
            let mut all = Self { nodes, csi_nodes, atlas, revision: 0 };
            for number in 0..count {
                let name = format!("n{number:04}");
                all.label(&name, &name, false);
                all.register(&name, json!([KEY]));
            }
            all
        }

        fn label(&mut self, name: &str, place: &str, unschedulable: bool) {
            self.revision += 1;
            self.nodes.observe(
                serde_json::from_value(json!({
                    "metadata": { "name": name, "uid": name, "resourceVersion": self.revision.to_string(), "labels": { KEY: place } },
                    "spec": { "unschedulable": unschedulable },
                }))
                .unwrap(),
            );
        }

        fn register(&mut self, name: &str, keys: serde_json::Value) {
            self.revision += 1;
            let driver = json!({ "name": DRIVER, "nodeID": name, "topologyKeys": keys });
            self.csi_nodes.observe(
                serde_json::from_value(json!({
                    "metadata": { "name": name, "uid": name, "resourceVersion": self.revision.to_string() },
                    "spec": { "drivers": [driver, { "name": "other", "nodeID": name, "topologyKeys": [self.revision.to_string()] }] },
                }))
                .unwrap(),
            );
        }

        fn around(&self, selected: Option<&str>) -> Cluster {
            self.atlas.around(&claim_with(|claim| {
                if let Some(node) = selected {
                    claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.into();
                }
            }))
        }
    }

    /// Each claim copied the lists of all nodes, and built and sorted the places of all of them.
    #[test]
    fn the_nodes_are_looked_through_once_however_many_claims_ask() {
        let mut nodes = Nodes::new(500);
        let first = nodes.around(None);
        assert_eq!(first.places.all().len(), 500);
        for number in 0..200 {
            let cluster = nodes.around(Some(&format!("n{number:04}")));
            assert!(std::ptr::eq(cluster.places.all(), first.places.all()), "not shared");
            assert_eq!(cluster.node.unwrap().meta.name, format!("n{number:04}"));
        }
        assert_eq!(nodes.atlas.looks(), 1);
        // Neither heartbeats nor other drivers are changes.
        nodes.label("n0007", "n0007", true);
        nodes.register("n0007", json!([KEY]));
        assert!(std::ptr::eq(nodes.around(None).places.all(), first.places.all()));
        assert_eq!(nodes.atlas.looks(), 1);
    }

    #[test]
    fn a_node_that_moves_is_seen_at_once_and_one_that_comes_to_a_known_place_changes_nothing() {
        let mut nodes = Nodes::new(3);
        let first = nodes.around(None);
        nodes.label("late", "n0001", false);
        let same = nodes.around(None);
        assert!(std::ptr::eq(same.places.all(), first.places.all()));
        nodes.label("n0000", "elsewhere", false);
        let places = nodes.around(Some("n0001")).places;
        let names: Vec<&str> = places.all().iter().map(|place| place[KEY].as_str()).collect();
        assert_eq!(names, ["elsewhere", "n0001", "n0002"]);
        assert_eq!(nodes.atlas.looks(), 3);
        nodes.nodes.observe_gone(&ObjectKey::cluster("n0002"), "n0002");
        assert_eq!(nodes.around(None).places.all().len(), 2);
    }

    #[test]
    fn the_keys_are_those_of_the_chosen_node_or_of_the_first() {
        let mut nodes = Nodes::new(2);
        nodes.register("n0000", json!([KEY, "zone"]));
        assert!(nodes.around(None).places.all().is_empty(), "no node has a zone");
        assert_eq!(nodes.around(Some("n0001")).places.all().len(), 2);
        nodes.register("n0000", json!([]));
        assert_eq!(nodes.around(None).places.all().len(), 2);
        let gone = nodes.around(Some("nowhere"));
        assert_eq!((gone.node, gone.csi_node, gone.places.all().len()), (None, None, 0));
    }
}

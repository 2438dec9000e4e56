//! Where the volume of a claim may be made: the `accessibility_requirements` of its CreateVolume.

use std::sync::Arc;

use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::topology::{self, Segments};

use crate::facts::Facts;
use crate::intent::Requirement;
use crate::request::Problem;

/// The nodes as far as a driver's topology is concerned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    pub nodes: Vec<Arc<Node>>,
    pub drivers: Vec<Arc<CsiNode>>,
}

impl Cluster {
    /// The keys the driver reported on a node; none while it is not registered there.
    fn keys<'a>(&'a self, node: &str, driver: &str) -> Result<&'a [String], Problem> {
        let found = self.drivers.iter().find(|found| found.meta.name == node);
        let found = found.ok_or_else(|| Problem::FindNode { node: node.into() })?;
        let keys = found.driver(driver).map(|driver| driver.topology_keys.as_slice()).filter(|keys| !keys.is_empty());
        keys.ok_or_else(|| Problem::FindDriver { node: node.into(), driver: driver.into() })
    }

    /// The first node's keys, by name; all nodes of one driver are expected to have the same.
    fn some_keys<'a>(&'a self, driver: &str) -> Option<&'a [String]> {
        let keys = |node: &'a Arc<CsiNode>| Some((&node.meta.name, node.driver(driver)?.topology_keys.as_slice()));
        let found = self.drivers.iter().filter_map(keys).filter(|(_, keys)| !keys.is_empty());
        found.min_by_key(|(name, _)| *name).map(|(_, keys)| keys)
    }

    /// The places of all nodes that have all the keys, sorted, each once.
    fn places(&self, keys: &[String]) -> Vec<Segments> {
        let mut places: Vec<_> = self.nodes.iter().filter_map(|node| topology::of_node(node, keys).ok()).collect();
        places.sort();
        places.dedup();
        places
    }
}

/// The places to ask for, best first; `None` leaves the choice to the driver.
pub fn of(
    claim: &Claim,
    class: &StorageClass,
    facts: &Facts,
    cluster: &Cluster,
) -> Result<Option<Requirement>, Problem> {
    if !facts.topology {
        return Ok(None);
    }
    if let Some(node) = &facts.node {
        return Ok(Some(exactly(node.segments.clone())));
    }
    let allowed = topology::flatten(&class.allowed_topologies);
    let Some(name) = claim.selected_node() else {
        let requisite = match allowed.is_empty() {
            false => allowed,
            true if !facts.options.immediate_topology => return Ok(None),
            true => cluster.some_keys(&facts.driver).map(|keys| cluster.places(keys)).unwrap_or_default(),
        };
        if requisite.is_empty() {
            // A volume made now could be where no node reaches it.
            return Err(Problem::FindPlace { driver: facts.driver.clone() });
        }
        let first = spread(&claim.meta.name, requisite.len());
        return Ok(Some(rotated(requisite, first)));
    };
    let selected = place_of(name, facts, cluster)?;
    if facts.options.strict_topology {
        return match topology::allows(&class.allowed_topologies, &selected) {
            true => Ok(Some(exactly(selected))),
            false => Err(Problem::AllowNode { node: name.into(), class: class.meta.name.clone() }),
        };
    }
    let requisite = match allowed.is_empty() {
        false => allowed,
        true => cluster.places(&selected.keys().cloned().collect::<Vec<_>>()),
    };
    match requisite.iter().position(|place| topology::is_within(place, &selected)) {
        Some(first) => Ok(Some(rotated(requisite, first))),
        None => Err(Problem::AllowNode { node: name.into(), class: class.meta.name.clone() }),
    }
}

fn place_of(name: &str, facts: &Facts, cluster: &Cluster) -> Result<Segments, Problem> {
    let keys = cluster.keys(name, &facts.driver)?;
    let node = cluster.nodes.iter().find(|node| node.meta.name == name);
    let node = node.ok_or_else(|| Problem::FindNode { node: name.into() })?;
    topology::of_node(node, keys).map_err(|source| Problem::PlaceNode { source })
}

fn exactly(place: Segments) -> Requirement {
    Requirement { requisite: vec![place.clone()], preferred: vec![place] }
}

fn rotated(requisite: Vec<Segments>, first: usize) -> Requirement {
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    Requirement { requisite, preferred }
}

/// Where to begin among `count` places, so that the claims of one StatefulSet land in different ones: its name is
/// hashed, its ordinal added.
fn spread(claim: &str, count: usize) -> usize {
    if count == 0 {
        return 0;
    }
    let ordinal = claim.rsplit_once('-').and_then(|(rest, last)| Some((rest, last.parse::<u32>().ok()?)));
    let (hashed, ordinal) = match ordinal {
        Some((rest, ordinal)) => (rest.rsplit_once('-').map_or(rest, |(_, set)| set), ordinal),
        None => (claim, 0),
    };
    hash(hashed).wrapping_add(ordinal) as usize % count
}

/// FNV-1, 32 bits, as the original uses: a replaced provisioner goes on spreading alike.
pub fn hash(text: &str) -> u32 {
    text.bytes().fold(2_166_136_261, |hash, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte))
}

#[cfg(test)]
mod tests;

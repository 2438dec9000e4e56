//! Where the volume of a claim may be made: the `accessibility_requirements` of its CreateVolume.

use std::sync::Arc;

use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::topology::{self, Segments};

use crate::atlas::keys_on;
use crate::facts::Facts;
use crate::intent::Requirement;
use crate::places::Places;
use crate::request::Problem;

/// What a request has to know of the nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    /// The node that was chosen, and the drivers there.
    pub node: Option<Arc<Node>>,
    pub csi_node: Option<Arc<CsiNode>>,
    /// The places of all nodes, as the driver names them on the chosen one, or without that on the first.
    pub places: Places,
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
        if !topology::allows(&class.allowed_topologies, &node.segments) {
            return Err(Problem::AllowNode { node: node.name.clone(), class: class.meta.name.clone() });
        }
        return Ok(Some(exactly(node.segments.clone())));
    }
    let allowed = topology::flatten(&class.allowed_topologies);
    let Some(name) = claim.node_of_volume() else {
        let requisite = match allowed.is_empty() {
            false => Places::of(allowed),
            true if !facts.options.immediate_topology => return Ok(None),
            true => cluster.places.clone(),
        };
        if requisite.all().is_empty() {
            // A volume made now could be where no node reaches it.
            return Err(Problem::FindPlace { driver: facts.driver.clone() });
        }
        let first = spread(&claim.meta.name, requisite.all().len());
        return Ok(Some(Requirement { requisite, first }));
    };
    let selected = place_of(name, facts, cluster)?;
    if facts.options.strict_topology {
        return match topology::allows(&class.allowed_topologies, &selected) {
            true => Ok(Some(exactly(selected))),
            false => Err(Problem::AllowNode { node: name.into(), class: class.meta.name.clone() }),
        };
    }
    let (requisite, first) = match allowed.is_empty() {
        false => {
            let first = allowed.iter().position(|place| topology::is_within(place, &selected));
            (Places::of(allowed), first)
        }
        // Sorted, and by the same keys: it is among them, or the node has gone.
        true => (cluster.places.clone(), cluster.places.all().binary_search(&selected).ok()),
    };
    match first {
        Some(first) => Ok(Some(Requirement { requisite, first })),
        None => Err(Problem::AllowNode { node: name.into(), class: class.meta.name.clone() }),
    }
}

fn place_of(name: &str, facts: &Facts, cluster: &Cluster) -> Result<Segments, Problem> {
    let csi_node = cluster.csi_node.as_ref().ok_or_else(|| Problem::FindNode { node: name.into() })?;
    let keys = keys_on(csi_node, &facts.driver);
    let keys = keys.ok_or_else(|| Problem::FindDriver { node: name.into(), driver: facts.driver.clone() })?;
    let node = cluster.node.as_ref().ok_or_else(|| Problem::FindNode { node: name.into() })?;
    topology::of_node(node, keys).map_err(|source| Problem::PlaceNode { source })
}

fn exactly(place: Segments) -> Requirement {
    Requirement { requisite: Places::of(vec![place]), first: 0 }
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

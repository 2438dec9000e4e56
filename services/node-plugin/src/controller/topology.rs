use stowage_csi::v1::{Topology, TopologyRequirement};

use super::Error;
use crate::driver::Shared;

/// Whether a volume may be made on this node.
pub fn check(shared: &Shared, requirement: Option<&TopologyRequirement>) -> Result<(), Error> {
    let (Some((key, node)), Some(requirement)) = (&shared.topology, requirement) else { return Ok(()) };
    // `preferred` is a subset of `requisite`, which may be left out.
    let allowed = if requirement.requisite.is_empty() { &requirement.preferred } else { &requirement.requisite };
    match allowed.is_empty() || allowed.iter().any(|topology| holds(topology, key, node)) {
        true => Ok(()),
        false => Err(Error::ReachTopology { key: key.clone(), node: node.clone() }),
    }
}

/// Whether this node is part of a topology.
pub fn covers(shared: &Shared, topology: Option<&Topology>) -> bool {
    match (&shared.topology, topology) {
        (Some((key, node)), Some(topology)) => holds(topology, key, node),
        _ => true,
    }
}

/// Segments of other keys say nothing about this driver.
fn holds(topology: &Topology, key: &str, node: &str) -> bool {
    topology.segments.get(key).is_none_or(|value| value == node)
}

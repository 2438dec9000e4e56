//! Whether a node has room for a new volume, and how well it could do without it: by what provisioners publish.

use std::collections::BTreeMap;

use stowage_model::{Claim, Node, Quantity};

use super::obstacle::Reason;
use super::volumes::PodVolumes;
use crate::snapshot::ClaimState;

/// A new volume, and all the room where it would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand<'a> {
    pub class: &'a str,
    pub requested: Quantity,
    pub capacity: Quantity,
}

/// Whether the claim's new volume fits on the node; nothing is known where its driver does not want it to matter. As in
/// kube-scheduler each claim is looked at alone.
pub fn demand<'a>(claim: &'a Claim, state: &ClaimState, node: &Node) -> Result<Option<Demand<'a>>, Reason> {
    let Some(rooms) = &state.rooms else { return Ok(None) };
    let (class, requested) = (claim.class_name(), claim.requested());
    if rooms.is_empty() {
        return Err(Reason::Unpublished { class: class.to_owned() });
    }
    let fitting = rooms.at(node).filter(|room| room.limit().is_some_and(|limit| limit >= requested));
    // Of several the one with most room is what the volume will be made from, if it is made well.
    let capacity = fitting.map(|room| room.capacity.unwrap_or(Quantity::ZERO)).max().ok_or(Reason::NoRoom)?;
    Ok(Some(Demand { class, requested, capacity }))
}

/// kube-scheduler's score with its usual shape: 100 for a node whose volumes are as good as unused, 0 for one they fill.
pub fn score(volumes: &PodVolumes<'_>) -> u8 {
    let mut classes: BTreeMap<&str, (i128, i128)> = BTreeMap::new();
    if volumes.static_bindings.is_empty() {
        for demand in &volumes.demands {
            let (requested, capacity) = classes.entry(demand.class).or_default();
            *requested += demand.requested.bytes();
            *capacity = demand.capacity.bytes();
        }
    } else {
        for (claim, volume) in &volumes.static_bindings {
            let (requested, capacity) = classes.entry(claim.class_name()).or_default();
            *requested += claim.requested().bytes();
            *capacity += volume.capacity().bytes();
        }
    }
    let unused = |(requested, capacity): &(i128, i128)| match *capacity > 0 && requested <= capacity {
        true => 100 - requested * 100 / capacity,
        false => 0,
    };
    let count = classes.len() as i128;
    let sum: i128 = classes.values().map(unused).sum();
    // Rounded, half up; at most 100.
    if count == 0 { 0 } else { u8::try_from((2 * sum + count) / (2 * count)).unwrap_or(100) }
}

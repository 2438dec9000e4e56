//! Whether a volume must grow on this node, and by which of the two protocols.

use std::sync::Arc;

use stowage_model::access_mode::AccessMode;
use stowage_model::annotations;
use stowage_model::claim::{Claim, ResizeStatus};
use stowage_model::quantity::Quantity;
use stowage_plugins::{Traits, VolumeSpec};

/// What the node has to do with a volume's growth.
#[derive(Debug, Clone, PartialEq)]
pub enum Expansion {
    /// Nothing.
    NotNeeded,
    /// It should grow, but this use may only read; told once, and taken for done.
    ReadOnly { claim: Arc<Claim>, size: Quantity },
    /// It grows to this size.
    Needed { claim: Arc<Claim>, size: Quantity, protocol: Protocol },
}

/// Who says in the claim's status how far the growth is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Conditions alone.
    Legacy,
    /// `allocatedResources` and their statuses, from which an impossible request can be taken back.
    Recovery,
}

impl Expansion {
    pub fn is_needed(&self) -> bool {
        !matches!(self, Self::NotNeeded)
    }
}

/// What is to be done for a volume that has the `recorded` size on this node, if that is known.
pub fn expansion(spec: &VolumeSpec, traits: &Traits, claim: &Arc<Claim>, recorded: Option<Quantity>) -> Expansion {
    let (Some(persistent), true) = (&spec.persistent, traits.is_expandable) else {
        return Expansion::NotNeeded;
    };
    let (size, Some(of_claim)) = (persistent.capacity, claim.status.capacity.storage) else {
        return Expansion::NotNeeded;
    };
    if size <= recorded.unwrap_or(of_claim) {
        return Expansion::NotNeeded;
    }
    let status = claim.status.allocated_resource_statuses.storage;
    let allocated = claim.status.allocated_resources.storage;
    let protocol = match allocated.is_some() || status != ResizeStatus::None {
        true => Protocol::Recovery,
        false => Protocol::Legacy,
    };
    if of_claim >= size {
        // Somebody else has finished; only a volume that several nodes have must grow on each.
        let shared = persistent.access_modes.contains(AccessMode::ReadWriteMany);
        let exempt = claim.meta.annotation(annotations::NODE_EXPANSION_NOT_REQUIRED).is_some();
        if !shared || exempt {
            return Expansion::NotNeeded;
        }
    } else if protocol == Protocol::Recovery
        && !matches!(status, ResizeStatus::NodeResizePending | ResizeStatus::NodeResizeInProgress)
    {
        return Expansion::NotNeeded;
    }
    let claim = Arc::clone(claim);
    if spec.read_only {
        return Expansion::ReadOnly { claim, size };
    }
    let size = allocated.filter(|_| protocol == Protocol::Recovery).unwrap_or(size);
    Expansion::Needed { claim, size, protocol }
}

#[cfg(test)]
mod tests;

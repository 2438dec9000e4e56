//! Which volume a claim gets. The order of the conditions is upstream's, because it shows: it decides which of several
//! reasons is told, and that a reserved volume skips the later ones.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::access_mode::AccessModes;
use crate::claim::Claim;
use crate::class::StorageClass;
use crate::node::Node;
use crate::phase::VolumePhase;
use crate::quantity::Quantity;
use crate::selector;
use crate::topology;
use crate::volume::Volume;

mod census;
mod index;
mod misfit;
mod waiters;

pub use index::Index;
pub use misfit::{Misfit, Misfits, explain};
pub use waiters::Waiters;

/// For what place a volume is looked for.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// Any: the claim is bound at once, and nobody asks where its pod will run.
    Anywhere,
    /// Unknown yet: the claim waits for its first consumer, so only a volume reserved for it will do.
    Undecided,
    /// This node, tried by the scheduler.
    On(&'a Node),
}

/// How a fitting volume came to fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It is already bound to or reserved for this very claim.
    Reserved,
    /// It is free.
    Free,
}

/// Why no search can be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The claim's selector is malformed.
    #[error("spec.selector of claim {claim}")]
    ReadSelector {
        /// The claim.
        claim: String,
        /// What is wrong.
        #[source]
        source: selector::Error,
    },
    /// The class does not say when to bind.
    #[error("storage class {class:?} has no volumeBindingMode; set it to Immediate or WaitForFirstConsumer")]
    FindBindingMode {
        /// The class.
        class: String,
    },
}

/// Whether the volume suits the claim at that place, and if not, the first reason why not.
pub fn fits(volume: &Volume, claim: &Claim, place: Place<'_>) -> Result<Fit, Misfit> {
    let offers_modes = volume.spec.access_modes.contains_all(claim.spec.access_modes);
    let on_node = matches!(place, Place::On(_));
    refuse(!on_node && !offers_modes, Misfit::AccessModes)?;

    let reserved = volume.is_bound_to(claim);
    refuse(volume.spec.claim_ref.is_some() && !reserved, Misfit::OtherClaim)?;
    // Asked early, for it is what people look at first, and volumes of other classes need not be told apart by size.
    refuse(!reserved && volume.class_name() != claim.class_name(), Misfit::OtherClass)?;
    refuse(volume.capacity() < claim.requested(), Misfit::TooSmall)?;
    refuse(volume.spec.volume_mode != claim.spec.volume_mode, Misfit::VolumeMode)?;
    refuse(volume.attributes_class() != claim.attributes_class(), Misfit::AttributesClass)?;
    refuse(volume.meta.is_deleting(), Misfit::Deleting)?;

    let reachable = match place {
        // A malformed affinity is met by no node.
        Place::On(node) => topology::reaches(volume, node).unwrap_or(false),
        Place::Anywhere | Place::Undecided => true,
    };
    if reserved {
        return if reachable { Ok(Fit::Reserved) } else { Err(Misfit::NodeAffinity) };
    }
    // Upstream binds it all the same, and its user finds other data (kubernetes/kubernetes#101878).
    refuse(claim.data_source().is_some(), Misfit::OtherData)?;
    refuse(matches!(place, Place::Undecided), Misfit::WaitsForConsumer)?;
    refuse(volume.status.phase != VolumePhase::Available, Misfit::NotAvailable)?;
    let selected = claim.spec.selector.as_ref().is_none_or(|s| s.matches(&volume.meta.labels).unwrap_or(false));
    refuse(!selected, Misfit::Selector)?;
    refuse(!reachable, Misfit::NodeAffinity)?;
    refuse(!offers_modes, Misfit::AccessModes)?;
    Ok(Fit::Free)
}

/// Whether a volume that the claim names, and nobody else has, may be given to it. Selector, phase and affinity are
/// not asked: the user chose.
pub fn satisfies(volume: &Volume, claim: &Claim) -> Result<(), Misfit> {
    refuse(volume.meta.is_deleting(), Misfit::Deleting)?;
    refuse(volume.capacity() < claim.requested(), Misfit::TooSmall)?;
    refuse(volume.class_name() != claim.class_name(), Misfit::OtherClass)?;
    refuse(volume.attributes_class() != claim.attributes_class(), Misfit::AttributesClass)?;
    refuse(volume.spec.volume_mode != claim.spec.volume_mode, Misfit::VolumeMode)?;
    refuse(!volume.spec.access_modes.contains_all(claim.spec.access_modes), Misfit::AccessModes)
}

fn refuse(condition: bool, misfit: Misfit) -> Result<(), Misfit> {
    if condition { Err(misfit) } else { Ok(()) }
}

/// What makes one fitting volume better than another; the least wins.
type Rank<'a> = (usize, AccessModes, bool, Quantity, &'a str);

fn rank<'a>(volume: &'a Volume, fit: Fit, place: Place<'_>) -> Rank<'a> {
    let free = fit == Fit::Free;
    let size = if free { volume.capacity() } else { Quantity::ZERO };
    let modes = volume.spec.access_modes;
    match place {
        Place::On(_) => (0, AccessModes::default(), free, size, &volume.meta.name),
        // The fewer modes a volume offers the better, so that a rich one is not wasted on a simple claim.
        // This comes even before the reservation.
        Place::Anywhere | Place::Undecided => (modes.len(), modes, free, size, &volume.meta.name),
    }
}

/// The volume the claim gets: reserved before free, then the smallest, then the first by name.
///
/// Away from nodes, volumes with fewer access modes go before all that. On a node, a reserved volume that the node cannot
/// reach ends the search, for the claim must not get another.
pub fn smallest_fit<'a>(
    volumes: impl IntoIterator<Item = &'a Volume>,
    claim: &Claim,
    place: Place<'_>,
) -> Result<Option<&'a Volume>, Error> {
    check_selector(claim)?;
    let mut best: Option<(Rank<'a>, &'a Volume)> = None;
    let mut out_of_reach = false;
    for volume in volumes {
        match fits(volume, claim, place) {
            Ok(fit) => {
                let rank = rank(volume, fit, place);
                if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                    best = Some((rank, volume));
                }
            }
            Err(Misfit::NodeAffinity) => out_of_reach |= volume.is_bound_to(claim),
            Err(_) => {}
        }
    }
    Ok(best.map(|(_, volume)| volume).filter(|volume| !out_of_reach || volume.is_bound_to(claim)))
}

fn check_selector(claim: &Claim) -> Result<(), Error> {
    let Some(selector) = &claim.spec.selector else { return Ok(()) };
    match selector.matches(&BTreeMap::new()) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::ReadSelector { claim: claim.meta.key().to_string(), source }),
    }
}

/// Whether the claim waits for its first consumer. A class that does not exist delays nothing.
pub fn delays_binding(claim: &Claim, class: Option<&StorageClass>) -> Result<bool, Error> {
    match class {
        Some(class) if !claim.class_name().is_empty() => match class.binding_mode {
            None => Err(Error::FindBindingMode { class: class.meta.name.clone() }),
            Some(_) => Ok(class.waits_for_consumer()),
        },
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests;

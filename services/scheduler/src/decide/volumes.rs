//! What a pod's claims ask of a node: reachable volumes, free ones to take, or a place to make new ones.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::error::Error as _;

use stowage_model::matching::{self, Misfit, Place};
use stowage_model::object::Key;
use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, Node, Pod, StorageClass, Volume, labels, migration, topology};
use stowage_runtime::cache::View;

use super::Unseen;
use super::obstacle::{Fault, Reason};
use super::room::{self, Demand};
use crate::snapshot::{ClaimState, NodeState};

/// A claim as the filters see it.
#[derive(Debug, Clone, Copy)]
pub enum PodClaim<'a> {
    /// Bound; the volume may be missing all the same.
    Bound { volume: Option<&'a Volume> },
    /// Waiting for the pod to be placed.
    Delayed { claim: &'a Claim, class: &'a StorageClass, state: &'a ClaimState },
}

/// Why no node needs to be looked at.
#[derive(Debug, Clone, PartialEq)]
pub enum Obstacle {
    Look(Unseen),
    Fault(Fault),
}

/// Sorts the pod's claims; the first that keeps the pod off every node is told, unbound ones last.
pub fn classify<'a>(pod: &Pod, states: &'a [ClaimState]) -> Result<Vec<PodClaim<'a>>, Obstacle> {
    let mut claims = Vec::with_capacity(states.len());
    let mut unbound = false;
    for state in states {
        match one(pod, state) {
            Ok(claim) => claims.push(claim),
            Err(Obstacle::Fault(Fault::UnboundImmediate)) => unbound = true,
            Err(obstacle) => return Err(obstacle),
        }
    }
    if unbound { Err(Obstacle::Fault(Fault::UnboundImmediate)) } else { Ok(claims) }
}

fn one<'a>(pod: &Pod, state: &'a ClaimState) -> Result<PodClaim<'a>, Obstacle> {
    let name = || state.key.name.clone();
    let claim = match &state.claim {
        View::Known(claim) => claim.as_ref(),
        View::Unknown => return Err(Obstacle::Look(Unseen::Claim(state.key.clone()))),
        View::Absent if state.ephemeral => return Err(Obstacle::Fault(Fault::NotYetMade { claim: name() })),
        View::Absent => return Err(Obstacle::Fault(Fault::Missing { claim: name() })),
    };
    if claim.status.phase == ClaimPhase::Lost {
        let volume = claim.spec.volume_name.clone();
        return Err(Obstacle::Fault(Fault::Lost { claim: name(), volume }));
    }
    if claim.meta.is_deleting() {
        return Err(Obstacle::Fault(Fault::Deleting { claim: name() }));
    }
    if state.ephemeral && !claim.is_owned_by(pod) {
        return Err(Obstacle::Fault(Fault::NotOwned { claim: name() }));
    }
    if claim.is_fully_bound() {
        return match &state.volume {
            View::Known(volume) => Ok(PodClaim::Bound { volume: Some(volume) }),
            View::Absent => Ok(PodClaim::Bound { volume: None }),
            View::Unknown => Err(Obstacle::Look(Unseen::Volume(Key::cluster(claim.spec.volume_name.clone())))),
        };
    }
    let class = state.class.as_deref();
    match matching::delays_binding(claim, class) {
        Err(error) => Err(Obstacle::Fault(Fault::Class { text: error.to_string() })),
        Ok(true) if !claim.names_volume() => match class {
            Some(class) => Ok(PodClaim::Delayed { claim, class, state }),
            None => Err(Obstacle::Fault(Fault::UnboundImmediate)),
        },
        Ok(_) => Err(Obstacle::Fault(Fault::UnboundImmediate)),
    }
}

/// What placing the pod on a node means for its unbound claims, in kube-scheduler's words.
#[derive(Debug, Clone, Default)]
pub struct PodVolumes<'a> {
    pub static_bindings: Vec<(&'a Claim, &'a Volume)>,
    pub dynamic_provisions: Vec<&'a Claim>,
    /// What of those is known about the room for them.
    pub demands: Vec<Demand<'a>>,
}

/// Whether the node can have all of the claims, and how.
pub fn find_volumes<'a>(claims: &[PodClaim<'a>], on: &NodeState) -> Result<PodVolumes<'a>, Vec<Reason>> {
    let mut reasons = BTreeSet::new();
    for claim in claims {
        if let PodClaim::Bound { volume } = claim {
            let refused = match volume.map(|volume| reaches(volume, on)) {
                None => Some(Reason::VolumeMissing),
                Some(true) => None,
                Some(false) => Some(Reason::VolumeAffinity),
            };
            reasons.extend(refused);
        }
    }
    let volumes = match place_delayed(claims, on) {
        Ok(volumes) => volumes,
        Err(reason) => {
            reasons.insert(reason);
            PodVolumes::default()
        }
    };
    if reasons.is_empty() { Ok(volumes) } else { Err(reasons.into_iter().collect()) }
}

fn place_delayed<'a>(claims: &[PodClaim<'a>], on: &NodeState) -> Result<PodVolumes<'a>, Reason> {
    let node = &on.node;
    let mut delayed: Vec<_> = claims
        .iter()
        .filter_map(|claim| match claim {
            PodClaim::Delayed { claim, class, state } => Some((*claim, *class, *state)),
            PodClaim::Bound { .. } => None,
        })
        .collect();
    // Small claims choose first, so that a large volume is not wasted on one of them.
    delayed.sort_by_key(|(claim, _, state)| (claim.requested(), &state.key));
    let mut volumes = PodVolumes::default();
    let mut taken = BTreeSet::new();
    for (claim, class, state) in delayed {
        match claim.selected_node() {
            Some(selected) if selected != node.meta.name => return Err(Reason::BindConflict),
            Some(_) => volumes.dynamic_provisions.push(claim),
            None => {
                let free = state.candidates.iter().filter(|volume| !taken.contains(volume.meta.name.as_str()));
                let found =
                    matching::smallest_fit(free.map(AsRef::as_ref), claim, Place::On(node)).map_err(malformed)?;
                match found {
                    Some(volume) => {
                        taken.insert(volume.meta.name.as_str());
                        volumes.static_bindings.push((claim, volume));
                        continue;
                    }
                    // A volume reserved for the claim elsewhere rules this node out; no second one may be made.
                    None if state.candidates.iter().any(|volume| is_out_of_reach(volume, claim, node)) => {
                        return Err(Reason::BindConflict);
                    }
                    // Where the data cannot be reached no copy of it can be made.
                    None if state.cloned.as_ref().is_some_and(|volume| !reaches(volume, on)) => {
                        return Err(Reason::SourceAffinity);
                    }
                    None => volumes.dynamic_provisions.push(claim),
                }
            }
        }
        if !class.provisions() || !topology::allows(&class.allowed_topologies, &node.meta.labels) {
            return Err(Reason::BindConflict);
        }
        // A volume that is being made may take the very room that is looked for; if there is none, the provisioner says so.
        if claim.selected_node().is_none() {
            volumes.demands.extend(room::demand(claim, state, node)?);
        }
    }
    Ok(volumes)
}

/// Where a driver took over from the volume's plugin and is here, its labels count. An affinity nobody can read is met by no
/// node.
fn reaches(volume: &Volume, on: &NodeState) -> bool {
    let is_here = |volume: &Cow<'_, Volume>| volume.spec.csi.as_ref().is_some_and(|csi| on.has_driver(&csi.driver));
    let translated = migration::to_csi(volume).ok().flatten().filter(is_here);
    topology::reaches(translated.as_deref().unwrap_or(volume), &on.node).unwrap_or(false)
}

fn is_out_of_reach(volume: &Volume, claim: &Claim, node: &Node) -> bool {
    volume.is_bound_to(claim) && matching::fits(volume, claim, Place::On(node)) == Err(Misfit::NodeAffinity)
}

fn malformed(error: matching::Error) -> Reason {
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Reason::Malformed(format!("{error}{cause}"))
}

const ZONES: [(&str, &str); 4] = [
    (labels::ZONE, labels::ZONE),
    (labels::REGION, labels::REGION),
    // A node that only knows the current key still satisfies a volume with the legacy one; not the other way round.
    (labels::BETA_ZONE, labels::ZONE),
    (labels::BETA_REGION, labels::REGION),
];

/// Whether the node is in the zones and regions that the bound volumes' labels name.
pub fn in_zone(claims: &[PodClaim<'_>], node: &Node) -> bool {
    let of_node = |key: &str| node.meta.labels.get(key).map(String::as_str);
    if ZONES.iter().all(|(key, _)| of_node(key).is_none()) {
        return true;
    }
    claims.iter().all(|claim| {
        let PodClaim::Bound { volume: Some(volume) } = claim else { return true };
        ZONES.iter().all(|(key, alternative)| {
            let Some(zones) = volume.meta.labels.get(*key).and_then(|value| parse_zones(value)) else { return true };
            of_node(key).or_else(|| of_node(alternative)).is_some_and(|zone| zones.contains(zone))
        })
    })
}

/// The zones of a label such as `a__b`; one with an empty part means nothing.
fn parse_zones(value: &str) -> Option<BTreeSet<&str>> {
    let zones: BTreeSet<&str> = value.split("__").map(str::trim).collect();
    (!zones.contains("")).then_some(zones)
}

//! The writes of a binding, in the only order that survives a crash anywhere.

use jiff::Timestamp;

use stowage_model::Volume;
use stowage_model::object::Key;
use stowage_model::phase::VolumePhase;

use crate::decide::status::{self, Status};
use crate::decide::{ClaimAction, Decision, Why};
use crate::snapshot::ClaimSnapshot;

/// The pair that is being bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub claim: Key,
    pub volume: String,
}

/// Writes to both halves of a reserved pair, side by side: at most one to each object.
#[derive(Debug, Clone, PartialEq)]
pub struct Bind {
    pub volume: String,
    /// Names the volume in the claim and marks the binding as completed, with the controller's mark if it chose.
    pub complete: Option<Complete>,
    /// The claim's status; never together with `complete`, which changes the claim's version.
    pub status: Option<status::Change>,
    /// Whether the volume's phase is not Bound yet.
    pub phase: bool,
}

impl Bind {
    /// Whether anything is written to the claim.
    pub fn is_of_claim(&self) -> bool {
        self.complete.is_some() || self.status.is_some()
    }
}

/// How a binding is completed in the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Complete {
    pub marked: bool,
}

/// What is missing next of binding the claim to this volume. The volume's pointer is written and answered before
/// anything else, so that a completed claim never exists without it.
pub fn bind(s: &ClaimSnapshot, volume: &Volume, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let name = || volume.meta.name.clone();
    let why = || Why::Bind(Pair { claim: claim.meta.key(), volume: name() });
    let held = volume.spec.claim_ref.as_ref();
    if !held.is_some_and(|held| held.uid == claim.meta.uid && held.is_of(claim)) {
        return Decision::act([ClaimAction::Reserve { volume: name(), marked: !volume.is_bound_to(claim) }], why());
    }
    let renamed = claim.spec.volume_name != volume.meta.name;
    let complete = (renamed || !claim.is_bind_completed())
        .then(|| Complete { marked: renamed && !claim.is_bound_by_controller() });
    let status = match complete {
        Some(_) => None,
        None => status::change(s, Status::bound(claim, volume), None, now),
    };
    let phase = volume.status.phase != VolumePhase::Bound;
    if complete.is_none() && status.is_none() && !phase {
        return Decision::rest(Why::Settled);
    }
    Decision::act([ClaimAction::Bind(Box::new(Bind { volume: name(), complete, status, phase }))], why())
}

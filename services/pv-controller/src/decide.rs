//! What must happen next to a claim, a volume, a pod or a VolumeAttributesClass. Pure: no client, no clock, no randomness.
//!
//! One module for each of upstream's controllers. They write the same objects, so the order in which they have their say
//! is decided here.

mod action;
pub mod binder;
pub mod ephemeral;
pub mod expander;
mod migration;
pub mod pv_protection;
pub mod pvc_protection;
pub mod status;
pub mod vac_protection;

use jiff::Timestamp;

use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_runtime::cache::View;
use stowage_runtime::engine;

use crate::snapshot::{ClaimSnapshot, Known, Snapshot, VolumeSnapshot};

pub use action::{
    Action, AttributesClassAction, ClaimAction, ClaimTidy, PodAction, Seen, Source, VolumeAction, VolumeTidy,
};

/// What must happen next, and why.
pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action> {
    match s {
        Snapshot::Gone => Decision::rest(Why::Gone),
        Snapshot::Claim(s) => {
            let mut decision = claim(s, now);
            // A claim that has its volume waits for nothing that was ever told.
            if decision.why != Why::Settled {
                decision = told_again(decision, &s.told, now);
            }
            let seen = seen(s, &decision);
            decision.map(|action| Action::Claim(action, seen))
        }
        Snapshot::Volume(s) => {
            let decision = told_again(volume(s, now), &s.told, now);
            decision.map(|action| Action::Volume(action, s.volume.meta.revision))
        }
        Snapshot::Pod(s) => told_again(ephemeral::decide(s, now), &s.told, now).map(Action::Pod),
        Snapshot::AttributesClass(s) => {
            vac_protection::decide(s).map(|action| Action::AttributesClass(action, s.class.meta.revision))
        }
    }
}

/// A claim that must go is not bound before, and one is bound before it grows.
pub fn claim(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    if let Some(decision) = ephemeral::collect(s).or_else(|| pvc_protection::decide(s)) {
        return decision;
    }
    let decision = binder::decide(s, now);
    if !decision.actions.is_empty() || !matches!(decision.why, Why::Settled) {
        return decision;
    }
    expander::decide(s, now).unwrap_or(decision)
}

/// Upstream's order: metadata, then the claim reference.
pub fn volume(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    pv_protection::decide(s).unwrap_or_else(|| binder::volume::decide(s, now))
}

/// What still holds is told again before the API server forgets it.
fn told_again<A>(decision: Decision<A>, told: &Known, now: Timestamp) -> Decision<A> {
    if !decision.actions.is_empty() || decision.is_half_way {
        return decision;
    }
    let wake_at = decision.wake_at.into_iter().chain(told.again_at(now)).min();
    Decision { wake_at, ..decision }
}

/// The volume is the one that the decision is about, as it was when it was chosen.
fn seen(s: &ClaimSnapshot, decision: &Decision<ClaimAction>) -> Seen {
    let chosen = decision.actions.iter().find_map(|action| match action {
        ClaimAction::Reserve { volume, .. } => Some(volume),
        ClaimAction::Bind(bind) => Some(&bind.volume),
        ClaimAction::Status(change) if change.to.phase == ClaimPhase::Lost => Some(&s.claim.spec.volume_name),
        _ => None,
    });
    let named = match &s.named {
        View::Known(volume) => Some(volume),
        View::Absent | View::Unknown => None,
    };
    let volume = s.candidates.iter().chain(named).find(|volume| chosen == Some(&volume.meta.name));
    Seen {
        claim: s.claim.meta.revision,
        volume: volume.map(|volume| volume.meta.revision).unwrap_or_default(),
        class: s.class.as_ref().map(|class| class.meta.revision).unwrap_or_default(),
    }
}

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    Gone,
    Unknown,
    Deleting,
    InUse,
    Settled,
    Off,
    Waiting(Waiting),
    Bind(binder::bind::Pair),
    Provision,
    DefaultClass,
    Lost,
    Phase(VolumePhase),
    ClaimGone,
    ClaimElsewhere,
    Reclaim,
    Protection,
    Migration,
    Expansion,
    Ephemeral,
}

/// What a claim waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Any fitting volume.
    Volume,
    /// The volume it names.
    NamedVolume,
    /// A pod that uses it.
    FirstConsumer,
    /// The provisioner.
    Provisioner,
    /// A class object or a provisioner that exists.
    Class,
}

pub type Decision<A> = engine::Decision<A, Why>;

#[cfg(test)]
mod tests;

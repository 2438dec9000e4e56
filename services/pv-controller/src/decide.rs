//! What must happen next to a claim or a volume. Pure: no client, no clock, no randomness.

pub mod claim;
pub mod volume;

use stowage_model::object::Key;
use stowage_model::phase::VolumePhase;
use stowage_runtime::engine;
use stowage_runtime::events::Note;

/// What is decided on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Claim(Key),
    Volume(Key),
}

/// One write, or one thing told to people.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Claim(ClaimAction),
    Volume(VolumeAction),
}

/// What a claim's decision asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimAction {
    /// Points the volume at the claim; `marked` when the controller, not a user, chose the pair.
    Reserve { volume: String, marked: bool },
    /// Names the volume in the claim and marks the binding as completed.
    Complete { volume: String, marked: bool },
    /// Brings the claim's status in line with its volume.
    Status(Box<claim::Status>),
    /// Asks an external provisioner to make a volume.
    AskProvisioner { provisioner: String },
    /// Gives a claim without a class the default one.
    AssignClass { class: String },
    /// Adds the finalizer that keeps a claim in use.
    Protect,
    /// Removes it, after a fresh look at the pods.
    Unprotect,
    /// Tells people.
    Tell(Note),
}

/// What a volume's decision asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeAction {
    /// Sets the phase.
    Phase { phase: VolumePhase, message: String },
    /// Sets the phase to Released after a fresh read shows that the claim is really gone.
    Release,
    /// Takes back the pointer to the claim; a user's own pointer only loses the uid.
    Unbind,
    /// Adds the finalizer that keeps a bound volume.
    Protect,
    /// Removes it, after a fresh look at the phase.
    Unprotect,
    /// Tells people.
    Tell(Note),
    /// Tells people at the claim the volume refers to.
    TellClaim(Note),
}

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    Gone,
    Unknown,
    Deleting,
    InUse,
    Settled,
    Waiting(Waiting),
    Bind(claim::Pair),
    Provision,
    DefaultClass,
    Lost,
    Phase(VolumePhase),
    ClaimGone,
    ClaimElsewhere,
    Protection,
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

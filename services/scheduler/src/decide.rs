//! What must happen next to a pod or a node. Pure: no client, no clock, no randomness.

pub mod filter;
pub mod node;
pub mod obstacle;
pub mod pod;
pub mod room;
pub mod volumes;

use jiff::Timestamp;

use stowage_model::object::Key;
use stowage_runtime::api::Target;
use stowage_runtime::engine;

use crate::snapshot::Snapshot;

/// What must happen next, and why.
pub fn decide(s: &Snapshot, now: Timestamp) -> Decision {
    match s {
        Snapshot::Pod(s) => pod::decide(s, now).map(Action::Pod),
        Snapshot::Node(s) => node::decide(s, now).map(Action::Node),
        Snapshot::ForeignNode => Decision::rest(Why::NotOurs),
    }
}

/// A read or a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Pod(PodAction),
    Node(NodeAction),
}

/// What a pod's decision asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAction {
    /// Reads an object whose last write got no answer.
    Look(Unseen),
    /// Takes a free volume for a claim of the pod.
    Reserve(Reservation),
    /// Asks for a new volume for a claim of the pod, within reach of the node.
    Select { claim: Target, node: String },
    /// Puts the pod on the node.
    Bind { node: String },
    /// Says in the pod's condition and in an event why it cannot be placed.
    Report { message: String },
    /// Deletes the pod at once.
    Collect(Leftover),
}

/// An object nobody may decide on before a fresh read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unseen {
    Pod(Key),
    Claim(Key),
    Volume(Key),
}

/// A free volume and the claim that gets it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    pub claim: Target,
    pub volume: Target,
    /// Whether we, not a user, chose the pair.
    pub marked: bool,
}

/// Why a pod has nobody to end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// Its node is gone.
    NodeGone(String),
    /// It is to end, and its node is out of service.
    OutOfService(String),
    /// It is to end, and no node ever had it.
    NeverPlaced,
}

/// What a node's decision asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAction {
    /// Reads the node, whose last write got no answer.
    Look,
    /// Says that nobody knows how the node is.
    MarkUnknown,
    /// Says that the node is heard of again.
    MarkBack,
    /// Makes the taints agree with the Ready condition.
    Taint(node::Health),
}

/// Why.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    Gone,
    Unknown,
    /// The pod is on its node, as it should be.
    Placed,
    /// Another scheduler's or controller's, held by a gate, or ended.
    NotOurs,
    Unschedulable(obstacle::Unschedulable),
    /// The pod's volumes are taken or asked for.
    Prepare {
        node: String,
    },
    /// The pod waits for its volumes.
    AwaitVolumes {
        node: String,
    },
    /// Making the volumes failed a moment ago.
    BackOff,
    Bind {
        node: String,
    },
    Collect(Leftover),
    /// The pod's node is missing, but not for long enough.
    Quarantine,
    /// The node was heard of lately, or is marked as it should be.
    Marked,
    Silent,
    Back,
    Health(node::Health),
}

impl Why {
    /// The node a pod is on its way to.
    pub fn heading_for(&self) -> Option<&str> {
        match self {
            Self::Prepare { node } | Self::AwaitVolumes { node } | Self::Bind { node } => Some(node),
            _ => None,
        }
    }
}

pub type Decision<A = Action> = engine::Decision<A, Why>;

#[cfg(test)]
mod tests;

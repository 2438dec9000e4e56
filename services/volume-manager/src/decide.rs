//! What must happen next to a volume, a pod, a plugin and the node's own objects: pure decisions, one file each.

pub mod csi_node;
pub mod node;
pub mod plugin;
pub mod pod;
pub mod volume;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use stowage_model::object::{Key as ObjectKey, ObjectRef};
use stowage_model::pod::Pod;
use stowage_runtime::api::{Patch, Target};
use stowage_runtime::{engine, operation};

use crate::desired::{Use, VolumeId};
use crate::snapshot::Snapshot;

pub type Decision = engine::Decision<Action, Why>;

/// A call to the API, a plugin or a driver that has its own record and backoff.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Greet(String),
    Notify(String),
    Resolve(String),
    Stage(VolumeId),
    Unstage(VolumeId),
    Publish(VolumeId, String),
    Unpublish(VolumeId, String),
}

/// The record of an operation; what it found or did is in the world.
pub type Record = operation::Record<()>;

/// One write, or the start of one operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A write got no answer: look once.
    ReadNode,
    ReadCsiNode,
    ReadPod(ObjectKey),

    CreateNode(Value),
    PatchNode {
        target: Target,
        body: Value,
    },
    PatchNodeStatus {
        target: Target,
        patch: Patch,
    },
    /// Write what is in use at the moment of writing.
    ReportInUse {
        target: Target,
    },

    CreateCsiNode(Value),
    PatchCsiNode {
        target: Target,
        patch: Patch,
    },
    DeleteCsiNode {
        target: Target,
    },

    Greet {
        socket: String,
        instance: u64,
    },
    Accept {
        socket: String,
    },
    Refuse {
        socket: String,
        message: String,
    },
    Notify {
        socket: String,
        instance: u64,
        refusal: Option<String>,
    },

    Resolve {
        pod: Arc<Pod>,
    },
    PatchPodStatus {
        target: Target,
        patch: Patch,
    },
    RemovePodDir {
        uid: String,
    },
    DeletePod {
        target: Target,
    },
    ForgetPod {
        uid: String,
    },
    /// Tell people in an event what keeps a pod waiting.
    Explain {
        pod: ObjectRef,
        message: String,
    },

    Stage {
        usage: Box<Use>,
        pod: ObjectRef,
    },
    Publish {
        usage: Box<Use>,
        pod: Arc<Pod>,
    },
    Unpublish {
        volume: VolumeId,
        uid: String,
        spec_name: String,
    },
    Unstage {
        volume: VolumeId,
    },
    /// Nothing is left of the volume: drop the records of its operations.
    ForgetVolume {
        volume: VolumeId,
    },
}

/// The reason of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Node(node::Why),
    CsiNode(csi_node::Why),
    Plugin(plugin::Why),
    Pod(pod::Why),
    Volume(volume::Why),
}

/// What must happen next to one of them, and why.
pub fn decide(s: &Snapshot, now: Timestamp) -> Decision {
    match s {
        Snapshot::Node(s) => explain(node::decide(s, now), Why::Node),
        Snapshot::CsiNode(s) => explain(csi_node::decide(s), Why::CsiNode),
        Snapshot::Plugin(s) => explain(plugin::decide(s, now), Why::Plugin),
        Snapshot::Pod(s) => explain(pod::decide(s, now), Why::Pod),
        Snapshot::Volume(s) => explain(volume::decide(s, now), Why::Volume),
    }
}

fn explain<W>(decision: engine::Decision<Action, W>, why: impl FnOnce(W) -> Why) -> Decision {
    Decision { wake_at: decision.wake_at, ..Decision::act(decision.actions, why(decision.why)) }
}

#[cfg(test)]
pub(crate) mod tests;

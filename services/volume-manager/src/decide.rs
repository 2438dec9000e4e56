//! What must happen next to a volume, a pod, a plugin and the node's own objects: pure decisions, one file each.

pub mod csi_node;
pub mod expand;
pub mod node;
pub mod plugin;
pub mod pod;
pub mod volume;
pub mod waiting;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_model::object::{Key as ObjectKey, ObjectRef};
use stowage_plugins::VolumeSpec;
use stowage_runtime::api::{Patch, Target};
use stowage_runtime::engine;

use crate::desired_state::{PodVolumes, VolumeToMount};
use crate::snapshot::Snapshot;
use crate::state::Reported;

use expand::Expansion;

pub type Decision = engine::Decision<Action, Why>;

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
        /// What the Node is told of the machine by that.
        reported: Option<Reported>,
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

    /// Ask a driver again how many volumes the node can take.
    Refresh {
        driver: String,
    },

    /// Note what a pod's volumes are.
    Populate {
        uid: String,
        volumes: Box<PodVolumes>,
    },
    PatchPodStatus {
        target: Target,
        patch: Patch,
    },
    RemovePodDir {
        uid: String,
    },
    /// Finish its deletion.
    DeletePod {
        target: Target,
    },
    /// Ask for its deletion.
    EndPod {
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

    /// Tell people that a pod goes because of what it used too much of.
    TellEviction {
        pod: ObjectRef,
        message: String,
    },

    Attach {
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: Box<VolumeToMount>,
    },
    MountDevice {
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: Box<VolumeToMount>,
    },
    SetUp {
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: Box<VolumeToMount>,
    },
    Expand {
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: Box<VolumeToMount>,
        expansion: Expansion,
    },
    TearDown {
        volume: UniqueVolumeName,
        uid: String,
        spec: Arc<VolumeSpec>,
    },
    UnmountDevice {
        volume: UniqueVolumeName,
        spec: Arc<VolumeSpec>,
    },
    Detach {
        volume: UniqueVolumeName,
        spec: Arc<VolumeSpec>,
    },
    /// Nothing is left of the volume: drop the records of its operations.
    ForgetVolume {
        volume: UniqueVolumeName,
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
        Snapshot::CsiNode(s) => explain(csi_node::decide(s, now), Why::CsiNode),
        Snapshot::Plugin(s) => explain(plugin::decide(s, now), Why::Plugin),
        Snapshot::Pod(s) => explain(pod::decide(s, now), Why::Pod),
        Snapshot::Volume(s) => explain(volume::decide(s, now), Why::Volume),
    }
}

fn explain<W>(decision: engine::Decision<Action, W>, why: impl FnOnce(W) -> Why) -> Decision {
    let engine::Decision { actions, side_by_side, wake_at, after, is_half_way, why: reason } = decision;
    Decision { actions, side_by_side, wake_at, after, is_half_way, why: why(reason) }
}

#[cfg(test)]
pub(crate) mod tests;

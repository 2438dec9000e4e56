//! Pod.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use crate::condition::Condition;
use crate::names;
use crate::node::{Taint, TaintEffect};
use crate::object::{Key, Kind, Meta, Projection, kinds, or_default};
use crate::phase::PodPhase;
use crate::selector::NodeSelector;

mod volume;

pub use volume::{CsiInline, PodVolume, PodVolumeSource};

projection! {
    /// A user of volumes.
    pub struct Pod {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What it wants.
        pub spec: PodSpec,
        /// What it has.
        pub status: PodStatus,
    }

    /// One container's use of the pod's volumes.
    pub struct Container {
        /// Its name.
        pub name: String,
        /// Volumes it mounts.
        pub volume_mounts: Vec<VolumeUse>,
        /// Volumes it gets as devices.
        pub volume_devices: Vec<VolumeUse>,
    }

    /// A container's reference to a volume of its pod.
    pub struct VolumeUse {
        /// The volume's name in the pod.
        pub name: String,
    }

    /// How the pod's files are owned.
    pub struct SecurityContext {
        /// The group that volumes' files are given to.
        pub fs_group: Option<i64>,
        /// When files are given to the group.
        pub fs_group_change_policy: FsGroupChangePolicy,
    }

    /// What taints the pod puts up with.
    pub struct Toleration {
        /// The taint's key; empty for all.
        pub key: String,
        /// How the value compares.
        pub operator: TolerationOperator,
        /// The taint's value.
        pub value: String,
        /// The taint's effect.
        pub effect: TaintEffect,
    }

    /// Something that keeps the pod from being placed.
    pub struct SchedulingGate {
        /// Its name.
        pub name: String,
    }

    /// What became of the pod.
    pub struct PodStatus {
        /// Where it is in its life.
        pub phase: PodPhase,
        /// The machine-readable cause of the phase.
        pub reason: String,
        /// Conditions.
        pub conditions: Vec<Condition>,
        /// Its containers.
        pub container_statuses: Vec<ContainerStatus>,
        /// Its init containers.
        pub init_container_statuses: Vec<ContainerStatus>,
        /// Its debug containers.
        pub ephemeral_container_statuses: Vec<ContainerStatus>,
        /// When the node first saw it.
        pub start_time: Option<Timestamp>,
    }

    /// What became of a container.
    pub struct ContainerStatus {
        /// Its name.
        pub name: String,
        /// Whether it is ready.
        pub ready: bool,
        /// What it does.
        pub state: ContainerState,
    }
}

/// What a pod wants.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node it is bound to; empty while it is not.
    #[serde(deserialize_with = "or_default")]
    pub node_name: String,
    /// Its volumes.
    #[serde(deserialize_with = "or_default")]
    pub volumes: Vec<PodVolume>,
    /// Its containers.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Containers that run before the others.
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    /// How its files are owned.
    #[serde(deserialize_with = "or_default")]
    pub security_context: SecurityContext,
    /// Whom it acts as.
    #[serde(deserialize_with = "or_default")]
    pub service_account_name: String,
    /// What taints it puts up with.
    #[serde(deserialize_with = "or_default")]
    pub tolerations: Vec<Toleration>,
    /// Labels its node must have.
    #[serde(deserialize_with = "or_default")]
    pub node_selector: BTreeMap<String, String>,
    /// What its node must be (`affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution`).
    #[serde(rename = "affinity", deserialize_with = "required_affinity")]
    pub required_affinity: Option<NodeSelector>,
    /// What keeps it from being placed.
    #[serde(deserialize_with = "or_default")]
    pub scheduling_gates: Vec<SchedulingGate>,
    /// Who places it.
    #[serde(deserialize_with = "or_default")]
    pub scheduler_name: String,
    /// Whether ended containers start again.
    #[serde(deserialize_with = "or_default")]
    pub restart_policy: RestartPolicy,
    /// Whether it shares the node's user namespace; absent means yes.
    pub host_users: Option<bool>,
    /// How important it is among others, as its PriorityClass says.
    #[serde(deserialize_with = "or_default")]
    pub priority: i64,
    /// How long its end may take, in seconds.
    pub termination_grace_period_seconds: Option<i64>,
}

fn required_affinity<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<NodeSelector>, D::Error> {
    projection! {
        /// `spec.affinity`
        pub struct Affinity {
            /// The part about nodes.
            pub node_affinity: NodeAffinity,
        }

        /// `spec.affinity.nodeAffinity`
        pub struct NodeAffinity {
            /// What must hold when the pod is placed.
            #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
            pub required: Option<NodeSelector>,
        }
    }
    Ok(or_default::<D, Affinity>(deserializer)?.node_affinity.required)
}

text_enum! {
    /// When a volume's files are given to the pod's group.
    pub enum FsGroupChangePolicy {
        /// At every mount.
        #[default]
        Always = "Always",
        /// Only if the volume's root is not right.
        OnRootMismatch = "OnRootMismatch",
    }
}

text_enum! {
    /// How a toleration's value compares.
    pub enum TolerationOperator {
        /// The values are equal.
        #[default]
        Equal = "Equal",
        /// Any value will do.
        Exists = "Exists",
    }
}

text_enum! {
    /// Whether ended containers start again.
    pub enum RestartPolicy {
        /// Always.
        #[default]
        Always = "Always",
        /// After a failure.
        OnFailure = "OnFailure",
        /// Never.
        Never = "Never",
    }
}

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "ContainerStateWire")]
pub enum ContainerState {
    /// Not started.
    #[default]
    Waiting,
    /// Started.
    Running,
    /// Ended.
    Terminated,
}

#[derive(Deserialize)]
struct ContainerStateWire {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<serde::de::IgnoredAny>,
}

impl From<ContainerStateWire> for ContainerState {
    fn from(wire: ContainerStateWire) -> Self {
        match wire {
            ContainerStateWire { terminated: Some(_), .. } => Self::Terminated,
            ContainerStateWire { running: Some(_), .. } => Self::Running,
            _ => Self::Waiting,
        }
    }
}

impl Projection for Pod {
    const KIND: Kind = kinds::POD;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl Pod {
    /// Whether it is bound to a node.
    pub fn is_scheduled(&self) -> bool {
        !self.spec.node_name.is_empty()
    }

    /// Whether it has ended for good, well or badly.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Whether a container may still use the volumes.
    pub fn has_running_containers(&self) -> bool {
        let status = &self.status;
        let all = status.container_statuses.iter().chain(&status.init_container_statuses);
        all.chain(&status.ephemeral_container_statuses).any(|status| status.state == ContainerState::Running)
    }

    /// Whether it can use nothing any more: ended, or being deleted with no container running.
    pub fn is_terminated(&self) -> bool {
        self.is_terminal() || (self.meta.is_deleting() && !self.has_running_containers())
    }

    /// Whether its node has finished with it: it is being deleted and no time is left to wait for.
    pub fn is_shut_down(&self) -> bool {
        self.meta.is_deleting() && self.deletion_grace_period_seconds() == Some(0)
    }

    /// Its volumes that are claims made for it.
    pub fn ephemeral_volumes(&self) -> impl Iterator<Item = &PodVolume> {
        self.spec.volumes.iter().filter(|volume| volume.source == PodVolumeSource::Ephemeral)
    }

    /// How long its deletion may take, in seconds; none while nobody asked for it.
    pub fn deletion_grace_period_seconds(&self) -> Option<i64> {
        self.meta.deletion_grace_period_seconds
    }

    /// The key of the claim behind one of its volumes, named or made for this pod.
    pub fn claim_of(&self, volume: &PodVolume) -> Option<Key> {
        let name = match &volume.source {
            PodVolumeSource::Claim { claim_name, .. } => claim_name.clone(),
            PodVolumeSource::Ephemeral => names::ephemeral_claim(&self.meta.name, &volume.name),
            _ => return None,
        };
        Some(Key::namespaced(self.meta.namespace.clone(), name))
    }

    /// The keys of all claims it uses, in the order of its volumes.
    pub fn claims(&self) -> impl Iterator<Item = Key> {
        self.spec.volumes.iter().filter_map(|volume| self.claim_of(volume))
    }

    /// Whether a container mounts the volume of that name.
    pub fn mounts(&self, volume: &str) -> bool {
        self.containers().any(|container| container.volume_mounts.iter().any(|mount| mount.name == volume))
    }

    /// Whether a container gets the volume of that name as a device.
    pub fn maps_device(&self, volume: &str) -> bool {
        self.containers().any(|container| container.volume_devices.iter().any(|device| device.name == volume))
    }

    /// Whether it puts up with the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.spec.tolerations.iter().any(|toleration| toleration.covers(taint))
    }

    fn containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().chain(&self.spec.containers)
    }
}

impl Toleration {
    /// Whether the taint is put up with.
    pub fn covers(&self, taint: &Taint) -> bool {
        let same_effect = self.effect == TaintEffect::All || self.effect == taint.effect;
        let same_key = self.key.is_empty() || self.key == taint.key;
        same_effect
            && same_key
            && match self.operator {
                TolerationOperator::Exists => true,
                // An empty key means "all" only together with Exists.
                TolerationOperator::Equal => !self.key.is_empty() && self.value == taint.value,
                TolerationOperator::Unknown => false,
            }
    }
}

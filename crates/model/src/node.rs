//! Node.

use crate::annotations;
use crate::condition::{self, Condition};
use crate::object::{Kind, Meta, Projection, kinds};
use crate::taints;

projection! {
    /// A machine that runs pods.
    pub struct Node {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What was decided about it.
        pub spec: NodeSpec,
        /// What it reports.
        pub status: NodeStatus,
    }

    /// What was decided about a node.
    pub struct NodeSpec {
        /// What keeps pods away.
        pub taints: Vec<Taint>,
        /// Whether no new pod may come.
        pub unschedulable: bool,
    }

    /// What keeps pods without a matching toleration away.
    pub struct Taint {
        /// Its key.
        pub key: String,
        /// Its value.
        pub value: String,
        /// What it does.
        pub effect: TaintEffect,
    }

    /// What a node reports, and what is attached to it.
    pub struct NodeStatus {
        /// What the attach-detach controller says is attached.
        pub volumes_attached: Vec<AttachedVolume>,
        /// What the node says it has or may have mounted, by unique volume name.
        pub volumes_in_use: Vec<String>,
        /// Conditions.
        pub conditions: Vec<Condition>,
    }

    /// A volume attached to a node.
    pub struct AttachedVolume {
        /// Unique volume name.
        pub name: String,
        /// Where its device is, if anybody knows.
        pub device_path: String,
    }
}

text_enum! {
    /// What a taint does to pods that do not tolerate it.
    pub enum TaintEffect {
        /// No effect is named; in a toleration that means all of them.
        #[default]
        All = "",
        /// No new pod comes.
        NoSchedule = "NoSchedule",
        /// No new pod comes if it can go elsewhere.
        PreferNoSchedule = "PreferNoSchedule",
        /// No new pod comes and running ones leave.
        NoExecute = "NoExecute",
    }
}

impl Projection for Node {
    const KIND: Kind = kinds::NODE;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl Node {
    /// The `Ready` condition, if the node has reported it.
    pub fn ready(&self) -> Option<&Condition> {
        condition::find(&self.status.conditions, "Ready")
    }

    /// Whether it says that it is ready.
    pub fn is_ready(&self) -> bool {
        self.ready().is_some_and(Condition::is_true)
    }

    /// Whether an operator declared it dead, so that its volumes may be taken from it.
    pub fn is_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == taints::OUT_OF_SERVICE)
    }

    /// Whether the attach-detach controller looks after it.
    pub fn is_attach_managed(&self) -> bool {
        self.meta.annotation(annotations::CONTROLLER_MANAGED_ATTACH).is_some()
    }

    /// Whether the volume of that unique name is reported attached.
    pub fn is_attached(&self, unique_name: &str) -> bool {
        self.status.volumes_attached.iter().any(|volume| volume.name == unique_name)
    }

    /// Whether the volume of that unique name is reported in use.
    pub fn is_in_use(&self, unique_name: &str) -> bool {
        self.status.volumes_in_use.iter().any(|name| name == unique_name)
    }
}

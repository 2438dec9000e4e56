//! What a user can set, with the original's defaults.

use std::time::Duration;

use stowage_runtime::driver;

/// How the provisioner runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How the driver is called. Its workers are calls at a time: creations, and separately deletions.
    pub driver: driver::Options,
    /// Namespace of the journal's Leases.
    pub namespace: String,
    /// First part of the names of volumes.
    pub volume_name_prefix: String,
    /// How much of the claim's uid follows, without its dashes; `None` for all of it as it is.
    pub volume_name_uuid_length: Option<usize>,
    /// File system of volumes whose class names none; empty leaves it to the driver.
    pub default_fstype: String,
    /// Whether the driver is told the names of claim and volume.
    pub extra_create_metadata: bool,
    /// Whether volumes that may only be read are marked so.
    pub controller_publish_readonly: bool,
    /// Whether a claim whose node is chosen is served only there, and not wherever the driver sees fit.
    pub strict_topology: bool,
    /// Whether the driver is told all places of the cluster for claims that bind at once.
    pub immediate_topology: bool,
    /// Whether volumes have places at all, as far as the driver says so.
    pub topology: bool,
    /// Whether claims may name a VolumeAttributesClass; if not, what they name is left alone.
    pub attributes_class: AttributesClasses,
    /// Whether a snapshot keeps its volume mode unless its content allows another.
    pub prevent_volume_mode_conversion: bool,
    /// Whether sources in other namespaces may be used, where a ReferenceGrant permits it.
    pub cross_namespace: bool,
    /// Whether snapshots are freed that somebody who is gone had held.
    pub sweep_snapshots: bool,
    /// Set if every node runs a provisioner for its own volumes.
    pub node_deployment: Option<NodeDeployment>,
    /// Set if the room there is gets published as CSIStorageCapacity objects.
    pub capacity: Option<Capacity>,
    /// Whether intents are made durable before CreateVolume; without it a crash can leak a volume.
    pub journal: bool,
}

/// Whether what claims name as their VolumeAttributesClass matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributesClasses {
    /// It does not.
    Off,
    /// It does where the server serves the kind.
    WhereServed,
    /// It does, and where the kind is not served the claim waits.
    On,
}

/// How one of many provisioners, each for its own node, becomes the owner of claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDeployment {
    /// Name of this node.
    pub node: String,
    /// Whether claims that bind at once are served, and not only those for which a node was chosen.
    pub immediate_binding: bool,
    /// Wait before such a claim is taken for the first time.
    pub base_delay: Duration,
    /// Wait that is never exceeded.
    pub max_delay: Duration,
}

/// How the room there is gets published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Where the objects are.
    pub namespace: String,
    /// Who owns them; nobody if `None`.
    pub owner: Option<OwnerLevel>,
    /// How often the driver is asked where nothing seems to have happened.
    pub poll_interval: Duration,
    /// Whether also for classes that bind at once.
    pub immediate_binding: bool,
    /// Questions and writes at a time.
    pub threads: usize,
}

/// An owner, counted from the pod that the provisioner runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerLevel {
    /// Name of the pod.
    pub pod: String,
    /// 0 is the pod, 1 who manages it, and so on.
    pub level: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        let (namespace, poll_interval) = ("default".to_owned(), Duration::from_secs(60));
        Self { namespace, owner: None, poll_interval, immediate_binding: false, threads: 1 }
    }
}

impl Default for NodeDeployment {
    fn default() -> Self {
        let (base_delay, max_delay) = (Duration::from_secs(20), Duration::from_secs(60));
        Self { node: String::new(), immediate_binding: true, base_delay, max_delay }
    }
}

impl Options {
    /// The defaults of a provisioner that stands on the library: a try may take as long as it does.
    pub fn of_library() -> Self {
        let options = Self::default();
        Self { driver: driver::Options { timeout: Duration::ZERO, ..options.driver }, ..options }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            driver: driver::Options { workers: 100, ..driver::Options::default() },
            namespace: "default".into(),
            volume_name_prefix: "pvc".into(),
            volume_name_uuid_length: None,
            default_fstype: String::new(),
            extra_create_metadata: false,
            controller_publish_readonly: false,
            strict_topology: false,
            immediate_topology: true,
            topology: true,
            attributes_class: AttributesClasses::WhereServed,
            prevent_volume_mode_conversion: true,
            cross_namespace: false,
            sweep_snapshots: true,
            node_deployment: None,
            capacity: None,
            journal: true,
        }
    }
}

//! What a user can set, with the original's defaults.

use std::time::Duration;

/// How the provisioner runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the driver listens, as the connector understands it.
    pub csi_address: String,
    /// Namespace of the journal's Leases.
    pub namespace: String,
    /// First part of the names of volumes.
    pub volume_name_prefix: String,
    /// How much of the claim's uid follows, without its dashes; `None` for all of it as it is.
    pub volume_name_uuid_length: Option<usize>,
    /// Delay after the first failed call for a claim or volume.
    pub retry_interval_start: Duration,
    /// Delay that is never exceeded.
    pub retry_interval_max: Duration,
    /// Calls to the driver at a time: creations, and separately deletions.
    pub worker_threads: usize,
    /// Time limit of one call.
    pub timeout: Duration,
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
    /// Whether a snapshot keeps its volume mode unless its content allows another.
    pub prevent_volume_mode_conversion: bool,
    /// Whether sources in other namespaces may be used, where a ReferenceGrant permits it.
    pub cross_namespace: bool,
    /// Whether snapshots are freed that somebody who is gone had held.
    pub sweep_snapshots: bool,
    /// Set if every node runs a provisioner for its own volumes.
    pub node_deployment: Option<NodeDeployment>,
    /// Whether intents are made durable before CreateVolume; without it a crash can leak a volume.
    pub journal: bool,
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

impl Default for NodeDeployment {
    fn default() -> Self {
        let (base_delay, max_delay) = (Duration::from_secs(20), Duration::from_secs(60));
        Self { node: String::new(), immediate_binding: true, base_delay, max_delay }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            csi_address: "/run/csi/socket".into(),
            namespace: "default".into(),
            volume_name_prefix: "pvc".into(),
            volume_name_uuid_length: None,
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            worker_threads: 100,
            timeout: Duration::from_secs(10),
            default_fstype: String::new(),
            extra_create_metadata: false,
            controller_publish_readonly: false,
            strict_topology: false,
            immediate_topology: true,
            prevent_volume_mode_conversion: true,
            cross_namespace: false,
            sweep_snapshots: true,
            node_deployment: None,
            journal: true,
        }
    }
}

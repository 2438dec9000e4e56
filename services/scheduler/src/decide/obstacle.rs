//! Why a pod cannot be placed, in the words people know from kube-scheduler.

use std::collections::BTreeMap;
use std::fmt;

/// Why one node will not do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Unschedulable,
    Taint {
        key: String,
        value: String,
    },
    Affinity,
    OncePodInUse,
    VolumeLimit,
    VolumeMissing,
    VolumeAffinity,
    BindConflict,
    Zone,
    /// A selector nobody can read; the text says which.
    Malformed(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::Taint { key, value } => write!(f, "node(s) had untolerated taint {{{key}: {value}}}"),
            Self::Affinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::OncePodInUse => f.write_str(
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use \
                 by another pod",
            ),
            Self::VolumeLimit => f.write_str("node(s) exceed max volume count"),
            Self::VolumeMissing => {
                f.write_str("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
            }
            Self::VolumeAffinity => f.write_str("node(s) didn't match PersistentVolume's node affinity"),
            Self::BindConflict => f.write_str("node(s) didn't find available persistent volumes to bind"),
            Self::Zone => f.write_str("node(s) had no available volume zone"),
            Self::Malformed(text) => f.write_str(text),
        }
    }
}

/// Why the pod's claims keep it off every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Missing { claim: String },
    NotYetMade { claim: String },
    Lost { claim: String, volume: String },
    Deleting { claim: String },
    NotOwned { claim: String },
    UnboundImmediate,
    Class { text: String },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { claim } => write!(f, "persistentvolumeclaim {claim:?} not found"),
            Self::NotYetMade { claim } => {
                write!(f, "waiting for ephemeral volume controller to create the persistentvolumeclaim {claim:?}")
            }
            Self::Lost { claim, volume } => {
                write!(f, "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}")
            }
            Self::Deleting { claim } => write!(f, "persistentvolumeclaim {claim:?} is being deleted"),
            Self::NotOwned { claim } => {
                write!(f, "persistentvolumeclaim {claim:?} was not created for this pod; delete it or rename the pod")
            }
            Self::UnboundImmediate => f.write_str("pod has unbound immediate PersistentVolumeClaims"),
            Self::Class { text } => f.write_str(text),
        }
    }
}

/// Why the pod cannot be placed now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unschedulable {
    NoNodes,
    Claims {
        nodes: usize,
        fault: Fault,
    },
    /// How many nodes have each reason.
    Nodes {
        nodes: usize,
        reasons: BTreeMap<Reason, usize>,
    },
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => f.write_str("no nodes available to schedule pods"),
            Self::Claims { nodes, fault } => write!(f, "0/{nodes} nodes are available: {fault}."),
            Self::Nodes { nodes, reasons } => {
                let mut parts: Vec<String> =
                    reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
                parts.sort();
                write!(f, "0/{nodes} nodes are available: {}.", parts.join(", "))
            }
        }
    }
}

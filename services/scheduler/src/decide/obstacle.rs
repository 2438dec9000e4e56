//! Why a pod cannot be placed: what keeps it off which nodes, and what to do about it.

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
    SourceAffinity,
    /// A driver that wants pods only where it is.
    DriverMissing {
        driver: String,
    },
    /// Less is published than a claim asks for.
    NoRoom,
    /// Nothing is published for the class of a claim, anywhere.
    Unpublished {
        class: String,
    },
    Zone,
    /// A selector nobody can read; the text says which.
    Malformed(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("cordoned (kubectl uncordon)"),
            Self::Taint { key, value } => write!(f, "with the taint {key}={value} that the pod does not tolerate"),
            Self::Affinity => f.write_str("outside of the pod's node selector or affinity"),
            Self::OncePodInUse => f.write_str("barred because another pod has a claim of mode ReadWriteOncePod"),
            Self::VolumeLimit => f.write_str("with as many volumes of the driver as it allows there"),
            Self::VolumeMissing => f.write_str("barred because the volume of a bound claim does not exist"),
            Self::VolumeAffinity => f.write_str("that cannot reach the pod's volume (spec.nodeAffinity)"),
            Self::BindConflict => f.write_str("without a free volume that fits, and where none can be made"),
            Self::SourceAffinity => f.write_str(
                "that cannot reach the volume that a claim of the pod is to be cloned from (spec.nodeAffinity)",
            ),
            Self::DriverMissing { driver } => {
                write!(f, "where the driver {driver:?} is not installed (its CSIDriver asks for that)")
            }
            Self::NoRoom => f.write_str("without enough free storage for a new volume"),
            Self::Unpublished { class } => write!(
                f,
                "barred because no CSIStorageCapacity tells the room of class {class:?} (run the provisioner with \
                 --enable-capacity, or set storageCapacity of the CSIDriver to false)"
            ),
            Self::Zone => f.write_str("in another zone than the pod's volume"),
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
            Self::Missing { claim } => write!(f, "claim {claim:?} does not exist; create it"),
            Self::NotYetMade { claim } => {
                write!(f, "claim {claim:?} of an ephemeral volume is not made yet")
            }
            Self::Lost { claim, volume } => {
                write!(f, "claim {claim:?} is bound to volume {volume:?}, which does not exist")
            }
            Self::Deleting { claim } => write!(f, "claim {claim:?} is being deleted"),
            Self::NotOwned { claim } => {
                write!(f, "claim {claim:?} was not created for this pod; delete it or rename the pod")
            }
            Self::UnboundImmediate => f.write_str("a claim of the pod is not bound yet; its events say why"),
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
        /// The nodes without room, by name.
        full: Vec<String>,
    },
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNodes => f.write_str("the cluster has no node"),
            Self::Claims { nodes, fault } => write!(f, "no node of {nodes} will do: {fault}"),
            Self::Nodes { nodes, reasons, full } => {
                let part = |(reason, count): (&Reason, &usize)| match reason {
                    Reason::NoRoom => format!("{count} {reason} ({})", named(full)),
                    _ => format!("{count} {reason}"),
                };
                let mut parts: Vec<String> = reasons.iter().map(part).collect();
                parts.sort();
                write!(f, "no node of {nodes} will do: {}", parts.join(", "))
            }
        }
    }
}

/// As many names as people read.
fn named(nodes: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = nodes.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

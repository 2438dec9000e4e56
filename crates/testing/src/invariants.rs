//! The invariants of the design over API objects, the driver's state and the nodes' mounts.
//!
//! [`Observed::violations`] must be empty at every moment, [`Observed::violations_at_rest`] when nothing is going on, and
//! [`Observed::leftovers`] when everything was deleted: that is L1's second half. Each violation names its objects.

mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::claim::Claim;
use stowage_model::names;
use stowage_model::node::Node;
use stowage_model::object::Projection;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::pod::Pod;
use stowage_model::volume::Volume;
use stowage_model::volume_group_snapshot::{VolumeGroupSnapshot, VolumeGroupSnapshotContent};
use stowage_model::volume_snapshot::{VolumeSnapshot, VolumeSnapshotContent};

use crate::driver::{Made, State};
use crate::mounter::Tree;

/// Where every node keeps its pods and plugins.
pub const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Annotations of the provisioner's Leases that are records of intents begin so.
const INTENT: &str = "intent.provisioner.stowage.dev/";

/// Everything the invariants speak about, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// All claims.
    pub claims: Vec<Claim>,
    /// All volumes.
    pub volumes: Vec<Volume>,
    /// All pods.
    pub pods: Vec<Pod>,
    /// All nodes; their names are also the driver's ids of them.
    pub nodes: Vec<Node>,
    /// All attachments.
    pub attachments: Vec<VolumeAttachment>,
    /// All snapshots.
    pub snapshots: Vec<VolumeSnapshot>,
    /// All contents of snapshots.
    pub contents: Vec<VolumeSnapshotContent>,
    /// All group snapshots.
    pub group_snapshots: Vec<VolumeGroupSnapshot>,
    /// All contents of group snapshots.
    pub group_contents: Vec<VolumeGroupSnapshotContent>,
    /// The text of every Lease: the provisioner's intents are among them.
    pub intents: Vec<String>,
    /// The driver's name.
    pub driver_name: String,
    /// What the driver has and saw.
    pub driver: State,
    /// Files and mounts by node.
    pub trees: BTreeMap<String, Tree>,
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Its id in the design.
    pub id: &'static str,
    /// Which objects break it, and how.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.text)
    }
}

fn violation(id: &'static str, text: String) -> Violation {
    Violation { id, text }
}

impl Observed {
    /// What must hold at every moment: B1, P1, P2, P3, A1, A2, M1, M2, S1, R1.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = self.broken_bindings();
        found.extend(self.ownerless(true));
        found.extend(self.doubles());
        found.extend(self.lost_data());
        found.extend(self.wrong_places());
        found.extend(self.unreported());
        found.extend(self.broken_snapshots());
        found.extend(self.oversized());
        found
    }

    /// A claim never says that it has more than its device has, or than the file system in it.
    fn oversized(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for claim in self.claims.iter().filter(|claim| claim.names_volume()) {
            let volume = self.volumes.iter().find(|volume| volume.is_bound_to(claim));
            let Some(handle) = volume.and_then(|volume| self.ours(volume)) else { continue };
            let says = claim.status.capacity.storage.unwrap_or_default();
            let device = self.driver.volumes.get(handle).map(|made| ("device", made.bytes));
            let file_system = self.driver.file_systems.get(handle).map(|bytes| ("file system", *bytes));
            for (what, has) in device.into_iter().chain(file_system) {
                if says.bytes() > i128::from(has) {
                    let key = claim.key();
                    let text = format!("claim {key} says that it has {says}, but its {what} has {has} bytes");
                    found.push(violation("R1", text));
                }
            }
        }
        found
    }

    /// What must hold besides when nothing is going on: both halves agree, and only objects own what the driver has.
    pub fn violations_at_rest(&self) -> Vec<Violation> {
        let mut found = self.violations();
        found.extend(self.ownerless(false));
        found.extend(self.broken_snapshots_at_rest());
        for claim in self.claims.iter().filter(|claim| claim.is_fully_bound()) {
            if !self.volumes.iter().any(|volume| volume.is_bound_to(claim)) {
                let (key, name) = (claim.key(), &claim.spec.volume_name);
                found.push(violation("B1", format!("claim {key} is bound to volume {name}, which is not bound to it")));
            }
        }
        found.sort();
        found.dedup();
        found
    }

    fn broken_bindings(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let bound = || self.claims.iter().filter(|claim| claim.is_bind_completed() && claim.names_volume());
        for (index, claim) in bound().enumerate() {
            for other in bound().skip(index + 1).filter(|other| other.spec.volume_name == claim.spec.volume_name) {
                let (a, b, name) = (claim.key(), other.key(), &claim.spec.volume_name);
                found.push(violation("B1", format!("volume {name} is bound to two claims, {a} and {b}")));
            }
            let claims_it = |volume: &&Volume| {
                volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.meta.uid)
            };
            for volume in self.volumes.iter().filter(claims_it) {
                let (key, name, bound_to) = (claim.key(), &volume.meta.name, &claim.spec.volume_name);
                if name != bound_to {
                    found.push(violation(
                        "B1",
                        format!("claim {key} is bound to {bound_to}, but {name} is bound to it"),
                    ));
                }
            }
            let named = self.volumes.iter().find(|volume| volume.meta.name == claim.spec.volume_name);
            if let Some(reference) = named.and_then(|volume| volume.spec.claim_ref.as_ref())
                && !reference.uid.is_empty()
                && reference.uid != claim.meta.uid
            {
                let (key, name, other) = (claim.key(), &claim.spec.volume_name, &reference.uid);
                found.push(violation("B1", format!("claim {key} is bound to {name}, which is bound to uid {other}")));
            }
        }
        found
    }

    fn ours<'a>(&'a self, volume: &'a Volume) -> Option<&'a str> {
        let csi = volume.spec.csi.as_ref().filter(|csi| csi.driver == self.driver_name)?;
        Some(&csi.volume_handle)
    }

    fn ownerless(&self, an_intent_is_enough: bool) -> Vec<Violation> {
        let owned: BTreeSet<&str> = self.volumes.iter().filter_map(|volume| self.ours(volume)).collect();
        let intended = |name: &str| an_intent_is_enough && self.intents.iter().any(|intent| intent.contains(name));
        let is_owned = |id: &str, made: &Made| owned.contains(id) || made.by_hand || intended(&made.name);
        let ownerless = self.driver.volumes.iter().filter(|(id, made)| !is_owned(id, made));
        let text = |id: &str, name: &str| format!("the driver has volume {id} ({name}), which belongs to nobody");
        ownerless.map(|(id, made)| violation("P1", text(id, &made.name))).collect()
    }

    fn doubles(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for claim in &self.claims {
            let name = claim.provisioned_volume_name();
            let made = self.driver.volumes.iter().filter(|(_, made)| made.name == name).map(|(id, _)| id.as_str());
            let recorded = self.volumes.iter().filter(|volume| {
                volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.meta.uid)
            });
            let ids: BTreeSet<&str> = made.chain(recorded.filter_map(|volume| self.ours(volume))).collect();
            if ids.len() > 1 {
                found.push(violation("P2", format!("claim {} has the volumes {ids:?}", claim.key())));
            }
        }
        found
    }

    fn lost_data(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for volume in &self.volumes {
            let Some(handle) = self.ours(volume).filter(|handle| !self.driver.volumes.contains_key(*handle)) else {
                continue;
            };
            let (name, policy, phase) = (&volume.meta.name, volume.spec.reclaim_policy, volume.status.phase);
            let on_its_way_out =
                volume.meta.is_deleting() || matches!(phase, VolumePhase::Released | VolumePhase::Failed);
            if policy == ReclaimPolicy::Retain || !on_its_way_out {
                found.push(violation(
                    "P3",
                    format!("volume {name} ({policy}, {phase}) is there, but its {handle} in the driver is deleted"),
                ));
            }
        }
        found
    }

    fn wrong_places(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (id, nodes) in &self.driver.attached {
            if nodes.len() > 1 && self.driver.volumes.get(id).is_some_and(|made| made.single_node) {
                found.push(violation("A1", format!("volume {id} is published to {nodes:?} at once")));
            }
        }
        for (node, id) in self.driver.published.keys() {
            if !self.driver.staged.contains_key(&(node.clone(), id.clone())) {
                found.push(violation("M1", format!("volume {id} is published on {node}, but not staged there")));
            }
        }
        for text in &self.driver.violations {
            let id = ["P3", "A1", "A2", "M1", "S1"].into_iter().find(|id| text.starts_with(id)).unwrap_or("A2");
            let text = text.split_once(": ").map_or(text.as_str(), |(_, text)| text);
            found.push(violation(id, format!("the driver was {text}")));
        }
        found
    }

    fn unreported(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (name, id) in self.driver.staged.keys() {
            let unique = names::csi_volume(&self.driver_name, id);
            let node = self.nodes.iter().find(|node| node.meta.name == *name);
            if node.is_some_and(|node| !node.is_in_use(&unique)) {
                found
                    .push(violation("M2", format!("volume {id} is staged on {name}, which does not say it is in use")));
            }
        }
        found
    }

    /// What is left although everything was deleted (L1).
    pub fn leftovers(&self) -> Vec<Violation> {
        let mut left: Vec<String> = Vec::new();
        left.extend(self.pods.iter().map(|pod| format!("pod {}", pod.key())));
        left.extend(self.claims.iter().map(|claim| format!("claim {}", claim.key())));
        left.extend(self.volumes.iter().map(|volume| format!("volume {}", volume.meta.name)));
        left.extend(self.attachments.iter().map(|attachment| format!("attachment {}", attachment.meta.name)));
        left.extend(self.left_snapshots());
        let recorded = self.intents.iter().filter(|lease| lease.contains(INTENT));
        left.extend(recorded.map(|lease| format!("the record of an intent in Lease {lease}")));
        left.extend(self.driver.volumes.keys().map(|id| format!("volume {id} in the driver")));
        left.extend(self.driver.attached.keys().map(|id| format!("publication of {id} by the controller")));
        left.extend(self.driver.staged.keys().map(|(node, id)| format!("stage of {id} on {node}")));
        left.extend(self.driver.published.keys().map(|(node, id)| format!("publication of {id} on {node}")));
        for node in &self.nodes {
            let name = &node.meta.name;
            let attached = node.status.volumes_attached.iter().map(|volume| &volume.name);
            left.extend(attached.map(|volume| format!("{volume} in volumesAttached of {name}")));
            left.extend(node.status.volumes_in_use.iter().map(|volume| format!("{volume} in volumesInUse of {name}")));
        }
        for (node, tree) in &self.trees {
            left.extend(tree.mounts().iter().map(|mount| format!("mount {} on {node}", mount.target.display())));
            let root = Path::new(KUBELET_ROOT);
            let staging = root.join("plugins").join(names::CSI_PLUGIN).join(&self.driver_name);
            for dir in [root.join("pods"), staging] {
                left.extend(tree.below(&dir).map(|path| format!("{} on {node}", path.display())));
            }
        }
        left.into_iter().map(|what| violation("L1", format!("{what} is left"))).collect()
    }
}

#[cfg(test)]
mod tests;

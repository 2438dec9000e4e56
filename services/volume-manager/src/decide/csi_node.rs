//! The CSINode of this machine: which drivers are registered, as whom, and how many volumes they can take.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::annotations;
use stowage_model::csi_node::{CsiNode, CsiNodeDriver};
use stowage_runtime::api::{Patch, Target};
use stowage_runtime::cache::View;
use stowage_runtime::engine::Decision;

use super::Action;
use crate::drivers::DriverInfo;
use crate::executor::Record;

/// In-tree plugins whose volumes CSI drivers handle everywhere by now.
const MIGRATED: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub name: String,
    pub csi_node: View<CsiNode>,
    /// Uid of the Node, which owns it; none while there is no Node.
    pub node_uid: Option<String>,
    pub drivers: Vec<DriverInfo>,
    pub dismissed: BTreeSet<String>,
    /// Registered drivers that want to be asked again and again how many volumes the node can take.
    pub refresh: BTreeMap<String, Refresh>,
}

/// How often a driver is asked, and when it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Refresh {
    pub period: SignedDuration,
    pub record: Option<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    WriteWithoutAnswer,
    WaitingForNode,
    Missing,
    /// It belongs to a Node of this name that is gone.
    OwnedByAnother,
    DriversDiffer,
    /// A driver's limit may have changed.
    Refresh,
    UpToDate,
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let Some(owner) = &s.node_uid else {
        return Decision::rest(Why::WaitingForNode);
    };
    let csi_node = match &s.csi_node {
        View::Unknown => return Decision::act([Action::ReadCsiNode], Why::WriteWithoutAnswer),
        View::Absent => return Decision::act([Action::CreateCsiNode(new_csi_node(s, owner))], Why::Missing),
        View::Known(csi_node) => csi_node,
    };
    let target = Target::exact(&csi_node.meta);
    if csi_node.meta.owner_references.iter().any(|found| found.kind == "Node" && found.uid != *owner) {
        return Decision::act([Action::DeleteCsiNode { target }], Why::OwnedByAnother);
    }
    match driver_operations(s, csi_node) {
        operations if operations.is_empty() => refresh(s, now),
        operations => {
            Decision::act([Action::PatchCsiNode { target, patch: Patch::Json(operations) }], Why::DriversDiffer)
        }
    }
}

/// Asks the drivers whose period is over; what they answer is written like everything else they said.
fn refresh(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let (mut actions, mut next): (Vec<Action>, Option<Timestamp>) = (Vec::new(), None);
    for (driver, refresh) in &s.refresh {
        let due = match &refresh.record {
            Some(record) if record.is_running() => continue,
            Some(record) => record.since.checked_add(refresh.period).unwrap_or(Timestamp::MAX),
            None => now,
        };
        match due <= now {
            true => actions.push(Action::Refresh { driver: driver.clone() }),
            false => next = next.into_iter().chain([due]).min(),
        }
    }
    let why = if actions.is_empty() { Why::UpToDate } else { Why::Refresh };
    Decision { wake_at: next, ..Decision::act(actions, why) }
}

fn new_csi_node(s: &Snapshot, owner: &str) -> Value {
    json!({
        "metadata": {
            "name": s.name,
            "annotations": { annotations::MIGRATED_PLUGINS: MIGRATED },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": s.name, "uid": owner }],
        },
        "spec": { "drivers": s.drivers.iter().map(entry).collect::<Vec<_>>() },
    })
}

/// Entries are changed one by one, so that those we do not know stay as they are.
fn driver_operations(s: &Snapshot, csi_node: &CsiNode) -> Vec<Value> {
    let existing = &csi_node.spec.drivers;
    let mut operations = Vec::new();
    let mut added: Vec<Value> = Vec::new();
    for driver in &s.drivers {
        match existing.iter().position(|found| found.name == driver.name) {
            Some(index) if is_current(&existing[index], driver) => {}
            Some(index) => {
                let path = format!("/spec/drivers/{index}");
                operations.push(json!({ "op": "replace", "path": path, "value": entry(driver) }));
            }
            None => added.push(entry(driver)),
        }
    }
    // From the end, so that the places before stay valid.
    for (index, found) in existing.iter().enumerate().rev() {
        if s.dismissed.contains(&found.name) {
            operations.push(json!({ "op": "remove", "path": format!("/spec/drivers/{index}") }));
        }
    }
    if existing.is_empty() && !added.is_empty() {
        // An empty list may not be written out at all.
        return vec![json!({ "op": "add", "path": "/spec/drivers", "value": added })];
    }
    operations.extend(added.into_iter().map(|entry| json!({ "op": "add", "path": "/spec/drivers/-", "value": entry })));
    operations
}

fn entry(driver: &DriverInfo) -> Value {
    let mut entry = json!({
        "name": driver.name,
        "nodeID": driver.node_id,
        "topologyKeys": driver.topology.keys().collect::<Vec<_>>(),
    });
    if let Some(limit) = driver.limit {
        entry["allocatable"] = json!({ "count": limit });
    }
    entry
}

/// Whether the entry says what the driver said.
pub fn is_current(found: &CsiNodeDriver, driver: &DriverInfo) -> bool {
    found.node_id == driver.node_id
        && found.topology_keys.iter().eq(driver.topology.keys())
        && found.allocatable.as_ref().and_then(|allocatable| allocatable.count) == driver.limit
}

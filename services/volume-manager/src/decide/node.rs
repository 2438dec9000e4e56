//! The Node of this machine: that it exists, is labelled, Ready, and says what is in use.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use stowage_model::annotations;
use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_runtime::api::Target;
use stowage_runtime::cache::View;
use stowage_runtime::engine::Decision;

use super::Action;
use crate::conditions::{Wanted, status_patch};
use crate::world::DriverInfo;

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub name: String,
    pub node: View<Node>,
    /// Labels the node must have, topology of drivers not included.
    pub labels: BTreeMap<String, String>,
    /// What the node reports besides conditions, when it is registered.
    pub status: Value,
    pub drivers: Vec<DriverInfo>,
    pub dismissed: BTreeSet<String>,
    /// Unique names of attachable volumes that are wanted or may be mounted.
    pub in_use: BTreeSet<UniqueVolumeName>,
    pub heartbeat: Option<Timestamp>,
    pub lease_duration: SignedDuration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    WriteWithoutAnswer,
    Missing,
    LabelsDiffer,
    NotReady,
    /// Somebody called the node silent, and while its lease is not renewed that is true.
    Silent,
    InUseDiffers,
    UpToDate,
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let node = match &s.node {
        View::Unknown => return Decision::act([Action::ReadNode], Why::WriteWithoutAnswer),
        View::Absent => return Decision::act([Action::CreateNode(new_node(s, now))], Why::Missing),
        View::Known(node) => node,
    };
    let target = Target::any_version(&node.meta);
    if let Some(body) = metadata_patch(s, node) {
        return Decision::act([Action::PatchNode { target, body }], Why::LabelsDiffer);
    }
    // The in-use list comes before Ready: pods wait for it.
    let reported: BTreeSet<&str> = node.status.volumes_in_use.iter().map(String::as_str).collect();
    if !s.in_use.iter().map(UniqueVolumeName::as_str).eq(reported.iter().copied()) {
        return Decision::act([Action::ReportInUse { target }], Why::InUseDiffers);
    }
    if node.is_ready() {
        return Decision::rest(Why::UpToDate);
    }
    if s.heartbeat.is_none_or(|at| now.duration_since(at) >= s.lease_duration) {
        return Decision::rest(Why::Silent);
    }
    let fields = if node.status.conditions.is_empty() { s.status.clone() } else { json!({}) };
    let patch = status_patch(&node.status.conditions, &[ready()], fields, now);
    Decision::act([Action::PatchNodeStatus { target: Target::exact(&node.meta), patch }], Why::NotReady)
}

fn ready() -> Wanted {
    Wanted { kind: "Ready", holds: true, reason: "KubeletReady", message: "the volume manager is ready".into() }
}

fn new_node(s: &Snapshot, now: Timestamp) -> Value {
    let mut status = s.status.clone();
    if let stowage_runtime::api::Patch::Merge(mut patch) = status_patch(&[], &[ready()], status.take(), now) {
        status = patch["status"].take();
    }
    json!({
        "metadata": {
            "name": s.name,
            "labels": s.labels,
            "annotations": { annotations::CONTROLLER_MANAGED_ATTACH: "true" },
        },
        "spec": {},
        "status": status,
    })
}

/// Labels and annotations that differ. Topology labels of dismissed drivers stay, as the kubelet leaves them.
fn metadata_patch(s: &Snapshot, node: &Node) -> Option<Value> {
    let mut labels = Map::new();
    let topology = s.drivers.iter().flat_map(|driver| &driver.topology);
    for (key, value) in s.labels.iter().chain(topology) {
        if node.meta.labels.get(key) != Some(value) {
            labels.insert(key.clone(), value.as_str().into());
        }
    }
    let mut patched = Map::new();
    if !node.is_attach_managed() {
        patched.insert(annotations::CONTROLLER_MANAGED_ATTACH.into(), "true".into());
    }
    let known = node_ids(node);
    let mut wanted = known.clone();
    wanted.retain(|driver, _| !s.dismissed.contains(driver));
    wanted.extend(s.drivers.iter().map(|driver| (driver.name.clone(), driver.node_id.clone())));
    if wanted != known {
        let value = match wanted.is_empty() {
            true => Value::Null,
            false => json!(wanted).to_string().into(),
        };
        patched.insert(annotations::CSI_NODE_IDS.into(), value);
    }
    if labels.is_empty() && patched.is_empty() {
        return None;
    }
    Some(json!({ "metadata": { "labels": labels, "annotations": patched } }))
}

/// The drivers' ids of the node, as its annotation says; what cannot be read counts as nothing.
pub fn node_ids(node: &Node) -> BTreeMap<String, String> {
    let text = node.meta.annotation(annotations::CSI_NODE_IDS).unwrap_or("{}");
    serde_json::from_str(text).unwrap_or_default()
}

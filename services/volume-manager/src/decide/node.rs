//! The Node of this machine: that it exists, is labelled, Ready, and says what is in use.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use stowage_model::annotations;
use stowage_model::condition::{self, Condition};
use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_runtime::api::{Patch, Target};
use stowage_runtime::cache::View;
use stowage_runtime::engine::Decision;

use super::Action;
use crate::conditions::{Wanted, heartbeat_patch};
use crate::drivers::DriverInfo;
use crate::machine::Pressure;
use crate::state::Reported;

const READY: &str = "Ready";

/// A pressure that was told stays for so long, as the kubelet has it: near its threshold it would come and go.
const PRESSURE_STAYS: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub name: String,
    /// Whether a Node that is missing is made; else somebody else does.
    pub registers: bool,
    /// Whether the attach-detach controller attaches for this node.
    pub controller_attach: bool,
    pub node: View<Node>,
    /// Labels the node must have, topology of drivers not included.
    pub labels: BTreeMap<String, String>,
    /// What the machine is, as the node reports it besides conditions.
    pub status: Value,
    /// What was reported of that by this process.
    pub reported: Option<Reported>,
    pub pressure: Pressure,
    pub drivers: Vec<DriverInfo>,
    pub dismissed: BTreeSet<String>,
    /// Unique names of attachable volumes that are wanted or may be mounted.
    pub in_use: BTreeSet<UniqueVolumeName>,
    pub heartbeat: Option<Timestamp>,
    pub lease_duration: SignedDuration,
    /// How often conditions are written even if nothing has changed.
    pub report_every: SignedDuration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    WriteWithoutAnswer,
    Missing,
    /// It is missing, and not ours to make.
    NotRegistered,
    LabelsDiffer,
    ConditionsDiffer,
    /// Nothing has changed for so long that it is worth saying.
    Heartbeat,
    /// The machine is not what was reported.
    MachineDiffers,
    /// Somebody called the node silent, and while its lease is not renewed that is true.
    Silent,
    InUseDiffers,
    UpToDate,
}

pub fn decide(s: &Snapshot, now: Timestamp) -> Decision<Action, Why> {
    let node = match &s.node {
        View::Unknown => return Decision::act([Action::ReadNode], Why::WriteWithoutAnswer),
        View::Absent if !s.registers => return Decision::rest(Why::NotRegistered),
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
    if s.heartbeat.is_none_or(|at| now.duration_since(at) >= s.lease_duration) {
        return Decision::rest(Why::Silent);
    }
    report(s, node, now)
}

/// What the machine is, and how it fares: written when it changes, and every now and then when it does not.
fn report(s: &Snapshot, node: &Node, now: Timestamp) -> Decision<Action, Why> {
    let existing = &node.status.conditions;
    let is_reported = s.reported.as_ref().is_some_and(|told| told.uid == node.meta.uid && told.status == s.status);
    let reported = Some(Reported { uid: node.meta.uid.clone(), status: s.status.clone() });
    let wanted = crate::node::conditions(s.pressure).map(|wanted| steady(wanted, existing, now));
    if existing.is_empty() {
        let patch = heartbeat_patch(existing, &wanted, s.status.clone(), now);
        let target = Target::exact(&node.meta);
        return Decision::act([Action::PatchNodeStatus { target, patch, reported }], Why::ConditionsDiffer);
    }
    if !is_reported {
        // Merged in, so that resources which others have added stay.
        let patch = Patch::Merge(json!({ "status": s.status }));
        let target = Target::any_version(&node.meta);
        return Decision::act([Action::PatchNodeStatus { target, patch, reported }], Why::MachineDiffers);
    }
    let told_at = wanted.iter().map(|wanted| condition::find(existing, wanted.kind)?.last_heartbeat_time);
    // One that was never told is due at once.
    let due = told_at.min().flatten().map(|at| at.checked_add(s.report_every).unwrap_or(Timestamp::MAX));
    let why = match due {
        _ if !wanted.iter().all(|wanted| wanted.is_said(existing)) => Why::ConditionsDiffer,
        Some(at) if at > now => {
            let calm = wanted.iter().filter_map(|wanted| calms_at(wanted, s.pressure, existing));
            return Decision::wait_until(calm.chain([at]).min().unwrap_or(at), Why::UpToDate);
        }
        _ => Why::Heartbeat,
    };
    let patch = heartbeat_patch(existing, &wanted, json!({}), now);
    Decision::act([Action::PatchNodeStatus { target: Target::exact(&node.meta), patch, reported: None }], why)
}

/// A pressure that has gone is still told for a while.
fn steady(wanted: Wanted, existing: &[Condition], now: Timestamp) -> Wanted {
    match condition::find(existing, wanted.kind) {
        Some(told) if wanted.kind != READY && !wanted.holds && told.is_true() && stays_until(told) > Some(now) => {
            let pressure = Pressure { memory: true, disk: true, pids: true };
            let pressed = crate::node::conditions(pressure).into_iter().find(|pressed| pressed.kind == wanted.kind);
            pressed.unwrap_or(wanted)
        }
        _ => wanted,
    }
}

fn stays_until(told: &Condition) -> Option<Timestamp> {
    told.last_transition_time?.checked_add(PRESSURE_STAYS).ok()
}

/// When a pressure that is only still told may be taken back.
fn calms_at(told: &Wanted, pressure: Pressure, existing: &[Condition]) -> Option<Timestamp> {
    let is = crate::node::conditions(pressure).into_iter().find(|is| is.kind == told.kind)?;
    (told.holds && !is.holds).then(|| condition::find(existing, told.kind).and_then(stays_until))?
}

fn new_node(s: &Snapshot, now: Timestamp) -> Value {
    let patch = heartbeat_patch(&[], &crate::node::conditions(s.pressure), s.status.clone(), now);
    let status = match patch {
        Patch::Merge(mut patch) => patch["status"].take(),
        Patch::Json(_) => Value::Null,
    };
    let annotations = match s.controller_attach {
        true => json!({ annotations::CONTROLLER_MANAGED_ATTACH: "true" }),
        false => json!({}),
    };
    json!({
        "metadata": {
            "name": s.name,
            "labels": s.labels,
            "annotations": annotations,
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
    if node.is_attach_managed() != s.controller_attach {
        let value = if s.controller_attach { "true".into() } else { Value::Null };
        patched.insert(annotations::CONTROLLER_MANAGED_ATTACH.into(), value);
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

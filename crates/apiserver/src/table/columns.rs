//! The columns of each kind.

use jiff::Timestamp;
use serde_json::Value;

use super::{shown, since};
use crate::kind::Kind;
use crate::object::{filled, is_deleting, text};

/// One column: its heading and how a cell is made.
pub(super) struct Column {
    pub name: &'static str,
    pub cell: fn(&Value, Timestamp) -> String,
    /// Shown with `-o wide` only.
    pub wide: bool,
}

const fn column(name: &'static str, cell: fn(&Value, Timestamp) -> String) -> Column {
    Column { name, cell, wide: false }
}

const fn wide(name: &'static str, cell: fn(&Value, Timestamp) -> String) -> Column {
    Column { name, cell, wide: true }
}

const NAME: Column = column("Name", |o, _| text(o, "/metadata/name").to_owned());
const AGE: Column = column("Age", |o, now| since(o, "/metadata/creationTimestamp", now));
const VOLUME_MODE: Column = wide("VolumeMode", |o, _| shown(o, "/spec/volumeMode", "<unset>"));
const ATTRIBUTES_CLASS: Column =
    column("VolumeAttributesClass", |o, _| shown(o, "/spec/volumeAttributesClassName", "<unset>"));

pub(super) fn columns_of(kind: &Kind) -> Vec<Column> {
    match kind.kind {
        "Namespace" => vec![NAME, column("Status", |o, _| shown(o, "/status/phase", "")), AGE],
        "Node" => vec![
            NAME,
            column("Status", |o, _| node_status(o)),
            column("Roles", |o, _| node_roles(o)),
            AGE,
            column("Version", |o, _| shown(o, "/status/nodeInfo/kubeletVersion", "")),
        ],
        "Pod" => vec![
            NAME,
            column("Ready", |o, _| pod_ready(o)),
            column("Status", |o, _| pod_status(o)),
            column("Restarts", |o, _| pod_restarts(o)),
            AGE,
            wide("IP", |o, _| shown(o, "/status/podIP", "<none>")),
            wide("Node", |o, _| shown(o, "/spec/nodeName", "<none>")),
        ],
        "PersistentVolume" => vec![
            NAME,
            column("Capacity", |o, _| shown(o, "/spec/capacity/storage", "")),
            column("Access Modes", |o, _| access_modes(o, "/spec/accessModes")),
            column("Reclaim Policy", |o, _| shown(o, "/spec/persistentVolumeReclaimPolicy", "")),
            column("Status", |o, _| phase(o)),
            column("Claim", |o, _| claim_of(o)),
            column("StorageClass", |o, _| shown(o, "/spec/storageClassName", "")),
            ATTRIBUTES_CLASS,
            column("Reason", |o, _| shown(o, "/status/reason", "")),
            AGE,
            VOLUME_MODE,
        ],
        "PersistentVolumeClaim" => vec![
            NAME,
            column("Status", |o, _| phase(o)),
            column("Volume", |o, _| shown(o, "/spec/volumeName", "")),
            column("Capacity", |o, _| shown(o, "/status/capacity/storage", "")),
            column("Access Modes", |o, _| access_modes(o, "/status/accessModes")),
            column("StorageClass", |o, _| shown(o, "/spec/storageClassName", "")),
            ATTRIBUTES_CLASS,
            AGE,
            VOLUME_MODE,
        ],
        "Secret" => {
            vec![NAME, column("Type", |o, _| shown(o, "/type", "")), column("Data", |o, _| count(o, &["/data"])), AGE]
        }
        "ConfigMap" => vec![NAME, column("Data", |o, _| count(o, &["/data", "/binaryData"])), AGE],
        "Event" => vec![
            column("Last Seen", last_seen),
            column("Type", |o, _| shown(o, "/type", "")),
            column("Reason", |o, _| shown(o, "/reason", "")),
            column("Object", |o, _| involved(o)),
            column("Message", |o, _| shown(o, "/message", "").trim().to_owned()),
            wide("Name", |o, _| text(o, "/metadata/name").to_owned()),
        ],
        "Lease" => vec![NAME, column("Holder", |o, _| shown(o, "/spec/holderIdentity", "")), AGE],
        "StorageClass" => vec![
            column("Name", |o, _| class_name(o)),
            column("Provisioner", |o, _| shown(o, "/provisioner", "")),
            column("ReclaimPolicy", |o, _| shown(o, "/reclaimPolicy", "")),
            column("VolumeBindingMode", |o, _| shown(o, "/volumeBindingMode", "")),
            column("AllowVolumeExpansion", |o, _| shown(o, "/allowVolumeExpansion", "false")),
            AGE,
        ],
        "VolumeAttachment" => vec![
            NAME,
            column("Attacher", |o, _| shown(o, "/spec/attacher", "")),
            column("PV", |o, _| shown(o, "/spec/source/persistentVolumeName", "")),
            column("Node", |o, _| shown(o, "/spec/nodeName", "")),
            column("Attached", |o, _| shown(o, "/status/attached", "false")),
            AGE,
        ],
        "CSIDriver" => vec![
            NAME,
            column("AttachRequired", |o, _| shown(o, "/spec/attachRequired", "true")),
            column("PodInfoOnMount", |o, _| shown(o, "/spec/podInfoOnMount", "false")),
            column("StorageCapacity", |o, _| shown(o, "/spec/storageCapacity", "false")),
            column("Modes", |o, _| words(o, "/spec/volumeLifecycleModes")),
            AGE,
        ],
        "CSINode" => vec![NAME, column("Drivers", |o, _| count(o, &["/spec/drivers"])), AGE],
        "CSIStorageCapacity" => vec![
            NAME,
            column("StorageClassName", |o, _| shown(o, "/storageClassName", "")),
            column("Capacity", |o, _| shown(o, "/capacity", "")),
        ],
        "VolumeAttributesClass" => vec![NAME, column("DriverName", |o, _| shown(o, "/driverName", "")), AGE],
        _ => vec![NAME, AGE],
    }
}

fn phase(tree: &Value) -> String {
    if is_deleting(tree) { "Terminating".to_owned() } else { shown(tree, "/status/phase", "") }
}

fn list<'a>(tree: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    tree.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn words(tree: &Value, pointer: &str) -> String {
    list(tree, pointer).filter_map(Value::as_str).collect::<Vec<_>>().join(",")
}

fn access_modes(tree: &Value, pointer: &str) -> String {
    let short = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "?",
    };
    list(tree, pointer).map(short).collect::<Vec<_>>().join(",")
}

fn claim_of(tree: &Value) -> String {
    match filled(tree, "/spec/claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
        None => String::new(),
    }
}

fn class_name(tree: &Value) -> String {
    let name = text(tree, "/metadata/name");
    let mark = "/metadata/annotations/storageclass.kubernetes.io~1is-default-class";
    if text(tree, mark) == "true" { format!("{name} (default)") } else { name.to_owned() }
}

fn count(tree: &Value, pointers: &[&str]) -> String {
    let size = |pointer: &&str| match tree.pointer(pointer) {
        Some(Value::Object(members)) => members.len(),
        Some(Value::Array(elements)) => elements.len(),
        _ => 0,
    };
    pointers.iter().map(size).sum::<usize>().to_string()
}

fn node_status(tree: &Value) -> String {
    let ready = list(tree, "/status/conditions").find(|c| text(c, "/type") == "Ready").map(|c| text(c, "/status"));
    let mut status = match ready {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if tree.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn node_roles(tree: &Value) -> String {
    let labels = tree.pointer("/metadata/labels").and_then(Value::as_object);
    let roles: Vec<&str> =
        labels.into_iter().flatten().filter_map(|(name, _)| name.strip_prefix("node-role.kubernetes.io/")).collect();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn pod_ready(tree: &Value) -> String {
    let ready = list(tree, "/status/containerStatuses").filter(|c| c["ready"] == Value::Bool(true)).count();
    format!("{ready}/{}", list(tree, "/spec/containers").count())
}

fn pod_status(tree: &Value) -> String {
    if is_deleting(tree) {
        return "Terminating".to_owned();
    }
    let waiting = list(tree, "/status/containerStatuses")
        .find_map(|c| filled(c, "/state/waiting/reason").or_else(|| filled(c, "/state/terminated/reason")));
    match waiting.and_then(Value::as_str) {
        Some(reason) => reason.to_owned(),
        None => shown(tree, "/status/reason", text(tree, "/status/phase")),
    }
}

fn pod_restarts(tree: &Value) -> String {
    list(tree, "/status/containerStatuses").filter_map(|c| c["restartCount"].as_i64()).sum::<i64>().to_string()
}

fn last_seen(tree: &Value, now: Timestamp) -> String {
    let pointers = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    let latest = pointers.iter().find(|pointer| filled(tree, pointer).is_some());
    since(tree, latest.unwrap_or(&"/lastTimestamp"), now)
}

fn involved(tree: &Value) -> String {
    format!("{}/{}", text(tree, "/involvedObject/kind").to_lowercase(), text(tree, "/involvedObject/name"))
}

//! The columns of each kind.

use jiff::Timestamp;
use serde_json::Value;

use super::{Column, shown, since};
use crate::kind::Kind;
use crate::object::{filled, is_deleting, text};

fn column(name: &str, cell: fn(&Value, Timestamp) -> String) -> Column {
    Column::made(name, cell, 0)
}

fn wide(name: &str, cell: fn(&Value, Timestamp) -> String) -> Column {
    Column::made(name, cell, 1)
}

pub(super) fn name() -> Column {
    column("Name", |o, _| text(o, "/metadata/name").to_owned())
}

pub(super) fn age() -> Column {
    column("Age", |o, now| since(o, "/metadata/creationTimestamp", now))
}

fn volume_mode() -> Column {
    wide("VolumeMode", |o, _| shown(o, "/spec/volumeMode", "<unset>"))
}

fn attributes_class() -> Column {
    column("VolumeAttributesClass", |o, _| shown(o, "/spec/volumeAttributesClassName", "<unset>"))
}

pub(super) fn columns_of(kind: &Kind) -> Vec<Column> {
    match kind.kind {
        "Namespace" => vec![name(), column("Status", |o, _| shown(o, "/status/phase", "")), age()],
        "Node" => vec![
            name(),
            column("Status", |o, _| node_status(o)),
            column("Roles", |o, _| node_roles(o)),
            age(),
            column("Version", |o, _| shown(o, "/status/nodeInfo/kubeletVersion", "")),
        ],
        "Pod" => vec![
            name(),
            column("Ready", |o, _| pod_ready(o)),
            column("Status", |o, _| pod_status(o)),
            column("Restarts", |o, _| pod_restarts(o)),
            age(),
            wide("IP", |o, _| shown(o, "/status/podIP", "<none>")),
            wide("Node", |o, _| shown(o, "/spec/nodeName", "<none>")),
        ],
        "PersistentVolume" => vec![
            name(),
            column("Capacity", |o, _| shown(o, "/spec/capacity/storage", "")),
            column("Access Modes", |o, _| access_modes(o, "/spec/accessModes")),
            column("Reclaim Policy", |o, _| shown(o, "/spec/persistentVolumeReclaimPolicy", "")),
            column("Status", |o, _| phase(o)),
            column("Claim", |o, _| claim_of(o)),
            column("StorageClass", |o, _| shown(o, "/spec/storageClassName", "")),
            attributes_class(),
            column("Reason", |o, _| shown(o, "/status/reason", "")),
            age(),
            volume_mode(),
        ],
        "PersistentVolumeClaim" => vec![
            name(),
            column("Status", |o, _| phase(o)),
            column("Volume", |o, _| shown(o, "/spec/volumeName", "")),
            column("Capacity", |o, _| shown(o, "/status/capacity/storage", "")),
            column("Access Modes", |o, _| access_modes(o, "/status/accessModes")),
            column("StorageClass", |o, _| shown(o, "/spec/storageClassName", "")),
            attributes_class(),
            age(),
            volume_mode(),
        ],
        "Secret" => {
            vec![
                name(),
                column("Type", |o, _| shown(o, "/type", "")),
                column("Data", |o, _| count(o, &["/data"])),
                age(),
            ]
        }
        "ConfigMap" => vec![name(), column("Data", |o, _| count(o, &["/data", "/binaryData"])), age()],
        "Event" => vec![
            column("Last Seen", last_seen),
            column("Type", |o, _| shown(o, "/type", "")),
            column("Reason", |o, _| shown(o, "/reason", "")),
            column("Object", |o, _| involved(o)),
            column("Message", |o, _| shown(o, "/message", text(o, "/note")).trim().to_owned()),
            wide("Name", |o, _| text(o, "/metadata/name").to_owned()),
        ],
        "Service" => vec![
            name(),
            column("Type", |o, _| shown(o, "/spec/type", "ClusterIP")),
            column("Cluster-IP", |o, _| shown(o, "/spec/clusterIP", "<none>")),
            column("External-IP", |o, _| shown(o, "/spec/externalName", "<none>")),
            column("Port(s)", |o, _| ports(o)),
            age(),
        ],
        "ServiceAccount" => vec![name(), column("Secrets", |o, _| count(o, &["/secrets"])), age()],
        "Deployment" => vec![
            name(),
            column("Ready", |o, _| replicas(o, "/status/readyReplicas")),
            column("Up-to-date", |o, _| shown(o, "/status/updatedReplicas", "0")),
            column("Available", |o, _| shown(o, "/status/availableReplicas", "0")),
            age(),
        ],
        "StatefulSet" => vec![name(), column("Ready", |o, _| replicas(o, "/status/readyReplicas")), age()],
        "ReplicaSet" => vec![
            name(),
            column("Desired", |o, _| shown(o, "/spec/replicas", "1")),
            column("Current", |o, _| shown(o, "/status/replicas", "0")),
            column("Ready", |o, _| shown(o, "/status/readyReplicas", "0")),
            age(),
        ],
        "DaemonSet" => vec![
            name(),
            column("Desired", |o, _| shown(o, "/status/desiredNumberScheduled", "0")),
            column("Current", |o, _| shown(o, "/status/currentNumberScheduled", "0")),
            column("Ready", |o, _| shown(o, "/status/numberReady", "0")),
            column("Up-to-date", |o, _| shown(o, "/status/updatedNumberScheduled", "0")),
            column("Available", |o, _| shown(o, "/status/numberAvailable", "0")),
            age(),
        ],
        "CustomResourceDefinition" => {
            vec![name(), column("Created At", |o, _| shown(o, "/metadata/creationTimestamp", ""))]
        }
        "Role" | "ClusterRole" => {
            vec![name(), column("Created At", |o, _| shown(o, "/metadata/creationTimestamp", ""))]
        }
        "RoleBinding" | "ClusterRoleBinding" => vec![
            name(),
            column("Role", |o, _| format!("{}/{}", text(o, "/roleRef/kind"), text(o, "/roleRef/name"))),
            age(),
        ],
        "Lease" => vec![name(), column("Holder", |o, _| shown(o, "/spec/holderIdentity", "")), age()],
        "StorageClass" => vec![
            column("Name", |o, _| class_name(o)),
            column("Provisioner", |o, _| shown(o, "/provisioner", "")),
            column("ReclaimPolicy", |o, _| shown(o, "/reclaimPolicy", "")),
            column("VolumeBindingMode", |o, _| shown(o, "/volumeBindingMode", "")),
            column("AllowVolumeExpansion", |o, _| shown(o, "/allowVolumeExpansion", "false")),
            age(),
        ],
        "VolumeAttachment" => vec![
            name(),
            column("Attacher", |o, _| shown(o, "/spec/attacher", "")),
            column("PV", |o, _| shown(o, "/spec/source/persistentVolumeName", "")),
            column("Node", |o, _| shown(o, "/spec/nodeName", "")),
            column("Attached", |o, _| shown(o, "/status/attached", "false")),
            age(),
        ],
        "CSIDriver" => vec![
            name(),
            column("AttachRequired", |o, _| shown(o, "/spec/attachRequired", "true")),
            column("PodInfoOnMount", |o, _| shown(o, "/spec/podInfoOnMount", "false")),
            column("StorageCapacity", |o, _| shown(o, "/spec/storageCapacity", "false")),
            column("Modes", |o, _| words(o, "/spec/volumeLifecycleModes")),
            age(),
        ],
        "CSINode" => vec![name(), column("Drivers", |o, _| count(o, &["/spec/drivers"])), age()],
        "CSIStorageCapacity" => vec![
            name(),
            column("StorageClassName", |o, _| shown(o, "/storageClassName", "")),
            column("Capacity", |o, _| shown(o, "/capacity", "")),
        ],
        "VolumeAttributesClass" => vec![name(), column("DriverName", |o, _| shown(o, "/driverName", "")), age()],
        _ => vec![name(), age()],
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

fn replicas(tree: &Value, ready: &str) -> String {
    format!("{}/{}", shown(tree, ready, "0"), shown(tree, "/spec/replicas", "1"))
}

fn ports(tree: &Value) -> String {
    let one = |port: &Value| format!("{}/{}", shown(port, "/port", ""), shown(port, "/protocol", "TCP"));
    let all: Vec<String> = list(tree, "/spec/ports").map(one).collect();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
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
    let pointers = [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/deprecatedLastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ];
    let latest = pointers.iter().find(|pointer| filled(tree, pointer).is_some());
    since(tree, latest.unwrap_or(&"/lastTimestamp"), now)
}

fn involved(tree: &Value) -> String {
    let object = filled(tree, "/involvedObject").or_else(|| filled(tree, "/regarding")).unwrap_or(tree);
    format!("{}/{}", text(object, "/kind").to_lowercase(), text(object, "/name"))
}

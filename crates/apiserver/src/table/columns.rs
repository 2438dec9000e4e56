//! The columns of each kind, as kubectl's users know them from upstream's printers.

use jiff::Timestamp;
use serde_json::Value;

use super::{Column, age as short_age, shown, since};
use crate::kind::Kind;
use crate::object::{filled, is_default_class, is_deleting, text};
use crate::rules::claim::BETA_CLASS;

mod pod;

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

fn class() -> Column {
    column("StorageClass", |o, _| shown(o, BETA_CLASS, text(o, "/spec/storageClassName")))
}

fn number(name: &str, cell: fn(&Value, Timestamp) -> String) -> Column {
    column(name, cell).of_type("integer")
}

fn flag(name: &str, cell: fn(&Value, Timestamp) -> String) -> Column {
    column(name, cell).of_type("boolean")
}

/// Names and images of the containers of a template, and which pods it is for.
fn template(selector: bool) -> Vec<Column> {
    let mut columns = vec![
        wide("Containers", |o, _| each(o, "/spec/template/spec/containers", "/name")),
        wide("Images", |o, _| each(o, "/spec/template/spec/containers", "/image")),
    ];
    if selector {
        columns.push(wide("Selector", |o, _| selector_of(o)));
    }
    columns
}

pub(super) fn columns_of(kind: &Kind) -> Vec<Column> {
    match kind.group {
        "" | "events.k8s.io" => core(kind),
        "apps" => workload(kind),
        "storage.k8s.io" => storage(kind),
        "rbac.authorization.k8s.io" if kind.kind.ends_with("Binding") => vec![
            name(),
            column("Role", |o, _| format!("{}/{}", text(o, "/roleRef/kind"), text(o, "/roleRef/name"))),
            age(),
            wide("Users", |o, _| subjects(o, "User")),
            wide("Groups", |o, _| subjects(o, "Group")),
            wide("ServiceAccounts", |o, _| subjects(o, "ServiceAccount")),
        ],
        "rbac.authorization.k8s.io" | "apiextensions.k8s.io" => {
            vec![name(), column("Created At", |o, _| shown(o, "/metadata/creationTimestamp", ""))]
        }
        "coordination.k8s.io" => vec![name(), column("Holder", |o, _| shown(o, "/spec/holderIdentity", "")), age()],
        _ => vec![name(), age()],
    }
}

fn core(kind: &Kind) -> Vec<Column> {
    match kind.kind {
        "Namespace" => vec![name(), column("Status", |o, _| shown(o, "/status/phase", "")), age()],
        "Node" => vec![
            name(),
            column("Status", |o, _| node_status(o)),
            column("Roles", |o, _| node_roles(o)),
            age(),
            column("Version", |o, _| shown(o, "/status/nodeInfo/kubeletVersion", "")),
            wide("Internal-IP", |o, _| address(o, "InternalIP")),
            wide("External-IP", |o, _| address(o, "ExternalIP")),
            wide("OS-Image", |o, _| shown(o, "/status/nodeInfo/osImage", "<unknown>")),
            wide("Kernel-Version", |o, _| shown(o, "/status/nodeInfo/kernelVersion", "<unknown>")),
            wide("Container-Runtime", |o, _| shown(o, "/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
        ],
        "Pod" => vec![
            name(),
            column("Ready", |o, _| pod::ready(o)),
            column("Status", |o, _| pod::status(o)),
            column("Restarts", pod::restarts),
            age(),
            wide("IP", |o, _| shown(o, "/status/podIPs/0/ip", text_or_none(o, "/status/podIP"))),
            wide("Node", |o, _| shown(o, "/spec/nodeName", "<none>")),
            wide("Nominated Node", |o, _| shown(o, "/status/nominatedNodeName", "<none>")),
            wide("Readiness Gates", |o, _| pod::readiness_gates(o)),
        ],
        "PersistentVolume" => vec![
            name(),
            column("Capacity", |o, _| shown(o, "/spec/capacity/storage", "0")),
            column("Access Modes", |o, _| access_modes(o, "/spec/accessModes")),
            column("Reclaim Policy", |o, _| shown(o, "/spec/persistentVolumeReclaimPolicy", "")),
            column("Status", |o, _| phase(o)),
            column("Claim", |o, _| claim_of(o)),
            class(),
            attributes_class(),
            column("Reason", |o, _| shown(o, "/status/reason", "")),
            age(),
            volume_mode(),
        ],
        "PersistentVolumeClaim" => vec![
            name(),
            column("Status", |o, _| phase(o)),
            column("Volume", |o, _| shown(o, "/spec/volumeName", "")),
            column("Capacity", |o, _| if_named(o, || shown(o, "/status/capacity/storage", "0"))),
            column("Access Modes", |o, _| if_named(o, || access_modes(o, "/status/accessModes"))),
            class(),
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
        "ServiceAccount" => vec![name(), column("Secrets", |o, _| count(o, &["/secrets"])), age()],
        "Service" => vec![
            name(),
            column("Type", |o, _| shown(o, "/spec/type", "ClusterIP")),
            column("Cluster-IP", |o, _| shown(o, "/spec/clusterIPs/0", text_or_none(o, "/spec/clusterIP"))),
            column("External-IP", |o, _| external_address(o)),
            column("Port(s)", |o, _| ports(o)),
            age(),
            wide("Selector", |o, _| labels(o.pointer("/spec/selector"))),
        ],
        "Event" => vec![
            column("Last Seen", last_seen),
            column("Type", |o, _| shown(o, "/type", "")),
            column("Reason", |o, _| shown(o, "/reason", "")),
            column("Object", |o, _| involved(o)),
            wide("Subobject", |o, _| shown(o, "/involvedObject/fieldPath", text(o, "/regarding/fieldPath"))),
            wide("Source", |o, _| event_source(o)),
            column("Message", |o, _| shown(o, "/message", text(o, "/note")).trim().to_owned()),
            wide("First Seen", first_seen),
            wide("Count", |o, _| event_count(o)),
            wide("Name", |o, _| text(o, "/metadata/name").to_owned()),
        ],
        _ => vec![name(), age()],
    }
}

fn workload(kind: &Kind) -> Vec<Column> {
    let (mut columns, selector) = match kind.kind {
        "Deployment" => (
            vec![
                name(),
                column("Ready", |o, _| replicas(o, "/status/readyReplicas")),
                column("Up-to-date", |o, _| shown(o, "/status/updatedReplicas", "0")),
                column("Available", |o, _| shown(o, "/status/availableReplicas", "0")),
                age(),
            ],
            true,
        ),
        "StatefulSet" => (vec![name(), column("Ready", |o, _| replicas(o, "/status/readyReplicas")), age()], false),
        "ReplicaSet" => (
            vec![
                name(),
                number("Desired", |o, _| shown(o, "/spec/replicas", "1")),
                number("Current", |o, _| shown(o, "/status/replicas", "0")),
                number("Ready", |o, _| shown(o, "/status/readyReplicas", "0")),
                age(),
            ],
            true,
        ),
        _ => (
            vec![
                name(),
                number("Desired", |o, _| shown(o, "/status/desiredNumberScheduled", "0")),
                number("Current", |o, _| shown(o, "/status/currentNumberScheduled", "0")),
                number("Ready", |o, _| shown(o, "/status/numberReady", "0")),
                number("Up-to-date", |o, _| shown(o, "/status/updatedNumberScheduled", "0")),
                number("Available", |o, _| shown(o, "/status/numberAvailable", "0")),
                column("Node Selector", |o, _| labels(o.pointer("/spec/template/spec/nodeSelector"))),
                age(),
            ],
            true,
        ),
    };
    columns.extend(template(selector));
    columns
}

fn storage(kind: &Kind) -> Vec<Column> {
    match kind.kind {
        "StorageClass" => vec![
            column("Name", |o, _| class_name(o)),
            column("Provisioner", |o, _| shown(o, "/provisioner", "")),
            column("ReclaimPolicy", |o, _| shown(o, "/reclaimPolicy", "Delete")),
            column("VolumeBindingMode", |o, _| shown(o, "/volumeBindingMode", "Immediate")),
            column("AllowVolumeExpansion", |o, _| shown(o, "/allowVolumeExpansion", "false")),
            age(),
        ],
        "VolumeAttachment" => vec![
            name(),
            column("Attacher", |o, _| shown(o, "/spec/attacher", "")),
            column("PV", |o, _| shown(o, "/spec/source/persistentVolumeName", "")),
            column("Node", |o, _| shown(o, "/spec/nodeName", "")),
            flag("Attached", |o, _| shown(o, "/status/attached", "false")),
            age(),
        ],
        "CSIDriver" => vec![
            name(),
            flag("AttachRequired", |o, _| shown(o, "/spec/attachRequired", "true")),
            flag("PodInfoOnMount", |o, _| shown(o, "/spec/podInfoOnMount", "false")),
            flag("StorageCapacity", |o, _| shown(o, "/spec/storageCapacity", "false")),
            column("TokenRequests", |o, _| match o.pointer("/spec/tokenRequests") {
                None | Some(Value::Null) => "<unset>".to_owned(),
                Some(_) => each(o, "/spec/tokenRequests", "/audience"),
            }),
            flag("RequiresRepublish", |o, _| shown(o, "/spec/requiresRepublish", "false")),
            column("Modes", |o, _| or_none(each(o, "/spec/volumeLifecycleModes", ""))),
            age(),
        ],
        "CSINode" => vec![name(), number("Drivers", |o, _| count(o, &["/spec/drivers"])), age()],
        "CSIStorageCapacity" => vec![
            name(),
            column("StorageClassName", |o, _| shown(o, "/storageClassName", "")),
            column("Capacity", |o, _| shown(o, "/capacity", "<unset>")),
        ],
        _ => vec![name(), column("DriverName", |o, _| shown(o, "/driverName", "")), age()],
    }
}

fn phase(tree: &Value) -> String {
    if is_deleting(tree) { "Terminating".to_owned() } else { shown(tree, "/status/phase", "") }
}

fn list<'a>(tree: &'a Value, pointer: &str) -> impl DoubleEndedIterator<Item = &'a Value> {
    tree.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The words at `part` of each element, in one.
fn each(tree: &Value, pointer: &str, part: &str) -> String {
    list(tree, pointer).map(|element| text(element, part)).collect::<Vec<_>>().join(",")
}

fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

fn text_or_none<'a>(tree: &'a Value, pointer: &str) -> &'a str {
    Some(text(tree, pointer)).filter(|text| !text.is_empty()).unwrap_or("<none>")
}

/// A claim shows what it got only once it names its volume.
fn if_named(tree: &Value, shown: impl Fn() -> String) -> String {
    if text(tree, "/spec/volumeName").is_empty() { String::new() } else { shown() }
}

fn access_modes(tree: &Value, pointer: &str) -> String {
    const SHORT: [(&str, &str); 4] =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let has = |mode: &str| list(tree, pointer).any(|m| m == mode);
    let words: Vec<&str> = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    words.join(",")
}

fn claim_of(tree: &Value) -> String {
    match filled(tree, "/spec/claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
        None => String::new(),
    }
}

fn class_name(tree: &Value) -> String {
    let name = text(tree, "/metadata/name");
    if is_default_class(tree) { format!("{name} (default)") } else { name.to_owned() }
}

fn count(tree: &Value, pointers: &[&str]) -> String {
    let size = |pointer: &&str| match tree.pointer(pointer) {
        Some(Value::Object(members)) => members.len(),
        Some(Value::Array(elements)) => elements.len(),
        _ => 0,
    };
    pointers.iter().map(size).sum::<usize>().to_string()
}

/// `a=b,c=d`, by name.
fn labels(found: Option<&Value>) -> String {
    let pairs = found.and_then(Value::as_object).into_iter().flatten();
    or_none(pairs.map(|(name, value)| format!("{name}={}", text(value, ""))).collect::<Vec<_>>().join(","))
}

fn selector_of(tree: &Value) -> String {
    let mut words: Vec<String> = Vec::new();
    let pairs = tree.pointer("/spec/selector/matchLabels").and_then(Value::as_object).into_iter().flatten();
    words.extend(pairs.map(|(name, value)| format!("{name}={}", text(value, ""))));
    for one in list(tree, "/spec/selector/matchExpressions") {
        let key = text(one, "/key");
        words.push(match text(one, "/operator") {
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            operator => format!("{key} {} ({})", operator.to_lowercase(), each(one, "/values", "")),
        });
    }
    or_none(words.join(","))
}

fn subjects(tree: &Value, kind: &str) -> String {
    let of_kind = list(tree, "/subjects").filter(|subject| text(subject, "/kind") == kind);
    let shown = |subject: &Value| match (kind, text(subject, "/namespace")) {
        ("ServiceAccount", namespace) => format!("{namespace}/{}", text(subject, "/name")),
        _ => text(subject, "/name").to_owned(),
    };
    of_kind.map(shown).collect::<Vec<_>>().join(", ")
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
    let role = |(name, value): (&'_ String, &'_ Value)| match name.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_owned()),
        None if name == "kubernetes.io/role" => value.as_str().map(str::to_owned),
        None => None,
    };
    let mut roles: Vec<String> = labels.into_iter().flatten().filter_map(role).filter(|r| !r.is_empty()).collect();
    roles.sort();
    roles.dedup();
    or_none(roles.join(","))
}

fn address(tree: &Value, address_type: &str) -> String {
    let found = list(tree, "/status/addresses").find(|address| text(address, "/type") == address_type);
    found.map_or_else(|| "<none>".to_owned(), |address| text(address, "/address").to_owned())
}

fn replicas(tree: &Value, ready: &str) -> String {
    format!("{}/{}", shown(tree, ready, "0"), shown(tree, "/spec/replicas", "1"))
}

fn external_address(tree: &Value) -> String {
    let own = each(tree, "/spec/externalIPs", "");
    match text(tree, "/spec/type") {
        "ExternalName" => text(tree, "/spec/externalName").to_owned(),
        "LoadBalancer" => {
            let balancers = list(tree, "/status/loadBalancer/ingress")
                .map(|one| shown(one, "/ip", text(one, "/hostname")))
                .collect::<Vec<_>>();
            let all: Vec<String> = balancers.into_iter().chain(Some(own)).filter(|text| !text.is_empty()).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ => or_none(own),
    }
}

fn ports(tree: &Value) -> String {
    let one = |port: &Value| match filled(port, "/nodePort") {
        Some(node) => format!("{}:{node}/{}", shown(port, "/port", ""), shown(port, "/protocol", "TCP")),
        None => format!("{}/{}", shown(port, "/port", ""), shown(port, "/protocol", "TCP")),
    };
    or_none(list(tree, "/spec/ports").map(one).collect::<Vec<_>>().join(","))
}

/// The first of these times that the event has, in kubectl's short form.
fn told(tree: &Value, pointers: &[&str], now: Timestamp) -> String {
    let found = pointers.iter().find_map(|pointer| filled(tree, pointer)).and_then(Value::as_str);
    short_age(found.unwrap_or_default(), now)
}

fn last_seen(tree: &Value, now: Timestamp) -> String {
    let times = ["/series/lastObservedTime", "/lastTimestamp", "/deprecatedLastTimestamp"];
    match times.iter().any(|time| filled(tree, time).is_some()) {
        true => told(tree, &times, now),
        false => first_seen(tree, now),
    }
}

fn first_seen(tree: &Value, now: Timestamp) -> String {
    told(tree, &["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"], now)
}

fn event_count(tree: &Value) -> String {
    let counts = ["/series/count", "/count", "/deprecatedCount"];
    let found = counts.iter().find_map(|count| tree.pointer(count).and_then(Value::as_i64)).filter(|n| *n > 0);
    found.unwrap_or(1).to_string()
}

fn event_source(tree: &Value) -> String {
    let first =
        |pointers: [&str; 4]| pointers.iter().map(|p| text(tree, p)).find(|t| !t.is_empty()).unwrap_or_default();
    let component =
        first(["/source/component", "/deprecatedSource/component", "/reportingComponent", "/reportingController"]);
    let host = first(["/source/host", "/deprecatedSource/host", "/reportingInstance", "/reportingInstance"]);
    if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") }
}

fn involved(tree: &Value) -> String {
    let object = filled(tree, "/involvedObject").or_else(|| filled(tree, "/regarding")).unwrap_or(&Value::Null);
    match (text(object, "/kind").to_lowercase(), text(object, "/name")) {
        (kind, "") => kind,
        (kind, name) => format!("{kind}/{name}"),
    }
}

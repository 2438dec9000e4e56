//! One good world, spoiled in one place per row; the first cause of the report is what is asked for.

mod attaching;
mod binding;
mod by_hand;
mod deleting;
mod growing;
mod leaders;
mod placing;
mod snapshots;
mod unread;
mod whole;

use serde_json::{Value, json};

use crate::explain::gathered::{Gathered, Seen, Wanted};
use crate::explain::report::{Report, State};

use super::*;

const DRIVER: &str = "d.example.com";
/// Long before, so that what is not done is late.
const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-01T00:10:00Z";
const FRESH: &str = "2026-01-01T00:09:58Z";

type Spoil = fn(&mut Value);

/// What is asked about, how the good world is spoiled, the cause and words of it.
type Row = (&'static str, fn() -> Wanted, Spoil, State, &'static [&'static str]);

fn claim() -> Wanted {
    Wanted::Claim(Key::namespaced("default", "data"))
}

fn pod() -> Wanted {
    Wanted::Pod(Key::namespaced("default", "web"))
}

fn volume() -> Wanted {
    Wanted::Volume(Key::cluster("pv-1"))
}

fn snapshot() -> Wanted {
    Wanted::Snapshot(Key::namespaced("default", "snap"))
}

fn all() -> Wanted {
    Wanted::All { namespace: None }
}

fn lease(name: &str) -> Value {
    json!({
        "metadata": { "namespace": "kube-system", "name": name },
        "spec": { "holderIdentity": format!("{name}-1"), "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:09:57Z" },
    })
}

fn event(kind: &str, name: &str, reason: &str, message: &str) -> Value {
    let namespace = if kind == "PersistentVolume" { "" } else { "default" };
    json!({
        "metadata": { "namespace": "default", "name": format!("{name}.1") },
        "involvedObject": { "kind": kind, "namespace": namespace, "name": name },
        "type": "Warning", "reason": reason, "message": message, "count": 7,
        "lastTimestamp": "2026-01-01T00:09:30Z", "source": { "component": "a-component" },
    })
}

/// A claim bound and attached, a pod that is about to run with it, and a snapshot that is ready.
fn good() -> Value {
    let meta = |name: &str| json!({ "name": name, "uid": format!("uid-{name}"), "creationTimestamp": THEN });
    let namespaced = |name: &str| {
        let mut meta = meta(name);
        meta["namespace"] = "default".into();
        meta
    };
    let mut claim = namespaced("data");
    claim["annotations"] = json!({
        "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/storage-provisioner": DRIVER,
    });
    let sidecars = [
        "d-example-com",
        "external-attacher-leader-d-example-com",
        "external-resizer-d-example-com",
        "external-snapshotter-leader-d-example-com",
        "snapshot-controller-leader",
        "kube-controller-manager",
        "kube-scheduler",
    ];
    json!({
        "claims": [{
            "metadata": claim,
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "pv-1",
                      "resources": { "requests": { "storage": "1Gi" } } },
            "status": { "phase": "Bound", "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"] },
        }],
        "volumes": [{
            "metadata": meta("pv-1"),
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                      "persistentVolumeReclaimPolicy": "Delete", "csi": { "driver": DRIVER, "volumeHandle": "v1" },
                      "claimRef": { "namespace": "default", "name": "data", "uid": "uid-data" } },
            "status": { "phase": "Bound", "lastPhaseTransitionTime": THEN },
        }],
        "classes": [{ "metadata": meta("fast"), "provisioner": DRIVER, "volumeBindingMode": "Immediate", "allowVolumeExpansion": true }],
        "pods": [{
            "metadata": namespaced("web"),
            "spec": { "nodeName": "node-1", "containers": [{ "name": "c" }],
                      "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] },
            "status": { "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "True", "lastTransitionTime": FRESH },
                { "type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": FRESH },
            ] },
        }],
        "nodes": [{
            "metadata": { "name": "node-1", "labels": { "kubernetes.io/hostname": "node-1" } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }],
                        "volumesAttached": [{ "name": "kubernetes.io/csi/d.example.com^v1", "devicePath": "" }] },
        }],
        "csiNodes": [{ "metadata": meta("node-1"), "spec": { "drivers": [{ "name": DRIVER, "nodeID": "n1", "allocatable": { "count": 2 } }] } }],
        "drivers": [{ "metadata": meta(DRIVER), "spec": { "attachRequired": true, "storageCapacity": true } }],
        "attachments": [{
            "metadata": meta("csi-1"),
            "spec": { "attacher": DRIVER, "nodeName": "node-1", "source": { "persistentVolumeName": "pv-1" } },
            "status": { "attached": true },
        }],
        "leases": sidecars.map(lease),
        "capacities": [{ "metadata": namespaced("cap"), "storageClassName": "fast", "capacity": "10Gi" }],
        "attributesClasses": [],
        "snapshots": [{
            "metadata": namespaced("snap"),
            "spec": { "source": { "persistentVolumeClaimName": "data" }, "volumeSnapshotClassName": "snaps" },
            "status": { "readyToUse": true, "boundVolumeSnapshotContentName": "snapcontent-uid-snap" },
        }],
        "contents": [{
            "metadata": meta("snapcontent-uid-snap"),
            "spec": { "driver": DRIVER, "volumeSnapshotRef": { "namespace": "default", "name": "snap", "uid": "uid-snap" } },
            "status": { "readyToUse": true, "snapshotHandle": "s1" },
        }],
        "snapshotClasses": [{ "metadata": meta("snaps"), "driver": DRIVER, "deletionPolicy": "Delete" }],
        "events": [],
    })
}

fn seen<T: Projection>(world: &Value, kind: &str) -> Seen<T> {
    match &world[kind] {
        Value::Null => Seen::new(Vec::new(), false),
        objects => Seen::new(serde_json::from_value(objects.clone()).unwrap(), true),
    }
}

fn gathered(wanted: Wanted, world: &Value) -> Gathered {
    Gathered {
        wanted,
        claims: seen(world, "claims"),
        pods: seen(world, "pods"),
        volumes: seen(world, "volumes"),
        classes: seen(world, "classes"),
        attachments: seen(world, "attachments"),
        nodes: seen(world, "nodes"),
        csi_nodes: seen(world, "csiNodes"),
        drivers: seen(world, "drivers"),
        capacities: seen(world, "capacities"),
        leases: seen(world, "leases"),
        attributes_classes: seen(world, "attributesClasses"),
        snapshots: seen(world, "snapshots"),
        contents: seen(world, "contents"),
        snapshot_classes: seen(world, "snapshotClasses"),
        events: seen(world, "events"),
        unread: Vec::new(),
    }
}

fn report(wanted: Wanted, spoil: Spoil) -> Report {
    let mut world = good();
    spoil(&mut world);
    diagnose(&gathered(wanted, &world), NOW.parse().unwrap())
}

fn check(rows: &[Row]) {
    for (id, wanted, spoil, state, words) in rows {
        let report = report(wanted(), *spoil);
        let causes = &report.stories[0].causes;
        let Some(cause) = causes.first() else { panic!("{id}: no cause at all in {report:#?}") };
        assert_eq!((cause.id, cause.state), (*id, *state), "{causes:#?}");
        let text = format!("{} {} {}", cause.why, cause.who.component, cause.way_out);
        for word in *words {
            assert!(text.contains(word), "{id}: {word:?} is missing in {text}");
        }
    }
}

/// The claim as it was created: no volume was made.
fn unbound(world: &mut Value) {
    world["claims"][0]["metadata"]["annotations"] = json!({ "volume.kubernetes.io/storage-provisioner": DRIVER });
    world["claims"][0]["spec"]["volumeName"] = Value::Null;
    world["claims"][0]["status"] = json!({ "phase": "Pending" });
    world["volumes"] = json!([]);
    world["attachments"] = json!([]);
    world["pods"] = json!([]);
    world["snapshots"] = json!([]);
}

/// A volume that somebody made for the claim by hand.
fn made_by_hand(world: &mut Value) {
    let volume = good()["volumes"][0].clone();
    unbound(world);
    world["claims"][0]["metadata"]["annotations"] = json!({});
    world["claims"][0]["spec"]["volumeName"] = "pv-1".into();
    world["volumes"] = json!([volume]);
    world["volumes"][0]["spec"]["claimRef"] = Value::Null;
    world["volumes"][0]["status"]["phase"] = "Available".into();
}

/// The pod before it had a node.
fn unplaced(world: &mut Value) {
    world["pods"][0]["spec"]["nodeName"] = Value::Null;
    world["pods"][0]["status"]["conditions"] = json!([]);
    world["attachments"] = json!([]);
}

fn deleted(object: &mut Value, finalizers: &[&str]) {
    object["metadata"]["deletionTimestamp"] = THEN.into();
    object["metadata"]["finalizers"] = json!(finalizers);
}

/// A volume of no CSI driver.
fn of_nfs(world: &mut Value) {
    world["volumes"][0]["spec"]["csi"] = Value::Null;
    world["volumes"][0]["spec"]["nfs"] = json!({ "server": "files", "path": "/" });
}

fn with_policy(world: &mut Value, mode: &str) {
    world["classes"][0]["volumeBindingMode"] = mode.into();
}

fn renewed(world: &mut Value, lease: &str, at: &str) {
    let leases = world["leases"].as_array_mut().unwrap();
    let one = leases.iter_mut().find(|one| one["metadata"]["name"] == lease).unwrap();
    one["spec"]["renewTime"] = at.into();
}

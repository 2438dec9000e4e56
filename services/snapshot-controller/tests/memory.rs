//! What ten thousand snapshots weigh in the caches. Alone in its file: the process is what is weighed.

// Helpers of a test are a test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use snapshot_controller::watches::Caches;
use stowage_model::finalizers;
use stowage_model::object::Projection;
use stowage_runtime::cache::Cache;

const COUNT: usize = 10_000;

/// Megabytes of this process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() / 1000
}

/// Reads each object from its text, as a watch does.
fn fill<T: Projection>(cache: &Cache<T>, object: impl Fn(usize) -> Value) {
    let read = |number: usize| {
        let mut object = object(number);
        object["metadata"]["uid"] = json!(format!("6f1c2c4e-0000-4000-8000-{number:012}"));
        object["metadata"]["resourceVersion"] = json!((number + 1).to_string());
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["managedFields"] = json!([{ "manager": "x".repeat(600) }]);
        Arc::new(serde_json::from_str(&object.to_string()).unwrap())
    };
    cache.relist_with((0..COUNT).map(read).collect(), BTreeSet::new(), 1);
}

#[test]
fn ten_thousand_snapshots_with_contents_and_claims_take_less_than_36_megabytes() {
    let before = resident();
    let caches = Caches::new();
    let content = |number: usize| format!("snapcontent-6f1c2c4e-0000-4000-8000-{number:012}");
    fill(&caches.snapshots, |number| {
        json!({
            "metadata": {
                "namespace": "shop", "name": format!("nightly-{number}"),
                "finalizers": [finalizers::SNAPSHOT_AS_SOURCE, finalizers::SNAPSHOT_BOUND],
            },
            "spec": {
                "source": { "persistentVolumeClaimName": format!("data-{number}") },
                "volumeSnapshotClassName": "hostpath-snapshots",
            },
            "status": {
                "boundVolumeSnapshotContentName": content(number), "readyToUse": true, "restoreSize": "10Gi",
                "creationTime": "2026-01-01T00:00:01Z",
            },
        })
    });
    fill(&caches.contents, |number| {
        json!({
            "metadata": { "name": content(number), "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND] },
            "spec": {
                "volumeSnapshotRef": {
                    "namespace": "shop", "name": format!("nightly-{number}"),
                    "uid": format!("6f1c2c4e-0000-4000-8000-{number:012}"),
                },
                "deletionPolicy": "Delete", "driver": "hostpath.csi.k8s.io", "sourceVolumeMode": "Filesystem",
                "volumeSnapshotClassName": "hostpath-snapshots",
                "source": { "volumeHandle": format!("7e1c2c4e-0000-4000-8000-{number:012}") },
            },
            "status": {
                "snapshotHandle": format!("8e1c2c4e-0000-4000-8000-{number:012}"), "readyToUse": true,
                "creationTime": 1_767_225_601_000_000_000_i64, "restoreSize": 10_737_418_240_i64,
            },
        })
    });
    fill(&caches.claims, |number| {
        json!({
            "metadata": {
                "namespace": "shop", "name": format!("data-{number}"), "finalizers": ["kubernetes.io/pvc-protection"],
                "annotations": { "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" },
            },
            "spec": { "volumeName": format!("pvc-6f1c2c4e-0000-4000-8000-{number:012}"), "accessModes": ["ReadWriteOnce"] },
            "status": { "phase": "Bound", "capacity": { "storage": "10Gi" } },
        })
    });
    let grown = resident() - before;
    println!("{grown} MB for {COUNT} of each, {before} MB before");
    assert!(grown < 36, "{grown} MB");
    assert_eq!((caches.snapshots.len(), caches.contents.len(), caches.claims.len()), (COUNT, COUNT, COUNT));
}

//! Bytes of memory per cached object: our projections beside the full object, typed and untyped.
//!
//! Each variant runs in a process of its own, so that freed memory of one does not hide the growth of the next.
//! Run with `cargo bench -p stowage-runtime --bench cache_memory`.

use std::process::Command;

use serde_json::{Value, json};

use stowage_model::{Claim, Volume};
use stowage_runtime::cache::Cache;

const OBJECTS: usize = 50_000;

fn main() {
    let variant = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    match variant.as_deref() {
        Some(variant) => println!("{}", grown(variant)),
        None => compare(),
    }
}

fn compare() {
    let own = std::env::current_exe().expect("a running program has a path");
    println!(
        "{OBJECTS} objects, resident bytes each (JSON on the wire: {} claim, {} volume)",
        claim(0).to_string().len(),
        volume(0).to_string().len()
    );
    for variants in [["claim-cache", "claim-typed", "claim-json"], ["volume-cache", "volume-typed", "volume-json"]] {
        let measured = variants.map(|variant| {
            let output = Command::new(&own).arg(variant).output().expect("we can start ourselves");
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            text.parse::<usize>().expect("a variant prints one number") / OBJECTS
        });
        for (variant, bytes) in variants.iter().zip(measured) {
            println!("  {variant:<14} {bytes:>6}   {:>5.2} x the projection", bytes as f64 / measured[0] as f64);
        }
    }
}

/// Resident bytes after filling, less those before.
fn grown(variant: &str) -> usize {
    let before = resident();
    let after = match variant {
        "claim-cache" => {
            let cache: Cache<Claim> = Cache::new();
            for number in 0..OBJECTS {
                cache.observe(parse(&claim(number)));
            }
            keep(&cache)
        }
        "volume-cache" => {
            let cache: Cache<Volume> = Cache::new();
            for number in 0..OBJECTS {
                cache.observe(parse(&volume(number)));
            }
            keep(&cache)
        }
        "claim-typed" => keep(&fill::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(claim)),
        "volume-typed" => keep(&fill::<k8s_openapi::api::core::v1::PersistentVolume>(volume)),
        "claim-json" => keep(&fill::<Value>(claim)),
        "volume-json" => keep(&fill::<Value>(volume)),
        other => unreachable!("no such variant: {other}"),
    };
    after.saturating_sub(before)
}

fn fill<T: serde::de::DeserializeOwned>(make: fn(usize) -> Value) -> Vec<T> {
    (0..OBJECTS).map(|number| parse(&make(number))).collect()
}

fn keep<T>(held: &T) -> usize {
    let after = resident();
    std::hint::black_box(held);
    after
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_str(&value.to_string()).expect("the fixtures are well-formed")
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells a process its size");
    let pages: usize = statm.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("pages resident");
    pages * 4096
}

fn managed_fields() -> Value {
    let owner = json!({ "f:metadata": { "f:annotations": { ".": {}, "f:pv.kubernetes.io/bind-completed": {} } },
                        "f:spec": { "f:accessModes": {}, "f:resources": { "f:requests": { "f:storage": {} } } },
                        "f:status": { "f:capacity": { "f:storage": {} }, "f:phase": {} } });
    json!([{ "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": owner, "manager": "kube-controller-manager",
             "operation": "Update", "time": "2026-01-01T00:00:00Z" }])
}

fn meta(kind: &str, number: usize) -> Value {
    json!({
        "namespace": "default", "name": format!("{kind}-{number}"), "uid": format!("0000-{kind}-{number:020}"),
        "resourceVersion": (number + 1).to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
            "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(600),
        },
        "finalizers": ["kubernetes.io/pvc-protection"],
        "managedFields": managed_fields(),
    })
}

fn claim(number: usize) -> Value {
    json!({
        "metadata": meta("claim", number),
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "volumeName": format!("pvc-{number:036}"), "resources": { "requests": { "storage": "10Gi" } },
        },
        "status": { "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "10Gi" } },
    })
}

fn volume(number: usize) -> Value {
    json!({
        "metadata": meta("volume", number),
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "capacity": { "storage": "10Gi" }, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
                          "name": format!("claim-{number}"), "uid": format!("{number:036}"), "resourceVersion": "7" },
            "csi": { "driver": "shared.csi.stowage.dev", "volumeHandle": format!("default/{number:036}"),
                     "volumeAttributes": { "storage.kubernetes.io/csiProvisionerIdentity": "1-2-shared.csi.stowage.dev" } },
        },
        "status": { "phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z" },
    })
}

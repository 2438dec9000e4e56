//! The steps of the reference, one row each; its numbers are in the names.

mod creating;
mod deleting;
mod groups;
mod keeping;

use std::sync::Arc;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use stowage_model::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, annotations, finalizers};
use stowage_runtime::cache::View;
use stowage_runtime::told::Known;

use super::*;
use crate::memory::Look;
use crate::projections::SourceClaim;
use crate::snapshot::{ClaimFacts, ContentFacts, Membership, Place, Policy, Single};

const UID: &str = "snap-uid";
const CONTENT: &str = "snapcontent-snap-uid";
const DRIVER: &str = "d.example";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn read<T: DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Changes fields of a fixture, as a merge patch would.
fn merge(target: &mut Value, patch: Value) {
    match patch {
        Value::Object(patch) => {
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in patch {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(&key);
                } else {
                    merge(&mut target[key.as_str()], value);
                }
            }
        }
        other => *target = other,
    }
}

fn snapshot(change: Value) -> Arc<VolumeSnapshot> {
    let mut body = json!({
        "metadata": { "namespace": "shop", "name": "nightly", "uid": UID, "resourceVersion": "5" },
        "spec": { "source": { "persistentVolumeClaimName": "data" }, "volumeSnapshotClassName": "gold" },
    });
    merge(&mut body, change);
    read(body)
}

fn content(change: Value) -> Arc<VolumeSnapshotContent> {
    let mut body = json!({
        "metadata": {
            "name": CONTENT, "uid": "content-uid", "resourceVersion": "7",
            "creationTimestamp": "1970-01-01T00:01:40Z",
            "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND],
        },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": "nightly", "uid": UID },
            "deletionPolicy": "Delete",
            "driver": DRIVER,
            "volumeSnapshotClassName": "gold",
            "source": { "volumeHandle": "vol-1" },
        },
    });
    merge(&mut body, change);
    read(body)
}

fn class(name: &str, change: Value) -> Arc<VolumeSnapshotClass> {
    let mut body = json!({ "metadata": { "name": name, "uid": name }, "driver": DRIVER, "deletionPolicy": "Delete" });
    merge(&mut body, change);
    read(body)
}

fn claim(change: Value) -> Arc<SourceClaim> {
    let mut body = json!({
        "metadata": {
            "namespace": "shop", "name": "data", "uid": "claim-uid", "resourceVersion": "3",
            "finalizers": ["kubernetes.io/pvc-protection", finalizers::CLAIM_AS_SNAPSHOT_SOURCE],
        },
        "spec": { "volumeName": "pv-1" },
        "status": { "phase": "Bound" },
    });
    merge(&mut body, change);
    read(body)
}

fn volume(change: Value) -> Option<Look> {
    let mut body = json!({
        "metadata": { "name": "pv-1", "uid": "pv-uid" },
        "spec": {
            "claimRef": { "namespace": "shop", "name": "data", "uid": "claim-uid" },
            "csi": { "driver": DRIVER, "volumeHandle": "vol-1" },
            "volumeMode": "Block",
        },
    });
    merge(&mut body, change);
    Some(Look { volume: Some(read(body)), until: at(160) })
}

/// A snapshot of a claim for which everything is there, and nothing is made yet.
fn single() -> Single {
    Single {
        snapshot: snapshot(json!({})),
        content_name: CONTENT.into(),
        content: View::Absent,
        class: Some(class("gold", json!({}))),
        defaults: Vec::new(),
        claim: View::Known(claim(json!({}))),
        volume: volume(json!({})),
        place: Place::Anywhere,
        restoring: Vec::new(),
        group: Membership::default(),
        told: Known::default(),
        policy: Policy { keep_volume_mode: true, distributed: false, groups: true },
    }
}

const BOTH: [&str; 2] = [finalizers::SNAPSHOT_AS_SOURCE, finalizers::SNAPSHOT_BOUND];

/// One that is bound to its content, of which nothing is known yet.
fn bound() -> Single {
    Single {
        snapshot: snapshot(json!({
            "metadata": { "finalizers": BOTH },
            "status": { "boundVolumeSnapshotContentName": CONTENT, "readyToUse": false },
        })),
        content: View::Known(content(json!({}))),
        volume: None,
        ..single()
    }
}

/// One that somebody deletes.
fn deleted() -> Single {
    Single {
        snapshot: snapshot(json!({
            "metadata": { "finalizers": BOTH, "deletionTimestamp": "1970-01-01T00:01:40Z" },
            "status": { "boundVolumeSnapshotContentName": CONTENT, "readyToUse": true },
        })),
        claim: View::Absent,
        ..bound()
    }
}

fn decided(single: &Single) -> Decision {
    decide(&Snapshot::Single(Box::new(single.clone())), at(100))
}

/// What people are told, and under which reason.
fn told(decision: &Decision) -> (&'static str, String) {
    let note = decision.actions.iter().find_map(|action| match action {
        Action::WriteStatus { tell, .. } => tell.first(),
        Action::Tell { note, .. } => Some(note),
        _ => None,
    });
    note.map(|note| (note.reason, note.message.clone())).unwrap_or_default()
}

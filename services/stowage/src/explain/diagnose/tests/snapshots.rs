use serde_json::{Value, json};

use super::*;

/// The snapshot-controller has asked for it, and the driver has not made it.
fn asked_for(world: &mut Value) {
    world["snapshots"][0]["status"] = json!({ "readyToUse": false });
    world["contents"][0]["status"] = Value::Null;
}

fn not_asked_for(world: &mut Value) {
    asked_for(world);
    world["contents"] = json!([]);
}

#[test]
fn a_snapshot_that_is_not_ready_is_told_why() {
    let rows: [Row; 9] = [
        (
            "snapshot-failed",
            snapshot,
            |w| {
                asked_for(w);
                w["contents"][0]["status"] = json!({ "error": { "message": "rpc error: no room" } });
            },
            State::Stuck,
            &["no room", "VolumeSnapshotContent snapcontent-uid-snap", "snapshotter of d.example.com"],
        ),
        (
            "snapshot-class-missing",
            snapshot,
            |w| {
                not_asked_for(w);
                w["snapshots"][0]["spec"]["volumeSnapshotClassName"] = "gold".into();
            },
            State::Stuck,
            &["\"gold\"", "there are snaps"],
        ),
        (
            "no-default-snapshot-class",
            snapshot,
            |w| {
                not_asked_for(w);
                w["snapshots"][0]["spec"]["volumeSnapshotClassName"] = Value::Null;
            },
            State::Stuck,
            &["no VolumeSnapshotClass is the default of driver d.example.com"],
        ),
        (
            "source-missing",
            snapshot,
            |w| {
                not_asked_for(w);
                w["claims"] = json!([]);
            },
            State::Stuck,
            &["persistentVolumeClaimName is \"data\""],
        ),
        (
            "source-not-bound",
            snapshot,
            |w| {
                not_asked_for(w);
                w["claims"][0]["status"]["phase"] = "Pending".into();
            },
            State::Stuck,
            &["Pending", "stowage explain pvc data -n default"],
        ),
        ("snapshot-controller-silent", snapshot, not_asked_for, State::Stuck, &["snapshot-controller-leader-1"]),
        ("snapshotter-silent", snapshot, asked_for, State::Stuck, &["external-snapshotter-leader-d-example-com-1"]),
        (
            "snapshot-not-ready",
            snapshot,
            |w| {
                asked_for(w);
                w["contents"][0]["status"] = json!({ "snapshotHandle": "s1", "readyToUse": false });
            },
            State::Working,
            &["has made it and does not say yet"],
        ),
        (
            "content-not-bound",
            snapshot,
            |w| {
                asked_for(w);
                w["snapshots"][0]["spec"]["source"] = json!({ "volumeSnapshotContentName": "snapcontent-uid-snap" });
                w["contents"][0]["spec"]["volumeSnapshotRef"] = json!({ "namespace": "shop", "name": "other" });
            },
            State::Stuck,
            &["names shop/other"],
        ),
    ];
    check(&rows);
}

use serde_json::{Value, json};

use super::*;

fn released(world: &mut Value) {
    world["claims"] = json!([]);
    world["pods"] = json!([]);
    world["attachments"] = json!([]);
    world["volumes"][0]["status"] = json!({ "phase": "Released", "lastPhaseTransitionTime": THEN });
}

#[test]
fn what_was_deleted_and_is_there_is_told_by_whom_it_is_held() {
    let rows: [Row; 25] = [
        (
            "used-by-pod",
            claim,
            |w| deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]),
            State::Stuck,
            &["kubernetes.io/pvc-protection: used by pod web", "kubectl delete pod web -n default"],
        ),
        (
            "finalizer-not-released",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]);
                w["pods"] = json!([]);
            },
            State::Stuck,
            &["pv-controller", "kube-controller-manager-1"],
        ),
        // The pod of a Job that is done holds its claims until it is deleted.
        (
            "used-by-pod",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]);
                w["pods"][0]["status"]["phase"] = "Succeeded".into();
            },
            State::Stuck,
            &["used by pod web, which has ended (Succeeded)", "kubectl delete pod web -n default"],
        ),
        // The scheduler places no pod whose claim is being deleted.
        (
            "finalizer-not-released",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]);
                unplaced(w);
            },
            State::Stuck,
            &["pv-controller"],
        ),
        (
            "snapshot-under-way",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["snapshot.storage.kubernetes.io/pvc-as-source-protection"]);
                w["snapshots"][0]["status"]["readyToUse"] = false.into();
                w["contents"][0]["status"] = json!({ "error": { "message": "no room" } });
            },
            State::Stuck,
            &["VolumeSnapshot snap", "no room", "kubectl delete volumesnapshot snap -n default"],
        ),
        (
            "clone-under-way",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["provisioner.storage.kubernetes.io/cloning-protection"]);
                let copy = json!({ "metadata": { "namespace": "default", "name": "copy" },
                "spec": { "dataSource": { "kind": "PersistentVolumeClaim", "name": "data" } } });
                w["claims"].as_array_mut().unwrap().push(copy);
            },
            State::Stuck,
            &["claim default/copy is being filled from it"],
        ),
        // What a claim of that name elsewhere is filled from is another.
        (
            "finalizer-not-released",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["provisioner.storage.kubernetes.io/cloning-protection"]);
                let copy = json!({ "metadata": { "namespace": "shop", "name": "copy" },
                "spec": { "dataSource": { "kind": "PersistentVolumeClaim", "name": "data" } } });
                w["claims"].as_array_mut().unwrap().push(copy);
            },
            State::Stuck,
            &["provisioner of d.example.com"],
        ),
        (
            "foreign-finalizer",
            claim,
            |w| deleted(&mut w["claims"][0], &["example.com/backup"]),
            State::Stuck,
            &["\"example.com/backup\""],
        ),
        (
            "bound-to-claim",
            volume,
            |w| deleted(&mut w["volumes"][0], &["kubernetes.io/pv-protection"]),
            State::Stuck,
            &["bound to claim default/data"],
        ),
        (
            "delete-failed",
            volume,
            |w| {
                released(w);
                deleted(&mut w["volumes"][0], &["external-provisioner.volume.kubernetes.io/finalizer"]);
                w["events"] =
                    json!([event("PersistentVolume", "pv-1", "VolumeFailedDelete", "rpc error: disk is busy")]);
            },
            State::Stuck,
            &["disk is busy", "provisioner of d.example.com"],
        ),
        (
            "detach-failed",
            volume,
            |w| {
                deleted(&mut w["volumes"][0], &["external-attacher/d-example-com"]);
                deleted(&mut w["attachments"][0], &["external-attacher/d-example-com"]);
                w["attachments"][0]["status"]["detachError"] = json!({ "message": "busy" });
            },
            State::Stuck,
            &["detaching from node-1 failed: busy"],
        ),
        ("deleter-silent", volume, released, State::Stuck, &["its data is not deleted yet", "d-example-com-1"]),
        (
            "delete-failed",
            volume,
            |w| {
                released(w);
                w["volumes"][0]["status"] = json!({ "phase": "Failed", "message": "no deleter for it" });
            },
            State::Stuck,
            &["no deleter for it"],
        ),
        // No CSI driver has it: nobody but the pv-controller deletes or erases it.
        (
            "deleter-silent",
            volume,
            |w| {
                released(w);
                of_nfs(w);
            },
            State::Stuck,
            &["its data is not deleted yet", "pv-controller is alive"],
        ),
        (
            "deleter-silent",
            volume,
            |w| {
                released(w);
                w["volumes"][0]["metadata"]["annotations"] =
                    json!({ "pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path" });
                of_nfs(w);
            },
            State::Stuck,
            &["pv-controller is alive"],
        ),
        (
            "delete-failed",
            volume,
            |w| {
                released(w);
                w["volumes"][0]["spec"]["persistentVolumeReclaimPolicy"] = "Recycle".into();
                w["events"] = json!([event("PersistentVolume", "pv-1", "VolumeFailedRecycle", "no recycler for it")]);
            },
            State::Stuck,
            &["no recycler for it", "pv-controller"],
        ),
        (
            "finalizer-not-released",
            volume,
            |w| {
                deleted(&mut w["volumes"][0], &["external-attacher/d-example-com"]);
                of_nfs(w);
                w["attachments"] = json!([]);
            },
            State::Stuck,
            &["attacher of d-example-com", "external-attacher-leader-d-example-com-1"],
        ),
        (
            "finalizer-not-released",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["provisioner.storage.kubernetes.io/cloning-protection"]);
                w["claims"][0]["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
            },
            State::Stuck,
            &["provisioner of d.example.com"],
        ),
        (
            "released-retain",
            volume,
            |w| {
                released(w);
                w["volumes"][0]["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
            },
            State::Waiting,
            &["its claim default/data is gone", "kubectl patch pv pv-1"],
        ),
        (
            "restore-under-way",
            snapshot,
            |w| {
                deleted(
                    &mut w["snapshots"][0],
                    &["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"],
                );
                let copy = json!({ "metadata": { "namespace": "default", "name": "copy" },
                "spec": { "dataSource": { "kind": "VolumeSnapshot", "name": "snap" } } });
                w["claims"].as_array_mut().unwrap().push(copy);
            },
            State::Stuck,
            &["claim default/copy"],
        ),
        (
            "finalizer-not-released",
            snapshot,
            |w| {
                deleted(
                    &mut w["snapshots"][0],
                    &["provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"],
                );
            },
            State::Stuck,
            &["provisioner of d.example.com", "d-example-com-1"],
        ),
        (
            "delete-failed",
            snapshot,
            |w| {
                deleted(&mut w["snapshots"][0], &["snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"]);
                w["contents"][0]["status"]["error"] = json!({ "message": "rpc error: in use" });
            },
            State::Stuck,
            &["in use", "snapshotter of d.example.com"],
        ),
        (
            "node-not-ready",
            pod,
            |w| {
                deleted(&mut w["pods"][0], &[]);
                w["nodes"][0]["status"]["conditions"][0]["status"] = "Unknown".into();
            },
            State::Stuck,
            &["kubectl taint node node-1"],
        ),
        ("kubelet-silent", pod, |w| deleted(&mut w["pods"][0], &[]), State::Stuck, &["kubelet of node-1"]),
        (
            "unmount-failed",
            pod,
            |w| {
                deleted(&mut w["pods"][0], &[]);
                w["events"] = json!([event("Pod", "web", "FailedUnMount", "target is busy")]);
            },
            State::Stuck,
            &["target is busy"],
        ),
    ];
    check(&rows);
}

const SOON: &str = "2026-01-01T00:10:28Z";

/// Deleted two seconds ago.
fn just_deleted(object: &mut Value, finalizers: &[&str]) {
    deleted(object, finalizers);
    object["metadata"]["deletionTimestamp"] = FRESH.into();
}

/// A claim that is to be filled from an object, and whose provisioner was just asked.
fn copied(world: &mut Value, kind: &str, name: &str) {
    let copy = json!({
        "metadata": { "namespace": "default", "name": "copy", "creationTimestamp": FRESH,
                      "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER } },
        "spec": { "storageClassName": "fast", "dataSource": { "kind": kind, "name": name } },
    });
    world["claims"].as_array_mut().unwrap().push(copy);
}

/// The driver has made the snapshot and still copies its data.
fn copying(world: &mut Value) {
    world["snapshots"][0]["status"]["readyToUse"] = false.into();
    world["contents"][0]["status"]["readyToUse"] = false.into();
}

#[test]
fn what_is_under_way_is_not_stuck() {
    let rows: [Row; 10] = [
        (
            "used-by-pod",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]);
                deleted(&mut w["pods"][0], &[]);
                w["pods"][0]["metadata"]["deletionTimestamp"] = SOON.into();
            },
            State::Working,
            &["kubelet of node-1", "stowage explain pod web -n default"],
        ),
        (
            "used-by-pod",
            claim,
            |w| just_deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]),
            State::Working,
            &["kubectl delete pod web"],
        ),
        // Its pod goes on no more than its node does.
        (
            "used-by-pod",
            claim,
            |w| {
                just_deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]);
                just_deleted(&mut w["pods"][0], &[]);
                w["nodes"][0]["status"]["conditions"][0]["status"] = "Unknown".into();
            },
            State::Stuck,
            &["kubelet of node-1"],
        ),
        (
            "snapshot-under-way",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["snapshot.storage.kubernetes.io/pvc-as-source-protection"]);
                copying(w);
            },
            State::Working,
            &["has made it and does not say yet", "snapshotter of d.example.com"],
        ),
        (
            "clone-under-way",
            claim,
            |w| {
                deleted(&mut w["claims"][0], &["provisioner.storage.kubernetes.io/cloning-protection"]);
                copied(w, "PersistentVolumeClaim", "data");
            },
            State::Working,
            &["claim default/copy is being filled from it", "provisioner of d.example.com"],
        ),
        (
            "restore-under-way",
            snapshot,
            |w| {
                deleted(
                    &mut w["snapshots"][0],
                    &["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"],
                );
                copied(w, "VolumeSnapshot", "snap");
            },
            State::Working,
            &["claim default/copy", "provisioner of d.example.com"],
        ),
        (
            "source-not-ready",
            claim,
            |w| {
                let snapshot = good()["snapshots"].clone();
                unbound(w);
                w["snapshots"] = snapshot;
                w["snapshots"][0]["spec"]["source"] = json!({ "volumeSnapshotContentName": "snapcontent-uid-snap" });
                copying(w);
                w["claims"][0]["spec"]["dataSource"] = json!({ "kind": "VolumeSnapshot", "name": "snap" });
            },
            State::Working,
            &["has made it and does not say yet", "snapshotter of d.example.com"],
        ),
        (
            "foreign-finalizer",
            claim,
            |w| just_deleted(&mut w["claims"][0], &["example.com/backup"]),
            State::Working,
            &["example.com/backup"],
        ),
        (
            "bound-to-claim",
            volume,
            |w| {
                deleted(&mut w["volumes"][0], &["kubernetes.io/pv-protection"]);
                just_deleted(&mut w["claims"][0], &[]);
            },
            State::Working,
            &["the claim is being deleted"],
        ),
        (
            "source-not-bound",
            snapshot,
            |w| {
                copying(w);
                w["contents"] = json!([]);
                w["claims"][0]["status"]["phase"] = "Pending".into();
                w["snapshots"][0]["metadata"]["creationTimestamp"] = FRESH.into();
            },
            State::Working,
            &["Pending"],
        ),
    ];
    check(&rows);
}

#[test]
fn nobody_is_told_to_taint_a_node_that_is_gone() {
    let gone = |w: &mut Value| {
        deleted(&mut w["pods"][0], &[]);
        w["nodes"] = json!([]);
    };
    let mut world = good();
    gone(&mut world);
    let story = |world: &Value| diagnose(&gathered(pod(), world), NOW.parse().unwrap()).stories.remove(0);
    let cause = story(&world).causes.remove(0);
    assert_eq!((cause.id, cause.state), ("node-missing", State::Stuck), "{cause:#?}");
    assert!(cause.who.component.starts_with("pod garbage collection"), "{cause:#?}");
    assert!(!cause.way_out.contains("taint"), "{cause:#?}");
    world["pods"][0]["metadata"]["deletionTimestamp"] = FRESH.into();
    assert_eq!(story(&world).state(), State::Working);
}

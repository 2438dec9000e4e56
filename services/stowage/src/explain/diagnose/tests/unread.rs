use serde_json::{Value, json};

use super::*;

/// What is asked about, how the good world is spoiled, and what of it may not be read.
type Hidden = (fn() -> Wanted, Spoil, fn(&mut Gathered));

fn unread<T: Projection>() -> Seen<T> {
    Seen::new(Vec::new(), false)
}

fn causes(row: &Hidden) -> Vec<Cause> {
    let (wanted, spoil, hide) = row;
    let mut world = good();
    spoil(&mut world);
    let mut gathered = gathered(wanted(), &world);
    hide(&mut gathered);
    diagnose(&gathered, NOW.parse().unwrap()).stories.remove(0).causes
}

fn by_hand(world: &mut Value) {
    unbound(world);
    world["classes"][0]["provisioner"] = "kubernetes.io/no-provisioner".into();
}

#[test]
fn where_what_it_hangs_on_may_not_be_read_nobody_is_blamed() {
    let rows: [Hidden; 17] = [
        (claim, |w| deleted(&mut w["claims"][0], &["kubernetes.io/pvc-protection"]), |g| g.pods = unread()),
        (
            claim,
            |w| deleted(&mut w["claims"][0], &["snapshot.storage.kubernetes.io/pvc-as-source-protection"]),
            |g| g.snapshots = unread(),
        ),
        (
            claim,
            |w| deleted(&mut w["claims"][0], &["provisioner.storage.kubernetes.io/cloning-protection"]),
            |g| g.claims.is_known = false,
        ),
        (
            snapshot,
            |w| {
                deleted(&mut w["snapshots"][0], &["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"])
            },
            |g| g.claims = unread(),
        ),
        (
            snapshot,
            |w| deleted(&mut w["snapshots"][0], &["snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"]),
            |g| g.contents = unread(),
        ),
        (snapshot, |w| w["snapshots"][0]["status"] = json!({ "readyToUse": false }), |g| g.contents = unread()),
        (volume, |w| deleted(&mut w["volumes"][0], &["kubernetes.io/pv-protection"]), |g| g.claims = unread()),
        (volume, |w| deleted(&mut w["volumes"][0], &["external-attacher/d-example-com"]), |g| g.attachments = unread()),
        (volume, |w| w["volumes"][0]["status"]["phase"] = "Released".into(), |g| g.attachments = unread()),
        (
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["spec"]["storageClassName"] = Value::Null;
            },
            |g| g.volumes = unread(),
        ),
        (claim, by_hand, |g| g.volumes = unread()),
        (
            claim,
            |w| {
                by_hand(w);
                w["claims"][0]["spec"]["volumeName"] = "pv-1".into();
            },
            |g| g.volumes = unread(),
        ),
        (
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["metadata"]["annotations"] = json!({});
            },
            |g| g.classes = unread(),
        ),
        (
            claim,
            |w| {
                unbound(w);
                with_policy(w, "WaitForFirstConsumer");
            },
            |g| g.pods = unread(),
        ),
        (
            claim,
            |w| w["claims"][0]["status"]["allocatedResourceStatuses"] = json!({ "storage": "NodeResizePending" }),
            |g| g.pods = unread(),
        ),
        (
            pod,
            |w| {
                w["attachments"][0]["spec"]["nodeName"] = "node-2".into();
                let mut other = w["nodes"][0].clone();
                other["metadata"]["name"] = "node-2".into();
                w["nodes"][0]["status"]["volumesAttached"] = json!([]);
                w["nodes"].as_array_mut().unwrap().push(other);
            },
            |g| g.pods.is_known = false,
        ),
        (pod, |w| w["attachments"][0]["spec"]["nodeName"] = "node-2".into(), |g| g.nodes = unread()),
    ];
    for (number, row) in rows.iter().enumerate() {
        let causes = causes(row);
        assert!(!causes.is_empty(), "row {number}");
        for cause in causes {
            assert_eq!((cause.id, &cause.who), ("cannot-be-told", &Who::unknown()), "row {number}: {cause:#?}");
        }
    }
}

#[test]
fn a_claim_that_may_wait_as_it_was_told_to_is_not_said_to_be_stuck() {
    let row: Hidden = (
        claim,
        |w| {
            unbound(w);
            with_policy(w, "WaitForFirstConsumer");
        },
        |g| g.pods = unread(),
    );
    assert_eq!(causes(&row)[0].state, State::Working);
}

#[test]
fn without_attachments_the_node_alone_tells_what_is_attached() {
    let told: Hidden = (pod, |_| {}, |g| g.attachments = unread());
    assert_eq!(causes(&told).iter().map(|cause| cause.id).collect::<Vec<_>>(), ["kubelet-silent"]);
    let untold: Hidden =
        (pod, |w| w["nodes"][0]["status"]["volumesAttached"] = json!([]), |g| g.attachments = unread());
    assert_eq!(causes(&untold).iter().map(|cause| cause.id).collect::<Vec<_>>(), ["cannot-be-told"]);
}

#[test]
fn what_may_not_be_read_is_never_said_to_be_missing() {
    let classes: Hidden = (
        claim,
        |w| {
            unbound(w);
            w["claims"][0]["spec"]["storageClassName"] = "gold".into();
        },
        |g| g.classes = unread(),
    );
    assert_eq!(causes(&classes)[0].id, "provisioner-silent");
    let leases: Hidden = (claim, unbound, |g| {
        (g.leases, g.drivers, g.csi_nodes) = (unread(), unread(), unread());
        (g.events, g.capacities) = (unread(), unread());
    });
    assert_eq!(causes(&leases)[0].id, "provisioner-silent");
    assert!(!causes(&leases)[0].why.contains("has told nothing"));
}

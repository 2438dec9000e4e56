use serde_json::{Value, json};

use super::*;

#[test]
fn a_claim_that_is_not_bound_is_told_why() {
    let rows: [Row; 14] = [
        (
            "class-missing",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["spec"]["storageClassName"] = "gold".into();
            },
            State::Stuck,
            &["spec.storageClassName is \"gold\"", "fast"],
        ),
        (
            "no-default-class",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["spec"]["storageClassName"] = Value::Null;
            },
            State::Stuck,
            &["no StorageClass is the default", "kubectl annotate storageclass fast"],
        ),
        (
            "no-fitting-volume",
            claim,
            |w| {
                made_by_hand(w);
                w["claims"][0]["spec"]["volumeName"] = Value::Null;
                w["claims"][0]["spec"]["storageClassName"] = "".into();
                w["volumes"][0]["spec"]["capacity"]["storage"] = "1Mi".into();
                w["volumes"][0]["spec"]["storageClassName"] = "".into();
            },
            State::Stuck,
            &["1 too small", "has 1Mi, the claim asks for 1Gi"],
        ),
        (
            "volume-missing",
            claim,
            |w| {
                made_by_hand(w);
                w["volumes"] = json!([]);
            },
            State::Stuck,
            &["spec.volumeName is \"pv-1\""],
        ),
        (
            "volume-mismatch",
            claim,
            |w| {
                made_by_hand(w);
                w["volumes"][0]["spec"]["capacity"]["storage"] = "1Mi".into();
            },
            State::Stuck,
            &["has 1Mi", "asks for 1Gi"],
        ),
        (
            "volume-mismatch",
            claim,
            |w| {
                made_by_hand(w);
                w["volumes"][0]["spec"]["storageClassName"] = "slow".into();
            },
            State::Stuck,
            &["storageClassName", "\"slow\""],
        ),
        (
            "volume-mismatch",
            claim,
            |w| {
                made_by_hand(w);
                w["volumes"][0]["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
            },
            State::Stuck,
            &["ReadOnlyMany", "ReadWriteOnce"],
        ),
        (
            "volume-taken",
            claim,
            |w| {
                made_by_hand(w);
                w["volumes"][0]["spec"]["claimRef"] = json!({ "namespace": "shop", "name": "other", "uid": "u" });
            },
            State::Stuck,
            &["names claim shop/other", "kubectl patch pv pv-1"],
        ),
        (
            "volume-taken",
            claim,
            |w| {
                made_by_hand(w);
                w["volumes"][0]["spec"]["claimRef"] = json!({ "namespace": "default", "name": "data", "uid": "old" });
            },
            State::Stuck,
            &["spec.claimRef.uid", "earlier claim of this name"],
        ),
        (
            "claim-lost",
            claim,
            |w| {
                w["claims"][0]["status"]["phase"] = "Lost".into();
                w["volumes"] = json!([]);
            },
            State::Stuck,
            &["\"pv-1\"", "is gone"],
        ),
        (
            "source-missing",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["spec"]["dataSource"] = json!({ "kind": "VolumeSnapshot", "name": "nope" });
            },
            State::Stuck,
            &["VolumeSnapshot \"nope\""],
        ),
        (
            "binder-silent",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["metadata"]["annotations"] = json!({});
            },
            State::Stuck,
            &["pv-controller", "kube-controller-manager-1"],
        ),
        (
            "binder-silent",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["metadata"]["annotations"] = json!({});
                w["claims"][0]["metadata"]["creationTimestamp"] = FRESH.into();
            },
            State::Working,
            &["alive"],
        ),
        (
            "waits-for-pod",
            claim,
            |w| {
                unbound(w);
                with_policy(w, "WaitForFirstConsumer");
            },
            State::Waiting,
            &["WaitForFirstConsumer", "no pod uses the claim"],
        ),
    ];
    check(&rows);
}

/// The claim names a volume that claim shop/other has.
fn taken(world: &mut Value) {
    made_by_hand(world);
    let mut other = good()["claims"][0].clone();
    other["metadata"]["namespace"] = "shop".into();
    other["metadata"]["name"] = "other".into();
    other["metadata"]["uid"] = "u".into();
    world["claims"].as_array_mut().unwrap().push(other);
    world["volumes"][0]["spec"]["claimRef"] = json!({ "namespace": "shop", "name": "other", "uid": "u" });
    world["volumes"][0]["status"]["phase"] = "Bound".into();
}

#[test]
fn a_volume_that_somebody_may_still_have_is_not_offered_to_another_claim() {
    let ways_out = |spoil: fn(&mut Value), hide: fn(&mut Gathered)| {
        let mut world = good();
        taken(&mut world);
        spoil(&mut world);
        let mut gathered = gathered(claim(), &world);
        hide(&mut gathered);
        let cause = diagnose(&gathered, NOW.parse().unwrap()).stories.remove(0).causes.remove(0);
        assert_eq!(cause.id, "volume-taken", "{cause:#?}");
        cause.way_out
    };
    let gone: Spoil = |w| drop(w["claims"].as_array_mut().unwrap().pop());
    let released: Spoil = |w| w["volumes"][0]["status"]["phase"] = "Released".into();
    let given_up: Spoil = |w| {
        w["claims"].as_array_mut().unwrap().pop();
        w["volumes"][0]["status"]["phase"] = "Released".into();
    };
    let going: Spoil = |w| {
        w["claims"].as_array_mut().unwrap().pop();
        w["volumes"][0]["status"]["phase"] = "Released".into();
        deleted(&mut w["volumes"][0], &["kubernetes.io/pv-protection"]);
    };
    for (spoil, hide) in [
        ((|_| {}) as Spoil, (|_| {}) as fn(&mut Gathered)),
        (gone, |_| {}),
        (released, |_| {}),
        (given_up, |g| g.claims.is_known = false),
        (going, |_| {}),
    ] {
        let way_out = ways_out(spoil, hide);
        assert!(way_out.contains("with another volume") && !way_out.contains("kubectl patch"), "{way_out}");
    }
    assert!(ways_out(given_up, |_| {}).contains("kubectl patch pv pv-1"));
}

#[test]
fn a_provisioner_is_told_from_one_that_refuses_one_that_is_dead_and_none_at_all() {
    let rows: [Row; 8] = [
        (
            "provisioning-failed",
            claim,
            |w| {
                unbound(w);
                w["events"] = json!([event(
                    "PersistentVolumeClaim",
                    "data",
                    "ProvisioningFailed",
                    "rpc error: pool \"x\" is unknown"
                )]);
            },
            State::Stuck,
            &["pool \"x\" is unknown", "7 times", "provisioner of d.example.com"],
        ),
        // A retry of the same claim that went well settles it.
        (
            "provisioner-silent",
            claim,
            |w| {
                unbound(w);
                let mut later = event("PersistentVolumeClaim", "data", "ProvisioningSucceeded", "made");
                later["lastTimestamp"] = "2026-01-01T00:09:40Z".into();
                w["events"] = json!([event("PersistentVolumeClaim", "data", "ProvisioningFailed", "no"), later]);
            },
            State::Stuck,
            &["d-example-com-1 holds Lease"],
        ),
        // Of an earlier claim of that name.
        (
            "provisioner-silent",
            claim,
            |w| {
                unbound(w);
                let mut old = event("PersistentVolumeClaim", "data", "ProvisioningFailed", "no");
                old["involvedObject"]["uid"] = "another".into();
                w["events"] = json!([old]);
            },
            State::Stuck,
            &["alive"],
        ),
        (
            "provisioner-dead",
            claim,
            |w| {
                unbound(w);
                renewed(w, "d-example-com", "2026-01-01T00:05:00Z");
            },
            State::Stuck,
            &["has not renewed Lease kube-system/d-example-com for 5m"],
        ),
        (
            "provisioner-absent",
            claim,
            |w| {
                unbound(w);
                w["leases"] = json!([]);
                w["drivers"] = json!([]);
                w["csiNodes"] = json!([]);
            },
            State::Stuck,
            &["no CSIDriver of that name", "no Lease d-example-com"],
        ),
        // Without an election there is no Lease, and the driver is registered: it may be anything.
        (
            "provisioner-silent",
            claim,
            |w| {
                unbound(w);
                w["leases"] = json!([]);
            },
            State::Stuck,
            &["without leader election, or not at all"],
        ),
        (
            "no-capacity",
            claim,
            |w| {
                unbound(w);
                w["capacities"][0]["capacity"] = "512Mi".into();
            },
            State::Stuck,
            &["asks for 1Gi", "offers is 512Mi"],
        ),
        (
            "driver-not-on-node",
            claim,
            |w| {
                unbound(w);
                with_policy(w, "WaitForFirstConsumer");
                w["claims"][0]["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "node-1".into();
                w["csiNodes"][0]["spec"]["drivers"] = json!([]);
            },
            State::Stuck,
            &["CSINode node-1 does not list driver d.example.com"],
        ),
    ];
    check(&rows);
}

/// What is told of the claim that is no warning.
fn news(reason: &str, by: &str, at: &str) -> Value {
    let mut told = event("PersistentVolumeClaim", "data", reason, "as it says");
    told["type"] = "Normal".into();
    told["source"]["component"] = by.into();
    told["lastTimestamp"] = at.into();
    told
}

/// A provisioner that is no CSI driver and elects nobody.
fn of_local_path(world: &mut Value) {
    unbound(world);
    world["claims"][0]["metadata"]["annotations"] =
        json!({ "volume.kubernetes.io/storage-provisioner": "rancher.io/local-path" });
    world["classes"][0]["provisioner"] = "rancher.io/local-path".into();
}

#[test]
fn a_provisioner_that_is_at_work_or_not_asked_is_not_said_to_be_silent() {
    let rows: [Row; 8] = [
        (
            "driver-at-work",
            claim,
            |w| {
                unbound(w);
                w["events"] = json!([news("Provisioning", "d.example.com_host_1", "2026-01-01T00:05:00Z")]);
            },
            State::Working,
            &["has not answered yet", "provisioner of d.example.com"],
        ),
        // Another try, and what came of the last one.
        (
            "driver-at-work",
            claim,
            |w| {
                unbound(w);
                let failed = event("PersistentVolumeClaim", "data", "ProvisioningFailed", "DeadlineExceeded");
                w["events"] = json!([failed, news("Provisioning", "d.example.com_host_1", "2026-01-01T00:09:50Z")]);
            },
            State::Working,
            &["before that: DeadlineExceeded"],
        ),
        // A try that failed in the same second.
        (
            "provisioning-failed",
            claim,
            |w| {
                unbound(w);
                let failed = event("PersistentVolumeClaim", "data", "ProvisioningFailed", "no");
                w["events"] = json!([news("Provisioning", "d.example.com_host_1", "2026-01-01T00:09:30Z"), failed]);
            },
            State::Stuck,
            &["no (event ProvisioningFailed"],
        ),
        (
            "provisioner-dead",
            claim,
            |w| {
                unbound(w);
                renewed(w, "d-example-com", "2026-01-01T00:05:00Z");
                w["events"] = json!([news("Provisioning", "d.example.com_host_1", "2026-01-01T00:05:01Z")]);
            },
            State::Stuck,
            &["has not renewed Lease"],
        ),
        (
            "waits-for-populator",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["spec"]["dataSourceRef"] =
                    json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "image" });
                w["events"] = json!([news("Provisioning", "external-provisioner", "2026-01-01T00:00:01Z")]);
            },
            State::Working,
            &["VolumeImportSource.cdi.kubevirt.io \"image\"", "the populator of VolumeImportSource"],
        ),
        (
            "populator-missing",
            claim,
            |w| {
                unbound(w);
                w["claims"][0]["spec"]["dataSourceRef"] =
                    json!({ "apiGroup": "example.com", "kind": "VolumeSnapshot", "name": "image" });
                let unknown = event("PersistentVolumeClaim", "data", "UnrecognizedDataSourceKind", "not registered");
                w["events"] = json!([unknown]);
            },
            State::Stuck,
            &["not registered", "kubectl get volumepopulators"],
        ),
        (
            "driver-at-work",
            claim,
            |w| {
                of_local_path(w);
                w["events"] = json!([news("Provisioning", "rancher.io/local-path_pod_1", "2026-01-01T00:05:00Z")]);
            },
            State::Working,
            &["provisioner of rancher.io/local-path"],
        ),
        // Nobody is to install what has none of a CSI driver's objects.
        (
            "provisioner-silent",
            claim,
            of_local_path,
            State::Stuck,
            &["no Lease rancher.io-local-path", "without leader election"],
        ),
    ];
    check(&rows);
    assert!(is_news("Provisioning"), "the survey does not read it");
}

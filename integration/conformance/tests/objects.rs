//! What happens to objects on their way in: defaults, checks, admission.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::{World, rule};
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/{ns}/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// Cluster-wide names must not meet those of another rule.
fn own(world: &World, name: &str) -> String {
    format!("{}-{name}", world.namespace)
}

#[tokio::test]
async fn a_claim_is_completed_and_protected() {
    rule(async |world| {
        let made = world.works("POST", CLAIMS, claim("c")).await;
        assert_eq!(made["spec"]["volumeMode"], "Filesystem");
        assert_eq!(made["status"]["phase"], "Pending");
        assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_makes_no_sense_is_refused_with_every_reason() {
    rule(async |world| {
        let mut bad = claim("c");
        bad["spec"]["resources"]["requests"]["storage"] = "0".into();
        bad["spec"]["accessModes"] = json!([]);
        let status = world.refused(422, "POST", CLAIMS, bad).await;
        assert_eq!(
            (&status["reason"], &status["details"]["kind"]),
            (&json!("Invalid"), &json!("PersistentVolumeClaim"))
        );
        let causes = status["details"]["causes"].as_array().unwrap();
        let fields: Vec<&str> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
        assert!(fields.contains(&"spec.accessModes"), "{status}");
        assert!(fields.contains(&"spec.resources[storage]"), "{status}");
    })
    .await;
}

#[tokio::test]
async fn the_spec_of_a_claim_stays_as_it_was_made() {
    rule(async |world| {
        world.works("POST", CLAIMS, claim("c")).await;
        let changed =
            world.patch("merge", &format!("{CLAIMS}/c"), json!({"spec": {"accessModes": ["ReadOnlyMany"]}})).await;
        assert_eq!(changed.code, 422);
        let message = changed.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("spec: Forbidden: spec is immutable after creation"), "{message}");
        let bind = json!({"spec": {"volumeName": "v"}});
        assert_eq!(world.patch("merge", &format!("{CLAIMS}/c"), bind).await.code, 200);
    })
    .await;
}

#[tokio::test]
async fn a_claim_cannot_grow_unless_its_class_says_so() {
    rule(async |world| {
        world.works("POST", CLAIMS, claim("c")).await;
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        world.patch("merge", &format!("{CLAIMS}/c"), json!({"spec": {"volumeName": "v"}})).await;
        world.patch("merge", &format!("{CLAIMS}/c/status"), status).await;
        let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        let refused = world.patch("merge", &format!("{CLAIMS}/c"), larger).await;
        assert_eq!(refused.code, 403, "{:?}", refused.bytes);
    })
    .await;
}

#[tokio::test]
async fn a_volume_is_completed_protected_and_checked() {
    rule(async |world| {
        let name = own(&world, "v");
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "example.com", "volumeHandle": "h"},
            },
        });
        let made = world.works("POST", VOLUMES, volume.clone()).await;
        let path = format!("{VOLUMES}/{name}");
        let check = async {
            assert_eq!(made["spec"]["persistentVolumeReclaimPolicy"], "Retain");
            assert_eq!(made["status"]["phase"], "Pending");
            assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
            let moved = json!({"spec": {"csi": {"volumeHandle": "other"}}});
            assert_eq!(world.patch("merge", &path, moved).await.code, 422, "the source stays");
            let bound =
                world.patch("merge", &format!("{path}/status"), json!({"status": {"phase": "Available"}})).await;
            assert!(bound.json()["status"]["lastPhaseTransitionTime"].is_string());
        };
        check.await;
        world.works("DELETE", &path, Value::Null).await;
        world.patch("merge", &path, json!({"metadata": {"finalizers": null}})).await;
        let mut empty = volume;
        empty["spec"].as_object_mut().unwrap().remove("csi");
        world.refused(422, "POST", VOLUMES, empty).await;
    })
    .await;
}

#[tokio::test]
async fn a_class_is_completed_and_its_provisioner_stays() {
    rule(async |world| {
        let name = own(&world, "sc");
        let made =
            world.works("POST", CLASSES, json!({"metadata": {"name": name}, "provisioner": "example.com"})).await;
        assert_eq!((&made["reclaimPolicy"], &made["volumeBindingMode"]), (&json!("Delete"), &json!("Immediate")));
        let path = format!("{CLASSES}/{name}");
        let changed = world.patch("merge", &path, json!({"provisioner": "other.com"})).await;
        world.works("DELETE", &path, Value::Null).await;
        assert_eq!(changed.code, 422);
    })
    .await;
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_is_not_there_or_ending() {
    rule(async |world| {
        let missing = "/api/v1/namespaces/not-there/configmaps";
        world.refused(404, "POST", missing, json!({"metadata": {"name": "a"}})).await;
        let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/held"]}});
        world.works("POST", "/api/v1/namespaces/{ns}/configmaps", held).await;
        world.works("DELETE", "/api/v1/namespaces/{ns}", Value::Null).await;
        let status = world
            .refused(403, "POST", "/api/v1/namespaces/{ns}/configmaps", json!({"metadata": {"name": "late"}}))
            .await;
        assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
        let path = "/api/v1/namespaces/{ns}/configmaps/held";
        world.patch("merge", path, json!({"metadata": {"finalizers": null}})).await;
    })
    .await;
}

#[tokio::test]
async fn names_labels_and_annotations_are_checked() {
    rule(async |world| {
        let maps = "/api/v1/namespaces/{ns}/configmaps";
        for metadata in [
            json!({"name": "Upper"}),
            json!({"name": "a", "labels": {"a b": "c"}}),
            json!({"name": "a", "labels": {"a": "x y"}}),
            json!({"name": "a", "annotations": {"a b": "c"}}),
            json!({}),
        ] {
            let status = world.refused(422, "POST", maps, json!({"metadata": metadata})).await;
            assert_eq!(status["reason"], "Invalid");
        }
    })
    .await;
}

#[tokio::test]
async fn a_namespace_begins_with_its_default_account_and_gets_it_back() {
    rule(async |world| {
        let path = "/api/v1/namespaces/{ns}/serviceaccounts";
        let uid = async || {
            let mut watch = world.watch(&format!("{path}?watch=1&fieldSelector=metadata.name%3Ddefault")).await;
            watch.expect("ADDED").await["metadata"]["uid"].as_str().unwrap().to_owned()
        };
        let first = uid().await;
        world.works("DELETE", &format!("{path}/default"), Value::Null).await;
        while uid().await == first {}
    })
    .await;
}

#[tokio::test]
async fn a_pod_runs_as_the_default_account() {
    rule(async |world| {
        let pods = "/api/v1/namespaces/{ns}/pods";
        // There as soon as somebody made it for the namespace.
        world.watch("/api/v1/namespaces/{ns}/serviceaccounts?watch=1").await.expect("ADDED").await;
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false},
        });
        let made = world.works("POST", pods, pod).await;
        assert_eq!(made["spec"]["serviceAccountName"], "default");
        assert_eq!((&made["status"]["phase"], &made["status"]["qosClass"]), (&json!("Pending"), &json!("BestEffort")));
        assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
    })
    .await;
}

#[tokio::test]
async fn quantities_have_one_spelling() {
    rule(async |world| {
        for (number, (written, kept)) in
            [("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("1000", "1k")].into_iter().enumerate()
        {
            let mut claim = claim(&format!("c{number}"));
            claim["spec"]["resources"]["requests"]["storage"] = written.into();
            let made = world.works("POST", CLAIMS, claim).await;
            assert_eq!(made["spec"]["resources"]["requests"]["storage"], kept);
        }
        let mut bad = claim("bad");
        bad["spec"]["resources"]["requests"]["storage"] = "1GB".into();
        let code = world.call("POST", CLAIMS, bad).await.code;
        assert!(matches!(code, 400 | 422), "{code}");
    })
    .await;
}

#[tokio::test]
async fn a_claim_without_a_class_gets_the_newest_default_one() {
    rule(async |world| {
        let name = own(&world, "default");
        let mark = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let class = json!({"metadata": {"name": name, "annotations": mark}, "provisioner": "example.com"});
        world.works("POST", CLASSES, class).await;
        let mut bare = claim("bare");
        bare["spec"].as_object_mut().unwrap().remove("storageClassName");
        // Admission sees a new class when its own watch has told it.
        while world.works("POST", &format!("{CLAIMS}?dryRun=All"), bare.clone()).await["spec"]["storageClassName"]
            != *name
        {}
        let mut none = claim("none");
        none["spec"]["storageClassName"] = "".into();
        let none = world.works("POST", CLAIMS, none).await;
        world.works("DELETE", &format!("{CLASSES}/{name}"), Value::Null).await;
        assert_eq!(none["spec"]["storageClassName"], "");
    })
    .await;
}

#[tokio::test]
async fn a_bound_claim_grows_where_its_class_allows_and_never_below_what_it_has() {
    rule(async |world| {
        let name = own(&world, "grows");
        let class = json!({"metadata": {"name": name}, "provisioner": "example.com", "allowVolumeExpansion": true});
        world.works("POST", CLASSES, class).await;
        let mut claim = claim("c");
        claim["spec"]["storageClassName"] = name.as_str().into();
        world.works("POST", CLAIMS, claim).await;
        let path = format!("{CLAIMS}/c");
        let ask = async |size: &str| {
            let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
            world.patch("merge", &path, patch).await.code
        };
        let unbound = ask("2Gi").await;
        world.patch("merge", &path, json!({"spec": {"volumeName": "v"}})).await;
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        world.patch("merge", &format!("{path}/status"), bound).await;
        let mut grown = ask("2Gi").await;
        while grown == 403 {
            grown = ask("2Gi").await;
        }
        let shrunk = (ask("1500Mi").await, ask("512Mi").await);
        world.works("DELETE", &format!("{CLASSES}/{name}"), Value::Null).await;
        assert!(matches!(unbound, 403 | 422), "{unbound}");
        assert_eq!((grown, shrunk), (200, (200, 422)));
    })
    .await;
}

#[tokio::test]
async fn a_volumes_modes_and_nodes_are_checked() {
    rule(async |world| {
        let name = own(&world, "v");
        let volume = |modes: Value, more: Value| {
            let mut volume = json!({
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "1Gi"}, "accessModes": modes,
                    "csi": {"driver": "example.com", "volumeHandle": "h"},
                },
            });
            volume["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            volume
        };
        let dry = format!("{VOLUMES}?dryRun=All");
        let once = json!(["ReadWriteOnce"]);
        for (bad, field) in [
            (volume(json!(["ReadWriteOncePod", "ReadWriteOnce"]), json!({})), "spec.accessModes"),
            (volume(json!(["Sometimes"]), json!({})), "spec.accessModes"),
            (volume(once.clone(), json!({"hostPath": {"path": "/a"}})), "spec.hostPath"),
            (
                volume(once.clone(), json!({"persistentVolumeReclaimPolicy": "Keep"})),
                "spec.persistentVolumeReclaimPolicy",
            ),
            (
                volume(once.clone(), json!({"nodeAffinity": {"required": {"nodeSelectorTerms": []}}})),
                "spec.nodeAffinity.required.nodeSelectorTerms",
            ),
        ] {
            let status = world.refused(422, "POST", &dry, bad).await;
            let causes = status["details"]["causes"].as_array().unwrap();
            // Of two sources either may be the one too many.
            assert!(causes.iter().any(|c| c["field"] == field || c["field"] == "spec.csi"), "{field}: {status}");
        }
        world.works("POST", VOLUMES, volume(once, json!({}))).await;
        let path = format!("{VOLUMES}/{name}");
        let affinity = |node: &str| {
            let term = json!({"matchExpressions": [{"key": "node", "operator": "In", "values": [node]}]});
            json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
        };
        let first = world.patch("merge", &path, affinity("a")).await.code;
        let second = world.patch("merge", &path, affinity("b")).await.code;
        world.works("DELETE", &path, Value::Null).await;
        world.patch("merge", &path, json!({"metadata": {"finalizers": null}})).await;
        assert_eq!((first, second), (200, 422), "where a volume is can be said once");
    })
    .await;
}

#[tokio::test]
async fn what_drivers_say_about_themselves_stays() {
    rule(async |world| {
        let storage = "/apis/storage.k8s.io/v1";
        let name = own(&world, "x");
        let metadata = json!({"name": name});
        for (plural, object, patch) in [
            ("csidrivers", json!({"spec": {"attachRequired": true}}), json!({"spec": {"attachRequired": false}})),
            (
                "volumeattachments",
                json!({"spec": {"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
                json!({"spec": {"nodeName": "m"}}),
            ),
            (
                "csinodes",
                json!({"spec": {"drivers": [{"name": "example.com", "nodeID": "n", "topologyKeys": []}]}}),
                json!({"spec": {"drivers": [{"name": "example.com", "nodeID": "m", "topologyKeys": []}]}}),
            ),
            (
                "volumeattributesclasses",
                json!({"driverName": "example.com", "parameters": {"a": "b"}}),
                json!({"parameters": {"a": "c"}}),
            ),
        ] {
            let mut object = object;
            object["metadata"] = metadata.clone();
            world.works("POST", &format!("{storage}/{plural}"), object.clone()).await;
            let path = format!("{storage}/{plural}/{name}");
            let changed = world.patch("merge", &path, patch).await;
            let blind = world.call("PUT", &path, object).await.code;
            world.works("DELETE", &path, Value::Null).await;
            assert_eq!(changed.code, 422, "{plural}: {:?}", changed.bytes);
            let conditional = plural != "volumeattributesclasses";
            assert_eq!(blind, if conditional { 422 } else { 200 }, "{plural} without a resourceVersion");
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_left_out_is_completed_in_an_update_too() {
    rule(async |world| {
        let name = own(&world, "sc");
        let class = json!({"metadata": {"name": name}, "provisioner": "example.com"});
        let made = world.works("POST", CLASSES, class.clone()).await;
        let path = format!("{CLASSES}/{name}");
        let updated = world.call("PUT", &path, class).await;
        world.works("DELETE", &path, Value::Null).await;
        assert_eq!((updated.code, updated.json()), (200, made));
    })
    .await;
}

#[tokio::test]
async fn an_event_is_where_its_object_is_and_says_enough() {
    rule(async |world| {
        let old = "/api/v1/namespaces/{ns}/events";
        let about = |namespace: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": namespace});
        let event = |namespace: &str| {
            json!({"metadata": {"name": "e"}, "involvedObject": about(namespace), "reason": "Tested", "type": "Normal"})
        };
        let status = world.refused(422, "POST", old, event("elsewhere")).await;
        assert_eq!(status["details"]["causes"][0]["field"], "involvedObject.namespace");
        world.works("POST", old, event(&world.namespace)).await;
        let new = "/apis/events.k8s.io/v1/namespaces/{ns}/events";
        let seen = world.works("GET", &format!("{new}/e"), Value::Null).await;
        assert_eq!((&seen["regarding"]["name"], &seen["apiVersion"]), (&json!("p"), &json!("events.k8s.io/v1")));
        let bare = json!({"metadata": {"name": "f"}, "regarding": about(&world.namespace), "reason": "Tested"});
        let status = world.refused(422, "POST", new, bare).await;
        let causes = status["details"]["causes"].as_array().unwrap();
        assert!(causes.iter().any(|cause| cause["field"] == "eventTime"), "{status}");
        let whole = json!({
            "metadata": {"name": "f"}, "regarding": about(&world.namespace), "reason": "Tested", "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Testing", "reportingController": "example.com/suite",
            "reportingInstance": "here", "note": "all said",
        });
        world.works("POST", new, whole).await;
        let changed = world.patch("merge", &format!("{new}/f"), json!({"note": "otherwise"})).await;
        assert_eq!(changed.code, 422);
    })
    .await;
}

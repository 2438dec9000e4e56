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

//! Bodies that Go programs and manifests bring: protobuf, YAML, fields that do not belong, and pods with volumes.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::rule;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";
const PODS: &str = "/api/v1/namespaces/{ns}/pods";

/// `k8s\0`, `Unknown{typeMeta{"v1","ConfigMap"}, raw}` with `ConfigMap{metadata{name: "a"}, data{"k": "v"}}`.
const PROTOBUF_MAP: &[u8] =
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0d\x0a\x03\x0a\x01a\x12\x06\x0a\x01k\x12\x01v\x1a\x00\x22\x00";

#[tokio::test]
async fn a_protobuf_body_is_read() {
    rule(async |world| {
        let headers = [("content-type", "application/vnd.kubernetes.protobuf"), ("accept", "application/json")];
        let answer = world.send("POST", MAPS, &headers, PROTOBUF_MAP).await;
        assert_eq!((answer.code, &answer.json()["data"]), (201, &json!({"k": "v"})), "{:?}", answer.bytes);
    })
    .await;
}

#[tokio::test]
async fn a_yaml_body_is_read() {
    rule(async |world| {
        let body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: v\n";
        let answer = world.send("POST", MAPS, &[("content-type", "application/yaml")], body).await;
        assert_eq!((answer.code, &answer.json()["data"]), (201, &json!({"k": "v"})), "{:?}", answer.bytes);
    })
    .await;
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_warned_of() {
    rule(async |world| {
        let body = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dta": {}, "data": {"k": "1", "k": "2"}}"#;
        let path = |validation: &str| format!("{MAPS}?dryRun=All&fieldValidation={validation}");
        let headers = [("content-type", "application/json")];
        let warned = world.send("POST", &path("Warn"), &headers, body).await;
        let warnings: Vec<&str> = warned.headers.get_all("warning").iter().map(|w| w.to_str().unwrap()).collect();
        assert_eq!(warned.code, 201);
        for field in [r#"unknown field \"dta\""#, r#"duplicate field \"data.k\""#] {
            assert!(warnings.iter().any(|w| w.starts_with("299 ") && w.contains(field)), "{warnings:?}");
        }
        let ignored = world.send("POST", &path("Ignore"), &headers, body).await;
        assert!(ignored.code == 201 && ignored.headers.get("warning").is_none());
        assert_eq!(world.send("POST", &path("Strict"), &headers, body).await.code, 400);
    })
    .await;
}

#[tokio::test]
async fn mounts_that_reach_the_node_are_for_privileged_containers() {
    rule(async |world| {
        let pod = |privileged: bool| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {
                    "containers": [{
                        "name": "c", "image": "i", "securityContext": {"privileged": privileged},
                        "volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}],
                    }],
                    "volumes": [{"name": "v", "hostPath": {"path": "/srv"}}],
                },
            })
        };
        let dry = format!("{PODS}?dryRun=All");
        let status = world.refused(422, "POST", &dry, pod(false)).await;
        let fields: Vec<&Value> = status["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
        assert_eq!(fields, ["spec.containers[0].volumeMounts.mountPropagation"]);
    })
    .await;
}

//! What is not part of this server yet is refused with a sentence, never taken and ignored.
//!
//! These are no rules of Kubernetes: a real server has all of it, and is not asked.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use conformance_suite::{World, rule};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";

fn is_ours(world: &Arc<World>) -> bool {
    let ours = world.is_embedded();
    if !ours {
        println!("skipped: only the embedded server refuses this");
    }
    ours
}

fn says(status: &Value, words: &str) {
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(words), "{message}");
}

#[tokio::test]
async fn server_side_apply() {
    rule(async |world| {
        if !is_ours(&world) {
            return;
        }
        let apply = [("content-type", "application/apply-patch+yaml")];
        let answer = world.send("PATCH", &format!("{MAPS}/a?fieldManager=me"), &apply, "data: {a: b}").await;
        assert_eq!(answer.code, 415);
        says(&answer.json(), "server-side apply is not part of this API server");
        world.refused(404, "GET", &format!("{MAPS}/a"), Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn scale_eviction_and_other_parts() {
    rule(async |world| {
        if !is_ours(&world) {
            return;
        }
        for path in [
            "/apis/apps/v1/namespaces/{ns}/statefulsets/s/scale",
            "/api/v1/namespaces/{ns}/pods/p/eviction",
            "/api/v1/namespaces/{ns}/pods/p/ephemeralcontainers",
            "/api/v1/namespaces/{ns}/pods/p/resize",
            "/api/v1/namespaces/{ns}/pods/p/exec",
            "/api/v1/namespaces/{ns}/pods/p/log",
        ] {
            says(&world.refused(501, "GET", path, Value::Null).await, "is not part of this API server");
        }
    })
    .await;
}

#[tokio::test]
async fn quotas() {
    rule(async |world| {
        if !is_ours(&world) {
            return;
        }
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
        let status = world.refused(404, "POST", "/api/v1/namespaces/{ns}/resourcequotas", quota).await;
        says(&status, "quotas and limits are not part of this API server");
    })
    .await;
}

#[tokio::test]
async fn conversion_by_webhook() {
    rule(async |world| {
        if !is_ours(&world) {
            return;
        }
        let definition = |conversion: Value| {
            json!({
                "metadata": {"name": "widgets.example.com"},
                "spec": {
                    "group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
                    "conversion": conversion,
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
                },
            })
        };
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let status = world.refused(422, "POST", path, definition(json!({"strategy": "Webhook"}))).await;
        says(&status, "conversion by webhook is not part of this API server");
    })
    .await;
}

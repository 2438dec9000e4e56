//! Forms of requests and answers.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::rule;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";

#[tokio::test]
async fn a_client_that_prefers_protobuf_and_takes_json_gets_an_answer() {
    rule(async |world| {
        world.map("a").await;
        let accept = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
        let answer = world.send("GET", &format!("{MAPS}/a"), &accept, "").await;
        assert_eq!(answer.code, 200);
        let kind = answer.headers["content-type"].to_str().unwrap();
        assert!(matches!(kind, "application/json" | "application/vnd.kubernetes.protobuf"), "{kind}");
    })
    .await;
}

#[tokio::test]
async fn a_form_nobody_knows_is_refused() {
    rule(async |world| {
        let answer = world.send("POST", MAPS, &[("content-type", "application/x-nonsense")], "{}").await;
        assert_eq!((answer.code, &answer.json()["reason"]), (415, &json!("UnsupportedMediaType")));
        let answer = world.send("GET", MAPS, &[("accept", "image/png")], "").await;
        assert_eq!(answer.code, 406);
        let answer = world.send("POST", MAPS, &[("content-type", "application/json")], "{nonsense").await;
        assert_eq!((answer.code, &answer.json()["reason"]), (400, &json!("BadRequest")));
    })
    .await;
}

#[tokio::test]
async fn the_document_of_version_2_has_the_form_that_was_asked_for() {
    rule(async |world| {
        let answer = world.send("GET", "/openapi/v2", &[("accept", "application/json")], "").await;
        assert_eq!((answer.code, &answer.json()["swagger"]), (200, &json!("2.0")));
        for separator in ["@", "."] {
            let asked = format!("application/com.github.proto-openapi.spec.v2{separator}v1.0+protobuf");
            let answer = world.send("GET", "/openapi/v2", &[("accept", &asked)], "").await;
            let answered = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
            assert_eq!((answer.code, answer.headers["content-type"].to_str().unwrap()), (200, answered));
            // The first field is the text "2.0".
            assert_eq!(answer.bytes[..5], *b"\x0a\x032.0");
        }
    })
    .await;
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_ask() {
    rule(async |world| {
        let body = json!({"metadata": {"name": "large"}, "data": {"a": "b".repeat(300_000)}});
        world.works("POST", MAPS, body).await;
        let path = format!("{MAPS}/large");
        let plain = world.send("GET", &path, &[], "").await;
        assert!(!plain.headers.contains_key("content-encoding"));
        let small = world.send("GET", &path, &[("accept-encoding", "gzip")], "").await;
        assert_eq!(small.headers["content-encoding"], "gzip");
        assert!(small.bytes.len() * 10 < plain.bytes.len());
        assert_eq!(&small.bytes[..2], [0x1f, 0x8b]);
    })
    .await;
}

#[tokio::test]
async fn unknown_fields_are_refused_when_that_is_asked_for() {
    rule(async |world| {
        let body = json!({"metadata": {"name": "a"}, "colour": "red"});
        let status = world.refused(400, "POST", &format!("{MAPS}?fieldValidation=Strict"), body.clone()).await;
        assert!(status["message"].as_str().unwrap().contains(r#"unknown field "colour""#), "{status}");
        world.works("POST", &format!("{MAPS}?fieldValidation=Ignore"), body).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    rule(async |world| {
        let body = json!({"metadata": {"name": "a"}, "data": {"a": "b".repeat(4 << 20)}});
        let status = world.refused(413, "POST", MAPS, body).await;
        assert_eq!(status["reason"], "RequestEntityTooLarge");
        world.refused(404, "GET", &format!("{MAPS}/a"), Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn requests_are_counted() {
    rule(async |world| {
        world.map("a").await;
        let metrics = world.send("GET", "/metrics", &[], "").await;
        let text = String::from_utf8(metrics.bytes.to_vec()).unwrap();
        let wanted = [r#"verb="POST""#, r#"resource="configmaps""#, r#"code="201""#];
        for name in ["apiserver_request_total{", "apiserver_request_duration_seconds_bucket{"] {
            let parts = if name.contains("bucket") { &wanted[..2] } else { &wanted[..] };
            let found = text.lines().any(|line| line.starts_with(name) && parts.iter().all(|part| line.contains(part)));
            assert!(found, "{name}");
        }
    })
    .await;
}

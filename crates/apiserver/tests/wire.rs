//! Bodies, fields and forms over the in-process service: what programs other than kubectl send and ask for.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use stowage_apiserver::{Body, Options, Server};
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn server() -> Server {
    Server::in_memory(Options::system())
}

async fn send(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(format!("https://in-process{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.service().oneshot(request.body(Full::new(body.into())).unwrap()).await.unwrap()
}

async fn tree(response: Response<Body>) -> (u16, Value) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn warnings(response: &Response<Body>) -> Vec<String> {
    response.headers().get_all("warning").iter().map(|v| v.to_str().unwrap().to_owned()).collect()
}

/// `k8s\0`, `Unknown{typeMeta{"v1","ConfigMap"}, raw}` with `ConfigMap{metadata{name: "a"}, data{"k": "v"}}`.
const PROTOBUF_MAP: &[u8] =
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0d\x0a\x03\x0a\x01a\x12\x06\x0a\x01k\x12\x01v\x1a\x00\x22\x00";

#[tokio::test]
async fn a_protobuf_body_is_created_and_answered_in_json() {
    let server = server();
    let protobuf = "application/vnd.kubernetes.protobuf";
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    let headers = [("content-type", protobuf), ("accept", accept)];
    let (code, made) = tree(send(&server, Method::POST, MAPS, &headers, PROTOBUF_MAP).await).await;
    assert_eq!((code, &made["data"]), (201, &json!({"k": "v"})));
    // DeleteOptions{preconditions{uid: "other"}}: the uid is obeyed.
    let options = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x09\x12\x07\x0a\x05other".as_slice();
    let one = format!("{MAPS}/a");
    let (code, _) = tree(send(&server, Method::DELETE, &one, &headers, options).await).await;
    assert_eq!(code, 409);
}

#[tokio::test]
async fn a_yaml_body_is_created() {
    let body = "metadata:\n  name: a\ndata:\n  k: |\n    two\n    lines\n";
    let response = send(&server(), Method::POST, MAPS, &[("content-type", "application/yaml")], body).await;
    let (code, made) = tree(response).await;
    assert_eq!((code, &made["data"]["k"]), (201, &json!("two\nlines\n")));
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_refused_warned_of_or_ignored() {
    let server = server();
    let body = r#"{"metadata": {"name": "a", "nmae": "x"}, "data": {"k": "1", "k": "2"}}"#;
    let headers = [("content-type", "application/json")];
    let path = |validation: &str| format!("{MAPS}?dryRun=All{validation}");
    for validation in ["", "&fieldValidation=Warn"] {
        let response = send(&server, Method::POST, &path(validation), &headers, body).await;
        assert_eq!(response.status(), 201);
        assert_eq!(
            warnings(&response),
            [r#"299 - "duplicate field \"data.k\"""#, r#"299 - "unknown field \"metadata.nmae\"""#]
        );
    }
    let response = send(&server, Method::POST, &path("&fieldValidation=Ignore"), &headers, body).await;
    assert!(response.status() == 201 && warnings(&response).is_empty());
    for (body, field) in [(body, "duplicate field"), (r#"{"metadata": {"name": "a"}, "dta": {}}"#, "unknown field")] {
        let response = send(&server, Method::POST, &path("&fieldValidation=Strict"), &headers, body).await;
        let (code, status) = tree(response).await;
        let message = status["message"].as_str().unwrap();
        assert!(code == 400 && message.contains("strict decoding error") && message.contains(field), "{message}");
    }
    let response = send(&server, Method::POST, &path("&fieldValidation=Maybe"), &headers, body).await;
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn metadata_alone_is_given_to_those_who_ask_for_it() {
    let server = server();
    let body = json!({"metadata": {"name": "a"}, "data": {"k": "v"}}).to_string();
    send(&server, Method::POST, MAPS, &[("content-type", "application/json")], body).await;
    let accept = [("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let (_, list) = tree(send(&server, Method::GET, MAPS, &accept, "").await).await;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0]["metadata"]["name"] == "a" && list["items"][0].get("data").is_none());
}

#[tokio::test]
async fn an_event_is_the_same_in_both_of_its_groups() {
    let server = server();
    let event = json!({
        "metadata": {"name": "e"}, "eventTime": "2024-01-02T03:04:05.000006Z", "reason": "Started", "action": "Start",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "note": "it runs", "type": "Normal",
        "reportingController": "c", "reportingInstance": "c-1",
    });
    let headers = [("content-type", "application/json")];
    let (code, made) = tree(send(&server, Method::POST, EVENTS, &headers, event.to_string()).await).await;
    assert_eq!((code, &made["apiVersion"], &made["note"]), (201, &json!("events.k8s.io/v1"), &json!("it runs")));
    let core = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp";
    let (_, list) = tree(send(&server, Method::GET, core, &[], "").await).await;
    let found = &list["items"][0];
    assert_eq!((&found["apiVersion"], &found["message"]), (&json!("v1"), &json!("it runs")));
    assert_eq!(found["involvedObject"]["name"], "p");
    let patch = [("content-type", "application/merge-patch+json")];
    let series = r#"{"series": {"count": 2, "lastObservedTime": "2024-01-02T03:04:06.000000Z"}}"#;
    let (code, patched) = tree(send(&server, Method::PATCH, &format!("{EVENTS}/e"), &patch, series).await).await;
    assert_eq!((code, &patched["series"]["count"], &patched["regarding"]["name"]), (200, &json!(2), &json!("p")));
    let regarding = format!("{EVENTS}?fieldSelector=regarding.name%3Dp");
    let (_, list) = tree(send(&server, Method::GET, &regarding, &[], "").await).await;
    assert_eq!(list["kind"], "EventList");
    assert_eq!(list["items"][0]["note"], "it runs");
}

#[tokio::test]
async fn aggregated_discovery_has_everything_in_two_documents() {
    let server = server();
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")];
    let response = send(&server, Method::GET, "/apis", &accept, "").await;
    assert_eq!(response.headers()["content-type"], aggregated);
    let (_, document) = tree(response).await;
    let storage = document["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "storage.k8s.io");
    let resources = storage.unwrap()["versions"][0]["resources"].as_array().unwrap();
    let attachments = resources.iter().find(|r| r["resource"] == "volumeattachments").unwrap();
    assert_eq!(
        (&attachments["scope"], &attachments["subresources"][0]["subresource"]),
        (&json!("Cluster"), &json!("status"))
    );
    let (_, core) = tree(send(&server, Method::GET, "/api", &accept, "").await).await;
    assert_eq!(core["items"][0]["versions"][0]["version"], "v1");
}

#[tokio::test]
async fn lists_are_shown_at_exactly_the_asked_revision() {
    let server = server();
    let headers = [("content-type", "application/json")];
    let mut revisions = Vec::new();
    for name in ["a", "b", "c"] {
        let body = json!({"metadata": {"name": name}}).to_string();
        let (_, made) = tree(send(&server, Method::POST, MAPS, &headers, body).await).await;
        revisions.push(made["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
    }
    let exact = format!("{MAPS}?resourceVersion={}&resourceVersionMatch=Exact", revisions[1]);
    let (_, list) = tree(send(&server, Method::GET, &exact, &[], "").await).await;
    assert_eq!(
        (list["items"].as_array().unwrap().len(), list["metadata"]["resourceVersion"].as_str().unwrap()),
        (2, revisions[1].as_str())
    );
    for bad in ["resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=Exact", "sendInitialEvents=true"]
    {
        let (code, status) = tree(send(&server, Method::GET, &format!("{MAPS}?{bad}"), &[], "").await).await;
        assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{bad}");
    }
}

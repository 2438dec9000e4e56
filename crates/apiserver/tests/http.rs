//! The API as its clients see it, over the in-process service.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use stowage_apiserver::{Body, Options, Server};
use tower::ServiceExt as _;

fn options() -> Options {
    let mut next = 0_u128;
    Options {
        clock: Arc::new(|| jiff::Timestamp::from_second(1_700_000_000).unwrap()),
        ids: Box::new(move || {
            next += 1;
            next
        }),
        window: 100,
        bookmark_interval: Duration::from_secs(60),
    }
}

fn server() -> Server {
    Server::in_memory(options())
}

async fn send(server: &Server, method: Method, path: &str, content_type: &str, body: &Value) -> Response<Body> {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder()
        .method(method)
        .uri(format!("https://in-process{path}"))
        .header("content-type", content_type)
        .body(Full::new(body))
        .unwrap();
    server.service().oneshot(request).await.unwrap()
}

async fn call(server: &Server, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let response = send(server, method, path, content_type, &body).await;
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

async fn get(server: &Server, path: &str) -> (StatusCode, Value) {
    call(server, Method::GET, path, Value::Null).await
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"n": name}}, "data": {"a": "b"}})
}

/// The lines of a watch, one by one.
struct Lines {
    body: Body,
    rest: Vec<Value>,
}

impl Lines {
    async fn open(server: &Server, path: &str) -> Self {
        let response = send(server, Method::GET, path, "", &Value::Null).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), rest: Vec::new() }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        while self.rest.is_empty() {
            let frame = self.body.frame().await?.unwrap().into_data().unwrap();
            let lines = serde_json::Deserializer::from_slice(&frame).into_iter::<Value>();
            self.rest = lines.map(|line| line.unwrap()).collect();
        }
        let mut line = self.rest.remove(0);
        Some((line["type"].as_str().unwrap().to_owned(), line["object"].take()))
    }

    async fn next_of(&mut self, event_type: &str) -> Value {
        let (found, object) = self.next().await.expect("the watch goes on");
        assert_eq!(found, event_type, "{object}");
        object
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_lives_through_every_verb() {
    let server = server();
    let (code, made) = call(&server, Method::POST, MAPS, map("a")).await;
    assert_eq!((code, &made["metadata"]["name"]), (StatusCode::CREATED, &json!("a")));
    let path = format!("{MAPS}/a");
    assert_eq!(get(&server, &path).await, (StatusCode::OK, made.clone()));
    let mut changed = made.clone();
    changed["data"] = json!({"a": "c"});
    let (code, updated) = call(&server, Method::PUT, &path, changed.clone()).await;
    assert_eq!((code, &updated["data"]["a"]), (StatusCode::OK, &json!("c")));
    let (code, status) = call(&server, Method::PUT, &path, changed).await;
    assert_eq!(
        (code, &status["reason"], &status["kind"]),
        (StatusCode::CONFLICT, &json!("Conflict"), &json!("Status"))
    );
    let (code, patched) = call(&server, Method::PATCH, &path, json!({"data": {"x": "y"}})).await;
    assert_eq!((code, &patched["data"]), (StatusCode::OK, &json!({"a": "c", "x": "y"})));
    let (code, status) = call(&server, Method::DELETE, &path, Value::Null).await;
    assert_eq!((code, &status["status"]), (StatusCode::OK, &json!("Success")));
    assert_eq!(get(&server, &path).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn lists_are_selected_and_paged() {
    let server = server();
    for name in ["a", "b", "c"] {
        call(&server, Method::POST, MAPS, map(name)).await;
    }
    let (_, all) = get(&server, "/api/v1/configmaps").await;
    assert_eq!((all["kind"].as_str(), all["items"].as_array().map(Vec::len)), (Some("ConfigMapList"), Some(3)));
    let (_, some) = get(&server, &format!("{MAPS}?labelSelector=n%20in%20(a,c)")).await;
    assert_eq!(some["items"].as_array().map(Vec::len), Some(2));
    let (_, one) = get(&server, &format!("{MAPS}?fieldSelector=metadata.name%3Db")).await;
    assert_eq!(one["items"][0]["metadata"]["name"], "b");
    let (code, _) = get(&server, &format!("{MAPS}?fieldSelector=data.a%3Db")).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    let (_, page) = get(&server, &format!("{MAPS}?limit=2")).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    let (_, rest) = get(&server, &format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!((&rest["items"][0]["metadata"]["name"], &rest["metadata"].get("continue")), (&json!("c"), &None));
}

#[tokio::test(start_paused = true)]
async fn a_watch_sees_every_change_after_its_revision_in_order() {
    let server = server();
    let (_, made) = call(&server, Method::POST, MAPS, map("a")).await;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    call(&server, Method::PATCH, &format!("{MAPS}/a"), json!({"data": {"x": "y"}})).await;
    call(&server, Method::POST, MAPS, map("b")).await;
    call(&server, Method::DELETE, &format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(watch.next_of("MODIFIED").await["data"]["x"], "y");
    assert_eq!(watch.next_of("ADDED").await["metadata"]["name"], "b");
    let gone = watch.next_of("DELETED").await;
    assert_eq!((&gone["metadata"]["name"], &gone["data"]["x"]), (&json!("a"), &json!("y")));
    let revision = server.revision().to_string();
    assert_eq!(gone["metadata"]["resourceVersion"], json!(revision));
    server.close();
    assert!(watch.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_a_selector_sees_objects_come_and_go() {
    let server = server();
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=1&labelSelector=on%3Dyes")).await;
    call(&server, Method::POST, MAPS, map("a")).await;
    call(&server, Method::PATCH, &format!("{MAPS}/a"), json!({"metadata": {"labels": {"on": "yes"}}})).await;
    let (_, left) =
        call(&server, Method::PATCH, &format!("{MAPS}/a"), json!({"metadata": {"labels": {"on": "no"}}})).await;
    watch.next_of("ADDED").await;
    let gone = watch.next_of("DELETED").await;
    assert_eq!(gone["metadata"]["labels"]["on"], "yes");
    assert_eq!(gone["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
}

#[tokio::test(start_paused = true)]
async fn an_initial_events_watch_marks_where_the_list_ends() {
    let server = server();
    call(&server, Method::POST, MAPS, map("a")).await;
    let parameters = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = Lines::open(&server, &format!("{MAPS}?{parameters}")).await;
    watch.next_of("ADDED").await;
    let mark = watch.next_of("BOOKMARK").await;
    assert_eq!(mark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    call(&server, Method::POST, MAPS, map("b")).await;
    assert_eq!(watch.next_of("ADDED").await["metadata"]["name"], "b");
}

#[tokio::test(start_paused = true)]
async fn quiet_watches_get_bookmarks_and_end_at_their_timeout() {
    let server = server();
    let version = server.revision();
    let path = format!("{MAPS}?watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut watch = Lines::open(&server, &path).await;
    call(
        &server,
        Method::POST,
        "/apis/storage.k8s.io/v1/storageclasses",
        json!({
            "metadata": {"name": "s"}, "provisioner": "p",
        }),
    )
    .await;
    let start = tokio::time::Instant::now();
    let mark = watch.next_of("BOOKMARK").await;
    assert_eq!(mark["metadata"]["resourceVersion"], json!((version + 1).to_string()));
    watch.next_of("BOOKMARK").await;
    assert!(watch.next().await.is_none());
    assert_eq!(start.elapsed(), Duration::from_secs(90));
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_gone_or_not_there_yet_is_refused() {
    let server = server();
    for number in 0..110 {
        call(&server, Method::POST, MAPS, map(&format!("m{number}"))).await;
    }
    let (code, event) = get(&server, &format!("{MAPS}?watch=1&resourceVersion=1")).await;
    assert_eq!((code, &event["type"]), (StatusCode::OK, &json!("ERROR")));
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    let (code, status) = get(&server, &format!("{MAPS}?watch=1&resourceVersion=9999")).await;
    assert_eq!((code, &status["reason"]), (StatusCode::GATEWAY_TIMEOUT, &json!("Timeout")));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_refused_with_a_sentence() {
    let server = server();
    call(&server, Method::POST, MAPS, map("a")).await;
    let one = format!("{MAPS}/a");
    for (method, path, content_type, body, code) in [
        (Method::PATCH, one.as_str(), "application/apply-patch+yaml", json!({}), 415),
        (Method::POST, MAPS, "application/vnd.kubernetes.protobuf", json!({}), 400),
        (Method::POST, MAPS, "application/cbor", json!({}), 415),
        (Method::DELETE, one.as_str(), "application/json", json!({"propagationPolicy": "Sideways"}), 400),
        (Method::POST, "/api/v1/namespaces/default/pods/p/eviction", "application/json", json!({}), 501),
        (Method::GET, "/apis/apps/v1/namespaces/default/deployments/d/scale", "", Value::Null, 501),
        (Method::POST, "/api/v1/configmaps", "application/json", map("b"), 405),
        (Method::PUT, MAPS, "application/json", map("b"), 405),
        (Method::GET, "/apis/batch/v1/jobs", "", Value::Null, 404),
        (Method::GET, "/api/v1/namespaces/default/pods/p/log", "", Value::Null, 501),
    ] {
        let response = send(&server, method, path, content_type, &body).await;
        let found = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((found.as_u16(), &status["kind"]), (code, &json!("Status")), "{path} {content_type}");
        assert!(status["message"].as_str().is_some_and(|m| m.len() > 20));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_through_its_subresource() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    call(&server, Method::POST, pods, pod).await;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}});
    let (code, status) = call(&server, Method::POST, &format!("{pods}/p/binding"), binding).await;
    assert_eq!((code, &status["status"]), (StatusCode::CREATED, &json!("Success")));
    let (_, found) = get(&server, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn").await;
    assert_eq!(found["items"][0]["metadata"]["name"], "p");
}

#[tokio::test(start_paused = true)]
async fn discovery_names_every_kind() {
    let server = server();
    let (_, core) = get(&server, "/api/v1").await;
    let names: Vec<&str> = core["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"persistentvolumeclaims/status") && names.contains(&"pods/binding"), "{names:?}");
    let (_, groups) = get(&server, "/apis").await;
    let groups: Vec<&str> = groups["groups"].as_array().unwrap().iter().filter_map(|g| g["name"].as_str()).collect();
    assert!(groups.contains(&"storage.k8s.io") && groups.contains(&"authorization.k8s.io"), "{groups:?}");
    assert_eq!(get(&server, "/version").await.1["major"], "1");
}

#[tokio::test(start_paused = true)]
async fn the_same_requests_give_the_same_answers_byte_for_byte() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let server = server();
        call(&server, Method::POST, MAPS, json!({"metadata": {"generateName": "a-"}})).await;
        runs.push(get(&server, "/api/v1/configmaps").await.1.to_string());
    }
    assert_eq!(runs[0], runs[1]);
}

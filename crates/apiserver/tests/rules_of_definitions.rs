//! The rules of definitions as clients meet them: those of the snapshot kinds that are shipped, each kept and each broken, and
//! those of somebody who means harm.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use stowage_apiserver::{Body, Options, Server};
use tower::ServiceExt as _;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1/namespaces/default/volumegroupsnapshots";
const GROUP_CONTENTS: &str = "/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotcontents";
const GROUP_CLASSES: &str = "/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotclasses";

fn server() -> Server {
    let mut next = 0_u128;
    Server::in_memory(Options {
        clock: Arc::new(|| jiff::Timestamp::from_second(1_700_000_000).unwrap()),
        ids: Box::new(move || {
            next += 1;
            next
        }),
        window: 100,
        bookmark_interval: Duration::from_secs(60),
    })
}

async fn send(
    server: &Server,
    method: Method,
    path: &str,
    content_type: &str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(format!("https://in-process{path}"))
        .header("content-type", content_type)
        .header("accept", "application/json")
        .body(Full::new(body.into()))
        .unwrap();
    server.service().oneshot(request).await.unwrap()
}

async fn read(response: Response<Body>) -> (StatusCode, Value) {
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

async fn call(server: &Server, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    read(send(server, method, path, content_type, body).await).await
}

fn shipped() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let definitions = files.filter(|file| file.to_string_lossy().contains("storage.k8s.io"));
    definitions.map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// A server with the definitions that are shipped, and all messages of their rules in versions that are served.
async fn with_snapshots() -> (Server, BTreeSet<String>) {
    let server = server();
    let mut messages = BTreeSet::new();
    for definition in shipped() {
        let (code, made) = read(send(&server, Method::POST, DEFINITIONS, "application/yaml", definition).await).await;
        assert_eq!(code, StatusCode::CREATED, "{made}");
        for version in made["spec"]["versions"].as_array().unwrap().iter().filter(|v| v["served"] == true) {
            gather(&version["schema"]["openAPIV3Schema"], &mut messages);
        }
    }
    (server, messages)
}

fn gather(schema: &Value, messages: &mut BTreeSet<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        messages.insert(rule["message"].as_str().unwrap().to_owned());
    }
    for inner in schema["properties"].as_object().into_iter().flat_map(|all| all.values()) {
        gather(inner, messages);
    }
    for name in ["items", "additionalProperties"] {
        schema.get(name).into_iter().for_each(|inner| gather(inner, messages));
    }
}

/// The one cause of a 422: field, and message after the value.
fn cause(code: StatusCode, status: &Value) -> (String, String) {
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{status}");
    assert_eq!(status["reason"], "Invalid");
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{status}");
    assert_eq!(causes[0]["reason"], "FieldValueInvalid");
    let message = causes[0]["message"].as_str().unwrap();
    assert!(message.starts_with("Invalid value: \""), "{message}");
    // Of a very long value only the beginning is shown.
    let message = message.split_once("\": ").map_or(message, |(_, message)| message);
    (causes[0]["field"].as_str().unwrap().to_owned(), message.to_owned())
}

fn snapshot(source: &Value) -> Value {
    json!({"metadata": {"name": "s"}, "spec": {"source": source, "volumeSnapshotClassName": "fast"}})
}

fn content(source: &Value) -> Value {
    json!({"metadata": {"name": "c"}, "spec": {
        "driver": "d", "deletionPolicy": "Delete", "source": source, "sourceVolumeMode": "Filesystem",
        "volumeSnapshotRef": {"name": "s", "namespace": "default"}}})
}

fn group(source: &Value) -> Value {
    json!({"metadata": {"name": "g"}, "spec": {"source": source, "volumeGroupSnapshotClassName": "fast"}})
}

fn group_content(source: &Value) -> Value {
    json!({"metadata": {"name": "gc"}, "spec": {
        "driver": "d", "deletionPolicy": "Delete", "source": source, "volumeGroupSnapshotClassName": "fast",
        "volumeGroupSnapshotRef": {"name": "g", "namespace": "default", "uid": "u"}}})
}

#[tokio::test]
async fn each_rule_of_the_shipped_definitions_is_kept_and_broken() {
    let (server, mut untold) = with_snapshots().await;
    let selector = json!({"selector": {"matchLabels": {"a": "b"}}});
    let named = json!({"volumeGroupSnapshotContentName": "x"});
    let handles = json!({"volumeHandles": ["h"]});
    let made = json!({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["h"]}});
    // Each kind with a good object, what may not be made instead of it, and what it may not be changed to.
    #[rustfmt::skip]
    let kinds = [
        (SNAPSHOTS, snapshot(&json!({"persistentVolumeClaimName": "p"})), vec![
            (snapshot(&json!({})), "spec.source"),
            (snapshot(&json!({"persistentVolumeClaimName": "p", "volumeSnapshotContentName": "c"})), "spec.source"),
            (json!({"metadata": {"name": "s"}, "spec": {"source": {"persistentVolumeClaimName": "p"}, "volumeSnapshotClassName": ""}}),
                "spec.volumeSnapshotClassName"),
        ], vec![
            (json!({"spec": {"source": {"persistentVolumeClaimName": "q"}}}), "spec.source.persistentVolumeClaimName"),
            (json!({"spec": {"source": {"persistentVolumeClaimName": null, "volumeSnapshotContentName": "c"}}}), "spec.source"),
        ]),
        (SNAPSHOTS, snapshot(&json!({"volumeSnapshotContentName": "c"})), vec![], vec![
            (json!({"spec": {"source": {"volumeSnapshotContentName": "d"}}}), "spec.source.volumeSnapshotContentName"),
            (json!({"spec": {"source": {"volumeSnapshotContentName": null, "persistentVolumeClaimName": "p"}}}), "spec.source"),
        ]),
        (CONTENTS, content(&json!({"volumeHandle": "v"})), vec![
            (content(&json!({})), "spec.source"),
            (json!({"metadata": {"name": "c"}, "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
                "volumeSnapshotRef": {"name": "s"}}}), "spec.volumeSnapshotRef"),
        ], vec![
            (json!({"spec": {"source": {"volumeHandle": "w"}}}), "spec.source.volumeHandle"),
            (json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "s"}}}), "spec.source"),
            (json!({"spec": {"sourceVolumeMode": "Block"}}), "spec.sourceVolumeMode"),
            (json!({"spec": {"sourceVolumeMode": null}}), "spec"),
        ]),
        (CONTENTS, content(&json!({"snapshotHandle": "s"})), vec![], vec![
            (json!({"spec": {"source": {"snapshotHandle": "t"}}}), "spec.source.snapshotHandle"),
            (json!({"spec": {"source": {"snapshotHandle": null, "volumeHandle": "v"}}}), "spec.source"),
        ]),
        (GROUPS, group(&selector), vec![
            (group(&json!({})), "spec.source"),
            (json!({"metadata": {"name": "g"}, "spec": {"source": &selector, "volumeGroupSnapshotClassName": ""}}),
                "spec.volumeGroupSnapshotClassName"),
        ], vec![
            (json!({"spec": {"source": {"selector": {"matchLabels": {"a": "c"}}}}}), "spec.source.selector"),
            (json!({"spec": {"source": {"selector": null, "volumeGroupSnapshotContentName": "x"}}}), "spec.source"),
            (json!({"status": {"boundVolumeGroupSnapshotContentName": "y"}}), "status.boundVolumeGroupSnapshotContentName"),
        ]),
        (GROUPS, group(&named), vec![], vec![
            (json!({"spec": {"source": {"volumeGroupSnapshotContentName": "y"}}}), "spec.source.volumeGroupSnapshotContentName"),
            (json!({"spec": {"source": {"volumeGroupSnapshotContentName": null, "selector": {}}}}), "spec.source"),
        ]),
        (GROUP_CONTENTS, group_content(&handles), vec![
            (group_content(&json!({})), "spec.source"),
            (json!({"metadata": {"name": "gc"}, "spec": {"driver": "d", "deletionPolicy": "Delete", "source": &handles,
                "volumeGroupSnapshotRef": {"name": "g"}}}), "spec.volumeGroupSnapshotRef"),
        ], vec![
            (json!({"spec": {"driver": "e"}}), "spec.driver"),
            (json!({"spec": {"source": {"volumeHandles": ["i"]}}}), "spec.source.volumeHandles"),
            (json!({"spec": {"source": {"volumeHandles": null, "groupSnapshotHandles": &made["groupSnapshotHandles"]}}}), "spec.source"),
            (json!({"spec": {"volumeGroupSnapshotClassName": "slow"}}), "spec.volumeGroupSnapshotClassName"),
            (json!({"spec": {"volumeGroupSnapshotRef": {"namespace": "other"}}}), "spec.volumeGroupSnapshotRef"),
            (json!({"spec": {"volumeGroupSnapshotRef": {"uid": "w"}}}), "spec.volumeGroupSnapshotRef"),
            (json!({"status": {"volumeGroupSnapshotHandle": "y"}}), "status.volumeGroupSnapshotHandle"),
        ]),
        (GROUP_CONTENTS, group_content(&made), vec![], vec![
            (json!({"spec": {"source": {"groupSnapshotHandles": {"volumeSnapshotHandles": ["i"]}}}}), "spec.source.groupSnapshotHandles"),
            (json!({"spec": {"source": {"groupSnapshotHandles": null, "volumeHandles": ["h"]}}}), "spec.source"),
        ]),
        (GROUP_CLASSES, json!({"metadata": {"name": "k"}, "driver": "d", "deletionPolicy": "Delete", "parameters": {"a": "b"}}), vec![],
        vec![
            (json!({"driver": "e"}), "driver"),
            (json!({"deletionPolicy": "Retain"}), "deletionPolicy"),
            (json!({"parameters": {"a": "c"}}), "parameters"),
        ]),
    ];
    for (path, good, never_made, never_changed) in kinds {
        for (object, field) in never_made {
            let (code, status) = call(&server, Method::POST, path, object).await;
            let (found, message) = cause(code, &status);
            assert_eq!(found, field, "{status}");
            untold.remove(&message);
        }
        let (code, object) = call(&server, Method::POST, path, good).await;
        assert_eq!(code, StatusCode::CREATED, "{object}");
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        // What does not touch the rules goes through, and what sets a status for the first time.
        let (code, labelled) = call(&server, Method::PATCH, &path, json!({"metadata": {"labels": {"a": "b"}}})).await;
        assert_eq!(code, StatusCode::OK, "{labelled}");
        let status = json!({"status": {"boundVolumeGroupSnapshotContentName": "x", "volumeGroupSnapshotHandle": "x"}});
        call(&server, Method::PATCH, &format!("{path}/status"), status).await;
        for (patch, field) in never_changed {
            let path = if patch.get("status").is_some() { format!("{path}/status") } else { path.clone() };
            let (code, status) = call(&server, Method::PATCH, &path, patch).await;
            let (found, message) = cause(code, &status);
            assert_eq!(found, field, "{status}");
            untold.remove(&message);
        }
        let (code, _) = call(&server, Method::DELETE, &path, Value::Null).await;
        assert_eq!(code, StatusCode::OK);
    }
    assert_eq!(untold, BTreeSet::new(), "rules that nothing here has broken");
}

#[tokio::test]
async fn a_status_error_is_what_kube_apiserver_says() {
    let (server, _) = with_snapshots().await;
    call(
        &server,
        Method::POST,
        GROUP_CLASSES,
        json!({"metadata": {"name": "k"}, "driver": "d", "deletionPolicy": "Delete"}),
    )
    .await;
    let (_, status) = call(&server, Method::PATCH, &format!("{GROUP_CLASSES}/k"), json!({"driver": "e"})).await;
    let rule = "driver cannot be changed; make a new object instead";
    assert_eq!(
        status["message"],
        format!(
            "VolumeGroupSnapshotClass.groupsnapshot.storage.k8s.io \"k\" is invalid: driver: Invalid value: \"string\": {rule}"
        )
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{"reason": "FieldValueInvalid", "message": format!("Invalid value: \"string\": {rule}"), "field": "driver"}])
    );
    // Where the object itself is wrong, the rules wait.
    let (_, status) = call(&server, Method::PATCH, &format!("{GROUP_CLASSES}/k"), json!({"driver": 1})).await;
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 2, "{status}");
    assert_eq!((&causes[0]["reason"], &causes[1]["field"]), (&json!("FieldValueTypeInvalid"), &json!("<nil>")));
}

#[tokio::test]
async fn one_object_has_the_rules_of_the_version_it_is_written_in_and_a_version_that_goes_says_so() {
    let (server, _) = with_snapshots().await;
    let beta = GROUP_CLASSES.replace("/v1/", "/v1beta1/");
    let class = json!({"metadata": {"name": "k"}, "driver": "d", "deletionPolicy": "Delete"}).to_string();
    let response = send(&server, Method::POST, &beta, "application/json", class).await;
    let group = "groupsnapshot.storage.k8s.io";
    let kind = "VolumeGroupSnapshotClass";
    let warning = format!("299 - \"{group}/v1beta1 {kind} is deprecated; use {group}/v1 {kind}\"");
    assert_eq!(response.headers()["warning"].to_str().unwrap(), warning);
    assert_eq!(read(response).await.1["apiVersion"], format!("{group}/v1beta1"));
    let list = send(&server, Method::GET, &beta, "", "").await;
    assert_eq!(list.headers()["warning"].to_str().unwrap(), warning);
    for version in ["v1", "v1beta2"] {
        let path = GROUP_CLASSES.replace("/v1/", &format!("/{version}/"));
        let found = send(&server, Method::GET, &format!("{path}/k"), "", "").await;
        assert!(found.headers().get("warning").is_none());
        assert_eq!(read(found).await.1["apiVersion"], format!("{group}/{version}"));
        let (code, status) = call(&server, Method::PATCH, &format!("{path}/k"), json!({"driver": "e"})).await;
        assert_eq!(cause(code, &status).0, "driver");
    }
    // Nobody had thought of the rule in the first version.
    let (code, changed) = call(&server, Method::PATCH, &format!("{beta}/k"), json!({"driver": "e"})).await;
    assert_eq!((code, &changed["driver"]), (StatusCode::OK, &json!("e")));
}

fn widgets(schema: Value) -> Value {
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version]}})
}

const WIDGETS: &str = "/apis/example.com/v1/widgets";

fn ruled(mut schema: Value, rule: &str) -> Value {
    schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
    json!({"type": "object", "properties": {"spec": schema}})
}

#[tokio::test]
async fn a_null_where_none_may_be_is_dropped_or_gets_the_default_as_kube_apiserver_does() {
    let server = server();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["needed"], "properties": {
        "needed": {"type": "string"},
        "plain": {"type": "string"},
        "defaulted": {"type": "string", "default": "d"},
        "nullable": {"type": "string", "nullable": true},
        "list": {"type": "array", "items": {"type": "string"}},
    }}}});
    let (code, made) = call(&server, Method::POST, DEFINITIONS, widgets(schema)).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    let widget = |name: &str, spec: Value| json!({"metadata": {"name": name, "creationTimestamp": null}, "spec": spec});
    let spec = json!({"needed": "n", "plain": null, "defaulted": null, "nullable": null});
    let (code, made) = call(&server, Method::POST, WIDGETS, widget("w", spec.clone())).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    assert_eq!(made["spec"], json!({"needed": "n", "defaulted": "d", "nullable": null}));
    let mut again = made.clone();
    again["spec"]["plain"] = Value::Null;
    let (code, same) = call(&server, Method::PUT, &format!("{WIDGETS}/w"), again).await;
    assert_eq!((code, &same["spec"]), (StatusCode::OK, &made["spec"]));
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"], "nothing has changed");
    let path = format!("{WIDGETS}?fieldManager=t&fieldValidation=Strict");
    let (code, strict) = call(&server, Method::POST, &path, widget("strict", spec)).await;
    assert_eq!(code, StatusCode::CREATED, "it is no unknown field: {strict}");
    for (wrong, field) in
        [(json!({"needed": null}), "spec.needed"), (json!({"needed": "n", "list": [null]}), "spec.list[0]")]
    {
        let (code, status) = call(&server, Method::POST, WIDGETS, widget("wrong", wrong)).await;
        assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{status}");
        assert_eq!(status["details"]["causes"][0]["field"], field, "{status}");
    }
}

#[tokio::test]
async fn a_definition_with_a_rule_that_cannot_be_is_refused_and_the_server_goes_on() {
    let server = server();
    let deep = format!("{}true{}", "(".repeat(49_000), ")".repeat(49_000));
    for (rule, why) in [
        ("self.none == 1".to_owned(), "undefined field 'none'"),
        ("self".to_owned(), "cel expression must evaluate to a bool"),
        (deep, "levels of parts inside each other"),
        (format!("{}true", "!".repeat(99_000)), "levels of parts inside each other"),
        (format!("self{} == self", ".a".repeat(40_000)), "levels of parts inside each other"),
        ("x".repeat(1 << 20), "an expression may have 100000 bytes"),
        ("'a'.matches('(\\\\pL{1,200}){1,200}')".to_owned(), "invalid matches argument"),
    ] {
        let (code, status) =
            call(&server, Method::POST, DEFINITIONS, widgets(ruled(json!({"type": "object"}), &rule))).await;
        let (field, _) = cause(code, &status);
        assert_eq!(field, "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule");
        assert!(status["message"].as_str().unwrap().contains(why), "{why}: {status}");
    }
    assert_eq!(call(&server, Method::GET, DEFINITIONS, Value::Null).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_rule_that_costs_too_much_refuses_the_object_and_the_server_goes_on() {
    let server = server();
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let rule = "self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d >= 0))))";
    let (code, made) = call(&server, Method::POST, DEFINITIONS, widgets(ruled(list, rule))).await;
    assert_eq!(code, StatusCode::CREATED, "{made}");
    let widget = |size: usize| json!({"metadata": {"name": "w"}, "spec": vec![1; size]});
    let (code, status) = call(&server, Method::POST, WIDGETS, widget(300_000)).await;
    assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(status["message"].as_str().unwrap().contains("call cost exceeds limit for rule: self.all(a,"), "{status}");
    assert_eq!(call(&server, Method::POST, WIDGETS, widget(5)).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn what_was_wrong_before_a_rule_came_may_stay_and_is_told() {
    let server = server();
    let number = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    call(&server, Method::POST, DEFINITIONS, widgets(json!({"type": "object", "properties": {"spec": &number}}))).await;
    let (code, _) = call(&server, Method::POST, WIDGETS, json!({"metadata": {"name": "w"}, "spec": {"size": 1}})).await;
    assert_eq!(code, StatusCode::CREATED);
    let schema = ruled(number, "self.size > 1");
    let patch = json!({"spec": {"versions": widgets(schema)["spec"]["versions"]}});
    let (code, changed) = call(&server, Method::PATCH, &format!("{DEFINITIONS}/widgets.example.com"), patch).await;
    assert_eq!(code, StatusCode::OK, "{changed}");
    let labels = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let response = send(&server, Method::PATCH, &format!("{WIDGETS}/w"), "application/merge-patch+json", labels).await;
    assert_eq!(response.status(), StatusCode::OK);
    let warning = response.headers()["warning"].to_str().unwrap();
    assert!(warning.contains("failed rule: self.size > 1"), "{warning}");
    let (code, status) = call(&server, Method::PATCH, &format!("{WIDGETS}/w"), json!({"spec": {"size": 0}})).await;
    assert_eq!(cause(code, &status), ("spec".to_owned(), "failed rule: self.size > 1".to_owned()));
}

//! Objects made to hurt: too deep, too large, too long to work on, or with names that lead elsewhere.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests")]

use std::time::{Duration, Instant};

use hostile_suite::{Answer, Server, Windows, code, full};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// MiB that a server may have had resident after an attack; each took gigabytes.
const MAX_MEMORY: u64 = 700;
/// Bounds against work that is quadratic, which takes minutes; a machine that is busy with other tests takes its time.
const WHOLE: Duration = Duration::from_secs(300);
/// Nobody waits so long for work that is linear; longer is fine on a slow machine if it is a small part of the whole.
const WAIT: Duration = Duration::from_secs(10);
/// Shorter than this is no waiting, on any machine.
const MOMENT: Duration = Duration::from_millis(250);

/// What is measured, or takes much memory, is not done beside others of its kind.
static ALONE: Mutex<()> = Mutex::const_new(());

fn nested(levels: usize, innermost: Value) -> Value {
    (0..levels).fold(innermost, |inner, _| json!({"a": inner}))
}

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}})
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn definition(schema: Value) -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": schema}}}}],
        },
    })
}

fn widget(list: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"list": list}})
}

/// The schema of widgets that are lists of this.
fn list_of(element: Value) -> Value {
    json!({"type": "object", "properties": {"list": {"type": "array", "items": element}}})
}

/// Does what must be taken.
async fn made(server: &Server, path: &str, body: Value) {
    let answer = server.call("POST", path, body).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
}

async fn still_answers(server: &Server) {
    assert_eq!(server.call("GET", MAPS, Value::Null).await.code, 200);
    let peak = server.peak_memory();
    assert!(peak < MAX_MEMORY, "{peak} MiB");
}

fn refused(answer: &Answer, codes: &[u16]) {
    assert!(codes.contains(&answer.code), "{} {}", answer.code, answer.body);
}

/// How long others wait at most while `hostile` is done, and how long that took; what takes too long is cut off.
async fn others_wait(server: &Server, hostile: impl Future<Output = Answer>) -> (Answer, Duration, Duration) {
    tokio::time::timeout(WHOLE, measured(server, hostile)).await.expect("the attack is over in linear time")
}

fn nobody_waited(longest: Duration, whole: Duration) {
    assert!(longest < WAIT.max(whole / 2), "{longest:?} of {whole:?}");
}

async fn measured(server: &Server, hostile: impl Future<Output = Answer>) -> (Answer, Duration, Duration) {
    let began = Instant::now();
    let mut hostile = std::pin::pin!(hostile);
    let mut longest = Duration::ZERO;
    loop {
        let asked = Instant::now();
        tokio::select! {
            biased;
            answer = &mut hostile => return (answer, longest, began.elapsed()),
            read = server.call("GET", "/api/v1/namespaces/default", Value::Null) => {
                assert_eq!(read.code, 200);
                longest = longest.max(asked.elapsed());
            }
        }
    }
}

#[tokio::test]
async fn an_object_that_grows_deeper_by_a_patch_is_refused_and_the_server_starts_again() {
    let mut server = Server::start(&[]).await;
    for (path, mut body) in [(EVENTS, event("deep")), (MAPS, json!({"metadata": {"name": "deep"}}))] {
        body["unknown"] = nested(100, json!({}));
        made(&server, path, body).await;
        let deeper = "/unknown".to_owned() + &"/a".repeat(100) + "/b";
        let add = json!([{"op": "add", "path": deeper, "value": nested(100, json!(1))}]);
        let object = format!("{path}/deep");
        refused(&server.patch("json", &object, add).await, &[422]);
        for kind in ["merge", "strategic-merge"] {
            refused(&server.patch(kind, &object, json!({"other": nested(125, json!(1))})).await, &[400, 422]);
        }
        let mut update = server.call("GET", &object, Value::Null).await.body;
        update["other"] = nested(125, json!(1));
        refused(&server.call("PUT", &object, update).await, &[400, 422]);
    }
    server.restart().await;
    assert_eq!(server.call("GET", &format!("{MAPS}/deep"), Value::Null).await.code, 200);
    still_answers(&server).await;
}

#[tokio::test]
async fn a_patch_that_nests_what_it_moved_is_refused_before_the_stack_ends() {
    let server = Server::start(&[]).await;
    made(&server, MAPS, json!({"metadata": {"name": "m"}, "x": {}})).await;
    let below = format!("/t{}/b", "/a".repeat(119));
    let round = [
        json!({"op": "add", "path": "/t", "value": nested(119, json!({}))}),
        json!({"op": "move", "from": "/x", "path": below}),
        json!({"op": "move", "from": "/t", "path": "/x"}),
    ];
    let operations: Vec<Value> = (0..100).flat_map(|_| round.clone()).collect();
    refused(&server.patch("json", &format!("{MAPS}/m?dryRun=All"), operations.into()).await, &[422]);
    still_answers(&server).await;
}

#[tokio::test]
async fn copies_and_defaults_that_multiply_are_refused_before_the_memory_ends() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    made(&server, MAPS, json!({"metadata": {"name": "m"}, "x": {"v": "some text to be copied"}})).await;
    let copies: Vec<Value> = (0..30).map(|n| json!({"op": "copy", "from": "/x", "path": format!("/x/k{n}")})).collect();
    refused(&server.patch("json", &format!("{MAPS}/m"), copies.into()).await, &[413, 422]);
    let text = json!({"type": "string", "default": "x".repeat(1000)});
    let element = json!({"type": "object", "properties": {"a": text}});
    made(&server, DEFINITIONS, definition(list_of(element))).await;
    refused(&server.call("POST", WIDGETS, widget(vec![json!({}); 200_000].into())).await, &[413]);
    still_answers(&server).await;
}

#[tokio::test]
async fn bodies_of_very_many_small_maps_take_turns_and_do_not_fill_the_memory() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    let body = |maps: usize| json!({"metadata": {"name": "m"}, "x": vec![json!({"a": 1}); maps]});
    refused(&server.call("POST", MAPS, body(300_000)).await, &[400]);
    made(&server, MAPS, body(100_000)).await;
    let path = format!("{MAPS}/m");
    let put = || server.call("PUT", &path, body(150_000));
    let (a, b, c, d) = tokio::join!(put(), put(), put(), put());
    for answer in [a, b, c, d] {
        assert_eq!(answer.code, 200, "{}", answer.body["message"]);
    }
    still_answers(&server).await;
}

#[tokio::test]
async fn somebody_whose_name_is_not_ascii_is_not_the_administrator() {
    let server = Server::start(&[]).await;
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let json = ("content-type", "application/json");
    let headers = [json, ("impersonate-user", "jörg"), ("impersonate-group", "größe")];
    let answer = server.send("POST", path, &headers, b"{}".to_vec()).await;
    let who = &answer.body["status"]["userInfo"];
    assert_eq!((&who["username"], &who["groups"]), (&json!("jörg"), &json!(["größe", "system:authenticated"])));
    refused(&server.send("GET", MAPS, &[("impersonate-user", "jörg")], Vec::new()).await, &[403]);
    let twice = [("impersonate-user", "admin"), ("impersonate-user", "x")];
    refused(&server.send("GET", MAPS, &twice, Vec::new()).await, &[400]);
}

#[tokio::test]
async fn a_strategic_patch_of_forty_thousand_elements_keeps_nobody_waiting() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    let mut body = pod("p");
    body["spec"]["containers"][0]["image"] = json!("i:1");
    let many: Vec<Value> = (0..25_000).map(|n| json!({"name": format!("N{n}"), "value": "v"})).collect();
    body["metadata"]["finalizers"] = (0..15_000).map(|n| json!(format!("example.com/f{n}"))).collect();
    body["spec"]["containers"][0]["env"] = many.clone().into();
    let finalizers = body["metadata"]["finalizers"].clone();
    made(&server, PODS, body).await;
    let order: Vec<Value> = many.iter().map(|e| json!({"name": e["name"]})).collect();
    let patch = json!({"metadata": {"finalizers": finalizers}, "spec": {"containers": [
        {"name": "c", "image": "i:2", "env": many, "$setElementOrder/env": order}]}});
    let path = format!("{PODS}/p");
    let (answer, longest, whole) = others_wait(&server, server.patch("strategic-merge", &path, patch)).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    nobody_waited(longest, whole);
}

#[tokio::test]
async fn small_patches_of_a_large_object_all_succeed_and_keep_nobody_waiting() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    let many: Vec<Value> = (0..100_000).map(|n| json!(format!("element {n}"))).collect();
    made(&server, MAPS, json!({"metadata": {"name": "m"}, "x": many})).await;
    let path = format!("{MAPS}/m");
    let patch = |n: usize| server.patch("merge", &path, json!({"data": {format!("k{n}"): "v"}}));
    let all = async {
        let (a, b, c, d, e, f) = tokio::join!(patch(0), patch(1), patch(2), patch(3), patch(4), patch(5));
        [a, b, c, d, e].iter().for_each(|answer| assert_eq!(answer.code, 200, "{}", answer.body["message"]));
        f
    };
    let (answer, longest, whole) = others_wait(&server, all).await;
    assert_eq!(answer.code, 200);
    nobody_waited(longest, whole);
    let kept = server.call("GET", &path, Value::Null).await.body;
    assert_eq!(kept["data"].as_object().unwrap().len(), 6);
}

#[tokio::test]
async fn a_deletion_of_large_objects_that_is_only_tried_keeps_nobody_waiting() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    for number in 0..12 {
        let many = vec![json!("ab"); 150_000];
        made(&server, MAPS, json!({"metadata": {"name": format!("m{number}")}, "x": many})).await;
    }
    let client = server.http2(&server.token(), Windows::Closed).await;
    // The selector has every object read, which takes long; without one nothing has to be.
    let mut times = Vec::new();
    for (selector, tries) in [("", 3), ("&labelSelector=!x", 1)] {
        let path = format!("{MAPS}?dryRun=All{selector}");
        let mut least = Duration::MAX;
        // What a busy machine adds to one it does not add to all of them.
        for _ in 0..tries {
            let tried = async {
                assert_eq!(code(client.send("DELETE", &path, full(&Value::Null))).await, 200);
                server.call("GET", "/version", Value::Null).await
            };
            let (_, longest, whole) = others_wait(&server, tried).await;
            nobody_waited(longest, whole);
            least = least.min(whole);
        }
        times.push(least);
    }
    assert!(times[0] < MOMENT.max(times[1] / 4), "{times:?}");
}

#[tokio::test]
async fn a_pattern_is_compiled_once_and_one_that_is_too_large_is_refused() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    let list = |pattern: &str| definition(list_of(json!({"type": "string", "pattern": pattern})));
    refused(&server.call("POST", DEFINITIONS, list(r"^(\pL{1,200}){1,200}$")).await, &[422]);
    made(&server, DEFINITIONS, list(r"^\w{1,200}$")).await;
    let long = widget(vec!["some_text"; 100_000].into());
    let (answer, longest, whole) = others_wait(&server, server.call("POST", WIDGETS, long)).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    nobody_waited(longest, whole);
    still_answers(&server).await;
}

#[tokio::test]
async fn names_that_lead_out_of_a_directory_are_refused() {
    let server = Server::start(&[]).await;
    for (field, name) in [("nodeName", "../../etc"), ("serviceAccountName", "../x"), ("hostname", "../h")] {
        let mut body = pod("p");
        body["spec"][field] = json!(name);
        let answer = server.call("POST", PODS, body).await;
        refused(&answer, &[422]);
        assert_eq!(answer.body["details"]["causes"][0]["field"], json!(format!("spec.{field}")));
    }
    made(&server, PODS, pod("p")).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "../../etc"}});
    refused(&server.call("POST", &format!("{PODS}/p/binding"), binding).await, &[422]);
}

#[tokio::test]
async fn definitions_that_change_their_names_for_ever_do_not_fill_the_memory() {
    let _alone = ALONE.lock().await;
    let server = Server::start(&[]).await;
    made(&server, DEFINITIONS, definition(json!({"type": "object"}))).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let mut last = None;
    for round in 0..200 {
        let names: Vec<String> =
            (0..10_000).map(|n| format!("a-short-name-that-is-as-long-as-it-may-be-{round}-{n}")).collect();
        let answer = server.patch("merge", &path, json!({"spec": {"names": {"shortNames": names}}})).await;
        if answer.code != 200 {
            last = Some(answer);
            break;
        }
    }
    let last = last.expect("there is an end to the kinds that a server makes");
    refused(&last, &[422]);
    assert!(last.body["message"].as_str().unwrap().contains("restart"), "{}", last.body);
    assert_eq!(server.call("DELETE", &path, Value::Null).await.code, 200);
    // What was there already may come again.
    made(&server, DEFINITIONS, definition(json!({"type": "object"}))).await;
    still_answers(&server).await;
}

#[tokio::test]
async fn who_may_view_a_namespace_may_get_it() {
    let server = Server::start(&[]).await;
    let binding = json!({"metadata": {"name": "v"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "alice"}]});
    made(&server, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding).await;
    let alice = [("impersonate-user", "alice")];
    assert_eq!(server.send("GET", "/api/v1/namespaces/default", &alice, Vec::new()).await.code, 200);
    refused(&server.send("GET", "/api/v1/namespaces/kube-system", &alice, Vec::new()).await, &[403]);
}

//! Accounts that take all they can get of one thing: administrators, the system and leases have their own of each.
//!
//! Every test takes with one account, then with ten, and asks as the others after both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests")]

use std::time::Duration;

use hostile_suite::{Http2, PATIENCE, Sent, Server, Windows, code, full, maps, named, unfinished};
use http::Response;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::timeout;

const ACCOUNTS: usize = 10;
/// Nothing that is held here is given up before the end of the test.
const NO_TIMEOUT: &str = "--request-timeout=1h";

/// A server, its greedy accounts, and those whom they must not touch.
struct Stage {
    server: Server,
    greedy: Vec<String>,
    controller: String,
}

impl Stage {
    async fn with(arguments: &[&str]) -> Self {
        let arguments: Vec<&str> = arguments.iter().copied().chain([NO_TIMEOUT]).collect();
        let server = Server::start(&arguments).await;
        let mut greedy = Vec::new();
        for number in 0..ACCOUNTS {
            greedy.push(server.editor("tenant", &format!("greedy{number}")).await);
        }
        let controller = server.editor("kube-system", "controller").await;
        Self { server, greedy, controller }
    }

    /// Asks as an administrator and as a controller of kube-system, over connections of their own: reads, writes with a
    /// body of some size, a lease, a watch.
    async fn others_go_on(&self, round: &str) {
        for (who, token, namespace) in
            [("admin", self.server.token(), "default"), ("controller", self.controller.clone(), "kube-system")]
        {
            let client = self.server.http2(&token, Windows::Usual).await;
            let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
            let name = format!("{who}-{round}");
            let mut map = named(&name);
            map["data"] = json!({"x": "x".repeat(50_000)});
            for (method, path, body, expected) in [
                ("POST", maps(namespace), map, 201),
                ("GET", format!("{}/{name}", maps(namespace)), Value::Null, 200),
                ("GET", maps(namespace), Value::Null, 200),
                ("POST", leases.clone(), named(&name), 201),
                ("GET", format!("{leases}/{name}"), Value::Null, 200),
                ("GET", format!("{}?watch=1", maps(namespace)), Value::Null, 200),
            ] {
                assert_eq!(
                    code(client.send(method, &path, full(&body))).await,
                    expected,
                    "{round} {who} {method} {path}"
                );
            }
        }
    }

    /// One of the accounts renews a lease, over a connection of its own.
    async fn leases_go_on(&self, round: &str) {
        let client = self.server.http2(&self.greedy[0], Windows::Usual).await;
        let leases = "/apis/coordination.k8s.io/v1/namespaces/tenant/leases";
        assert_eq!(code(client.send("POST", leases, full(&named(round)))).await, 201, "{round}");
        assert_eq!(code(client.send("GET", &format!("{leases}/{round}"), full(&Value::Null))).await, 200, "{round}");
    }
}

async fn head(sent: Sent) -> Response<Incoming> {
    timeout(PATIENCE, sent).await.expect("an answer").unwrap().unwrap()
}

/// Makes config maps of a megabyte each.
async fn fill(server: &Server, count: usize) {
    for number in 0..count {
        let body = json!({"metadata": {"name": format!("m{number}")}, "data": {"x": "x".repeat(1_000_000)}});
        assert_eq!(server.call("POST", &maps("tenant"), body).await.code, 201);
    }
}

#[tokio::test]
async fn a_deletion_of_everything_that_is_tried_and_not_read_is_told_piece_by_piece() {
    let stage = Stage::with(&["--max-unsent-bytes=8388608"]).await;
    fill(&stage.server, 20).await;
    let reader = stage.server.http2(&stage.greedy[0], Windows::Closed).await;
    let path = format!("{}?dryRun=All", maps("tenant"));
    let held = head(reader.send("DELETE", &path, full(&Value::Null))).await;
    assert_eq!(held.status(), 200);
    stage.others_go_on("one").await;
    let beside = stage.server.http2(&stage.greedy[1], Windows::Usual).await;
    let one = format!("{}/m0", maps("tenant"));
    assert_eq!(code(beside.send("GET", &one, full(&Value::Null))).await, 200, "nor is another account refused");
    drop(held);
    // Really, and read: the whole answer.
    let deleted = stage.server.call("DELETE", &maps("tenant"), Value::Null).await;
    assert_eq!(deleted.code, 200);
    let names: Vec<&Value> = deleted.body["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
    assert_eq!(deleted.body["kind"], "ConfigMapList");
    assert_eq!(names.len(), 20 + usize::from(names.contains(&&json!("kube-root-ca.crt"))), "{names:?}");
}

#[tokio::test]
async fn answers_that_nobody_reads_leave_room_for_others() {
    let stage = Stage::with(&["--max-unsent-bytes=8388608"]).await;
    fill(&stage.server, 1).await;
    let one = format!("{}/m0", maps("tenant"));
    let mut held = Vec::new();
    for (number, token) in stage.greedy.iter().enumerate() {
        let reader = stage.server.http2(token, Windows::Closed).await;
        for _ in 0..5 {
            held.push((head(reader.send("GET", &one, full(&Value::Null))).await, None));
        }
        // All at once: none of them finds the room taken by the others.
        let patch = json!({"data": {"y": number.to_string()}});
        let tried = format!("{one}?dryRun=All");
        let dry: Vec<Sent> = (0..8).map(|_| reader.merge(&tried, &patch)).collect();
        let wet: Vec<Sent> = (0..8).map(|_| reader.merge(&one, &patch)).collect();
        for sent in dry.into_iter().chain(wet) {
            let answer = head(sent).await;
            assert!(matches!(answer.status().as_u16(), 200 | 429), "{}", answer.status());
            held.push((answer, None));
        }
        held.last_mut().unwrap().1 = Some(reader);
        if number == 0 {
            stage.others_go_on("one").await;
            stage.leases_go_on("one").await;
        }
    }
    stage.others_go_on("ten").await;
    stage.leases_go_on("ten").await;
    assert!(held.iter().any(|(answer, _)| answer.status() == 429), "there is an end to it");
}

#[tokio::test]
async fn bodies_that_are_held_leave_room_for_others() {
    let stage = Stage::with(&["--max-body-bytes=1048576"]).await;
    let mut held: Vec<(Http2, Vec<Sent>)> = Vec::new();
    for (number, token) in stage.greedy.iter().enumerate() {
        let client = stage.server.http2(token, Windows::Usual).await;
        let bodies: Vec<Sent> = [40_000, 10_000, 1_000, 100, 10]
            .iter()
            .flat_map(|size| std::iter::repeat_n(*size, 16))
            .map(|size| client.send("POST", &maps("tenant"), unfinished(size)))
            .collect();
        // What was sent before may still be on its way: it is all there when one more is refused.
        let mut body = named("one-more");
        body["data"] = json!({"x": "x".repeat(100_000)});
        let refused = async {
            while code(client.send("POST", &format!("{}?dryRun=All", maps("tenant")), full(&body))).await != 429 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, refused).await.expect("there is an end to it");
        held.push((client, bodies));
        if number == 0 {
            stage.others_go_on("one").await;
            stage.leases_go_on("one").await;
        }
    }
    stage.others_go_on("ten").await;
    stage.leases_go_on("ten").await;
}

#[tokio::test]
async fn connections_that_are_kept_leave_room_for_others() {
    let stage = Stage::with(&["--max-connections=64"]).await;
    let path = &maps("tenant");
    let mut held = Vec::new();
    for (number, token) in stage.greedy.iter().enumerate() {
        for opened in 0.. {
            let client = stage.server.http2(token, Windows::Usual).await;
            let code = code(client.send("GET", path, full(&Value::Null))).await;
            if code == 429 {
                break;
            }
            assert_eq!((code, opened < 64), (200, true), "there is an end to it");
            held.push(client);
        }
        if number == 0 {
            stage.others_go_on("one").await;
        }
    }
    stage.others_go_on("ten").await;
}

#[tokio::test]
async fn watches_are_shared_too() {
    let stage = Stage::with(&["--max-watches=16"]).await;
    let path = format!("{}?watch=1", maps("tenant"));
    let mut held = Vec::new();
    for (number, token) in stage.greedy.iter().enumerate() {
        let client = stage.server.http2(token, Windows::Usual).await;
        let mut watches = Vec::new();
        loop {
            let watch = head(client.send("GET", &path, full(&Value::Null))).await;
            if watch.status() == 429 {
                break;
            }
            watches.push(watch);
        }
        if number == 0 {
            assert_eq!(watches.len(), 12, "three quarters for one alone");
            stage.others_go_on("one").await;
        }
        held.push((client, watches));
    }
    stage.others_go_on("ten").await;
    // Who ends one may begin another.
    held[0].1.clear();
    let again = async {
        while code(held[0].0.send("GET", &path, full(&Value::Null))).await != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, again).await.expect("a watch that ended is not counted");
}

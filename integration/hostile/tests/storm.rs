//! Bodies that are almost right, many of them, from one seed: each is answered, and the server is as well as before.

#![allow(clippy::unwrap_used, clippy::panic)]

use hostile_suite::Server;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

const SEED: u64 = 14;
const REQUESTS: usize = 4000;

/// `k8s\0`, then a ConfigMap named a.
const PROTOBUF: &[u8] =
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0d\x0a\x03\x0a\x01a\x12\x06\x0a\x01k\x12\x01v\x1a\x00\x22\x00";
const JSON: &[u8] = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"a":"b"},"finalizers":[]},"data":{"k":"v"}}"#;
const YAML: &[u8] =
    b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: &l {a: b}, annotations: *l}\ndata:\n  k: |\n    v\n";
const CLAIM: &[u8] =
    br#"{"metadata":{"name":"c"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}"#;
const POD: &[u8] = br#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Mi"}}]}}"#;
const DEFINITION: &[u8] = br#"{"metadata":{"name":"ts.t.io"},"spec":{"group":"t.io","scope":"Namespaced","names":{"plural":"ts","kind":"T"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer","minimum":1,"default":2},"s":{"type":"string","pattern":"^a+$"}}}}}}}]}}"#;
const JSON_PATCH: &[u8] = br#"[{"op":"add","path":"/data/x","value":"1"},{"op":"move","from":"/data/x","path":"/data/y"},{"op":"copy","from":"/data/y","path":"/data/z"},{"op":"test","path":"/data/y","value":"1"}]"#;
const MERGE_PATCH: &[u8] = br#"{"metadata":{"labels":{"x":"y","a":null}},"data":{"k":"w"}}"#;
const STRATEGIC_PATCH: &[u8] = br#"{"spec":{"volumes":[{"name":"v","$patch":"delete"},{"$patch":"replace"}],"$setElementOrder/volumes":[{"name":"v"}]}}"#;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

type Kind = (&'static str, String, &'static str, &'static [u8]);

fn kinds() -> Vec<Kind> {
    vec![
        ("POST", MAPS.to_owned(), "application/json", JSON),
        ("POST", MAPS.to_owned(), "application/yaml", YAML),
        ("POST", MAPS.to_owned(), "application/vnd.kubernetes.protobuf", PROTOBUF),
        ("PUT", format!("{MAPS}/kept"), "application/json", JSON),
        ("POST", CLAIMS.to_owned(), "application/json", CLAIM),
        ("POST", PODS.to_owned(), "application/json", POD),
        ("POST", DEFINITIONS.to_owned(), "application/json", DEFINITION),
        ("PATCH", format!("{MAPS}/kept"), "application/json-patch+json", JSON_PATCH),
        ("PATCH", format!("{MAPS}/kept"), "application/merge-patch+json", MERGE_PATCH),
        ("PATCH", format!("{PODS}/kept"), "application/strategic-merge-patch+json", STRATEGIC_PATCH),
        (
            "DELETE",
            format!("{MAPS}/none"),
            "application/json",
            br#"{"preconditions":{"uid":"x"},"propagationPolicy":"Orphan"}"#,
        ),
    ]
}

/// Spoils a body in a few places.
fn spoiled(body: &[u8], random: &mut SmallRng) -> Vec<u8> {
    const WORDS: [&[u8]; 12] = [
        b"null",
        b"{}",
        b"[]",
        b"-1",
        b"1e999",
        b"99999999999999999999",
        b"\"\\ud800\"",
        b"\xff\xfe",
        b"\"\"",
        b"[[[[",
        b"$patch",
        b"~01/",
    ];
    let mut body = body.to_vec();
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..=body.len());
        match random.random_range(0..6) {
            0 => body.truncate(at),
            1 if at < body.len() => body[at] = random.random(),
            2 if at < body.len() => body[at] ^= 1 << random.random_range(0..8),
            3 => {
                let end = (at + random.random_range(0..20)).min(body.len());
                body.drain(at..end);
            }
            4 => {
                let copied = body[at..].iter().copied().take(random.random_range(0..40)).collect::<Vec<u8>>();
                body.splice(at..at, copied);
            }
            _ => {
                let word = *WORDS.choose(random).unwrap();
                body.splice(at..at, word.iter().copied());
            }
        }
    }
    body
}

#[tokio::test]
async fn four_thousand_spoiled_bodies_are_each_answered() {
    let mut server = Server::start(&[]).await;
    for (path, body) in [(MAPS, JSON), (PODS, POD)] {
        let mut kept: Value = serde_json::from_slice(body).unwrap();
        kept["metadata"]["name"] = "kept".into();
        assert_eq!(server.call("POST", path, kept).await.code, 201);
    }
    let before = server.peak_memory();
    let mut random = SmallRng::seed_from_u64(SEED);
    let kinds = kinds();
    let mut codes = std::collections::BTreeMap::<u16, usize>::new();
    for number in 0..REQUESTS {
        let (method, path, content_type, body) = kinds.choose(&mut random).unwrap();
        let body = spoiled(body, &mut random);
        let dry = if random.random() { "?dryRun=All" } else { "" };
        let path = format!("{path}{dry}");
        let answer = server.send(method, &path, &[("content-type", content_type)], body.clone()).await;
        let said = String::from_utf8_lossy(&body).into_owned();
        assert!(answer.code < 500 || answer.code == 501, "request {number}: {method} {path} {said}: {answer:?}");
        *codes.entry(answer.code).or_default() += 1;
    }
    assert!(codes.len() > 3, "some are taken, most refused, for several reasons: {codes:?}");
    let after = server.peak_memory();
    assert!(after < before + 200, "{before} MiB became {after} MiB");
    server.restart().await;
    assert_eq!(server.call("GET", &format!("{MAPS}/kept"), Value::Null).await.code, 200);
}

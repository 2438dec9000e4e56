//! What was answered is there after a crash.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use stowage_apiserver::{OpenStore, Options, Server};
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn call(server: &Server, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).body(Full::new(body)).unwrap();
    let response = server.service().oneshot(request).await.unwrap();
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn open(directory: &Path) -> Server {
    Server::open(directory, Options::system()).unwrap()
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

#[tokio::test]
async fn answered_writes_survive_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let server = open(directory.path());
    let (_, kept) = call(&server, Method::POST, MAPS, map("kept")).await;
    call(&server, Method::POST, MAPS, map("gone")).await;
    call(&server, Method::DELETE, &format!("{MAPS}/gone"), Value::Null).await;
    let last = server.revision();
    // The file as `kill -9` would leave it: the server has had no chance to close it.
    let crashed = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join("store.redb"), crashed.path().join("store.redb")).unwrap();
    drop(server);

    let server = open(crashed.path());
    assert_eq!(server.revision(), last);
    assert_eq!(call(&server, Method::GET, &format!("{MAPS}/kept"), Value::Null).await, (StatusCode::OK, kept));
    assert_eq!(call(&server, Method::GET, &format!("{MAPS}/gone"), Value::Null).await.0, StatusCode::NOT_FOUND);
    let (_, next) = call(&server, Method::POST, MAPS, map("next")).await;
    assert_eq!(next["metadata"]["resourceVersion"], json!((last + 1).to_string()));
    let old = format!("{MAPS}?watch=1&resourceVersion={}", last - 1);
    assert_eq!(call(&server, Method::GET, &old, Value::Null).await.1["object"]["code"], 410);
}

#[tokio::test]
async fn many_writers_are_all_kept_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let server = open(directory.path());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..32 {
        let server = server.clone();
        writers.spawn(async move {
            for number in 0..8 {
                let (code, _) = call(&server, Method::POST, MAPS, map(&format!("w{writer}-{number}"))).await;
                assert_eq!(code, StatusCode::CREATED);
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    drop(server);
    let server = open(directory.path());
    let (_, list) = call(&server, Method::GET, MAPS, Value::Null).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(256));
}

#[tokio::test]
async fn a_second_server_on_the_same_data_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _first = open(directory.path());
    let second = Server::open(directory.path(), Options::system());
    assert!(matches!(second, Err(OpenStore::InUse { .. })));
}

#[tokio::test]
async fn a_damaged_file_is_named_and_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = open(directory.path());
    let text = "a text to be found in the file";
    call(&server, Method::POST, MAPS, json!({"metadata": {"name": "a"}, "data": {"a": text}})).await;
    drop(server);
    let path = directory.path().join("store.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - text.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at] ^= 1;
    }
    std::fs::write(&path, bytes).unwrap();
    let Err(error) = Server::open(directory.path(), Options::system()) else { panic!("opened a damaged file") };
    assert!(error.to_string().contains("store.redb") && matches!(error, OpenStore::Damaged { .. }), "{error}");

    std::fs::write(&path, b"not a database at all").unwrap();
    let Err(error) = Server::open(directory.path(), Options::system()) else { panic!("opened nonsense") };
    assert!(matches!(error, OpenStore::Damaged { .. }), "{error}");
}

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

/// Puts a row into the data file as an older server, or a failing disk, may have left it.
fn plant(directory: &Path, key: &str, json: &str, spoil: bool) {
    let database = redb::Database::open(directory.join("store.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut value = vec![0; 4];
    value.extend_from_slice(&1_u64.to_le_bytes());
    value.extend_from_slice(json.as_bytes());
    let checksum = crc32fast::hash(&value[4..]) ^ u32::from(spoil);
    value[..4].copy_from_slice(&checksum.to_le_bytes());
    let objects = redb::TableDefinition::<&str, &[u8]>::new("objects");
    transaction.open_table(objects).unwrap().insert(key, value.as_slice()).unwrap();
    transaction.commit().unwrap();
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_an_error_of_its_own_and_can_be_deleted() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let deep = format!(r#"{{"metadata":{{"name":"deep"}},"x":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    plant(directory.path(), "configmaps/default/deep", &deep, false);
    plant(directory.path(), "configmaps/default/spoiled", r#"{"metadata":{"name":"spoiled"}}"#, true);
    plant(directory.path(), "events/default/deep", &deep, false);
    plant(directory.path(), "namespaces//kube-public", &deep, false);
    plant(directory.path(), "serviceaccounts/default/default", &deep, false);
    plant(directory.path(), "widgets.example.com/default/unknown", "{}", false);
    plant(directory.path(), "no key of ours", "{}", false);

    let server = open(directory.path());
    let one = |name: &str| format!("{MAPS}/{name}");
    for name in ["deep", "spoiled"] {
        let (code, status) = call(&server, Method::GET, &one(name), Value::Null).await;
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(status["message"].as_str().unwrap().contains("cannot be read"), "{status}");
        assert_eq!(call(&server, Method::POST, MAPS, map(name)).await.0, StatusCode::CONFLICT);
        assert_eq!(call(&server, Method::PUT, &one(name), map(name)).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    }
    let (code, status) = call(&server, Method::GET, MAPS, Value::Null).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR, "a list without them would say that they are gone");
    assert!(status["message"].as_str().unwrap().contains("\"deep\""), "{status}");
    let elsewhere = call(&server, Method::GET, "/api/v1/namespaces/kube-system/configmaps", Value::Null).await;
    assert_eq!(elsewhere.0, StatusCode::OK);
    assert_eq!(call(&server, Method::POST, MAPS, map("new")).await.0, StatusCode::CREATED);
    server.enable_rbac().await.unwrap();
    assert_eq!(call(&server, Method::DELETE, &one("deep"), Value::Null).await.0, StatusCode::OK);
    assert_eq!(call(&server, Method::DELETE, &one("deep"), Value::Null).await.0, StatusCode::NOT_FOUND);
    assert_eq!(call(&server, Method::POST, MAPS, map("deep")).await.0, StatusCode::CREATED);
    drop(server);

    let server = open(directory.path());
    assert_eq!(call(&server, Method::GET, &one("deep"), Value::Null).await.0, StatusCode::OK);
    assert_eq!(call(&server, Method::GET, &one("spoiled"), Value::Null).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let (code, _) = call(&server, Method::GET, "/api/v1/namespaces/kube-public", Value::Null).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn a_damaged_file_is_named_and_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    std::fs::write(&path, b"not a database at all").unwrap();
    let Err(error) = Server::open(directory.path(), Options::system()) else { panic!("opened nonsense") };
    assert!(error.to_string().contains("store.redb") && matches!(error, OpenStore::Damaged { .. }), "{error}");
}

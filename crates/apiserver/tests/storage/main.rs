//! The data file on disks that fail: power that goes away, space that runs out.

#![allow(clippy::unwrap_used, clippy::panic)]

mod disk;
mod full_disk;
mod power_loss;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use stowage_apiserver::{Body, OpenStore, Options, Server};
use tower::ServiceExt as _;

use disk::Disk;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn open(disk: &Disk) -> Result<Server, OpenStore> {
    let disk = disk.clone();
    Server::open_storage("test.redb".as_ref(), move || disk.open(), Options::system())
}

async fn send(server: &Server, method: Method, path: &str, body: &Value) -> Response<Body> {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).body(Full::new(body)).unwrap();
    server.service().oneshot(request).await.unwrap()
}

async fn call(server: &Server, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
    let response = send(server, method, path, &body).await;
    let code = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"value": value}})
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

//! The test's own hands: an administrator whose requests are no points of the trace.

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::Service;

use stowage_apiserver::Server;
use stowage_model::object::{Key, Kind, Projection};

use crate::changes::Changes;

/// A client of the world's API for the test itself; what it asks for must work, else the test has failed.
#[derive(Clone)]
pub struct Admin {
    server: Server,
    client: kube::Client,
    changes: Changes,
}

impl Admin {
    pub(crate) fn new(server: Server, changes: Changes) -> Self {
        let client = kube::Client::new(server.service(), "default");
        Self { server, client, changes }
    }

    /// The client underneath.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Creates an object and returns it.
    pub async fn create(&self, kind: Kind, mut body: Value) -> Result<Value, kube::Error> {
        body["apiVersion"] = kind.api_version().into();
        body["kind"] = kind.kind.into();
        let namespace = body["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.write(Method::POST, &kind.collection_path(&namespace), "application/json", &body).await
    }

    /// Merge-patches an object or one of its subresources, such as `/status`.
    pub async fn patch(&self, kind: Kind, key: &Key, suffix: &str, body: &Value) -> Result<Value, kube::Error> {
        let path = format!("{}{suffix}", kind.object_path(key));
        self.write(Method::PATCH, &path, "application/merge-patch+json", body).await
    }

    /// Asks for an object's deletion; one that is gone already is fine.
    pub async fn delete(&self, kind: Kind, key: &Key) -> Result<(), kube::Error> {
        match self.write::<Value>(Method::DELETE, &kind.object_path(key), "application/json", &json!({})).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Deletes an object without the grace it would have, as an administrator does who knows better.
    pub async fn delete_at_once(&self, kind: Kind, key: &Key) -> Result<(), kube::Error> {
        let body = json!({ "gracePeriodSeconds": 0 });
        match self.write::<Value>(Method::DELETE, &kind.object_path(key), "application/json", &body).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// One object as it is, if it is there.
    pub fn get_raw(&self, kind: Kind, key: &Key) -> Option<Value> {
        self.read(&kind.object_path(key))
    }

    /// One object, if it is there.
    pub fn get<T: Projection>(&self, key: &Key) -> Option<T> {
        self.read(&T::KIND.object_path(key))
    }

    /// Whether there is such an object.
    pub fn exists(&self, kind: Kind, key: &Key) -> bool {
        self.get_raw(kind, key).is_some()
    }

    /// Every object of a kind as it is, in all namespaces.
    pub fn list_raw(&self, kind: Kind) -> Vec<Value> {
        let list: Option<Value> = self.read(&kind.collection_path(""));
        match list.and_then(|mut list| list.get_mut("items").map(Value::take)) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        }
    }

    /// Every object of a kind, in all namespaces.
    pub fn list<T: Projection>(&self) -> Vec<T> {
        #[derive(Deserialize)]
        #[serde(bound = "T: DeserializeOwned")]
        struct List<T> {
            items: Vec<T>,
        }
        self.read(&T::KIND.collection_path("")).map(|list: List<T>| list.items).unwrap_or_default()
    }

    /// Asks the server without giving anybody else a turn, so that several reads show one moment.
    fn read<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let request = Request::get(path).body(Full::<Bytes>::default()).expect("paths are made of valid names");
        let now = "a read of the in-process server waits for nobody";
        let Ok(answer) = self.server.service().call(request).now_or_never().expect(now);
        if answer.status() == StatusCode::NOT_FOUND {
            return None;
        }
        let Ok(body) = answer.into_body().collect().now_or_never().expect(now);
        Some(serde_json::from_slice(&body.to_bytes()).expect("the server answers in JSON"))
    }

    async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<T, kube::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes())
            .expect("paths are made of valid names");
        let answer = self.client.request(request).await;
        self.changes.announce();
        answer
    }
}

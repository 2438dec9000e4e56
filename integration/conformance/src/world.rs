//! One rule's surroundings: a server, a namespace of its own, and ways to speak to them.

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::embedded::Embedded;
use crate::{Lines, kubectl};

const KUBECONFIG: &str = "STOWAGE_CONFORMANCE_KUBECONFIG";

/// A server and a namespace on it.
pub struct World {
    /// An administrator's client.
    pub client: Client,
    /// Where this rule may do what it likes.
    pub namespace: String,
    kubeconfig: PathBuf,
    home: tempfile::TempDir,
    embedded: Option<Embedded>,
}

/// What the server said.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub code: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub bytes: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {:?}", self.bytes))
    }
}

/// Holds one rule against the server; its namespace goes when it ends, also when it fails.
pub async fn rule<F: Future<Output = ()>>(check: impl FnOnce(Arc<World>) -> F) {
    let world = Arc::new(World::new().await);
    let outcome = AssertUnwindSafe(check(world.clone())).catch_unwind().await;
    world.leave().await;
    if let Some(world) = Arc::into_inner(world) {
        drop(world.client);
        if let Some(embedded) = world.embedded {
            embedded.stop().await;
        }
    }
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

impl World {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let (kubeconfig, embedded) = match std::env::var_os(KUBECONFIG) {
            Some(path) => (PathBuf::from(path), None),
            None => {
                let (embedded, kubeconfig) = Embedded::start(home.path()).await;
                let path = home.path().join("kubeconfig");
                std::fs::write(&path, kubeconfig).unwrap();
                (path, Some(embedded))
            }
        };
        let config = config(&kubeconfig).await;
        let client = Client::try_from(config).unwrap();
        let mut world = Self { client, namespace: String::new(), kubeconfig, home, embedded };
        let made =
            world.call("POST", "/api/v1/namespaces", json!({"metadata": {"generateName": "conformance-"}})).await;
        assert_eq!(made.code, 201, "{:?}", made.bytes);
        world.namespace = made.json()["metadata"]["name"].as_str().unwrap().to_owned();
        world
    }

    /// Gives back the namespace; where nobody releases protected claims, they would hold it for ever.
    async fn leave(&self) {
        self.call("DELETE", "/api/v1/namespaces/{ns}", Value::Null).await;
        let claims = "/api/v1/namespaces/{ns}/persistentvolumeclaims";
        let left = self.call("GET", claims, Value::Null).await.json();
        for claim in left["items"].as_array().into_iter().flatten() {
            let name = claim["metadata"]["name"].as_str().unwrap_or_default();
            self.patch("merge", &format!("{claims}/{name}"), json!({"metadata": {"finalizers": null}})).await;
        }
    }

    /// Whether the server is the embedded one, started for this rule.
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// A client that acts as somebody else.
    pub async fn acting_as(&self, user: &str) -> Client {
        let mut config = config(&self.kubeconfig).await;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).unwrap()
    }

    /// A client that shows this token, or nothing at all.
    pub async fn with_token(&self, token: Option<&str>) -> Client {
        let mut config = config(&self.kubeconfig).await;
        config.auth_info = AuthInfo { token: token.map(|t| t.to_owned().into()), ..AuthInfo::default() };
        Client::try_from(config).unwrap()
    }

    /// `{ns}` in paths is this rule's namespace.
    pub fn path(&self, path: &str) -> String {
        path.replace("{ns}", &self.namespace)
    }

    /// A request with a JSON body, or without one.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call_by(&self.client, method, path, body).await
    }

    /// The same by another client.
    pub async fn call_by(&self, client: &Client, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send_by(client, method, path, &[("content-type", "application/json")], body).await
    }

    /// A request with any headers and body.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Answer {
        self.send_by(&self.client, method, path, headers, body.into()).await
    }

    async fn send_by(
        &self,
        client: &Client,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(self.path(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    /// What must work: the object in the answer.
    pub async fn works(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.call(method, path, body).await;
        assert!((200..300).contains(&answer.code), "{method} {path}: {:?}", answer.bytes);
        answer.json()
    }

    /// What must be refused with this code: the Status in the answer.
    pub async fn refused(&self, code: u16, method: &str, path: &str, body: Value) -> Value {
        let answer = self.call(method, path, body).await;
        assert_eq!(answer.code, code, "{method} {path}: {:?}", answer.bytes);
        let status = answer.json();
        assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Failure")));
        assert_eq!(status["code"], code);
        status
    }

    /// A patch of this type (`merge`, `json`, `strategic-merge`).
    pub async fn patch(&self, kind: &str, path: &str, patch: Value) -> Answer {
        let content_type = format!("application/{kind}-patch+json");
        self.send("PATCH", path, &[("content-type", &content_type)], patch.to_string()).await
    }

    /// Begins a watch that must be accepted.
    pub async fn watch(&self, path: &str) -> Lines {
        let request = Request::builder().uri(self.path(path)).body(Body::empty()).unwrap();
        let response = self.client.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Lines::new(response.into_body())
    }

    /// Runs kubectl in this rule's namespace; none where there is no kubectl.
    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> Option<(bool, String)> {
        if !kubectl::is_there() {
            return None;
        }
        let namespaced = [&["-n", self.namespace.as_str()], arguments].concat();
        Some(kubectl::run(self.home.path(), &self.kubeconfig, &namespaced, input).await)
    }

    /// A configmap of this rule.
    pub async fn map(&self, name: &str) -> Value {
        let body = json!({"metadata": {"name": name, "labels": {"name": name}}, "data": {"a": "b"}});
        self.works("POST", "/api/v1/namespaces/{ns}/configmaps", body).await
    }
}

async fn config(kubeconfig: &std::path::Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // What the server says is to be seen, not tried again.
    config.default_retry = false;
    config
}

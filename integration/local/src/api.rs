//! The API as a patient user sees it: a server that is away for a moment is asked again.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Method, Request, StatusCode};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use stowage_model::Kind;
use stowage_model::object::kinds;
use tokio::time::{Instant, sleep, timeout};

/// Generous: the machine may be busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The test is another process than the services, and a user would look about as often.
const LOOK: Duration = Duration::from_millis(50);
/// A request whose answer is lost with its server.
const REQUEST: Duration = Duration::from_secs(10);

/// Everything lives in this namespace.
const NAMESPACE: &str = "default";

/// An administrator's client.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
}

/// One answer: the object, or the status that refuses it.
enum Answer {
    Done(Value),
    Refused(StatusCode, String),
    /// Nobody answered, or nobody who could.
    Away(String),
}

impl Api {
    /// A client for a server that has written its kubeconfig.
    pub async fn connect(kubeconfig: &Path) -> anyhow::Result<Self> {
        let file = Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Self { client: kube::Client::try_from(config)? })
    }

    /// Creates an object; one that is there already, perhaps by our own lost request, is fine.
    pub async fn create(&self, kind: Kind, mut body: Value) -> anyhow::Result<()> {
        body["apiVersion"] = kind.api_version().into();
        body["kind"] = kind.kind.into();
        let path = kind.collection_path(NAMESPACE);
        match self.insist(Method::POST, &path, &body).await? {
            Ok(_) | Err((StatusCode::CONFLICT, _)) => Ok(()),
            Err((code, message)) => bail!("create {}: {code}: {message}", kind.kind),
        }
    }

    /// The message with which the server refuses an object.
    pub async fn refusal(&self, kind: Kind, mut body: Value) -> anyhow::Result<String> {
        body["apiVersion"] = kind.api_version().into();
        body["kind"] = kind.kind.into();
        match self.insist(Method::POST, &kind.collection_path(NAMESPACE), &body).await? {
            Ok(_) => bail!("{} was taken: {body}", kind.kind),
            Err((_, message)) => Ok(message),
        }
    }

    /// Merges a change into an object, or says with which code and message the server refuses it.
    pub async fn change(
        &self,
        kind: Kind,
        name: &str,
        change: &Value,
    ) -> anyhow::Result<Result<Value, (StatusCode, String)>> {
        self.insist(Method::PATCH, &format!("{}/{name}", kind.collection_path(NAMESPACE)), change).await
    }

    /// Asks for an object's deletion.
    pub async fn delete(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        let path = format!("{}/{name}", kind.collection_path(NAMESPACE));
        match self.insist(Method::DELETE, &path, &Value::Null).await? {
            Ok(_) | Err((StatusCode::NOT_FOUND, _)) => Ok(()),
            Err((code, message)) => bail!("delete {} {name}: {code}: {message}", kind.kind),
        }
    }

    /// Changes an object by a merge patch.
    pub async fn patch(&self, kind: Kind, name: &str, body: Value) -> anyhow::Result<()> {
        let path = format!("{}/{name}", kind.collection_path(NAMESPACE));
        match self.insist(Method::PATCH, &path, &body).await? {
            Ok(_) => Ok(()),
            Err((code, message)) => bail!("patch {} {name}: {code}: {message}", kind.kind),
        }
    }

    /// One object, if it exists.
    pub async fn get(&self, kind: Kind, name: &str) -> anyhow::Result<Option<Value>> {
        let path = format!("{}/{name}", kind.collection_path(NAMESPACE));
        match self.insist(Method::GET, &path, &Value::Null).await? {
            Ok(object) => Ok(Some(object)),
            Err((StatusCode::NOT_FOUND, _)) => Ok(None),
            Err((code, message)) => bail!("get {} {name}: {code}: {message}", kind.kind),
        }
    }

    /// All objects of a kind.
    pub async fn list(&self, kind: Kind) -> anyhow::Result<Vec<Value>> {
        match self.insist(Method::GET, &kind.collection_path(NAMESPACE), &Value::Null).await? {
            Ok(mut list) => match list["items"].take() {
                Value::Array(items) => Ok(items),
                other => bail!("list of {}: items is {other}", kind.plural),
            },
            Err((code, message)) => bail!("list {}: {code}: {message}", kind.plural),
        }
    }

    /// Looks at an object until it is as wanted; `None` means that it does not exist.
    pub async fn until<T>(
        &self,
        kind: Kind,
        name: &str,
        wanted: impl Fn(Option<&Value>) -> Option<T>,
        what: impl fmt::Display,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let object = self.get(kind, name).await?;
            if let Some(found) = wanted(object.as_ref()) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let now = object.map_or_else(|| "it does not exist".to_owned(), |object| format!("{object:#}"));
                bail!("{} {name}: {what}: not after {} s; {now}", kind.kind, PATIENCE.as_secs());
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until an object is gone.
    pub async fn gone(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        self.until(kind, name, |object| object.is_none().then_some(()), "to be gone").await
    }

    /// Waits until no object of a kind is left.
    pub async fn none_left(&self, kind: Kind) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.list(kind).await?;
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{} left after {} s: {:#}", kind.plural, PATIENCE.as_secs(), Value::from(left));
            }
            sleep(LOOK).await;
        }
    }

    /// Waits for an event about an object and returns its message.
    pub async fn event(&self, object: &str, reason: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let events = self.list(kinds::EVENT).await?;
            let about = |event: &&Value| event["involvedObject"]["name"] == object && event["reason"] == reason;
            if let Some(event) = events.iter().find(about) {
                return Ok(event["message"].as_str().unwrap_or_default().to_owned());
            }
            if Instant::now() > deadline {
                bail!("no event {reason} about {object} after {} s, only {events:#?}", PATIENCE.as_secs());
            }
            sleep(LOOK).await;
        }
    }

    /// Repeats a request until somebody decides on it.
    async fn insist(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Result<Value, (StatusCode, String)>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ask(method.clone(), path, body).await? {
                Answer::Done(object) => return Ok(Ok(object)),
                Answer::Refused(code, message) => return Ok(Err((code, message))),
                Answer::Away(reason) if Instant::now() > deadline => {
                    bail!("{method} {path}: no answer for {} s: {reason}", PATIENCE.as_secs())
                }
                Answer::Away(_) => sleep(LOOK).await,
            }
        }
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Answer> {
        let content = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        let form = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", form);
        let request = request.body(content).context("cannot make a request")?;
        Ok(match timeout(REQUEST, self.client.request::<Value>(request)).await {
            Ok(Ok(object)) => Answer::Done(object),
            Ok(Err(kube::Error::Api(status))) => match StatusCode::from_u16(status.code) {
                Ok(code) if code.is_client_error() && code != StatusCode::TOO_MANY_REQUESTS => {
                    Answer::Refused(code, status.message)
                }
                _ => Answer::Away(status.message),
            },
            Ok(Err(error)) => Answer::Away(error.to_string()),
            Err(_) => Answer::Away("no answer in time".to_owned()),
        })
    }
}

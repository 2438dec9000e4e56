//! Reads and writes of the Kubernetes API: raw JSON out, trimmed projections in.
//!
//! Rule 1 of the design lives here. Writes are patches of the fields we own, guarded by uid and revision, and their
//! answers go straight into the cache. A write without an answer is followed by one fresh read, so the caller always
//! decides again on a view that is true.

mod answer;
mod error;
mod pages;
mod patch;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use stowage_model::object::{Key, Kind, Meta, ObjectId, Projection, kinds};

use crate::cache::Cache;

pub(crate) use answer::{accepted, read};
pub use error::Error;
pub use pages::Selected;
pub use patch::{Patch, Target};
pub use traffic::Traffic;

/// A request that is not answered by then never will be: the connection is dead.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// How often a throttled request is sent again before the caller is told.
const THROTTLED_TRIES: u32 = 10;

/// A server that asks for more is asked again sooner: it may be back long before, and what waits holds others up.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How often an object whose write got no answer is read before the caller is told.
const FRESH_READ_TRIES: u32 = 6;

/// A part of an object that is written apart from the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The object itself.
    Main,
    /// Its status subresource.
    Status,
}

/// How an object is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Seconds until a pod is killed; `None` takes the object's own.
    pub grace_period_seconds: Option<u32>,
}

/// A clonable connection to the Kubernetes API.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    traffic: Arc<Traffic>,
}

impl Api {
    /// Wraps a client, real or in-memory.
    pub fn new(client: kube::Client) -> Self {
        Self { client, traffic: Arc::default() }
    }

    /// The writes under way, events apart.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The client underneath.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Reads one object live; `None` when there is none.
    pub async fn get<T: Projection>(&self, key: &Key) -> Result<Option<T>, Error> {
        let id = id::<T>(key);
        match self.send(Method::GET, &id, "", None, "").await.and_then(|answer| decode::<T>("get", &id, &answer)) {
            Ok(object) if object.key() == *key => Ok(Some(object)),
            Ok(object) => Err(Error::other_object("get", &id, &object.key())),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads one object live and whole; `None` when there is none.
    pub async fn get_raw(&self, id: &ObjectId) -> Result<Option<Value>, Error> {
        match self.send(Method::GET, id, "", None, "").await.and_then(|answer| parse::<Value>("get", id, &answer)) {
            Ok(object) if key_of(&object) == id.key => Ok(Some(object)),
            Ok(object) => Err(Error::other_object("get", id, &key_of(&object))),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the server serves the kind, by its own word: that there is nothing at a path may be a gateway's.
    pub async fn serves(&self, kind: Kind) -> Result<bool, Error> {
        #[derive(serde::Deserialize)]
        struct Served {
            resources: Vec<Resource>,
        }
        #[derive(serde::Deserialize)]
        struct Resource {
            name: String,
        }
        let id = ObjectId { kind, key: Key::cluster("") };
        let path = kind.collection_path("");
        let path = path.strip_suffix(kind.plural).unwrap_or(&path).trim_end_matches('/');
        let served: Served = parse("get", &id, &self.exchange(Method::GET, path, &id, None, "").await?)?;
        Ok(served.resources.iter().any(|resource| resource.name == kind.plural))
    }

    /// Lists objects live, in one namespace or all: the read that precedes an irreversible act on what they use.
    pub async fn list<T: Projection>(&self, namespace: &str, query: &str) -> Result<Vec<T>, Error> {
        #[derive(serde::Deserialize)]
        struct List {
            items: Vec<Box<RawValue>>,
        }
        let id = id::<T>(&Key::namespaced(namespace, ""));
        let separator = if query.is_empty() { "" } else { "?" };
        let path = format!("{}{separator}{query}", T::KIND.collection_path(namespace));
        let list: List = parse("get", &id, &self.exchange(Method::GET, &path, &id, None, "").await?)?;
        list.items.iter().map(|item| decode("get", &id, item.get().as_bytes())).collect()
    }

    /// Reads one object live and puts what was found into the cache: the read that precedes an irreversible act.
    pub async fn refresh<T: Projection>(&self, cache: &Cache<T>, key: &Key) -> Result<Option<Arc<T>>, Error> {
        // Another of the name may come to be known while the answer is on its way: nothing is said of that one.
        let known = cache.get(key).map(|object| object.meta().uid.clone());
        match self.get::<T>(key).await? {
            Some(object) => {
                let fresh = cache.kept(object);
                cache.observe_shared(Arc::clone(&fresh));
                Ok(Some(fresh))
            }
            None => {
                cache.observe_absent(key, known.as_deref());
                Ok(None)
            }
        }
    }

    /// Creates an object; `body` needs metadata and the kind's own fields, kind and apiVersion are filled in.
    pub async fn create<T: Projection>(&self, cache: &Cache<T>, body: Value) -> Result<Arc<T>, Error> {
        let key = key_of(&body);
        let answer = self.post_new(&id::<T>(&key), body).await;
        match answer.and_then(|answer| decode::<T>("create", &id::<T>(&key), &answer)) {
            Ok(object) => {
                let fresh = cache.kept(object);
                cache.observe_shared(Arc::clone(&fresh));
                Ok(fresh)
            }
            Err(error) => self.after_failed_write(cache, &key, error).await,
        }
    }

    /// Creates an object of a kind no cache holds, such as an event.
    pub async fn create_raw(&self, kind: Kind, body: Value) -> Result<Value, Error> {
        let id = ObjectId { kind, key: key_of(&body) };
        parse("create", &id, &self.post_new(&id, body).await?)
    }

    async fn post_new(&self, id: &ObjectId, mut body: Value) -> Result<Bytes, Error> {
        body["apiVersion"] = id.kind.api_version().into();
        body["kind"] = id.kind.kind.into();
        self.exchange(Method::POST, &id.kind.collection_path(&id.key.namespace), id, Some(&body), JSON).await
    }

    /// Patches the fields we own.
    pub async fn patch<T: Projection>(
        &self,
        cache: &Cache<T>,
        target: &Target,
        part: Part,
        patch: Patch,
    ) -> Result<Arc<T>, Error> {
        let id = id::<T>(&target.key);
        let suffix = part.suffix();
        let result = match patch {
            Patch::Merge(body) => self.send(Method::PATCH, &id, suffix, Some(&target.guard(body)), MERGE).await,
            Patch::Json(operations) => {
                let body = target.guard_operations(operations);
                let answer = self.send(Method::PATCH, &id, suffix, Some(&body), JSON_PATCH).await;
                // A failed `test` is how a guarded JSON Patch says that somebody else was faster.
                answer.map_err(Error::failed_test_is_conflict)
            }
        };
        match result.and_then(|answer| decode::<T>("patch", &id, &answer)) {
            Ok(object) => {
                let fresh = cache.kept(object);
                cache.observe_shared(Arc::clone(&fresh));
                Ok(fresh)
            }
            Err(error) => self.after_failed_write(cache, &target.key, error).await,
        }
    }

    /// Merge-patches an object of a kind no cache holds, such as an event.
    pub async fn patch_raw(&self, id: &ObjectId, body: Value) -> Result<Value, Error> {
        parse("patch", id, &self.send(Method::PATCH, id, "", Some(&body), MERGE).await?)
    }

    /// Reads the object live and whole, edits it and puts it back: for kinds the originals' roles only let us update.
    pub async fn replace<T: Projection>(
        &self,
        cache: &Cache<T>,
        target: &Target,
        part: Part,
        edit: impl FnOnce(&mut Value) + Send,
    ) -> Result<Arc<T>, Error> {
        let id = id::<T>(&target.key);
        let Some(mut object) = self.get_raw(&id).await? else {
            cache.observe_absent(&target.key, Some(&target.uid));
            return Err(Error::conflict("update", &id, "the object is gone"));
        };
        if object["metadata"]["uid"].as_str() != Some(&target.uid) {
            self.refresh(cache, &target.key).await?;
            return Err(Error::conflict("update", &id, "another object has the name now"));
        }
        // What was read is newer than what was decided on: the put alone would write over it under its own version.
        if target.revision.is_some_and(|decided| revision_of(&object) != Some(decided)) {
            cache.observe(decode::<T>("update", &id, object.to_string().as_bytes())?);
            return Err(Error::conflict("update", &id, "the object has changed since it was decided on"));
        }
        edit(&mut object);
        let answer = self.send(Method::PUT, &id, part.suffix(), Some(&object), JSON).await;
        match answer.and_then(|answer| decode::<T>("update", &id, &answer)) {
            Ok(object) => {
                let fresh = cache.kept(object);
                cache.observe_shared(Arc::clone(&fresh));
                Ok(fresh)
            }
            Err(error) => self.after_failed_write(cache, &target.key, error).await,
        }
    }

    /// Puts an object back, whole and edited, that an answer gave before: its own version guards the write. Gives the version
    /// it has now, so that who alone writes an object need not read it between writes.
    pub async fn put_back(&self, id: &ObjectId, object: &Value) -> Result<String, Error> {
        #[derive(serde::Deserialize)]
        struct Answer {
            metadata: Versioned,
        }
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Versioned {
            resource_version: String,
        }
        let answer = self.send(Method::PUT, id, "", Some(object), JSON).await?;
        parse::<Answer>("update", id, &answer).map(|answer| answer.metadata.resource_version)
    }

    /// Deletes the object with this uid; an object that is gone already is success.
    pub async fn delete<T: Projection>(&self, cache: &Cache<T>, target: &Target, how: Deletion) -> Result<(), Error> {
        let id = id::<T>(&target.key);
        let mut options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "uid": target.uid },
        });
        if let Some(revision) = target.revision {
            options["preconditions"]["resourceVersion"] = revision.to_string().into();
        }
        if let Some(seconds) = how.grace_period_seconds {
            options["gracePeriodSeconds"] = seconds.into();
        }
        let answer = self.send(Method::DELETE, &id, "", Some(&options), JSON).await;
        match answer.and_then(|answer| Ok((parse::<Value>("delete", &id, &answer)?, answer))) {
            Ok((said, answer)) => {
                // The answer is a Status or the last version when the object is gone, the object itself while
                // finalizers or a grace period hold it; only a read tells these apart for every server.
                let metadata = &said["metadata"];
                let finalizers = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
                // The last version of a pod deleted without grace still tells the grace it once had.
                let graceful = how.grace_period_seconds != Some(0)
                    && metadata["deletionGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds > 0);
                let held = metadata["deletionTimestamp"].is_string() && (finalizers || graceful);
                if held {
                    cache.observe(decode::<T>("delete", &id, &answer)?);
                } else {
                    cache.observe_gone(&target.key, &target.uid);
                }
                Ok(())
            }
            Err(error) if error.is_absent() => {
                cache.observe_gone(&target.key, &target.uid);
                Ok(())
            }
            Err(error) => self.after_failed_write(cache, &target.key, error).await,
        }
    }

    /// Posts to a subresource such as `binding`; nothing is cached.
    pub async fn post(&self, id: &ObjectId, subresource: &str, body: &Value) -> Result<Value, Error> {
        parse("create", id, &self.send(Method::POST, id, &format!("/{subresource}"), Some(body), JSON).await?)
    }

    /// After a conflict or silence the cached view is not the truth any more: read it once, then report the error.
    async fn after_failed_write<T: Projection, R>(
        &self,
        cache: &Cache<T>,
        key: &Key,
        error: Error,
    ) -> Result<R, Error> {
        if !error.is_stale() || key.name.is_empty() {
            return Err(error);
        }
        if error.is_unanswered() {
            cache.mark_unknown(key);
        }
        let mut tries = 0;
        while let Err(silence) = self.refresh(cache, key).await {
            tries += 1;
            if tries >= FRESH_READ_TRIES {
                // The watch goes on reading; whoever waits for this object is woken by the answer.
                cache.leave_unread(key);
                return Err(silence);
            }
            tokio::time::sleep(Duration::from_millis(100) * 2_u32.pow(tries)).await;
        }
        Err(error)
    }

    async fn send(
        &self,
        method: Method,
        id: &ObjectId,
        suffix: &str,
        body: Option<&Value>,
        content_type: &'static str,
    ) -> Result<Bytes, Error> {
        // Without a name the path is that of the collection: a get would list it and a delete would empty it.
        if id.key.name.is_empty() {
            return Err(Error::Unnamed { verb: verb(&method), kind: id.kind });
        }
        let path = format!("{}{suffix}", id.kind.object_path(&id.key));
        self.exchange(method, &path, id, body, content_type).await
    }

    /// Knows no type, and is boxed: this is compiled once, not once for each kind and verb in each service.
    fn exchange<'a>(
        &'a self,
        method: Method,
        path: &'a str,
        id: &'a ObjectId,
        body: Option<&Value>,
        content_type: &'static str,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        let body = Bytes::from(body.map(Value::to_string).unwrap_or_default());
        Box::pin(async move {
            let verb = verb(&method);
            let is_work = method != Method::GET && id.kind != kinds::EVENT;
            let _under_way = is_work.then(|| self.traffic.enter());
            let mut tries = 0;
            loop {
                let mut request = Request::builder().method(method.clone()).uri(path);
                if !body.is_empty() {
                    request = request.header(http::header::CONTENT_TYPE, content_type);
                }
                let request = request.body(body.clone().into()).map_err(|source| Error::build(verb, id, source))?;
                let exchange = async { answer::whole(self.client.send(request).await?).await };
                let answer = tokio::time::timeout(REQUEST_LIMIT, exchange).await;
                match answer.unwrap_or_else(|_| Err(silence())) {
                    Ok(answer) => return Ok(answer),
                    Err(source) => {
                        let error = Error::from_client(verb, id, source);
                        match error.retry_after() {
                            Some(delay) if tries < THROTTLED_TRIES => {
                                tries += 1;
                                tokio::time::sleep(delay.min(LONGEST_WAIT)).await;
                            }
                            _ => return Err(error),
                        }
                    }
                }
            }
        })
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

impl Part {
    fn suffix(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "/status",
        }
    }
}

impl Target {
    /// The object with exactly this version.
    pub fn exact(meta: &Meta) -> Self {
        Self { key: meta.key(), uid: meta.uid.clone(), revision: Some(meta.revision) }
    }

    /// The object with this uid, whatever its version: for lists with one writer.
    pub fn any_version(meta: &Meta) -> Self {
        Self { key: meta.key(), uid: meta.uid.clone(), revision: None }
    }
}

fn id<T: Projection>(key: &Key) -> ObjectId {
    ObjectId { kind: T::KIND, key: key.clone() }
}

fn key_of(body: &Value) -> Key {
    let text = |field: &str| body["metadata"][field].as_str().unwrap_or_default().to_owned();
    Key::namespaced(text("namespace"), text("name"))
}

fn revision_of(body: &Value) -> Option<u64> {
    body["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "get",
        "POST" => "create",
        "PATCH" => "patch",
        "PUT" => "update",
        "DELETE" => "delete",
        _ => "call",
    }
}

fn silence() -> kube::Error {
    kube::Error::Service(format!("nothing heard for {} s", REQUEST_LIMIT.as_secs()).into())
}

fn decode<T: Projection>(verb: &'static str, id: &ObjectId, answer: &[u8]) -> Result<T, Error> {
    T::read(answer).map_err(|source| Error::decode(verb, id, source))
}

fn parse<T: DeserializeOwned>(verb: &'static str, id: &ObjectId, answer: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(answer).map_err(|source| Error::decode(verb, id, source))
}

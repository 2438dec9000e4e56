//! Keeps a cache true: list, then watch, resuming by revision and listing again only when the server forgot it.

use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use serde::Deserialize;
use serde_json::value::RawValue;

use stowage_model::object::Projection;

use crate::api::Api;
use crate::backoff::Backoff;
use crate::cache::Cache;
use crate::random::Random;

/// Objects per page of a list: large enough to be cheap, small enough to keep memory flat.
const PAGE: u32 = 500;

/// The server ends a watch after this many seconds; jittered so that a fleet does not reconnect in step.
const WATCH_SECONDS: f64 = 300.0;

const RECONNECT: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(30) };

/// Which objects of a kind are cached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Empty for all namespaces.
    pub namespace: String,
    /// For example `spec.nodeName=a`.
    pub field_selector: String,
    /// For example `app=db`.
    pub label_selector: String,
}

impl Scope {
    /// Everything of the kind.
    pub fn all() -> Self {
        Self::default()
    }

    /// Objects matching a field selector.
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: selector.into(), ..Self::default() }
    }

    /// Objects of one namespace.
    pub fn namespace(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), ..Self::default() }
    }
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: ListMeta,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("list: {0}")]
    List(Box<kube::Error>),
    #[error("watch: {0}")]
    Watch(Box<kube::Error>),
    #[error("read the watch stream: {0}")]
    Read(std::io::Error),
    #[error("the server no longer knows revision {0}")]
    Expired(u64),
    #[error("the server ended the watch without an event")]
    Silent,
    #[error("the server ended the watch: {message} ({code})")]
    Ended { code: u16, message: String },
    #[error("cannot read {what}: {source}")]
    Decode { what: &'static str, source: serde_json::Error },
}

/// Feeds the cache for ever. Failures are retried with backoff; one unreadable object is reported and skipped.
pub async fn feed<T: Projection>(api: Api, cache: Cache<T>, scope: Scope, random: Random) {
    let mut position = None;
    let mut failures = 0;
    loop {
        let result = match position {
            None => list(&api, &cache, &scope).await,
            Some(revision) => follow(&api, &cache, &scope, revision, &random, &mut failures).await,
        };
        match result {
            Ok(revision) => {
                position = Some(revision);
                failures = 0;
            }
            Err(Stopped { error, reached }) => {
                position = match error {
                    Error::Expired(_) => None,
                    _ => reached.or(position),
                };
                failures += 1;
                let delay = random.jitter(RECONNECT.delay(failures), 0.2);
                tracing::warn!(kind = T::KIND.kind, %error, ?delay, "watch interrupted, resuming");
                tokio::time::sleep(delay).await;
            }
        }
    }
}

struct Stopped {
    error: Error,
    /// How far the watch had come, to resume from there.
    reached: Option<u64>,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self { error, reached: None }
    }
}

async fn list<T: Projection>(api: &Api, cache: &Cache<T>, scope: &Scope) -> Result<u64, Stopped> {
    let mut objects = Vec::new();
    let mut next = String::new();
    loop {
        let mut query = vec![("limit", PAGE.to_string())];
        if !next.is_empty() {
            query.push(("continue", next.clone()));
        }
        let request = request::<T>(scope, query);
        let page: List = match api.client().request(request).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 410 => return Err(Error::Expired(0).into()),
            Err(error) => return Err(Error::List(Box::new(error)).into()),
        };
        objects.extend(page.items.unwrap_or_default().iter().filter_map(|raw| read::<T>(raw.get())));
        next = page.metadata.next;
        if next.is_empty() {
            let revision = page.metadata.resource_version.parse().unwrap_or(0);
            cache.relist(objects, revision);
            return Ok(revision);
        }
    }
}

async fn follow<T: Projection>(
    api: &Api,
    cache: &Cache<T>,
    scope: &Scope,
    from: u64,
    random: &Random,
    failures: &mut u32,
) -> Result<u64, Stopped> {
    let seconds = WATCH_SECONDS * (1.0 + random.fraction());
    let query = vec![
        ("watch", "true".to_owned()),
        ("allowWatchBookmarks", "true".to_owned()),
        ("resourceVersion", from.to_string()),
        ("timeoutSeconds", format!("{seconds:.0}")),
    ];
    let mut reached = from;
    let mut silent = true;
    let stream = match api.client().request_stream(request::<T>(scope, query)).await {
        Ok(stream) => stream,
        Err(kube::Error::Api(status)) if status.code == 410 => return Err(Error::Expired(from).into()),
        Err(error) => return Err(Error::Watch(Box::new(error)).into()),
    };
    let mut lines = Box::pin(stream.lines());
    loop {
        let line = match lines.try_next().await {
            Ok(Some(line)) => line,
            // A server that ends watches without a word is not asked again at full speed.
            Ok(None) if silent => return Err(Stopped { error: Error::Silent, reached: Some(reached) }),
            Ok(None) => return Ok(reached),
            Err(error) => return Err(Stopped { error: Error::Read(error), reached: Some(reached) }),
        };
        *failures = 0;
        silent = false;
        match take_line(cache, &line, from) {
            Ok(revision) => reached = reached.max(revision),
            Err(error) => return Err(Stopped { error, reached: Some(reached) }),
        }
    }
}

/// Applies one line of the stream and says which revision it carried; 0 for an object that could not be read.
fn take_line<T: Projection>(cache: &Cache<T>, line: &str, from: u64) -> Result<u64, Error> {
    let decode = |what| move |source| Error::Decode { what, source };
    let line: Line<'_> = serde_json::from_str(line).map_err(decode("a watch event"))?;
    let raw = line.object.get();
    match line.kind {
        "ADDED" | "MODIFIED" => Ok(read::<T>(raw).map_or(0, |object| {
            let revision = object.meta().revision;
            cache.watched(object);
            revision
        })),
        "DELETED" => Ok(read::<T>(raw).map_or(0, |object| {
            cache.watched_deletion(&object);
            object.meta().revision
        })),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(raw).map_err(decode("a bookmark"))?;
            let revision = bookmark.metadata.resource_version.parse().unwrap_or(0);
            cache.advance(revision);
            Ok(revision)
        }
        _ => {
            let status: Status = serde_json::from_str(raw).unwrap_or_default();
            if status.code == 410 {
                return Err(Error::Expired(from));
            }
            Err(Error::Ended { code: status.code, message: status.message })
        }
    }
}

fn read<T: Projection>(raw: &str) -> Option<T> {
    match serde_json::from_str(raw) {
        Ok(object) => Some(object),
        Err(error) => {
            let name = serde_json::from_str::<serde_json::Value>(raw)
                .ok()
                .and_then(|object| object["metadata"]["name"].as_str().map(str::to_owned))
                .unwrap_or_default();
            tracing::error!(kind = T::KIND.kind, name, %error, "object cannot be read and is skipped");
            None
        }
    }
}

fn request<T: Projection>(scope: &Scope, mut query: Vec<(&'static str, String)>) -> Request<Vec<u8>> {
    if !scope.field_selector.is_empty() {
        query.push(("fieldSelector", scope.field_selector.clone()));
    }
    if !scope.label_selector.is_empty() {
        query.push(("labelSelector", scope.label_selector.clone()));
    }
    let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    let uri = format!("{}?{}", T::KIND.collection_path(&scope.namespace), query.join("&"));
    Request::get(uri).body(Vec::new()).expect("every reserved character of the query is escaped")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests;

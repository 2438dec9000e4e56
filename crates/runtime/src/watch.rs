//! Keeps a cache true: list, then watch, resuming by revision and listing again only when the server forgot it.

mod fill;

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use stowage_model::object::{Kind, Projection};

use crate::api::{self, Api, LONGEST_WAIT, accepted};
use crate::backoff::Backoff;
use crate::cache::Cache;
use crate::random::Random;

use fill::Fill;

/// The server ends a watch after this many seconds; jittered so that a fleet does not reconnect in step.
const WATCH_SECONDS: f64 = 300.0;

/// Servers send a bookmark every minute: a connection that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(150);

/// A watch that only brings errors, or that our role does not allow, is given up for a list after this many.
const FRUITLESS: u32 = 3;

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
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct BookmarkMeta {
    resource_version: String,
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
    List(api::Error),
    #[error("watch: {0}")]
    Watch(Box<kube::Error>),
    #[error("read the watch stream: {0}")]
    Read(std::io::Error),
    #[error("the list does not say at which revision it was made")]
    Unversioned,
    #[error("the server no longer knows revision {0}")]
    Expired(u64),
    #[error("nothing heard for {} s", SILENCE.as_secs())]
    Quiet,
    #[error("the server ended the watch without an event")]
    Silent,
    #[error("the server ended the watch: {message} ({code})")]
    Ended { code: u16, message: String },
    #[error("cannot read {what}: {source}")]
    Decode { what: &'static str, source: serde_json::Error },
}

/// Feeds the cache for ever. Failures are retried with backoff; one unreadable object is reported and left unknown.
pub fn feed<T: Projection>(api: Api, cache: Cache<T>, scope: Scope, random: Random) -> BoxFuture<'static, ()> {
    Box::pin(fill_for_ever(api, Box::new(cache), scope, random))
}

async fn fill_for_ever(api: Api, cache: Box<dyn Fill>, scope: Scope, random: Random) {
    tokio::join!(keep_true(&api, &*cache, &scope, &random), read_unknown(&api, &*cache, &random));
}

/// Reads objects whose write and first fresh read got no answer, until there is one.
async fn read_unknown(api: &Api, cache: &dyn Fill, random: &Random) {
    let mut last = None;
    let mut failures = 0;
    loop {
        let key = cache.next_unread(last.as_ref()).await;
        match cache.refresh(api, &key).await {
            Ok(()) => failures = 0,
            Err(error) => {
                // One that can never be read stops nobody.
                cache.read_later(&key);
                failures += 1;
                let delay = random.jitter(RECONNECT.delay(failures), 0.2);
                tracing::debug!(kind = cache.kind().kind, %key, %error, ?delay, "an unknown object cannot be read yet");
                tokio::time::sleep(delay).await;
            }
        }
        last = Some(key);
    }
}

async fn keep_true(api: &Api, cache: &dyn Fill, scope: &Scope, random: &Random) {
    let mut position = None;
    let mut trouble = Trouble::default();
    loop {
        let result = match position {
            None => list(api, cache, scope).await,
            Some(revision) => follow(api, cache, scope, revision, random, &mut trouble).await,
        };
        match result {
            Ok(revision) => {
                position = Some(revision);
                // A list that a useless watch was given up for proves nothing about the next one.
                if trouble.fruitless == 0 {
                    trouble.failures = 0;
                }
            }
            Err(Stopped { error, reached }) => {
                trouble.failures += 1;
                trouble.fruitless += u32::from(error.is_fruitless());
                if error.is_refused() {
                    cache.set_followed(false);
                }
                position = match error {
                    Error::Expired(_) => None,
                    _ if trouble.fruitless >= FRUITLESS => None,
                    _ => reached.or(position),
                };
                let delay = random.jitter(RECONNECT.delay(trouble.failures), 0.2).max(error.wait());
                match error {
                    // Definitions of resources come later or never; that needs no line at every attempt.
                    Error::List(error) if error.is_not_found() => match trouble.failures {
                        1 => tracing::info!(kind = cache.kind().kind, "not served, or not yet: asked for again"),
                        _ => tracing::debug!(kind = cache.kind().kind, ?delay, "still not served"),
                    },
                    // One line for a role without the right; what a list shows now and then is all there is to know.
                    error if error.is_refused() && !std::mem::replace(&mut trouble.is_refusal_told, true) => {
                        tracing::warn!(
                            kind = cache.kind().kind,
                            %error,
                            "the server refuses the watch, so this is listed again and again instead: allow the watch in our \
                             role, unless the kind is gone"
                        );
                    }
                    error if error.is_refused() => {
                        tracing::debug!(kind = cache.kind().kind, %error, ?delay, "still not to be watched");
                    }
                    error => tracing::warn!(kind = cache.kind().kind, %error, ?delay, "watch interrupted, resuming"),
                }
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// What went wrong since the last event.
#[derive(Default)]
struct Trouble {
    failures: u32,
    /// Failures of the watch that are the server's answer to the revision it was asked for.
    fruitless: u32,
    /// Whether people were told that the server does not let us watch.
    is_refusal_told: bool,
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

impl Error {
    /// Whether asking for the same revision again would not make it better.
    fn is_fruitless(&self) -> bool {
        matches!(self, Self::Expired(_) | Self::Ended { .. } | Self::Decode { .. }) || self.is_refused()
    }

    /// Whether the server does not let us watch the kind, or knows no watch of it: roles allow lists without watches.
    fn is_refused(&self) -> bool {
        let Self::Watch(error) = self else { return false };
        matches!(&**error, kube::Error::Api(status) if matches!(status.code, 403..=405))
    }

    /// How long the server asks us to wait.
    fn wait(&self) -> Duration {
        let seconds = match self {
            Self::Watch(error) => match &**error {
                kube::Error::Api(status) => status.details.as_ref().map_or(0, |details| details.retry_after_seconds),
                _ => 0,
            },
            _ => 0,
        };
        Duration::from_secs(u64::from(seconds)).min(LONGEST_WAIT)
    }
}

async fn list(api: &Api, cache: &dyn Fill, scope: &Scope) -> Result<u64, Stopped> {
    let mut listing = cache.list();
    let mut next: Option<String> = None;
    let query = query(scope, vec![]);
    loop {
        let page = match api.page(cache.kind(), &scope.namespace, &query, next.as_deref()).await {
            Ok(page) => page,
            Err(error) if error.is_expired() => return Err(Error::Expired(0).into()),
            Err(error) => return Err(Error::List(error).into()),
        };
        page.items().for_each(|raw| listing.add(raw));
        match page.next() {
            Some(following) => next = Some(following.to_owned()),
            None => {
                let revision = page.revision().ok_or(Error::Unversioned)?;
                listing.end(revision);
                return Ok(revision);
            }
        }
    }
}

async fn follow(
    api: &Api,
    cache: &dyn Fill,
    scope: &Scope,
    from: u64,
    random: &Random,
    trouble: &mut Trouble,
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
    let request = request(cache.kind(), scope, query);
    let opened = async { accepted(api.client().send(request).await?).await };
    let body = match timeout(SILENCE, opened).await {
        Ok(Ok(body)) => body,
        Ok(Err(kube::Error::Api(status))) if is_expired(&status) => return Err(Error::Expired(from).into()),
        Ok(Err(error)) => return Err(Error::Watch(Box::new(error)).into()),
        Err(_) => return Err(Error::Quiet.into()),
    };
    cache.set_followed(true);
    let mut lines = Box::pin(body.into_data_stream().map_err(std::io::Error::other).into_async_read().lines());
    loop {
        let Ok(line) = timeout(SILENCE, lines.try_next()).await else {
            return Err(Stopped { error: Error::Quiet, reached: Some(reached) });
        };
        let line = match line {
            Ok(Some(line)) => line,
            // A server that ends watches without a word is not asked again at full speed.
            Ok(None) if silent => return Err(Stopped { error: Error::Silent, reached: Some(reached) }),
            Ok(None) => return Ok(reached),
            Err(error) => return Err(Stopped { error: Error::Read(error), reached: Some(reached) }),
        };
        silent = false;
        match take_line(cache, &line, from) {
            Ok(revision) => {
                *trouble = Trouble::default();
                reached = reached.max(revision);
            }
            Err(error) => return Err(Stopped { error, reached: Some(reached) }),
        }
    }
}

/// Applies one line of the stream and says which revision it carried; 0 for an object that could not be read.
fn take_line(cache: &dyn Fill, line: &str, from: u64) -> Result<u64, Error> {
    // What cannot be read so may be a line that was cut off.
    if let Some(revision) = changed_object(line).map(|raw| cache.changed(raw)).filter(|revision| *revision > 0) {
        return Ok(revision);
    }
    let decode = |what| move |source| Error::Decode { what, source };
    let line: Line<'_> = serde_json::from_str(line).map_err(decode("a watch event"))?;
    let raw = line.object.get();
    match line.kind {
        "ADDED" | "MODIFIED" => Ok(cache.changed(raw)),
        "DELETED" => Ok(cache.deleted(raw)),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(raw).map_err(decode("a bookmark"))?;
            let revision = bookmark.metadata.resource_version.parse().unwrap_or(0);
            cache.advance(revision);
            Ok(revision)
        }
        _ => {
            let status: Status = serde_json::from_str(raw).unwrap_or_default();
            if status.code == 410 || is_too_large(&status.message) {
                return Err(Error::Expired(from));
            }
            Err(Error::Ended { code: status.code, message: status.message })
        }
    }
}

/// The object in a line about one that was added or changed, where it is written as servers do: most lines are such, and the
/// object is read but once. Whatever is around it in any other order is read the long way.
fn changed_object(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(r#"{"type":""#)?;
    let rest = rest.strip_prefix("MODIFIED").or_else(|| rest.strip_prefix("ADDED"))?;
    let object = rest.strip_prefix(r#"","object":"#)?.strip_suffix('}')?;
    object.starts_with('{').then_some(object)
}

/// Whether the server cannot go on from our revision: it forgot it, or was restored from before it.
fn is_expired(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 410
        || causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
        || is_too_large(&status.message)
}

fn is_too_large(message: &str) -> bool {
    message.to_ascii_lowercase().contains("too large resource version")
}

fn query(scope: &Scope, mut parts: Vec<(&'static str, String)>) -> String {
    if !scope.field_selector.is_empty() {
        parts.push(("fieldSelector", scope.field_selector.clone()));
    }
    if !scope.label_selector.is_empty() {
        parts.push(("labelSelector", scope.label_selector.clone()));
    }
    let parts: Vec<String> = parts.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    parts.join("&")
}

fn request(kind: Kind, scope: &Scope, parts: Vec<(&'static str, String)>) -> Request<Body> {
    let uri = format!("{}?{}", kind.collection_path(&scope.namespace), query(scope, parts));
    Request::get(uri).body(Body::empty()).expect("every reserved character of the query is escaped")
}

/// A text as a value in the query of an address.
pub fn escape(text: &str) -> String {
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

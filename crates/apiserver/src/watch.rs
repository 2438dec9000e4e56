//! Watches: the events of one kind as an endless body of JSON lines.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use http_body::Frame;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::changed;
use crate::kind::Kind;
use crate::object::Object;
use crate::selector::Selector;
use crate::server::Core;
use crate::status::Status;
use crate::store::{Event, EventType, Query};
use crate::table::{self, Form};

/// What a watch request asks for.
#[derive(Debug)]
pub(crate) struct Request {
    pub kind: &'static Kind,
    pub namespace: String,
    pub selector: Selector,
    pub start: Start,
    pub form: Form,
    pub bookmarks: bool,
    pub timeout: Option<Duration>,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// After this revision.
    After(u64),
    /// With everything there is, then go on; with the bookmark that says where the beginning ends, or without.
    Everything { marked: bool },
}

/// One running watch. It holds no events of its own: a slow reader falls behind the store's window and gets 410.
struct Watch {
    core: Arc<Core>,
    request: Request,
    cursor: u64,
    changes: changed::Receiver,
    closing: watch::Receiver<bool>,
    deadline: Option<Instant>,
    next_bookmark: Option<Instant>,
    out: Vec<u8>,
    ended: bool,
}

/// Why a waiting watch goes on.
enum Wake {
    Change,
    Bookmark,
    Deadline,
    End,
}

/// Begins a watch; a start that is no longer kept or not yet there is refused.
pub(crate) fn start(
    core: Arc<Core>,
    request: Request,
    closing: watch::Receiver<bool>,
) -> Result<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static, Status> {
    let changes = core.changes_of(request.kind).ok_or_else(|| Status::internal("this kind cannot be watched"))?;
    let now = Instant::now;
    let mut watch = Watch {
        cursor: 0,
        changes,
        closing,
        deadline: request.timeout.map(|timeout| now() + timeout),
        next_bookmark: request.bookmarks.then(|| now() + core.bookmark_interval),
        out: Vec::new(),
        ended: false,
        core,
        request,
    };
    watch.begin()?;
    Ok(stream::unfold(watch, |mut watch| async move {
        let chunk = watch.next().await?;
        Some((Ok(Frame::data(chunk)), watch))
    }))
}

impl Watch {
    fn begin(&mut self) -> Result<(), Status> {
        self.changes.mark_seen();
        let core = self.core.clone();
        match self.request.start {
            Start::After(revision) => core.read(|store| {
                if revision > store.published() {
                    let message = format!("Too large resource version: {revision}, current: {}", store.published());
                    let mut status = Status::new(504, "Timeout", message)
                        .because("ResourceVersionTooLarge", "Too large resource version");
                    status.details.retry_after_seconds = Some(1);
                    return Err(status);
                }
                self.cursor = revision;
                for event in store.events_after(self.request.kind, revision)? {
                    self.push_event(&event);
                }
                Ok(())
            }),
            Start::Everything { marked } => core.read(|store| {
                let query = Query {
                    namespace: self.request.namespace.clone(),
                    selector: self.request.selector.clone(),
                    ..Query::default()
                };
                let page = store.list(self.request.kind, &query)?;
                for object in page.items {
                    self.push_object("ADDED", &object);
                }
                self.cursor = page.revision;
                if marked {
                    self.push_bookmark(page.revision, true);
                }
                Ok(())
            }),
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.out.is_empty() {
                return Some(std::mem::take(&mut self.out).into());
            }
            if self.ended {
                return None;
            }
            let (deadline, bookmark) = (self.deadline, self.next_bookmark);
            let wake = tokio::select! {
                biased;
                _ = self.closing.wait_for(|closing| *closing) => Wake::End,
                () = self.changes.changed() => Wake::Change,
                () = until(deadline) => Wake::Deadline,
                () = until(bookmark) => Wake::Bookmark,
            };
            match wake {
                Wake::Change => self.catch_up(false),
                Wake::Bookmark => {
                    self.catch_up(true);
                    self.next_bookmark = Some(Instant::now() + self.core.bookmark_interval);
                }
                Wake::Deadline => {
                    self.catch_up(self.request.bookmarks);
                    self.ended = true;
                }
                Wake::End => self.ended = true,
            }
        }
    }

    /// Writes out what happened since the last time.
    fn catch_up(&mut self, bookmark: bool) {
        self.changes.mark_seen();
        let core = self.core.clone();
        core.read(|store| match store.events_after(self.request.kind, self.cursor) {
            Ok(events) => {
                for event in events {
                    self.push_event(&event);
                }
                if bookmark {
                    self.cursor = store.published();
                    self.push_bookmark(store.published(), false);
                }
            }
            Err(status) => {
                self.push("ERROR", &status.to_json());
                self.ended = true;
            }
        });
    }

    fn push_event(&mut self, event: &Event) {
        self.cursor = event.revision;
        let namespace = &self.request.namespace;
        if !namespace.is_empty() && *event.key.namespace != **namespace {
            return;
        }
        let selected = |object: &Object| self.request.selector.matches(&event.key, object);
        let is = event.event_type != EventType::Deleted && selected(&event.object);
        let was = event.previous.as_deref().is_some_and(selected);
        match (was, is) {
            (false, true) => self.push_object("ADDED", &event.object),
            (true, true) => self.push_object("MODIFIED", &event.object),
            (true, false) if event.event_type == EventType::Deleted => self.push_object("DELETED", &event.object),
            // It left the selection: its last selected state, at the revision it left.
            (true, false) => {
                let last = event.previous.as_ref().map(|p| Object::encode(p.tree(), event.revision));
                if let Some(last) = last {
                    self.push_object("DELETED", &last);
                }
            }
            (false, false) => {}
        }
    }

    fn push_bookmark(&mut self, revision: u64, initial_events_end: bool) {
        let kind = self.request.kind;
        let annotations =
            if initial_events_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let object = format!(
            r#"{{"kind":"{}","apiVersion":"{}","metadata":{{"resourceVersion":"{revision}","creationTimestamp":null{annotations}}}}}"#,
            kind.kind,
            kind.api_version()
        );
        self.push("BOOKMARK", object.as_bytes());
    }

    fn push_object(&mut self, event_type: &str, object: &Object) {
        match self.request.form {
            Form::Objects => self.push(event_type, &object.json),
            Form::Table => {
                let metadata = json!({"resourceVersion": object.revision.to_string()});
                let table = table::table(self.request.kind, [object], metadata, self.core.now());
                self.push(event_type, &table);
            }
        }
    }

    fn push(&mut self, event_type: &str, object: &[u8]) {
        self.out.extend_from_slice(br#"{"type":""#);
        self.out.extend_from_slice(event_type.as_bytes());
        self.out.extend_from_slice(br#"","object":"#);
        self.out.extend_from_slice(object);
        self.out.extend_from_slice(b"}\n");
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

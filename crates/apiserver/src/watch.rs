//! Watches: the events of one kind as an endless body of JSON lines.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use http_body::Frame;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::changed;
use crate::http::{Hold, Meter};
use crate::kind::Kind;
use crate::object::Object;
use crate::selector::Selector;
use crate::server::Core;
use crate::status::Status;
use crate::store::{Event, EventType, Query, Store};
use crate::view::{Form, View};

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

/// Events are written out in pieces of about this size: what a slow reader has not taken stays in the store, unwritten.
const CHUNK: usize = 256 << 10;

/// One running watch. It holds no events of its own: a slow reader falls behind the store's window and gets 410.
struct Watch {
    core: Arc<Core>,
    request: Request,
    view: View,
    cursor: u64,
    /// What the watch begins with and has not yet written out.
    initial: VecDeque<Arc<Object>>,
    /// Counts it, until it is written out.
    held: Option<Hold>,
    /// Whether the end of the beginning is still to be told.
    mark_initial: bool,
    /// Whether the store has more events than were written out.
    behind: bool,
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

/// Begins a watch; a start that is not yet there is refused, one that is no longer kept ends the stream at once.
pub(crate) fn start(
    core: Arc<Core>,
    request: Request,
    closing: watch::Receiver<bool>,
    meter: &Meter,
) -> Result<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static, Status> {
    let changes = core.changes_of(request.kind);
    let now = Instant::now;
    let mut watch = Watch {
        cursor: 0,
        view: core.read(|store| View::new(store, request.kind, request.form)),
        initial: VecDeque::new(),
        held: None,
        mark_initial: false,
        behind: false,
        changes,
        closing,
        deadline: request.timeout.map(|timeout| now() + timeout),
        next_bookmark: request.bookmarks.then(|| now() + core.bookmark_interval),
        out: Vec::new(),
        ended: false,
        core,
        request,
    };
    match watch.begin() {
        // As upstream: the stream itself says that it cannot begin there.
        Err(status) if status.code == 410 => watch.fail(&status),
        begun => begun?,
    }
    if !watch.initial.is_empty() {
        watch.held = meter.hold(watch.initial.len() * size_of::<Arc<Object>>())?;
    }
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
                    return Err(Status::too_large_revision(revision, store.published()));
                }
                self.cursor = revision;
                // Whether the start is still kept is known at once.
                store.events_after(self.request.kind, revision)?;
                self.behind = true;
                Ok(())
            }),
            Start::Everything { marked } => {
                let query = Query {
                    namespace: self.request.namespace.clone(),
                    selector: self.request.selector.clone(),
                    ..Query::default()
                };
                let page = core.read(|store| store.candidates(self.request.kind, &query))?.page(&query);
                self.initial = page.items.into();
                self.cursor = page.revision;
                self.mark_initial = marked;
                self.behind = true;
                Ok(())
            }
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
            if self.behind {
                self.catch_up(false);
                continue;
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
                    // What did not fit in this piece is left to the next watch.
                    self.behind = false;
                    self.ended = true;
                }
                Wake::End => self.ended = true,
            }
        }
    }

    /// Writes out what happened since the last time, as much of it as fits in one piece.
    fn catch_up(&mut self, bookmark: bool) {
        self.behind = false;
        if !self.push_initial() {
            self.behind = true;
            return;
        }
        self.changes.mark_seen();
        let kind = self.request.kind;
        let look = |store: &Store| (store.events_after(kind, self.cursor), store.published(), is_served(store, kind));
        let (events, published, served) = self.core.read(look);
        // Selecting and writing out takes long, and the store is not needed for it.
        match events {
            Ok(events) => {
                for event in events {
                    if self.out.len() >= CHUNK {
                        self.behind = true;
                        return;
                    }
                    self.push_event(&event);
                }
                if bookmark {
                    self.cursor = published;
                    self.push_bookmark(published, false);
                }
                // A kind that has gone has no more events.
                self.ended |= !served;
            }
            Err(status) => self.fail(&status),
        }
    }

    /// Says why the watch ends.
    fn fail(&mut self, status: &Status) {
        self.push("ERROR", &status.to_json());
        self.ended = true;
    }

    /// Writes out the beginning; false if there is more than fits in one piece.
    fn push_initial(&mut self) -> bool {
        while let Some(object) = self.initial.pop_front() {
            self.push_object("ADDED", &object);
            if self.out.len() >= CHUNK {
                if let Some(held) = &mut self.held {
                    held.renew();
                }
                return false;
            }
        }
        self.held = None;
        if std::mem::take(&mut self.mark_initial) {
            self.push_bookmark(self.cursor, true);
        }
        true
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
        let object = self.view.bookmark(revision, initial_events_end).to_string();
        self.push("BOOKMARK", object.as_bytes());
    }

    fn push_object(&mut self, event_type: &str, object: &Object) {
        let shown = self.view.object(object, self.core.now());
        self.push(event_type, &shown);
    }

    fn push(&mut self, event_type: &str, object: &[u8]) {
        self.out.extend_from_slice(br#"{"type":""#);
        self.out.extend_from_slice(event_type.as_bytes());
        self.out.extend_from_slice(br#"","object":"#);
        self.out.extend_from_slice(object);
        self.out.extend_from_slice(b"}\n");
    }
}

fn is_served(store: &Store, kind: &Kind) -> bool {
    !kind.custom || store.kinds().iter().any(|k| *k == *kind)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

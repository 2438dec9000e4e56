//! Events people read in `kubectl describe`: written beside the work, repeated ones counted instead of repeated.

pub(crate) mod body;
mod limit;
mod writer;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use stowage_model::object::ObjectRef;

use crate::api::Api;
use crate::clock::Clock;
use crate::random::Random;
use crate::tasks::Spawner;

use limit::Limit;
use writer::Writer;

/// Events waiting to be written; more are refused, because events are a courtesy and the work is not. Enough for
/// something to tell about each object of a large cluster at once.
const WAITING: usize = 1 << 16;

/// Normal or Warning, as Kubernetes has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// Somebody may have to look.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What is told about an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Note {
    /// Normal or Warning.
    pub severity: Severity,
    /// Machine-readable, CamelCase.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Note {
    /// Something went as it should.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Normal, reason, message: message.into() }
    }

    /// Something needs attention.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, reason, message: message.into() }
    }
}

/// Writes events for one component.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Entry>,
    clock: Arc<dyn Clock>,
    /// None for components whose originals have none.
    limit: Option<Limit>,
}

/// What is told, about what, and when it was so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    about: ObjectRef,
    note: Note,
    at: Timestamp,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Recorder {
    /// Starts the writer under the given owner.
    pub fn start(
        api: Api,
        clock: Arc<dyn Clock>,
        random: Random,
        component: impl Into<String>,
        host: impl Into<String>,
        spawner: &Spawner,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let source = json!({ "component": component.into(), "host": host.into() });
        spawner.spawn(Writer::new(api, random, source).run(receiver));
        Self { sender, clock, limit: Some(Limit::default()) }
    }

    /// The same writer, however much is told about one object.
    pub fn without_limit(self) -> Self {
        Self { limit: None, ..self }
    }

    /// Tells something about an object; never waits. Says whether it will be written: not while too many wait, nor when
    /// much was told about the object of late.
    pub fn record(&self, about: &ObjectRef, mut note: Note) -> bool {
        tracing::debug!(object = %about.key, reason = note.reason, message = note.message, "event");
        let now = self.clock.now();
        // Thousands may wait while there is work.
        note.message.shrink_to_fit();
        let taken = self.limit.as_ref().is_none_or(|limit| limit.admits(about, now))
            && self.sender.try_send(Entry { about: about.clone(), note, at: now }).is_ok();
        if !taken {
            tracing::debug!(object = %about.key, "too many events, one was dropped");
        }
        taken
    }
}

/// Kubernetes timestamps carry whole seconds.
pub fn seconds(at: Timestamp) -> String {
    at.round(jiff::Unit::Second).unwrap_or(at).to_string()
}

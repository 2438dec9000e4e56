//! What people are told of an election: events of the Lease, in the words of client-go, which tools look for.
//!
//! A courtesy: nobody waits for them who leads, and a role that allows none (the attacher's original has no such rule)
//! costs one refused request each.

use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use stowage_model::object::{Key, ObjectRef, kinds};
use tokio::time::{sleep, timeout};

use super::record::Record;
use super::{Error, Options, Shared, chain};
use crate::events::Note;
use crate::events::body::{body, event_name, number};

const REASON: &str = "LeaderElection";

/// How long a leader goes on trying to tell that it is one.
const BEGINNING: Duration = Duration::from_secs(60);

/// Who stops us does not wait for long.
const END: Duration = Duration::from_secs(1);

impl Shared {
    /// Tells that this candidate leads.
    pub(super) async fn tell_beginning(&self, lease: &Record) {
        self.tell(lease.uid(), "became leader", BEGINNING).await;
    }

    /// Tells that it does no more.
    pub(super) async fn tell_end(&self, uid: &str) {
        self.tell(uid, "stopped leading", END).await;
    }

    async fn tell(&self, uid: &str, what: &str, limit: Duration) {
        let event = self.event(uid, what);
        let told = match timeout(limit, self.send_event(&event)).await {
            Ok(told) => told,
            Err(_) => Err(self.unanswered(limit)),
        };
        if let Err(error) = told {
            tracing::debug!(lease = %self.options.name, what, error = %chain(&error), "nobody is told");
        }
    }

    fn event(&self, uid: &str, what: &str) -> Value {
        let Options { namespace, name, identity, .. } = &self.options;
        let lease =
            ObjectRef { kind: kinds::LEASE, key: Key::namespaced(namespace.as_str(), name.as_str()), uid: uid.into() };
        let note = Note::normal(REASON, format!("{identity} {what}"));
        let source = json!({ "component": format!("{name}/{identity}") });
        let now = self.clock.now();
        body(&lease, &note, &source, &event_name(name, number(now, 0)), (now, now), 1)
    }

    /// Sends it once; a server that only has no time now is asked again.
    async fn send_event(&self, event: &Value) -> Result<(), Error> {
        let path = kinds::EVENT.collection_path(&self.options.namespace);
        loop {
            let body = event.to_string().into_bytes();
            let request = Request::post(&path).header("content-type", "application/json").body(body);
            let Err(error) = self.ask(request).await? else { return Ok(()) };
            let error = self.failed("tell of", error);
            match error.retry_after() {
                Some(wait) => sleep(wait.min(self.options.timing.retry_period())).await,
                None => return Err(error),
            }
        }
    }
}

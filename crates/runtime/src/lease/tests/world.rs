//! One Lease behind a fake API server, with a network link per candidate that can be cut.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::clock::Clock;
use crate::lease::{Election, Options, Timing};
use crate::metrics::Metrics;
use crate::random::Random;

/// What happens to a candidate's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Link {
    #[default]
    Up,
    /// Requests go nowhere and nothing comes back.
    Cut,
    /// Requests arrive but their answers do not.
    Deaf,
    /// As deaf, but only to answers to writes.
    DeafToWrites,
    /// The role lacks `watch`.
    NoWatch,
    /// The role lacks events.
    NoEvents,
    /// The server has no time.
    Throttled,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Clone)]
pub struct World(Arc<Mutex<State>>, Instant);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    revision: u64,
    links: BTreeMap<String, Link>,
    watchers: Vec<mpsc::UnboundedSender<String>>,
    requests: Vec<String>,
    /// What was told.
    events: Vec<Value>,
    suspended: Duration,
}

impl World {
    pub fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A candidate with the sidecars' default durations.
    pub fn candidate(&self, identity: &str) -> Election {
        self.candidate_with(identity, false, Metrics::default())
    }

    pub fn candidate_with(&self, identity: &str, release_on_exit: bool, metrics: Metrics) -> Election {
        let seconds = Duration::from_secs;
        let options = Options {
            namespace: "ns".into(),
            name: "lock".into(),
            identity: identity.into(),
            timing: Timing::new(seconds(15), seconds(10), seconds(5)).unwrap(),
            labels: BTreeMap::from([("team".into(), "storage".into())]),
            release_on_exit,
        };
        Election::new(self.client(identity), Arc::new(self.clone()), Random::seeded(7), metrics, options)
    }

    pub fn link(&self, identity: &str, link: Link) {
        self.state().links.insert(identity.into(), link);
    }

    pub fn lease(&self) -> Option<Value> {
        self.state().lease.clone()
    }

    /// Somebody outside the election edits the Lease.
    pub fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut lease = self.lease().unwrap_or_else(|| json!({"metadata": {"name": "lock"}, "spec": {}}));
        edit(&mut lease);
        self.state().store(lease, "MODIFIED");
    }

    pub fn delete(&self) {
        let mut state = self.state();
        state.revision += 1;
        if let Some(lease) = state.lease.take() {
            state.tell("DELETED", &lease);
        }
    }

    pub fn forget_requests(&self) {
        self.state().requests.clear();
    }

    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// The events that arrived, as they were sent.
    pub fn events(&self) -> Vec<Value> {
        self.state().events.clone()
    }

    /// The machine sleeps: boot time goes on, timers stand still.
    pub fn suspend(&self, time: Duration) {
        self.state().suspended += time;
    }

    fn client(&self, identity: &str) -> Client {
        let (world, identity) = (self.clone(), identity.to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (world, identity) = (world.clone(), identity.clone());
            async move { Ok::<_, Infallible>(world.serve(&identity, request).await) }
        });
        Client::new(service, "ns")
    }

    async fn serve(&self, identity: &str, request: Request<Body>) -> Answer {
        let link = self.state().links.get(identity).copied().unwrap_or_default();
        if link == Link::Cut {
            std::future::pending::<()>().await;
        }
        if link == Link::Throttled {
            return failure(429);
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let response = if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
            self.watch(identity, link)
        } else if parts.uri.path() == "/api/v1/namespaces/ns/events" {
            self.told(link, &body)
        } else {
            self.state().answer(identity, &parts.method, &body)
        };
        let write = parts.method != Method::GET;
        if link == Link::Deaf || (link == Link::DeafToWrites && write) {
            std::future::pending::<()>().await;
        }
        response
    }

    fn told(&self, link: Link, event: &[u8]) -> Answer {
        if link == Link::NoEvents {
            return failure(403);
        }
        let event = serde_json::from_slice::<Value>(event).unwrap();
        self.state().events.push(event.clone());
        success(&event)
    }

    fn watch(&self, identity: &str, link: Link) -> Answer {
        let mut state = self.state();
        state.requests.push(format!("{identity} WATCH"));
        if link == Link::NoWatch {
            return failure(403);
        }
        let (sender, events) = mpsc::unbounded_channel();
        state.watchers.push(sender);
        let (world, identity) = (self.clone(), identity.to_owned());
        // A cut link loses what was sent while it was cut.
        let lines = UnboundedReceiverStream::new(events).filter_map(move |line: String| {
            let up = !matches!(world.state().links.get(&identity), Some(Link::Cut | Link::Deaf));
            async move { up.then(|| Ok::<_, Infallible>(Frame::data(Bytes::from(line)))) }
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

impl State {
    fn answer(&mut self, identity: &str, method: &Method, body: &[u8]) -> Answer {
        self.requests.push(format!("{identity} {method}"));
        let sent = serde_json::from_slice::<Value>(body).unwrap_or_default();
        match (method, &self.lease) {
            (&Method::GET, Some(lease)) => success(lease),
            (&Method::GET | &Method::PUT, None) => failure(404),
            (&Method::POST, Some(_)) => failure(409),
            (&Method::POST, None) => {
                assert_eq!(sent["metadata"]["resourceVersion"], Value::Null, "created with a version: {sent}");
                success(&self.store(sent, "ADDED"))
            }
            (&Method::PUT, Some(lease)) => {
                if sent["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                    return failure(409);
                }
                success(&self.store(sent, "MODIFIED"))
            }
            other => panic!("unexpected request {other:?}"),
        }
    }

    fn store(&mut self, mut lease: Value, kind: &str) -> Value {
        self.revision += 1;
        lease["metadata"]["resourceVersion"] = self.revision.to_string().into();
        lease["metadata"]["uid"] = "uid-of-lock".into();
        self.lease = Some(lease.clone());
        self.tell(kind, &lease);
        lease
    }

    fn tell(&mut self, kind: &str, lease: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": lease}));
        self.watchers.retain(|watcher| watcher.send(line.clone()).is_ok());
    }
}

fn success(lease: &Value) -> Answer {
    Response::new(Full::from(lease.to_string()).boxed_unsync())
}

fn failure(code: u16) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "no", "reason": "No", "code": code});
    let mut response = Response::new(Full::from(status.to_string()).boxed_unsync());
    *response.status_mut() = code.try_into().unwrap();
    response
}

impl Clock for World {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::try_from(self.boottime()).unwrap()
    }

    fn boottime(&self) -> Duration {
        Duration::from_secs(1_000) + self.1.elapsed() + self.state().suspended
    }
}

//! A server that fails writes and answers reads: a database out of space, a webhook that is down.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use kube::client::Body;
use serde_json::json;
use tower::ServiceExt as _;

use stowage_apiserver::{Options, Server};
use stowage_csi::UnixConnector;
use stowage_model::object::{Key, kinds};
use stowage_model::{Claim, annotations};
use stowage_runtime::Context;
use stowage_runtime::api::{Part, Patch, Target};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::engine::{self, Controller, Decision, Error, Reserved, Setup, Watches};
use stowage_runtime::queue::Queue;
use stowage_runtime::watch::Scope;

type Lost = Box<dyn std::error::Error + Send + Sync>;

/// From one question to its answer.
const WAY: Duration = Duration::from_millis(50);

const OUTAGE: Duration = Duration::from_secs(600);

/// Of each writer six writes at once, then after 5 ms, 10 ms and so on, each with its read.
const MOST: u32 = 2 * 60;

/// Keys that decide on one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Who {
    /// Writes until the note is there.
    Writer,
    /// The same, and each of its writes takes longer.
    SlowWriter,
    /// Looks only, and rests while there is nothing to be seen.
    Reader,
}

/// What the reader saw, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Seen {
    Unknown,
    Known,
}

struct Party {
    context: Context,
    claims: Cache<Claim>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Controller for Party {
    type Key = Who;
    type Snapshot = (Who, View<Claim>);
    type Action = (Target, Patch);
    type Why = &'static str;

    const NAME: &'static str = "party";

    fn watches(&self, watches: &mut Watches<'_, Self>) {
        watches.cache(&self.claims, Scope::all(), |_, _| [Who::Writer, Who::SlowWriter, Who::Reader]);
    }

    fn gather(&self, key: &Who, _reserved: &Reserved, _now: Timestamp) -> (Who, View<Claim>) {
        (*key, self.claims.view(&claim()))
    }

    fn decide((who, view): &(Who, View<Claim>), _now: Timestamp) -> Decision<(Target, Patch), &'static str> {
        match (who, view) {
            (Who::Writer, View::Known(claim)) if claim.selected_node().is_none() => {
                let note = Patch::Merge(json!({ "metadata": { "annotations": { annotations::SELECTED_NODE: "n" } } }));
                Decision::act([(Target::any_version(&claim.meta), note)], "without a note")
            }
            (Who::SlowWriter, View::Known(claim)) if claim.selected_node().is_none() => {
                let value = json!({ annotations::SELECTED_NODE: "n" });
                let note = Patch::Json(vec![json!({ "op": "add", "path": "/metadata/annotations", "value": value })]);
                Decision::act([(Target::any_version(&claim.meta), note)], "without a note")
            }
            (_, View::Unknown) => Decision::rest("unknown"),
            _ => Decision::rest("settled"),
        }
    }

    fn note(
        &self,
        key: &Who,
        (_, view): &Self::Snapshot,
        _: &Decision<(Target, Patch), &'static str>,
        _now: Timestamp,
    ) {
        let seen = match view {
            View::Unknown => Seen::Unknown,
            View::Known(_) | View::Absent => Seen::Known,
        };
        if *key == Who::Reader {
            self.seen.lock().unwrap().push(seen);
        }
    }

    async fn apply(self: Arc<Self>, _key: Who, (target, note): (Target, Patch)) -> Result<(), Error> {
        self.context.objects(&self.claims).patch(&target, Part::Main, note).await.map(drop)
    }

    fn keys(&self) -> Vec<Who> {
        vec![Who::Writer, Who::SlowWriter, Who::Reader]
    }
}

fn claim() -> Key {
    Key::namespaced("default", "c")
}

fn failure() -> Response<UnsyncBoxBody<Bytes, Lost>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError",
        "message": "etcdserver: mvcc: database space exceeded",
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    Response::builder().status(500).body(body.boxed_unsync()).unwrap()
}

/// What came of an outage.
struct Outage {
    requests: u32,
    seen: Vec<Seen>,
    /// Whether the write was done when the server was well again.
    is_written: bool,
}

/// Fails every patch for ten minutes. `when_read` is called while the read that follows a patch is under way.
async fn outage(when_read: impl Fn(&Queue<Who>) + Send + Sync + 'static) -> Outage {
    let server = Server::in_memory(Options::system());
    let (requests, queue) = (Arc::new(AtomicU32::new(0)), Arc::new(OnceLock::<Queue<Who>>::new()));
    let begin = tokio::time::Instant::now();
    let service = {
        let (server, requests, queue, when_read) =
            (server.clone(), Arc::clone(&requests), Arc::clone(&queue), Arc::new(when_read));
        tower::service_fn(move |request: Request<Body>| {
            let (service, requests, queue) = (server.service(), Arc::clone(&requests), Arc::clone(&queue));
            let when_read = Arc::clone(&when_read);
            async move {
                let is_of_claim = request.uri().path().ends_with("/c");
                let is_failing = *request.method() == Method::PATCH && begin.elapsed() < OUTAGE;
                if is_of_claim {
                    requests.fetch_add(1, Ordering::Relaxed);
                    if *request.method() == Method::GET {
                        when_read(queue.get().unwrap());
                    }
                    let is_slow =
                        request.headers().get(CONTENT_TYPE).is_some_and(|of| of == "application/json-patch+json");
                    tokio::time::sleep(if is_slow { 3 * WAY } else { WAY }).await;
                }
                if is_failing {
                    return Ok::<_, Lost>(failure());
                }
                let answer = service.oneshot(request).await.map_err(Lost::from)?;
                Ok(answer.map(|body| body.map_err(Lost::from).boxed_unsync()))
            }
        })
    };
    let context = Context::real(kube::Client::new(service, "default"), Arc::new(UnixConnector), "test");
    let body = json!({
        "metadata": { "namespace": "default", "name": "c" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    context.api.create_raw(kinds::CLAIM, body).await.unwrap();
    let (claims, seen) = (Cache::new(), Arc::<Mutex<Vec<Seen>>>::default());
    let during = Arc::new(AtomicU32::new(0));
    let story = {
        let (shutdown, claims) = (context.shutdown.clone(), claims.clone());
        let (requests, during) = (Arc::clone(&requests), Arc::clone(&during));
        async move {
            tokio::time::sleep_until(begin + OUTAGE).await;
            during.store(requests.load(Ordering::Relaxed), Ordering::Relaxed);
            // Longer than the longest backoff.
            tokio::time::sleep(OUTAGE).await;
            shutdown.trigger();
            claims.get(&claim()).is_some_and(|claim: Arc<Claim>| claim.selected_node() == Some("n"))
        }
    };
    let made = {
        let (context, claims, seen) = (context.clone(), claims.clone(), Arc::clone(&seen));
        async move |setup: &Setup<Who>| {
            assert!(queue.set(setup.queue.clone()).is_ok());
            Ok(Party { context, claims, seen })
        }
    };
    let (ended, is_written) = tokio::join!(engine::serve(context, 8, made), story);
    ended.unwrap();
    let seen = seen.lock().unwrap().clone();
    Outage { requests: during.load(Ordering::Relaxed), seen, is_written }
}

/// Each failed write was followed by a read that told of a change, which began the next write at once, that of others too.
#[tokio::test(start_paused = true)]
async fn a_write_that_fails_for_ten_minutes_is_tried_again_with_a_backoff_that_grows() {
    let outage = outage(|_| {}).await;
    assert!((40..MOST).contains(&outage.requests), "{} requests", outage.requests);
    assert!(!outage.seen.contains(&Seen::Unknown));
    assert!(outage.is_written);
}

/// Each look at the object that is unknown meanwhile has to be answered, and must not spoil the writer's backoff.
#[tokio::test(start_paused = true)]
async fn who_looks_at_an_object_while_it_is_unknown_is_woken_and_the_writer_keeps_its_backoff() {
    let outage = outage(|queue| queue.add(Who::Reader)).await;
    assert!((40..MOST).contains(&outage.requests), "{} requests", outage.requests);
    let rested = outage.seen.iter().filter(|seen| **seen == Seen::Unknown).count();
    assert!(rested >= 10, "{:?}", outage.seen);
    // Twice in a row only where the reads of both writers overlap.
    let for_long = outage.seen.windows(3).any(|seen| seen.iter().all(|seen| *seen == Seen::Unknown));
    assert!(!for_long && outage.seen.last() == Some(&Seen::Known), "nobody woke it: {:?}", outage.seen);
    assert!(outage.is_written);
}

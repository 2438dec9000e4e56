//! Rules 1 and 2 of the design against the embedded API server: our writes are seen whatever happens to their answers,
//! and fields we do not know survive them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use stowage_apiserver::{Options, Server};
use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::{Claim, annotations};
use stowage_runtime::api::{Api, Deletion, Part, Patch, Target};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::random::Random;
use stowage_runtime::tasks::Tasks;
use stowage_runtime::watch::{self, Scope};

type Lost = Box<dyn std::error::Error + Send + Sync>;

/// What happens to the next write.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It is done and its answer is lost.
    AnswerLost,
    /// It never arrives.
    RequestLost,
    /// The server pushes back once.
    Throttled,
}

struct World {
    server: Server,
    api: Api,
    cache: Cache<Claim>,
    fault: Arc<Mutex<Fault>>,
    down: Arc<AtomicBool>,
    requests: Arc<AtomicU32>,
}

fn world() -> World {
    let base = "2026-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap();
    let mut next = 0_u128;
    let server = Server::in_memory(Options {
        clock: Arc::new(move || base),
        ids: Box::new(move || {
            next += 1;
            next
        }),
        window: 64,
        bookmark_interval: Duration::from_secs(60),
    });
    let fault = Arc::new(Mutex::new(Fault::None));
    let requests = Arc::new(AtomicU32::new(0));
    let down = Arc::new(AtomicBool::new(false));
    let service = {
        let (server, fault, requests) = (server.clone(), Arc::clone(&fault), Arc::clone(&requests));
        let down = Arc::clone(&down);
        tower::service_fn(move |request: Request<Body>| {
            let (service, requests) = (server.service(), Arc::clone(&requests));
            let is_write = *request.method() != Method::GET;
            let is_down = down.load(Ordering::Relaxed);
            let fault =
                if is_write { std::mem::replace(&mut *fault.lock().unwrap(), Fault::None) } else { Fault::None };
            async move {
                requests.fetch_add(1, Ordering::Relaxed);
                let lost = || Err(Lost::from("connection reset"));
                match fault {
                    _ if is_down => lost(),
                    Fault::RequestLost => lost(),
                    Fault::Throttled => {
                        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
                                             "reason": "TooManyRequests", "message": "slow down",
                                             "details": { "retryAfterSeconds": 2 } });
                        let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
                        Ok(http::Response::builder().status(429).body(body.boxed_unsync()).unwrap())
                    }
                    Fault::None | Fault::AnswerLost => {
                        let answer = service.oneshot(request).await.unwrap();
                        if fault == Fault::AnswerLost {
                            lost()
                        } else {
                            Ok(answer.map(|body| body.map_err(Lost::from).boxed_unsync()))
                        }
                    }
                }
            }
        })
    };
    let api = Api::new(kube::Client::new(service, "default"));
    World { server, api, cache: Cache::new(), fault, down, requests }
}

fn key() -> Key {
    Key::namespaced("default", "c")
}

fn body() -> Value {
    json!({
        "metadata": { "namespace": "default", "name": "c", "annotations": { "someone.else/note": "kept" } },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn note(value: &str) -> Patch {
    Patch::Merge(json!({ "metadata": { "annotations": { annotations::SELECTED_NODE: value } } }))
}

impl World {
    async fn created(&self) -> Arc<Claim> {
        self.api.create(&self.cache, body()).await.unwrap()
    }

    fn next(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn known(&self) -> Arc<Claim> {
        match self.cache.view(&key()) {
            View::Known(claim) => claim,
            other => panic!("expected a known claim, found {other:?}"),
        }
    }

    async fn raw(&self) -> Value {
        self.api.get_raw(&ObjectId { kind: kinds::CLAIM, key: key() }).await.unwrap().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_whose_answer_is_lost_is_known_after_one_fresh_read() {
    let world = world();
    let claim = world.created().await;
    world.next(Fault::AnswerLost);
    let before = world.requests.load(Ordering::Relaxed);
    let error = world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, note("a")).await.unwrap_err();
    assert!(error.is_unanswered(), "{error}");
    assert_eq!(world.requests.load(Ordering::Relaxed) - before, 2, "one write and one read");
    assert_eq!(world.known().selected_node(), Some("a"), "the write had been done");
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_never_arrived_is_known_not_to_have() {
    let world = world();
    let claim = world.created().await;
    world.next(Fault::RequestLost);
    let error = world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, note("a")).await.unwrap_err();
    assert!(error.is_unanswered(), "{error}");
    assert_eq!(world.known().selected_node(), None);
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_is_lost_is_found() {
    let world = world();
    world.next(Fault::AnswerLost);
    assert!(world.api.create(&world.cache, body()).await.unwrap_err().is_unanswered());
    assert!(!world.known().meta.uid.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_delete_whose_answer_is_lost_is_seen_as_gone() {
    let world = world();
    let mut claim = world.created().await;
    // Nobody protects the claim any more.
    if let Some(patch) = Patch::remove_finalizer(&claim.meta, "kubernetes.io/pvc-protection") {
        claim = world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, patch).await.unwrap();
    }
    world.next(Fault::AnswerLost);
    let error = world.api.delete(&world.cache, &Target::exact(&claim.meta), Deletion::default()).await.unwrap_err();
    assert!(error.is_unanswered(), "{error}");
    assert_eq!(world.cache.view(&key()), View::Absent);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_leaves_the_fresh_version_to_decide_on() {
    let world = world();
    let stale = world.created().await;
    let other: Cache<Claim> = Cache::new();
    world.api.patch(&other, &Target::exact(&stale.meta), Part::Main, note("other")).await.unwrap();
    let error = world.api.patch(&world.cache, &Target::exact(&stale.meta), Part::Main, note("mine")).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(world.known().selected_node(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn an_update_of_another_version_than_the_decided_one_is_a_conflict() {
    let world = world();
    let decided = world.created().await;
    let other: Cache<Claim> = Cache::new();
    world.api.patch(&other, &Target::exact(&decided.meta), Part::Main, note("other")).await.unwrap();
    let mine = |object: &mut Value| object["metadata"]["annotations"][annotations::SELECTED_NODE] = "mine".into();
    let error = world.api.replace(&world.cache, &Target::exact(&decided.meta), Part::Main, mine).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(world.known().selected_node(), Some("other"), "the next decision sees who was faster");
    let lists = Target::any_version(&decided.meta);
    world.api.replace(&world.cache, &lists, Part::Main, mine).await.unwrap();
    assert_eq!(world.known().selected_node(), Some("mine"));
}

#[tokio::test(start_paused = true)]
async fn a_namesake_is_never_written_to() {
    let world = world();
    let claim = world.created().await;
    let target = Target { uid: "another".into(), revision: None, ..Target::exact(&claim.meta) };
    let error = world.api.patch(&world.cache, &target, Part::Main, note("a")).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let error = world.api.replace(&world.cache, &target, Part::Main, |_| {}).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let error = world.api.delete(&world.cache, &target, Deletion::default()).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(world.known().meta.revision, claim.meta.revision);
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_changes_nothing_has_the_version_it_found() {
    let world = world();
    let claim = world.created().await;
    let once = world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, note("a")).await.unwrap();
    let twice = world.api.patch(&world.cache, &Target::exact(&once.meta), Part::Main, note("a")).await.unwrap();
    assert_eq!(once.meta.revision, twice.meta.revision);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_pushes_back_is_waited_for() {
    let world = world();
    let claim = world.created().await;
    let start = tokio::time::Instant::now();
    world.next(Fault::Throttled);
    world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, note("a")).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_others_survive_adding_and_removing_ours() {
    let world = world();
    let claim = world.created().await;
    let before = claim.meta.finalizers.clone();
    let add = Patch::add_finalizer(&claim.meta, "ours.example/x").unwrap();
    let claim = world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, add).await.unwrap();
    assert_eq!(claim.meta.finalizers.len(), before.len() + 1);
    let remove = Patch::remove_finalizer(&claim.meta, "ours.example/x").unwrap();
    let claim = world.api.patch(&world.cache, &Target::any_version(&claim.meta), Part::Main, remove).await.unwrap();
    assert_eq!(claim.meta.finalizers, before);
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_list_that_moved_is_a_conflict_not_a_wrong_removal() {
    let world = world();
    let claim = world.created().await;
    let add = Patch::add_finalizer(&claim.meta, "ours.example/x").unwrap();
    let ours = world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, add).await.unwrap();
    let stale_removal = Patch::remove_finalizer(&ours.meta, "ours.example/x").unwrap();
    // Somebody else empties the list meanwhile.
    let other: Cache<Claim> = Cache::new();
    let emptied = Patch::Merge(json!({ "metadata": { "finalizers": ["someone.else/y"] } }));
    world.api.patch(&other, &Target::exact(&ours.meta), Part::Main, emptied).await.unwrap();
    let target = Target::any_version(&ours.meta);
    let error = world.api.patch(&world.cache, &target, Part::Main, stale_removal).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(world.known().meta.finalizers, ["someone.else/y"]);
}

#[tokio::test(start_paused = true)]
async fn fields_newer_than_our_types_survive_every_kind_of_write() {
    let world = world();
    let mut newer = body();
    newer["spec"]["fieldOfTheFuture"] = json!({ "deep": [1, 2] });
    world.api.create(&world.cache, newer).await.unwrap();
    let claim = world.known();
    assert_eq!(world.raw().await["spec"]["fieldOfTheFuture"]["deep"][1], 2, "the server keeps what it does not know");
    world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, note("a")).await.unwrap();
    let claim = world.known();
    let add = Patch::add_finalizer(&claim.meta, "ours.example/x").unwrap();
    world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, add).await.unwrap();
    let claim = world.known();
    let status = Patch::Merge(json!({ "status": { "phase": "Pending" } }));
    world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Status, status).await.unwrap();
    let claim = world.known();
    let edit = |object: &mut Value| object["metadata"]["labels"]["x"] = "y".into();
    world.api.replace(&world.cache, &Target::exact(&claim.meta), Part::Main, edit).await.unwrap();
    let raw = world.raw().await;
    assert_eq!(raw["spec"]["fieldOfTheFuture"]["deep"][1], 2);
    assert_eq!(raw["metadata"]["annotations"]["someone.else/note"], "kept");
    assert_eq!(raw["metadata"]["labels"]["x"], "y");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fell_too_far_behind_lists_again_and_misses_nothing() {
    let world = world();
    let claim = world.created().await;
    let mut tasks = Tasks::new();
    let feed = watch::feed(world.api.clone(), world.cache.clone(), Scope::all(), Random::seeded(1));
    tasks.spawner().spawn(feed);
    let story = async {
        world.cache.synced().await;
        // Cut every watch, then write more than the server remembers.
        world.server.close();
        let other: Cache<Claim> = Cache::new();
        let mut current = claim.meta.clone();
        for step in 0..200 {
            let target = Target::exact(&current);
            let changed = world.api.patch(&other, &target, Part::Main, note(&format!("n{step}"))).await.unwrap();
            current = changed.meta.clone();
        }
        world.cache.reached(current.revision).await;
        assert_eq!(world.known().selected_node(), Some("n199"));
    };
    tokio::select! {
        biased;
        panicked = tasks.supervise() => panic!("{panicked}"),
        () = story => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_left_unknown_by_a_long_outage_is_read_when_the_server_is_back() {
    let world = world();
    let claim = world.created().await;
    let mut tasks = Tasks::new();
    let feed = watch::feed(world.api.clone(), world.cache.clone(), Scope::all(), Random::seeded(1));
    tasks.spawner().spawn(feed);
    let woken = Arc::new(tokio::sync::Notify::new());
    let story = async {
        world.cache.synced().await;
        world.down.store(true, Ordering::Relaxed);
        let error =
            world.api.patch(&world.cache, &Target::exact(&claim.meta), Part::Main, note("a")).await.unwrap_err();
        assert!(error.is_unanswered(), "{error}");
        assert_eq!(world.cache.view(&key()), View::Unknown, "every fresh read failed");
        tokio::time::sleep(Duration::from_secs(600)).await;
        world.cache.on_change({
            let woken = Arc::clone(&woken);
            move |_| woken.notify_one()
        });
        world.down.store(false, Ordering::Relaxed);
        woken.notified().await;
        assert_eq!(world.known().selected_node(), None, "the write had never arrived");
    };
    tokio::select! {
        biased;
        panicked = tasks.supervise() => panic!("{panicked}"),
        () = story => {}
    }
}

/// A server that has the same answer to everything.
fn api_answering(answer: &Value) -> Api {
    let answer = Bytes::from(answer.to_string());
    let service = tower::service_fn(move |_: Request<Body>| {
        let body = Full::new(answer.clone());
        async move { Ok::<_, Lost>(http::Response::new(body)) }
    });
    Api::new(kube::Client::new(service, "default"))
}

#[tokio::test]
async fn an_object_without_a_name_is_not_asked_for_and_not_deleted() {
    let world = world();
    let unnamed = Key::namespaced("default", "");
    assert!(world.api.get::<Claim>(&unnamed).await.is_err());
    assert!(world.api.refresh(&world.cache, &unnamed).await.is_err());
    assert!(world.api.get_raw(&ObjectId { kind: kinds::CLAIM, key: unnamed.clone() }).await.is_err());
    let target = Target { key: unnamed, uid: "u".into(), revision: None };
    assert!(world.api.delete(&world.cache, &target, Deletion::default()).await.is_err());
    assert_eq!(world.requests.load(Ordering::Relaxed), 0);
    assert!(world.cache.keys().is_empty());
}

#[tokio::test]
async fn an_answer_about_another_object_is_no_answer() {
    let list = json!({ "kind": "List", "metadata": { "resourceVersion": "7" }, "items": [] });
    let other = json!({ "metadata": { "namespace": "default", "name": "d", "uid": "d", "resourceVersion": "7" } });
    for answer in [list, other] {
        let (api, cache) = (api_answering(&answer), Cache::<Claim>::new());
        let error = api.refresh(&cache, &key()).await.unwrap_err();
        assert!(error.to_string().contains("cannot read the answer"), "{error}");
        assert!(api.get_raw(&ObjectId { kind: kinds::CLAIM, key: key() }).await.is_err());
        assert!(cache.keys().is_empty());
    }
}

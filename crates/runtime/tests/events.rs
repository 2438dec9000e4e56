//! Events while the API server is away: what cannot be written now is written later, and only refusals are dropped.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use stowage_apiserver::{Options, Server};
use stowage_model::Event;
use stowage_model::object::{Key, ObjectId, ObjectRef, kinds};
use stowage_runtime::api::Api;
use stowage_runtime::clock::SystemClock;
use stowage_runtime::events::{Note, Recorder};
use stowage_runtime::random::Random;
use stowage_runtime::tasks::Tasks;

type Lost = Box<dyn std::error::Error + Send + Sync>;

/// How the server is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Link {
    Up,
    Cut,
    /// What is asked is done and no answer comes.
    Deaf,
    Forbidding,
}

struct World {
    api: Api,
    link: Arc<Mutex<Link>>,
    asked: Arc<Mutex<Vec<String>>>,
    recorder: Recorder,
    tasks: Tasks,
}

fn world() -> World {
    let server = Server::in_memory(Options::system());
    let (link, asked) = (Arc::new(Mutex::new(Link::Up)), Arc::new(Mutex::new(Vec::new())));
    let service = tower::service_fn({
        let (server, link, asked) = (server.clone(), Arc::clone(&link), Arc::clone(&asked));
        move |request: Request<Body>| {
            let (service, link) = (server.service(), *link.lock().unwrap());
            asked.lock().unwrap().push(request.method().to_string());
            async move {
                match link {
                    Link::Cut => Err(Lost::from("connection refused")),
                    Link::Forbidding => {
                        let status =
                            json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden" });
                        let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
                        Ok(Response::builder().status(StatusCode::FORBIDDEN).body(body.boxed_unsync()).unwrap())
                    }
                    Link::Up | Link::Deaf => {
                        let answer = service.oneshot(request).await.unwrap();
                        if link == Link::Deaf {
                            return Err(Lost::from("connection reset"));
                        }
                        Ok(answer.map(|body| body.map_err(Lost::from).boxed_unsync()))
                    }
                }
            }
        }
    });
    let tasks = Tasks::new();
    let through = Api::new(kube::Client::new(service, "default"));
    let recorder = Recorder::start(through, Arc::new(SystemClock), Random::from_os(), "test", "host", &tasks.spawner());
    let api = Api::new(kube::Client::new(server.service(), "default"));
    World { api, link, asked, recorder, tasks }
}

impl World {
    fn set(&self, link: Link) {
        *self.link.lock().unwrap() = link;
    }

    fn tell(&self, name: &str) {
        let about = ObjectRef { kind: kinds::CLAIM, key: Key::namespaced("default", name), uid: name.to_owned() };
        assert!(self.recorder.record(&about, Note::warning("ProvisioningFailed", "no room")));
    }

    async fn pass(&mut self, seconds: u64) {
        let passed = tokio::time::timeout(Duration::from_secs(seconds), self.tasks.supervise()).await;
        assert!(passed.is_err(), "the writer ended");
    }

    /// The claims that are told about, and how often.
    async fn told(&self) -> Vec<(String, Value)> {
        let mut told = Vec::new();
        for event in self.api.list::<Event>("default", "").await.unwrap() {
            let raw = self.api.get_raw(&ObjectId { kind: kinds::EVENT, key: event.meta.key() }).await.unwrap().unwrap();
            told.push((raw["involvedObject"]["name"].as_str().unwrap().to_owned(), raw["count"].clone()));
        }
        told.sort_by(|a, b| a.0.cmp(&b.0));
        told
    }

    fn requests(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_told_while_the_server_is_away_is_written_when_it_is_back() {
    let mut world = world();
    world.set(Link::Cut);
    world.tell("a");
    world.tell("b");
    world.pass(30).await;
    world.tell("a");
    world.pass(30).await;
    assert_eq!(world.told().await, []);
    world.set(Link::Up);
    world.pass(60).await;
    assert_eq!(world.told().await, [("a".to_owned(), json!(2)), ("b".to_owned(), json!(1))]);
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_answer_was_lost_is_not_written_twice() {
    let mut world = world();
    world.set(Link::Deaf);
    world.tell("a");
    world.pass(10).await;
    world.set(Link::Up);
    world.pass(60).await;
    assert_eq!(world.told().await, [("a".to_owned(), json!(1))]);
    world.set(Link::Deaf);
    world.tell("a");
    world.pass(10).await;
    world.set(Link::Up);
    world.pass(60).await;
    assert_eq!(world.told().await, [("a".to_owned(), json!(2))], "a repetition counts once");
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_is_dropped_at_once_and_an_unanswered_one_in_the_end() {
    let mut world = world();
    world.set(Link::Forbidding);
    world.tell("a");
    world.pass(3600).await;
    assert_eq!(world.requests(), 1);
    world.set(Link::Cut);
    world.tell("b");
    world.pass(3600).await;
    let tries = world.requests() - 1;
    assert!((5..20).contains(&tries), "{tries} tries");
    world.set(Link::Up);
    world.tell("c");
    world.pass(3600).await;
    assert_eq!(world.told().await, [("c".to_owned(), json!(1))]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_with_more_to_tell_than_is_kept_for_later_loses_nothing_that_was_taken() {
    let mut world = world();
    world.set(Link::Cut);
    for number in 0..5000 {
        world.tell(&format!("c{number}"));
    }
    world.pass(60).await;
    world.set(Link::Up);
    world.pass(600).await;
    assert_eq!(world.told().await.len(), 5000);
}

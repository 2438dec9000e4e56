//! Several clients do random things to the server and to a model of it, a map and a log; the server must agree with the
//! model in every answer, and every watch must see exactly the model's events.
//!
//! `PROPTEST_CASES` sets how many histories are tried.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use serde_json::{Value, json};
use stowage_apiserver::{Options, Server};
use tower::ServiceExt as _;

const CLIENTS: usize = 3;
const NAMESPACES: [&str; 2] = ["default", "kube-public"];

/// One step of one client.
#[derive(Debug, Clone)]
struct Step {
    client: usize,
    namespace: usize,
    name: usize,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Create {
        label: u8,
        held: bool,
    },
    /// With the version that the client saw last, which may be an old one.
    Update {
        label: u8,
    },
    Patch {
        label: u8,
    },
    Release,
    Read,
    Delete,
    DeleteLabelled {
        label: u8,
    },
    /// A watch that is begun now, at this part of the revisions so far, of one namespace or all, of one label or all.
    Watch {
        from: f64,
        all: bool,
        label: Option<u8>,
    },
    /// A list, and a watch from where it ends.
    ListAndWatch {
        label: Option<u8>,
        page: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let label = 0..2_u8;
    let what = prop_oneof![
        4 => (label.clone(), any::<bool>()).prop_map(|(label, held)| What::Create { label, held }),
        3 => label.clone().prop_map(|label| What::Update { label }),
        3 => label.clone().prop_map(|label| What::Patch { label }),
        2 => Just(What::Release),
        2 => Just(What::Read),
        2 => Just(What::Delete),
        1 => label.clone().prop_map(|label| What::DeleteLabelled { label }),
        1 => (0.0..1.0, any::<bool>(), proptest::option::of(label.clone()))
            .prop_map(|(from, all, label)| What::Watch { from, all, label }),
        1 => (proptest::option::of(label), 1..4_usize).prop_map(|(label, page)| What::ListAndWatch { label, page }),
    ];
    (0..CLIENTS, 0..2_usize, 0..3_usize, what).prop_map(|(client, namespace, name, what)| Step {
        client,
        namespace,
        name,
        what,
    })
}

type Key = (usize, String);

/// An object as the model has it.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    revision: u64,
    label: u8,
    held: bool,
    deleting: bool,
}

/// What happened: the object before and after.
#[derive(Debug, Clone)]
struct Change {
    revision: u64,
    key: Key,
    before: Option<Entry>,
    after: Option<Entry>,
}

/// One line of a watch: type, revision, object.
type Seen = (String, u64, Key);

#[derive(Debug, Default)]
struct Model {
    revision: u64,
    objects: BTreeMap<Key, Entry>,
    log: Vec<Change>,
}

impl Model {
    fn put(&mut self, key: &Key, entry: Entry) -> u64 {
        self.revision += 1;
        let after = Entry { revision: self.revision, ..entry };
        let before = self.objects.insert(key.clone(), after.clone());
        self.log.push(Change { revision: self.revision, key: key.clone(), before, after: Some(after) });
        self.revision
    }

    fn remove(&mut self, key: &Key) {
        self.revision += 1;
        let before = self.objects.remove(key);
        self.log.push(Change { revision: self.revision, key: key.clone(), before, after: None });
    }

    /// Deletes one object; a held one is only marked, and only once.
    fn delete(&mut self, key: &Key) {
        let entry = self.objects[key].clone();
        match (entry.held, entry.deleting) {
            (false, _) => self.remove(key),
            (true, false) => {
                self.put(key, Entry { deleting: true, ..entry });
            }
            (true, true) => {}
        }
    }

    /// What a watch from `revision` must show.
    fn events_after(&self, revision: u64, view: &View) -> Vec<Seen> {
        let one = |change: &Change| {
            let was = change.before.as_ref().is_some_and(|e| view.shows(&change.key, e));
            let is = change.after.as_ref().is_some_and(|e| view.shows(&change.key, e));
            let event = match (was, is) {
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
                (false, false) => return None,
            };
            Some((event.to_owned(), change.revision, change.key.clone()))
        };
        self.log.iter().filter(|change| change.revision > revision).filter_map(one).collect()
    }
}

/// Which objects a list or watch is about.
#[derive(Debug, Clone)]
struct View {
    namespace: Option<usize>,
    label: Option<u8>,
}

impl View {
    fn shows(&self, key: &Key, entry: &Entry) -> bool {
        self.namespace.is_none_or(|n| n == key.0) && self.label.is_none_or(|l| l == entry.label)
    }

    fn path(&self) -> String {
        let root = match self.namespace {
            Some(namespace) => collection(namespace),
            None => "/api/v1/configmaps".to_owned(),
        };
        let selector = self.label.map(|l| format!("labelSelector=l%3D{l}&")).unwrap_or_default();
        format!("{root}?{selector}")
    }
}

fn collection(namespace: usize) -> String {
    format!("/api/v1/namespaces/{}/configmaps", NAMESPACES[namespace])
}

struct World {
    server: Server,
    model: Model,
    /// The version of each object that each client saw last.
    known: Vec<BTreeMap<Key, u64>>,
    watches: Vec<(u64, View, BodyOf)>,
}

type BodyOf = stowage_apiserver::Body;

async fn send(server: &Server, method: Method, path: &str, body: &Value) -> http::Response<BodyOf> {
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder()
        .method(method)
        .uri(format!("https://in-process{path}"))
        .header("content-type", content_type)
        .body(Full::new(body))
        .unwrap();
    server.service().oneshot(request).await.unwrap()
}

async fn call(server: &Server, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let response = send(server, method, path, body).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn revision_of(tree: &Value) -> u64 {
    tree["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn key_of(tree: &Value) -> Key {
    let namespace = NAMESPACES.iter().position(|n| tree["metadata"]["namespace"] == **n).unwrap();
    (namespace, tree["metadata"]["name"].as_str().unwrap().to_owned())
}

impl World {
    fn new() -> Self {
        let server = Server::in_memory(Options { window: 10_000, ..Options::system() });
        let model = Model { revision: server.revision(), ..Model::default() };
        Self { server, model, known: vec![BTreeMap::new(); CLIENTS], watches: Vec::new() }
    }

    async fn step(&mut self, step: &Step) {
        let key: Key = (step.namespace, format!("m{}", step.name));
        let root = collection(step.namespace);
        let path = format!("{root}/{}", key.1);
        let present = self.model.objects.get(&key).cloned();
        let before = self.model.revision;
        let (code, answer) = match step.what {
            What::Create { label, held } => {
                let finalizers = if held { json!(["example.com/hold"]) } else { json!([]) };
                let body =
                    json!({"metadata": {"name": key.1, "labels": {"l": label.to_string()}, "finalizers": finalizers}});
                let (code, answer) = call(&self.server, Method::POST, &root, &body).await;
                assert_eq!(code, if present.is_some() { 409 } else { 201 });
                if present.is_none() {
                    self.model.put(&key, Entry { revision: 0, label, held, deleting: false });
                }
                (code, answer)
            }
            What::Update { label } => {
                let Some(version) = self.known[step.client].get(&key).copied() else { return };
                let finalizers =
                    if present.as_ref().is_some_and(|p| p.held) { json!(["example.com/hold"]) } else { json!([]) };
                let body = json!({"metadata": {"name": key.1, "labels": {"l": label.to_string()},
                    "finalizers": finalizers, "resourceVersion": version.to_string()}, "data": {"at": before.to_string()}});
                let (code, answer) = call(&self.server, Method::PUT, &path, &body).await;
                match &present {
                    None => assert_eq!(code, 404),
                    Some(entry) if entry.revision != version => assert_eq!(code, 409),
                    Some(entry) => {
                        assert_eq!(code, 200);
                        self.model.put(&key, Entry { label, ..entry.clone() });
                    }
                }
                (code, answer)
            }
            What::Patch { label } => {
                let patch = json!({"metadata": {"labels": {"l": label.to_string()}}});
                let (code, answer) = call(&self.server, Method::PATCH, &path, &patch).await;
                assert_eq!(code, if present.is_some() { 200 } else { 404 });
                // A patch that changes nothing is no change.
                if let Some(entry) = present.filter(|entry| entry.label != label) {
                    self.model.put(&key, Entry { label, ..entry });
                }
                (code, answer)
            }
            What::Release => {
                let patch = json!({"metadata": {"finalizers": null}});
                let (code, answer) = call(&self.server, Method::PATCH, &path, &patch).await;
                assert_eq!(code, if present.is_some() { 200 } else { 404 });
                match present {
                    Some(entry) if entry.held && entry.deleting => self.model.remove(&key),
                    Some(entry) if entry.held => {
                        self.model.put(&key, Entry { held: false, ..entry });
                    }
                    _ => {}
                }
                (code, answer)
            }
            What::Read => {
                let (code, answer) = call(&self.server, Method::GET, &path, &Value::Null).await;
                assert_eq!(code, if present.is_some() { 200 } else { 404 });
                (code, answer)
            }
            What::Delete => {
                let (code, _) = call(&self.server, Method::DELETE, &path, &Value::Null).await;
                assert_eq!(code, if present.is_some() { 200 } else { 404 });
                if present.is_some() {
                    self.model.delete(&key);
                }
                (0, Value::Null)
            }
            What::DeleteLabelled { label } => {
                let selected = format!("{root}?labelSelector=l%3D{label}");
                let (code, _) = call(&self.server, Method::DELETE, &selected, &Value::Null).await;
                assert_eq!(code, 200);
                let view = View { namespace: Some(step.namespace), label: Some(label) };
                let chosen: Vec<Key> =
                    self.model.objects.iter().filter(|(k, e)| view.shows(k, e)).map(|(k, _)| k.clone()).collect();
                for key in chosen {
                    self.model.delete(&key);
                }
                (0, Value::Null)
            }
            What::Watch { from, all, label } => {
                let start = self.model.log.first().map_or(before, |first| first.revision - 1);
                let from = start + ((before - start) as f64 * from) as u64;
                self.watch(from.max(1), View { namespace: (!all).then_some(step.namespace), label }).await;
                (0, Value::Null)
            }
            What::ListAndWatch { label, page } => {
                self.list_and_watch(View { namespace: None, label }, page).await;
                (0, Value::Null)
            }
        };
        assert_eq!(self.server.revision(), self.model.revision, "{step:?}");
        if (200..300).contains(&code) {
            self.known[step.client].insert(key, revision_of(&answer));
        }
    }

    async fn watch(&mut self, from: u64, view: View) {
        let path = format!("{}watch=1&timeoutSeconds=60&resourceVersion={from}", view.path());
        let response = send(&self.server, Method::GET, &path, &Value::Null).await;
        assert_eq!(response.status(), 200);
        self.watches.push((from, view, response.into_body()));
    }

    /// Lists page by page: all pages show the same revision, and it is the model's.
    async fn list_and_watch(&mut self, view: View, page: usize) {
        let mut found = BTreeMap::new();
        let (mut next, mut revision) = (String::new(), None);
        loop {
            let path = format!("{}limit={page}&continue={next}", view.path());
            let (code, list) = call(&self.server, Method::GET, &path, &Value::Null).await;
            assert_eq!(code, 200);
            assert_eq!(*revision.get_or_insert_with(|| revision_of(&list)), revision_of(&list));
            for item in list["items"].as_array().unwrap() {
                assert!(found.insert(key_of(item), revision_of(item)).is_none(), "an object is listed twice");
            }
            match list["metadata"]["continue"].as_str() {
                Some(token) => next = token.to_owned(),
                None => break,
            }
        }
        let expected: BTreeMap<Key, u64> =
            self.model.objects.iter().filter(|(k, e)| view.shows(k, e)).map(|(k, e)| (k.clone(), e.revision)).collect();
        assert_eq!(found, expected);
        self.watch(revision.unwrap(), view).await;
    }

    /// Reads every watch to its end and compares it with the log.
    async fn finish(self) {
        for (from, view, body) in self.watches {
            let bytes = body.collect().await.unwrap().to_bytes();
            let lines = std::str::from_utf8(&bytes).unwrap().lines();
            let seen: Vec<Seen> = lines
                .map(|line| {
                    let event: Value = serde_json::from_str(line).unwrap();
                    let object = &event["object"];
                    (event["type"].as_str().unwrap().to_owned(), revision_of(object), key_of(object))
                })
                .collect();
            assert_eq!(seen, self.model.events_after(from, &view), "a watch from {from} of {view:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_and_every_watch_agrees_with_the_model(steps in proptest::collection::vec(step(), 1..90)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in &steps {
                world.step(step).await;
            }
            // And from every revision there was.
            let first = world.model.log.first().map_or(world.model.revision, |change| change.revision - 1);
            for from in first..=world.model.revision {
                world.watch(from, View { namespace: None, label: None }).await;
            }
            world.finish().await;
        });
    }
}

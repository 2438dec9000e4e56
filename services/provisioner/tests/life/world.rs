//! The embedded API server without sockets, with its requests counted, and provisioners that can be started and dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request};
use serde_json::{Value, json};
use stowage_apiserver::{Options as ServerOptions, Server};
use stowage_csi::connect::Connector;
use stowage_runtime::{Context, Stop};
use stowage_testing::VirtualClock;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower::{BoxError, ServiceExt};

use provisioner::Options;

use crate::driver::{DRIVER, Driver, KEY};

/// Rounds of the one-thread scheduler after which a wait is a hang.
const PATIENCE: usize = 20_000;

pub struct World {
    client: kube::Client,
    pub driver: Driver,
    writes: Arc<Mutex<BTreeMap<String, usize>>>,
    /// What only administrators may write to, or read, or what nobody can just now.
    forbidden: Arc<Mutex<Vec<Forbidden>>>,
    /// The plural of a kind that provisioners are not served, and its group and version.
    unserved: Arc<Mutex<Option<(&'static str, &'static str)>>>,
    race: Arc<watch::Sender<Race>>,
    clock: VirtualClock,
}

/// A method, or all, a part of a path and its query, and the answer to it.
type Forbidden = (Option<Method>, &'static str, u16);

/// Reads and updates of claims while two provisioners race for one.
#[derive(Default)]
struct Race {
    is_on: bool,
    reads: usize,
    updates: usize,
}

/// A running provisioner; dropping it is the crash.
pub struct Running {
    pub context: Context,
    task: JoinHandle<Result<(), Stop>>,
}

impl Running {
    pub fn crash(self) {
        self.task.abort();
    }

    pub async fn drain(self) -> Result<(), Stop> {
        self.context.shutdown.trigger();
        self.task.await.unwrap()
    }

    /// Waits for an end nobody asked for; virtual time, so a run that goes on costs nothing.
    pub async fn ended(self) -> Result<(), Stop> {
        tokio::time::timeout(Duration::from_secs(300), self.task).await.expect("the run goes on").unwrap()
    }
}

impl World {
    pub fn new() -> Self {
        let server = Server::in_memory(ServerOptions::system());
        let client = kube::Client::new(server.service(), "default");
        Self {
            client,
            driver: Driver::default(),
            writes: Arc::default(),
            forbidden: Arc::default(),
            unserved: Arc::default(),
            race: Arc::new(watch::Sender::new(Race::default())),
            clock: VirtualClock::start(),
        }
    }

    pub fn forbid_leases(&self) {
        self.forbid(None, "/leases");
    }

    /// From now on provisioners may not do this, or anything at all, with such objects.
    pub fn forbid(&self, method: Option<Method>, part: &'static str) {
        self.forbidden.lock().unwrap().push((method, part, 403));
    }

    /// From now on the server fails when provisioners ask for this.
    pub fn fail(&self, method: Method, part: &'static str) {
        self.forbidden.lock().unwrap().push((Some(method), part, 500));
    }

    /// From now on provisioners find no such kind, as on an older server.
    pub fn take_away(&self, plural: &'static str, group: &'static str) {
        *self.unserved.lock().unwrap() = Some((plural, group));
    }

    pub fn permit_all(&self) {
        self.forbidden.lock().unwrap().clear();
    }

    /// From now on the first read of a claim is answered when the second is asked for, and the second when the claim was
    /// updated: who sent it had decided before.
    pub fn race_for_a_claim(&self) {
        self.race.send_modify(|race| race.is_on = true);
    }

    /// How often the claim that was raced for was updated.
    pub fn claim_updates(&self) -> usize {
        self.race.borrow().updates
    }

    /// A client whose writes are counted by verb and kind.
    fn counted(&self) -> kube::Client {
        let (inner, writes, forbid) = (self.client.clone(), Arc::clone(&self.writes), Arc::clone(&self.forbidden));
        let (race, unserved) = (Arc::clone(&self.race), Arc::clone(&self.unserved));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let race = Arc::clone(&race);
            let (inner, path) = (inner.clone(), request.uri().path().to_owned());
            let address = request.uri().to_string();
            let is_meant = |(method, part, _): &&Forbidden| {
                address.contains(part) && method.as_ref().is_none_or(|method| method == request.method())
            };
            let hidden = unserved.lock().unwrap().filter(|(_, group)| path.starts_with(group));
            let forbidden = forbid.lock().unwrap().iter().find(is_meant).map(|(_, _, code)| *code);
            if request.method() != Method::GET {
                let kinds = [
                    "leases",
                    "events",
                    "persistentvolumes",
                    "persistentvolumeclaims",
                    "volumesnapshots",
                    "csistoragecapacities",
                ];
                let kind = kinds.into_iter().find(|kind| path.split('/').any(|part| part == *kind)).unwrap_or("other");
                *writes.lock().unwrap().entry(format!("{} {kind}", request.method())).or_default() += 1;
            }
            async move {
                if let Some(code) = forbidden {
                    let reason = if code == 403 { "Forbidden" } else { "InternalError" };
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "reason": reason, "message": "this is not for you",
                    });
                    let response = http::Response::builder().status(code);
                    let body = kube::client::Body::from(status.to_string().into_bytes());
                    return Ok::<_, BoxError>(response.body(body).unwrap());
                }
                if let Some((plural, group)) = hidden.filter(|(plural, group)| path == *group || path.contains(plural))
                {
                    let (code, text) = match path == group {
                        true => (200, json!({ "resources": [{ "name": "storageclasses" }] }).to_string()),
                        false => (404, format!("404 page not found: {plural}")),
                    };
                    let body = kube::client::Body::from(text.into_bytes());
                    return Ok(http::Response::builder().status(code).body(body).unwrap());
                }
                let claim = path.contains("/persistentvolumeclaims/") && race.borrow().is_on;
                let method = request.method().clone();
                if claim && method == Method::GET {
                    let mut turn = 0;
                    race.send_modify(|race| {
                        race.reads += 1;
                        turn = race.reads;
                    });
                    let may_go = |race: &Race| match turn {
                        1 => race.reads > 1,
                        2 => race.updates > 0,
                        _ => true,
                    };
                    race.subscribe().wait_for(may_go).await?;
                }
                let answer = inner.send(request).await?;
                if claim && method == Method::PUT {
                    race.send_modify(|race| race.updates += 1);
                }
                Ok(answer)
            }
        });
        kube::Client::new(service.boxed_clone(), "default")
    }

    pub fn start(&self, options: Options) -> Running {
        self.start_beside(self.driver.clone(), options)
    }

    /// A provisioner beside a driver of its own.
    pub fn start_beside(&self, driver: impl Connector + 'static, options: Options) -> Running {
        let mut context = Context::real(self.counted(), Arc::new(driver), "test");
        context.clock = Arc::new(self.clock);
        let task = tokio::spawn(provisioner::run(context.clone(), options));
        Running { context, task }
    }

    /// One that needs no driver.
    pub fn start_with(&self, run: impl FnOnce(Context) -> BoxFuture<'static, Result<(), Stop>>) -> Running {
        let mut context = Context::real(self.counted(), Arc::new(self.driver.clone()), "test");
        context.clock = Arc::new(self.clock);
        let task = tokio::spawn(run(context.clone()));
        Running { context, task }
    }

    /// Writes since the last time this was asked.
    pub fn take_writes(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    pub async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body).unwrap();
        match self.client.request::<Value>(request).await {
            Ok(answer) => answer,
            Err(kube::Error::Api(status)) if status.code == 404 => Value::Null,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub async fn get(&self, path: &str) -> Value {
        self.send(Method::GET, path, Value::Null).await
    }

    pub async fn make_class(&self, parameters: Value, reclaim: &str) {
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "fast" },
            "provisioner": DRIVER, "parameters": parameters, "reclaimPolicy": reclaim,
        });
        self.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", body).await;
    }

    /// The class waits for the first consumer from now on.
    pub async fn wait_for_consumers(&self) {
        let path = "/apis/storage.k8s.io/v1/storageclasses";
        let mut class = self.get(&format!("{path}/fast")).await;
        self.send(Method::DELETE, &format!("{path}/fast"), Value::Null).await;
        class["volumeBindingMode"] = "WaitForFirstConsumer".into();
        class["metadata"] = json!({ "name": "fast" });
        self.send(Method::POST, path, class).await;
    }

    /// Creates a claim as the pv-controller leaves it for us; returns the name of its volume.
    pub async fn make_claim(&self, name: &str, size: &str) -> String {
        self.make_claim_with(name, |claim| claim["spec"]["resources"]["requests"]["storage"] = size.into()).await
    }

    pub async fn make_claim_with(&self, name: &str, spoil: impl FnOnce(&mut Value)) -> String {
        let mut body = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": name, "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER } },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        spoil(&mut body);
        let claim = self.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", body).await;
        format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap())
    }

    /// A node with the driver, in a place that the driver names by one key.
    pub async fn make_node(&self, name: &str, place: &str) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { KEY: place } },
        });
        self.send(Method::POST, "/api/v1/nodes", node).await;
        let driver = json!({ "name": DRIVER, "nodeID": name, "topologyKeys": [KEY] });
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name },
            "spec": { "drivers": [driver] },
        });
        self.send(Method::POST, "/apis/storage.k8s.io/v1/csinodes", body).await;
    }

    pub async fn make_waiting_class(&self, name: &str, parameters: Value) {
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
            "provisioner": DRIVER, "parameters": parameters, "volumeBindingMode": "WaitForFirstConsumer",
        });
        self.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", body).await;
    }

    /// What is published of the driver's room.
    pub async fn capacities(&self) -> Vec<Value> {
        let list = self.get("/apis/storage.k8s.io/v1/csistoragecapacities").await;
        list["items"].as_array().unwrap().clone()
    }

    /// The scheduler's choice; `null` takes it back.
    pub async fn select_node(&self, claim: &str, node: Value) {
        let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{claim}");
        let body = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": node } } });
        self.send(Method::PATCH, &path, body).await;
    }

    pub async fn selected_node(&self, claim: &str) -> Value {
        let claim = self.get(&format!("/api/v1/namespaces/default/persistentvolumeclaims/{claim}")).await;
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].clone()
    }

    /// Deletes a claim for good, its protection finalizer included.
    pub async fn delete_claim(&self, name: &str) {
        let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}");
        self.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": null } })).await;
        self.send(Method::DELETE, &path, Value::Null).await;
    }

    pub async fn volume(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/persistentvolumes/{name}")).await
    }

    pub async fn release(&self, name: &str) {
        let path = format!("/api/v1/persistentvolumes/{name}");
        self.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": [FINALIZER] } })).await;
        self.send(Method::PATCH, &format!("{path}/status"), json!({ "status": { "phase": "Released" } })).await;
    }

    /// Claim uids in the journal.
    pub async fn journal(&self) -> Vec<String> {
        let leases = self.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await;
        let mut uids = Vec::new();
        for lease in leases["items"].as_array().unwrap() {
            let annotations = lease["metadata"]["annotations"].as_object().unwrap();
            let records = annotations.keys().filter_map(|key| key.strip_prefix("intent.provisioner.stowage.dev/"));
            uids.extend(records.map(str::to_owned));
        }
        uids
    }

    pub async fn events(&self, reason: &str) -> Vec<String> {
        self.events_at("/api/v1/namespaces/default/events", reason).await
    }

    pub async fn events_everywhere(&self, reason: &str) -> Vec<String> {
        self.events_at("/api/v1/events", reason).await
    }

    async fn events_at(&self, path: &str, reason: &str) -> Vec<String> {
        let events = self.get(path).await;
        let events = events["items"].as_array().unwrap().iter().filter(|event| event["reason"] == reason);
        events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the provisioner has read everything it needs.
    pub async fn ready(&self, running: &Running) {
        // Its parts are announced when it first runs.
        tokio::task::yield_now().await;
        self.until("readiness", async || running.context.readiness.check().is_ok()).await;
    }

    /// Lets everything run until nothing more can happen without time passing.
    pub async fn settle(&self) {
        for _ in 0..PATIENCE / 10 {
            tokio::task::yield_now().await;
        }
    }

    /// Lets everything run until the condition holds.
    pub async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        for _ in 0..PATIENCE {
            if condition().await {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{what} never came true; calls {:?}, volumes {:?}", self.driver.calls(), self.driver.volumes());
    }
}

pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

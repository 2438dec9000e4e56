//! A server, a user, the controller and the clients between them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::{Layer, Service};

use stowage_model::object::{Key, Projection, kinds};
use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, Pod, StorageClass, Volume};
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::args::ClientArgs;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};

use crate::IN_FLIGHT;

const NAMESPACE: &str = "default";

/// How claims come to their volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Static,
    PreBound,
    Dynamic,
}

impl Shape {
    pub const ALL: [Self; 3] = [Self::Static, Self::PreBound, Self::Dynamic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::PreBound => "prebound",
            Self::Dynamic => "dynamic",
        }
    }
}

/// Writes to claims and volumes that passed, and conflicts among them; events are apart.
#[derive(Default)]
pub struct Counts {
    writes: AtomicU64,
    conflicts: AtomicU64,
}

#[derive(Clone)]
struct Counting(Arc<Counts>);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, counts: Arc::clone(&self.0) }
    }
}

#[derive(Clone)]
struct Counted<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Task<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let counted = request.method() != Method::GET && request.uri().path().contains("persistentvolume");
        let counts = Arc::clone(&self.counts);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if counted {
                counts.writes.fetch_add(1, Ordering::Relaxed);
                if answer.status() == StatusCode::CONFLICT {
                    counts.conflicts.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(answer)
        })
    }
}

/// What one run of the controller did.
pub struct Run {
    pub rate: f64,
    pub writes: u64,
    pub conflicts: u64,
    /// From create to Bound, sorted.
    pub latencies: Vec<Duration>,
}

/// Aborts its task when dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub struct World {
    server: Option<stowage_apiserver::Server>,
    user: Api,
    controller: kube::Client,
    counts: Arc<Counts>,
    /// Part of every name, so that runs against a shared server do not meet.
    prefix: String,
}

impl World {
    pub async fn start() -> Self {
        let counts = Arc::new(Counts::default());
        let prefix = format!("bind{:08x}", Random::from_os().number() as u32);
        let counting = Counting(Arc::clone(&counts));
        if let Ok(file) = std::env::var("KUBECONFIG") {
            let args = ClientArgs { kubeconfig: Some(file.clone()), ..ClientArgs::default() };
            let user = args.unlimited_client().await.unwrap();
            let options = kube::config::KubeConfigOptions::default();
            let kubeconfig = kube::config::Kubeconfig::read_from(&file).unwrap();
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
            let builder = kube::client::ClientBuilder::try_from(config.await.unwrap()).unwrap();
            let controller = builder.with_layer(&counting).build();
            return Self { server: None, user: Api::new(user), controller, counts, prefix };
        }
        let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
        let server = stowage_apiserver::Server::in_memory(options);
        let user = Api::new(kube::Client::new(server.service(), NAMESPACE));
        let controller = kube::Client::new(counting.layer(server.service()), NAMESPACE);
        Self { server: Some(server), user, controller, counts, prefix }
    }

    fn volume(&self, n: usize) -> Value {
        json!({
            "metadata": { "name": format!("{}-v{n}", self.prefix) },
            "spec": {
                "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": self.prefix,
                "csi": { "driver": "driver.example", "volumeHandle": format!("handle-{n}") },
            },
        })
    }

    fn claim(&self, n: usize) -> Value {
        json!({
            "metadata": { "name": format!("{}-c{n}", self.prefix), "namespace": NAMESPACE },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.prefix,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        })
    }

    async fn create_all(
        &self,
        count: usize,
        make: impl Fn(usize) -> (stowage_model::object::Kind, Value),
    ) -> Vec<Value> {
        let tasks = futures::stream::iter(0..count).map(|n| {
            let (kind, body) = make(n);
            let user = self.user.clone();
            async move { tokio::spawn(async move { user.create_raw(kind, body).await.unwrap() }).await.unwrap() }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect().await
    }

    /// Volumes that are Available already, so that only what follows a claim is measured.
    async fn available_volumes(&self, count: usize, shape: Shape) {
        let made = self
            .create_all(count, |n| {
                let mut volume = self.volume(n);
                if shape == Shape::PreBound {
                    let name = format!("{}-c{n}", self.prefix);
                    volume["spec"]["claimRef"] = json!({ "namespace": NAMESPACE, "name": name });
                }
                (kinds::VOLUME, volume)
            })
            .await;
        self.patch_status(&made, "Available").await;
    }

    async fn patch_status(&self, volumes: &[Value], phase: &str) {
        let body = json!({ "status": { "phase": phase } });
        let tasks = futures::stream::iter(volumes).map(|volume| {
            let (user, body) = (self.user.clone(), body.clone());
            let volume: Volume = serde_json::from_value(volume.clone()).unwrap();
            async move {
                let cache = Cache::<Volume>::new();
                let target = Target::exact(&volume.meta);
                tokio::spawn(
                    async move { user.patch(&cache, &target, Part::Status, Patch::Merge(body)).await.unwrap() },
                )
                .await
                .unwrap();
            }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
    }

    async fn class(&self) {
        let class = json!({
            "metadata": { "name": self.prefix },
            "provisioner": "driver.example",
            "volumeBindingMode": "Immediate",
        });
        self.user.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
    }

    fn context(&self) -> Context {
        let csi = Arc::new(stowage_csi::UnixConnector);
        Context::real(self.controller.clone(), csi, "bench")
    }

    fn start_controller(&self) -> Running {
        let (context, options) = (self.context(), pv_controller::Options { parallel: IN_FLIGHT, ..Default::default() });
        Running(tokio::spawn(async move { pv_controller::run(context, options).await.unwrap() }))
    }

    /// A driver that answers at once: the volume appears when it is asked for. Its writes count.
    fn start_provisioner(&self, claims: &Cache<Claim>) -> Running {
        let api = Api::new(self.controller.clone());
        let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel::<Arc<Claim>>();
        claims.on_change(move |change| {
            let before = change.before.and_then(|claim| claim.storage_provisioner());
            if let Some(after) = change.after.filter(|claim| claim.storage_provisioner().is_some() && before.is_none())
            {
                let _ = sender.send(Arc::clone(after));
            }
        });
        let class = self.prefix.clone();
        Running(tokio::spawn(async move {
            while let Some(claim) = asked.recv().await {
                let (api, class) = (api.clone(), class.clone());
                tokio::spawn(async move {
                    let body = json!({
                        "metadata": {
                            "name": claim.provisioned_volume_name(),
                            "annotations": { "pv.kubernetes.io/provisioned-by": "driver.example" },
                        },
                        "spec": {
                            "capacity": { "storage": "1Gi" },
                            "accessModes": ["ReadWriteOnce"],
                            "persistentVolumeReclaimPolicy": "Delete",
                            "storageClassName": class,
                            "csi": { "driver": "driver.example", "volumeHandle": claim.meta.uid },
                            "claimRef": {
                                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.meta.namespace,
                                "name": claim.meta.name, "uid": claim.meta.uid,
                            },
                        },
                    });
                    api.create_raw(kinds::VOLUME, body).await.unwrap();
                });
            }
        }))
    }

    async fn watch<T: Projection>(&self) -> (Cache<T>, Running) {
        let cache = Cache::new();
        let fed = watch::feed(self.user.clone(), cache.clone(), Scope::all(), Random::from_os());
        let running = Running(tokio::spawn(fed));
        cache.synced().await;
        (cache, running)
    }

    /// Claims and volumes wait; the time from the controller's start to the last claim Bound.
    pub async fn bind_waiting(&self, shape: Shape, pairs: usize) -> Run {
        let (claims, _watch) = self.watch::<Claim>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        let _provisioner = self.prepare(shape, pairs, &claims).await;
        self.create_all(pairs, |n| (kinds::CLAIM, self.claim(n))).await;
        let begin = Instant::now();
        let _controller = self.start_controller();
        bound.wait(pairs).await;
        self.run(pairs, begin.elapsed(), vec![])
    }

    /// The controller runs; claims arrive as fast as the server takes them from `users` at once.
    pub async fn bind_arriving(&self, shape: Shape, pairs: usize, arriving: usize) -> Run {
        let (claims, _watch) = self.watch::<Claim>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        let _provisioner = self.prepare(shape, pairs, &claims).await;
        let _controller = self.start_controller();
        self.quiet().await;
        let times: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
        let begin = Instant::now();
        let tasks = futures::stream::iter(0..arriving).map(|n| {
            let (user, body, times) = (self.user.clone(), self.claim(n), Arc::clone(&times));
            async move {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                times.lock().unwrap().insert(name, Instant::now());
                tokio::spawn(async move { user.create_raw(kinds::CLAIM, body).await.unwrap() }).await.unwrap();
            }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
        bound.wait(arriving).await;
        let took = begin.elapsed();
        let times = times.lock().unwrap();
        let ends = bound.times();
        let mut latencies: Vec<Duration> = times.iter().map(|(name, at)| ends[name] - *at).collect();
        latencies.sort();
        self.run(arriving, took, latencies)
    }

    async fn prepare(&self, shape: Shape, pairs: usize, claims: &Cache<Claim>) -> Option<Running> {
        if shape == Shape::Dynamic {
            self.class().await;
            return Some(self.start_provisioner(claims));
        }
        self.available_volumes(pairs, shape).await;
        None
    }

    fn run(&self, pairs: usize, took: Duration, latencies: Vec<Duration>) -> Run {
        Run {
            rate: pairs as f64 / took.as_secs_f64(),
            writes: self.counts.writes.load(Ordering::Relaxed),
            conflicts: self.counts.conflicts.load(Ordering::Relaxed),
            latencies,
        }
    }

    /// Until the controller has written nothing for a while: the one place where a benchmark has to wait by the clock.
    async fn quiet(&self) {
        let mut last = u64::MAX;
        loop {
            let now = self.counts.writes.load(Ordering::Relaxed);
            if now == last {
                return;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    }

    pub async fn fill_background(&self, count: usize) {
        let made = self
            .create_all(count, |n| {
                let mut volume = self.volume(n);
                volume["metadata"]["name"] = format!("{}-r{n}", self.prefix).into();
                volume["spec"]["claimRef"] =
                    json!({ "namespace": NAMESPACE, "name": format!("gone{n}"), "uid": "gone" });
                (kinds::VOLUME, volume)
            })
            .await;
        self.patch_status(&made, "Released").await;
        self.create_all(count, |n| {
            let mut claim = self.claim(n);
            claim["metadata"]["name"] = format!("{}-u{n}", self.prefix).into();
            claim["spec"]["resources"]["requests"]["storage"] = "900Ti".into();
            (kinds::CLAIM, claim)
        })
        .await;
    }

    /// The server's own rate: the four conditional writes of a binding on objects of the same size, watches open.
    pub async fn raw_rate(&self, pairs: usize) -> f64 {
        self.available_volumes(pairs, Shape::Static).await;
        self.create_all(pairs, |n| (kinds::CLAIM, self.claim(n))).await;
        let (claims, _a) = self.watch::<Claim>().await;
        let (volumes, _b) = self.watch::<Volume>().await;
        let (_classes, _c) = self.watch::<StorageClass>().await;
        let (_pods, _d) = self.watch::<Pod>().await;
        // The benchmark's own watch of claims is open in the other run too.
        let (_seen, _e) = self.watch::<Claim>().await;
        let begin = Instant::now();
        let tasks = futures::stream::iter(0..pairs).map(|n| {
            let (api, claims, volumes) = (Api::new(self.controller.clone()), claims.clone(), volumes.clone());
            let claim = Key::namespaced(NAMESPACE, format!("{}-c{n}", self.prefix));
            let volume = Key::cluster(format!("{}-v{n}", self.prefix));
            async move {
                tokio::spawn(async move {
                    let claim = claims.get(&claim).unwrap();
                    let volume = volumes.get(&volume).unwrap();
                    let body = json!({
                        "metadata": { "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } },
                        "spec": { "claimRef": {
                            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE,
                            "name": claim.meta.name, "uid": claim.meta.uid, "resourceVersion": claim.meta.revision.to_string(),
                        } },
                    });
                    let volume = api.patch(&volumes, &Target::exact(&volume.meta), Part::Main, Patch::Merge(body)).await.unwrap();
                    let body = json!({ "status": { "phase": "Bound", "message": null } });
                    let target = Target::exact(&volume.meta);
                    let volume_status = api.patch(&volumes, &target, Part::Status, Patch::Merge(body));
                    let claim_writes = async {
                        let body = json!({
                            "metadata": { "annotations": {
                                "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
                            } },
                            "spec": { "volumeName": volume.meta.name },
                        });
                        let claim = api.patch(&claims, &Target::exact(&claim.meta), Part::Main, Patch::Merge(body)).await.unwrap();
                        let body = json!({ "status": {
                            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
                            "conditions": [{ "type": "Unused", "status": "True", "reason": "NoPodsUsingPVC" }],
                        } });
                        api.patch(&claims, &Target::exact(&claim.meta), Part::Status, Patch::Merge(body)).await.unwrap();
                    };
                    let (status, ()) = tokio::join!(volume_status, claim_writes);
                    status.unwrap();
                })
                .await
                .unwrap();
            }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
        (pairs * 4) as f64 / begin.elapsed().as_secs_f64()
    }

    /// Megabytes the real binary has resident once it has bound that many pairs over HTTP; embedded server only.
    pub async fn memory(&self, objects: usize) -> Option<f64> {
        let server = self.server.clone()?;
        let (claims, _watch) = self.watch::<Claim>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        self.available_volumes(objects, Shape::Static).await;
        self.create_all(objects, |n| (kinds::CLAIM, self.claim(n))).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = stowage_apiserver::Identity::generate(&[address.ip()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        identity.write_kubeconfig(&kubeconfig, address).unwrap();
        let _served = Running(tokio::spawn(async move {
            let limits = stowage_apiserver::Limits::default();
            let front = stowage_apiserver::Front::new(identity.tls(), identity.credentials(), limits).unwrap();
            server.serve(listener, front, std::future::pending()).await;
        }));
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_pv-controller"))
            .arg("--leader-elect=false")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        bound.wait(objects).await;
        let megabytes = resident(pid);
        child.kill().await.unwrap();
        Some(megabytes)
    }
}

/// Megabytes of a process in memory.
fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// When each of our claims was first seen Bound.
struct Bound {
    times: Arc<Mutex<BTreeMap<String, Instant>>>,
    count: tokio::sync::watch::Receiver<usize>,
}

impl Bound {
    fn watch(claims: &Cache<Claim>, prefix: String) -> Self {
        let times: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
        let (sender, count) = tokio::sync::watch::channel(0);
        claims.on_change({
            let times = Arc::clone(&times);
            move |change| {
                let bound = |claim: &&Arc<Claim>| {
                    claim.status.phase == ClaimPhase::Bound && claim.meta.name.starts_with(&prefix)
                };
                if let Some(claim) = change.after.filter(bound) {
                    let mut times = times.lock().unwrap();
                    times.entry(claim.meta.name.clone()).or_insert_with(Instant::now);
                    sender.send_replace(times.len());
                }
            }
        });
        Self { times, count }
    }

    async fn wait(&self, count: usize) {
        self.count.clone().wait_for(|seen| *seen >= count).await.unwrap();
    }

    fn times(&self) -> BTreeMap<String, Instant> {
        self.times.lock().unwrap().clone()
    }
}

//! The whole service against the embedded API server, in virtual time.
// The configured exemption covers test functions only, not the helpers beside them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use stowage_apiserver::Server;
use stowage_csi::UnixConnector;
use stowage_model::object::{Key, Kind, ObjectId, Projection, kinds};
use stowage_model::{Claim, Event, Node, Pod, Volume};
use stowage_runtime::Context;
use stowage_runtime::api::Api;
use stowage_runtime::cache::Cache;
use stowage_runtime::clock::Clock;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};

/// Wall time that moves with tokio's, and can be set.
struct Virtual {
    start: Instant,
    step: AtomicI64,
}

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let step = jiff::SignedDuration::from_secs(self.step.load(Ordering::SeqCst));
        Timestamp::UNIX_EPOCH + jiff::SignedDuration::try_from(self.boottime()).unwrap() + step
    }

    fn boottime(&self) -> Duration {
        self.start.elapsed()
    }
}

/// An API server with a scheduler; both end with it.
struct World {
    api: Api,
    context: Context,
    start: Instant,
    clock: Arc<Virtual>,
    tasks: tokio::task::JoinSet<()>,
}

impl World {
    fn new() -> Self {
        Self::with(scheduler::Options::default())
    }

    fn with(options: scheduler::Options) -> Self {
        let start = Instant::now();
        let clock = Arc::new(Virtual { start, step: AtomicI64::new(0) });
        let mut id = 0_u128;
        let server = Server::in_memory(stowage_apiserver::Options {
            clock: Arc::new({
                let clock = Arc::clone(&clock);
                move || clock.now()
            }),
            ids: Box::new(move || {
                id += 1;
                id
            }),
            window: 4096,
            bookmark_interval: Duration::from_secs(60),
        });
        let client = kube::Client::new(server.service(), "default");
        let mut context = Context::real(client, Arc::new(UnixConnector), "test");
        context.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        context.random = Random::seeded(1);
        let mut world = Self { api: context.api.clone(), context, start, clock, tasks: tokio::task::JoinSet::new() };
        world.start_scheduler(options);
        world
    }

    fn start_scheduler(&mut self, options: scheduler::Options) {
        let run = scheduler::run(self.context.clone(), options);
        self.tasks.spawn(async move { run.await.unwrap() });
    }

    async fn create(&self, kind: Kind, body: Value) {
        let status = body["status"].clone();
        let made = self.api.create_raw(kind, body).await.unwrap();
        if !status.is_null() {
            let key = Key::namespaced(made["metadata"]["namespace"].as_str().unwrap_or_default(), name_of(&made));
            self.patch_status(kind, &key, json!({ "status": status })).await;
        }
    }

    async fn patch_status(&self, kind: Kind, key: &Key, body: Value) {
        let path = format!("{}/status", kind.object_path(key));
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        self.api.client().request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    }

    async fn patch(&self, kind: Kind, key: Key, body: Value) {
        self.api.patch_raw(&ObjectId { kind, key }, body).await.unwrap();
    }

    /// Waits by watching until one of the kind is as wished.
    async fn until_any<T: Projection>(&self, wish: impl Fn(Option<&T>) -> bool) {
        self.watch_until(|cache: &Cache<T>| cache.list().iter().any(|object| wish(Some(object)))).await;
    }

    /// Waits by watching until the object is as wished, or gone if that is wished.
    async fn until<T: Projection>(&self, key: &Key, wish: impl Fn(Option<&T>) -> bool) {
        self.watch_until(|cache: &Cache<T>| wish(cache.get(key).as_deref())).await;
    }

    async fn watch_until<T: Projection>(&self, wish: impl Fn(&Cache<T>) -> bool) {
        let cache = Cache::<T>::new();
        let changed = Arc::new(tokio::sync::Notify::new());
        cache.on_change({
            let changed = Arc::clone(&changed);
            move |_| changed.notify_one()
        });
        let feed = watch::feed(self.api.clone(), cache.clone(), Scope::all(), Random::seeded(2));
        let wished = async {
            cache.synced().await;
            while !wish(&cache) {
                changed.notified().await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(500), async {
            tokio::select! {
                biased;
                () = wished => {}
                () = feed => {}
            }
        });
        reached.await.unwrap_or_else(|_| panic!("never came to be as wished: {:?}", cache.list()));
    }

    fn seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn node(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] },
    })
}

fn pod(name: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> =
        claims.iter().map(|c| json!({ "name": c, "persistentVolumeClaim": { "claimName": c } })).collect();
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "volumes": volumes },
    })
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "waits",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn class() -> Value {
    json!({
        "metadata": { "name": "waits" },
        "provisioner": "shared.csi.stowage.dev",
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "waits",
            "csi": { "driver": "shared.csi.stowage.dev", "volumeHandle": name },
        },
        "status": { "phase": "Available" },
    })
}

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

fn is_on(node: &str) -> impl Fn(Option<&Pod>) -> bool {
    move |pod| pod.is_some_and(|pod| pod.spec.node_name == node)
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_volume_and_is_placed_without_time_passing() {
    let world = World::new();
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::STORAGE_CLASS, class()).await;
    world.create(kinds::POD, pod("p", &["c"])).await;
    let told = |pod: Option<&Pod>| {
        let conditions = pod.map(|pod| pod.status.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.kind == "PodScheduled" && c.message.contains("\"c\" does not exist"))
    };
    world.until::<Pod>(&key("p"), told).await;
    world.create(kinds::CLAIM, claim("c")).await;
    world.until::<Claim>(&key("c"), |claim| claim.is_some_and(|claim| claim.selected_node() == Some("a"))).await;
    world.create(kinds::VOLUME, volume("v")).await;
    let bound = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "volumeName": "v" },
    });
    world.patch(kinds::CLAIM, key("c"), bound).await;
    world.until::<Pod>(&key("p"), is_on("a")).await;
    assert_eq!(world.seconds(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_room_and_is_placed_where_it_is_published_without_time_passing() {
    let world = World::new();
    for name in ["a", "b"] {
        world.create(kinds::NODE, node(name)).await;
    }
    let driver = json!({ "metadata": { "name": "shared.csi.stowage.dev" }, "spec": { "storageCapacity": true } });
    world.create(kinds::CSI_DRIVER, driver).await;
    world.create(kinds::STORAGE_CLASS, class()).await;
    let room = |node: &str, size: &str| {
        json!({
            "metadata": { "namespace": "default", "name": format!("csisc-{node}") },
            "storageClassName": "waits", "capacity": size,
            "nodeTopology": { "matchLabels": { "kubernetes.io/hostname": node } },
        })
    };
    world.create(kinds::STORAGE_CAPACITY, room("a", "1Mi")).await;
    world.create(kinds::STORAGE_CAPACITY, room("b", "1Mi")).await;
    world.create(kinds::CLAIM, claim("c")).await;
    world.create(kinds::POD, pod("p", &["c"])).await;
    let full = "no node of 2 will do: 2 without enough free storage for a new volume (a, b)";
    let told = |pod: Option<&Pod>| {
        let conditions = pod.map(|pod| pod.status.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.kind == "PodScheduled" && c.message == full)
    };
    world.until::<Pod>(&key("p"), told).await;
    // What `kubectl describe pod` shows.
    let about = |event: Option<&Event>| event.is_some_and(|event| event.message == full);
    world.until_any::<Event>(about).await;
    world.patch(kinds::STORAGE_CAPACITY, key("csisc-b"), json!({ "capacity": "2Gi" })).await;
    world.until::<Claim>(&key("c"), |claim| claim.is_some_and(|claim| claim.selected_node() == Some("b"))).await;
    assert_eq!(world.seconds(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_free_volume_is_taken_for_the_claim() {
    let world = World::new();
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::STORAGE_CLASS, class()).await;
    world.create(kinds::VOLUME, volume("v")).await;
    world.create(kinds::CLAIM, claim("c")).await;
    world.create(kinds::POD, pod("p", &["c"])).await;
    let taken = |volume: Option<&Volume>| {
        volume.is_some_and(|volume| {
            volume.is_bound_by_controller() && volume.spec.claim_ref.as_ref().is_some_and(|held| !held.uid.is_empty())
        })
    };
    world.until::<Volume>(&Key::cluster("v"), taken).await;
    assert_eq!(world.seconds(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_given_back_goes_to_the_other_node() {
    let world = World::new();
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::NODE, node("b")).await;
    world.create(kinds::STORAGE_CLASS, class()).await;
    world.create(kinds::CLAIM, claim("c")).await;
    world.create(kinds::POD, pod("p", &["c"])).await;
    let selected = |node: &'static str| move |c: Option<&Claim>| c.is_some_and(|c| c.selected_node() == Some(node));
    world.until::<Claim>(&key("c"), selected("a")).await;
    let given_back = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } });
    world.patch(kinds::CLAIM, key("c"), given_back).await;
    world.until::<Claim>(&key("c"), selected("b")).await;
    assert_eq!(world.seconds(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_marked_and_comes_back_with_its_lease() {
    let mut world = World::new();
    let lease = |at: u64| {
        json!({
            "metadata": { "namespace": "kube-node-lease", "name": "a" },
            "spec": { "holderIdentity": "a", "renewTime": format!("1970-01-01T00:{:02}:{:02}.000000Z", at / 60, at % 60) },
        })
    };
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::LEASE, lease(0)).await;
    let marked = |node: Option<&Node>| {
        node.is_some_and(|node| {
            let unreachable = node.spec.taints.iter().filter(|t| t.key == "node.kubernetes.io/unreachable").count();
            !node.is_ready() && unreachable == 2
        })
    };
    let well = |node: Option<&Node>| node.is_some_and(|node| node.is_ready() && node.spec.taints.is_empty());
    let node = Key::cluster("a");
    world.until::<Node>(&node, marked).await;
    assert_eq!(world.seconds(), 40);

    // A new scheduler must not take the old lease for a sign of life.
    world.tasks.shutdown().await;
    world.start_scheduler(scheduler::Options::default());
    world.create(kinds::POD, pod("p", &[])).await;
    let told = |pod: Option<&Pod>| pod.is_some_and(|pod| !pod.status.conditions.is_empty());
    world.until::<Pod>(&key("p"), told).await;
    world.until::<Node>(&node, marked).await;
    world.patch(kinds::LEASE, Key::namespaced("kube-node-lease", "a"), lease(41)).await;
    world.until::<Node>(&node, well).await;
    world.until::<Pod>(&key("p"), is_on("a")).await;
    assert_eq!(world.seconds(), 40);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_go_after_the_quarantine() {
    let world = World::new();
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::POD, pod("p", &[])).await;
    world.until::<Pod>(&key("p"), is_on("a")).await;
    let request = http::Request::delete("/api/v1/nodes/a").body(Vec::new()).unwrap();
    world.api.client().request::<Value>(request).await.unwrap();
    world.until::<Pod>(&key("p"), |pod| pod.is_none()).await;
    assert_eq!(world.seconds(), 40);
}

#[tokio::test(start_paused = true)]
async fn beside_a_kube_controller_manager_it_places_what_names_it_and_touches_nothing_else() {
    let name = "stowage";
    let options = scheduler::Options { scheduler_name: name.to_owned(), node_lifecycle: false, ..Default::default() };
    let world = World::with(options);
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::NODE, node("b")).await;
    // Another scheduler's, and one whose node goes: both another's business.
    world.create(kinds::POD, pod("anothers", &[])).await;
    let mut placed = pod("placed", &[]);
    placed["spec"]["nodeName"] = "b".into();
    world.create(kinds::POD, placed).await;
    let request = http::Request::delete("/api/v1/nodes/b").body(Vec::new()).unwrap();
    world.api.client().request::<Value>(request).await.unwrap();
    tokio::time::sleep(Duration::from_secs(400)).await;

    let mut ours = pod("ours", &[]);
    ours["spec"]["schedulerName"] = name.into();
    world.create(kinds::POD, ours).await;
    world.until::<Pod>(&key("ours"), is_on("a")).await;
    world.until::<Pod>(&key("placed"), is_on("b")).await;
    let untouched = |pod: Option<&Pod>| pod.is_some_and(|p| !p.is_scheduled() && p.status.conditions.is_empty());
    world.until::<Pod>(&key("anothers"), untouched).await;
    // Silent for minutes, and nobody marked it.
    let well = |node: Option<&Node>| node.is_some_and(|node| node.is_ready() && node.spec.taints.is_empty());
    world.until::<Node>(&Key::cluster("a"), well).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_makes_no_node_silent() {
    let world = World::new();
    world.create(kinds::NODE, node("a")).await;
    world.create(kinds::POD, pod("p", &[])).await;
    world.until::<Pod>(&key("p"), is_on("a")).await;
    world.clock.step.store(3600, Ordering::SeqCst);
    world.patch(kinds::NODE, Key::cluster("a"), json!({ "metadata": { "labels": { "looked": "at" } } })).await;
    world.create(kinds::POD, pod("q", &[])).await;
    world.until::<Pod>(&key("q"), is_on("a")).await;
    let node: Node = world.api.get(&Key::cluster("a")).await.unwrap().unwrap();
    assert!(node.is_ready() && node.spec.taints.is_empty(), "{node:?}");
}

/// The caches never sync when the API server does not answer, and nothing else was waited for.
#[tokio::test(start_paused = true)]
async fn a_scheduler_that_cannot_reach_the_server_still_stops() {
    let silence = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let context = Context::real(kube::Client::new(silence, "default"), Arc::new(UnixConnector), "test");
    context.shutdown.trigger();
    let run = scheduler::run(context, scheduler::Options::default());
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("it does not stop").unwrap();
}

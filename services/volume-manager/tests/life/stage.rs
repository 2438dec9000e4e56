//! Everything around the service under test, and what others would do in a cluster.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use stowage_apiserver::Server;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::csi_node::{CsiNode, CsiNodeDriver};
use stowage_model::node::Node;
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::phase::PodPhase;
use stowage_model::pod::Pod;
use stowage_model::{Claim, VolumeAttachment, names};
use stowage_mount::{LinuxMounter, Mounter};
use stowage_runtime::api::{Api, Deletion, Part, Patch, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::clock::Clock;
use stowage_runtime::random::Random;
use stowage_runtime::{Context, Stop, watch as feed};
use stowage_testing::{Changes, MemoryMounter, VirtualClock};
use volume_manager::api::{Handle, VolumeManager};
use volume_manager::{Occupancy, Options, SeLinux};

use crate::driver::{Driver, NAME};
use crate::ports::{Refusal, Sockets};

pub const POD: &str = "pod";
pub const HANDLE: &str = "vol-1";
pub const UNIQUE: &str = "kubernetes.io/csi/driver.example^vol-1";

/// Longer than any backoff that a test provokes; virtual, so a hang costs little. Much longer: virtual time leaps while files
/// change hands on a thread that the runtime does not wait for.
const PATIENCE: Duration = Duration::from_secs(3600);

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("what was waited for did not happen")
}

/// A running volume manager.
pub struct Running {
    task: JoinHandle<()>,
    pub occupancy: Occupancy,
}

impl Running {
    pub fn crash(self) {
        self.task.abort();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the cluster holds before a test begins.
#[derive(Clone)]
pub struct Cluster {
    /// The spec of the driver's CSIDriver, if there is one.
    pub csi_driver: Option<Value>,
    /// Members of the volume's spec, over those of every test.
    pub volume: Value,
    /// Whether the node is in memory, so that devices can be bound without rights.
    pub in_memory: bool,
    /// Whether FlexVolume drivers are looked for.
    pub takes_flex_drivers: bool,
    /// How files are labelled, where SELinux is on.
    pub se_linux: Option<SeLinux>,
    /// Whether the node attaches its volumes itself.
    pub attaches: bool,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            csi_driver: Some(json!({ "podInfoOnMount": true })),
            volume: json!({}),
            in_memory: false,
            takes_flex_drivers: false,
            se_linux: None,
            attaches: false,
        }
    }
}

/// A driver that needs no attaching, with these members of its CSIDriver's spec.
pub fn unattached(members: Value) -> Cluster {
    let mut spec = json!({ "attachRequired": false });
    merge(&mut spec, members);
    Cluster { csi_driver: Some(spec), ..Cluster::default() }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

pub struct Stage {
    api: Api,
    mounter: Arc<dyn Mounter>,
    /// The node, where it is in memory.
    pub memory: MemoryMounter,
    pub driver: Driver,
    sockets: Sockets,
    pub refusal: Refusal,
    root: tempfile::TempDir,
    takes_flex_drivers: bool,
    se_linux: Option<SeLinux>,
    attaches: bool,
    clock: VirtualClock,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    csi_nodes: Cache<CsiNode>,
    changes: watch::Receiver<()>,
    withdrawals: Arc<AtomicUsize>,
    /// Of the service that runs, or ran last.
    occupancy: Mutex<Occupancy>,
    handle: Mutex<Handle>,
    feeds: Vec<JoinHandle<()>>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.feeds.iter().for_each(JoinHandle::abort);
    }
}

impl Stage {
    /// A claim bound to a volume of a driver that is registered and needs attaching.
    pub async fn set() -> Self {
        let stage = Self::set_without_driver().await;
        stage.plug_in();
        stage
    }

    /// The same with another cluster; the driver is there.
    pub async fn set_in(cluster: Cluster) -> Self {
        let stage = Self::set_without_driver_in(cluster).await;
        stage.plug_in();
        stage
    }

    pub async fn set_without_driver() -> Self {
        Self::set_without_driver_in(Cluster::default()).await
    }

    pub async fn set_without_driver_in(cluster: Cluster) -> Self {
        let clock = VirtualClock::start();
        let ids = Random::seeded(1);
        let server = Server::in_memory(stowage_apiserver::Options {
            clock: Arc::new(move || clock.now()),
            ids: Box::new(move || u128::from(ids.number()) << 64 | u128::from(ids.number())),
            window: 4096,
            bookmark_interval: Duration::from_secs(3600),
        });
        let api = Api::new(kube::Client::new(server.service(), "default"));
        let (sender, changes) = watch::channel(());
        let sender = Arc::new(sender);
        let (nodes, pods, csi_nodes): (Cache<Node>, _, _) = (Cache::new(), Cache::new(), Cache::new());
        let withdrawals = Arc::new(AtomicUsize::new(0));
        nodes.on_change({
            let withdrawals = Arc::clone(&withdrawals);
            move |change| {
                let reported = |node: Option<&Arc<Node>>| node.is_some_and(|node| node.is_in_use(UNIQUE));
                if reported(change.before) && !reported(change.after) {
                    withdrawals.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let feeds =
            vec![follow(&api, &nodes, &sender), follow(&api, &pods, &sender), follow(&api, &csi_nodes, &sender)];
        let root = tempfile::tempdir().unwrap();
        let (driver, sockets, refusal) = (Driver::default(), Sockets::default(), Refusal::default());
        let memory = MemoryMounter::new(Changes::default());
        let mounter: Arc<dyn Mounter> = match cluster.in_memory {
            true => Arc::new(memory.clone()),
            false => Arc::new(LinuxMounter),
        };
        if cluster.in_memory {
            driver.lives_in(&memory);
        }
        let stage = Self {
            api,
            mounter,
            memory,
            driver,
            sockets,
            refusal,
            root,
            takes_flex_drivers: cluster.takes_flex_drivers,
            se_linux: cluster.se_linux.clone(),
            attaches: cluster.attaches,
            clock,
            nodes,
            pods,
            csi_nodes,
            changes,
            withdrawals,
            occupancy: Mutex::default(),
            handle: Mutex::default(),
            feeds,
        };
        stage.make_objects(cluster).await;
        stage
    }

    async fn make_objects(&self, cluster: Cluster) {
        if let Some(spec) = cluster.csi_driver {
            self.create(kinds::CSI_DRIVER, json!({ "metadata": { "name": NAME }, "spec": spec })).await;
        }
        let claim = json!({
            "metadata": {
                "name": "claim", "namespace": "default",
                "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeName": "pv", "storageClassName": "",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let claim = self.create(kinds::CLAIM, claim).await;
        let claim: Claim = serde_json::from_value(claim).unwrap();
        let bound = Patch::Merge(json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } }));
        let target = Target::any_version(&claim.meta);
        self.api.patch::<Claim>(&Cache::new(), &target, Part::Status, bound).await.unwrap();
        let mut volume = json!({
            "metadata": { "name": "pv" },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "claimRef": { "namespace": "default", "name": "claim", "uid": claim.meta.uid },
                "csi": { "driver": NAME, "volumeHandle": HANDLE, "fsType": "ext4" },
            },
        });
        merge(&mut volume["spec"], cluster.volume);
        self.create(kinds::VOLUME, volume).await;
    }

    /// Gives the claim a class of which more may be asked for.
    pub async fn let_claim_grow(&self) {
        let class = json!({ "metadata": { "name": "growing" }, "provisioner": NAME, "allowVolumeExpansion": true });
        self.create(kinds::STORAGE_CLASS, class).await;
        let annotations = json!({ "volume.beta.kubernetes.io/storage-class": "growing" });
        self.patch::<Claim>("claim", Part::Main, json!({ "metadata": { "annotations": annotations } })).await;
    }

    /// A secret of the pods' namespace whose one key is its name.
    pub async fn create_secret(&self, name: &str) {
        let secret = json!({ "metadata": { "name": name, "namespace": "default" }, "data": { name: "eA==" } });
        self.create(kinds::SECRET, secret).await;
    }

    pub async fn create(&self, kind: stowage_model::Kind, body: Value) -> Value {
        self.api.create_raw(kind, body).await.unwrap()
    }

    pub fn context(&self) -> Context {
        let client = self.refusal.before(self.api.client().clone());
        let mut context = Context::real(client, Arc::new(self.driver.clone()), "node");
        context.clock = Arc::new(self.clock);
        context.random = Random::seeded(2);
        context
    }

    fn options(&self, occupancy: Occupancy) -> Options {
        let handle = Handle::default();
        *self.handle.lock().unwrap() = handle.clone();
        Options {
            node_name: "node".into(),
            root: self.root.path().to_owned(),
            occupancy,
            handle,
            se_linux: self.se_linux.clone(),
            controller_attach: !self.attaches,
            volume_plugin_dir: self.takes_flex_drivers.then(|| self.volume_plugin_dir()),
            ..Options::default()
        }
    }

    /// What programs may ask of the service that runs.
    pub async fn manager(&self) -> Arc<VolumeManager> {
        let handle = self.handle.lock().unwrap().clone();
        within(handle.get()).await
    }

    /// A service that is asked to stop while its server does not answer.
    pub async fn run_and_stop_without_a_server(&self) -> Result<(), Stop> {
        let silence = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
        });
        let context = Context::real(kube::Client::new(silence, "default"), Arc::new(self.driver.clone()), "node");
        context.shutdown.trigger();
        let options = self.options(Occupancy::default());
        volume_manager::run(context, Arc::new(LinuxMounter), Arc::new(self.sockets.clone()), options).await
    }

    /// A service whose news of sockets end once it has registered the driver.
    pub async fn run_until_sockets_are_unwatched(&self) -> Result<(), Stop> {
        let options = self.options(Occupancy::default());
        let run = volume_manager::run(self.context(), Arc::new(LinuxMounter), Arc::new(self.sockets.clone()), options);
        let unwatched = async {
            self.driver_is_registered().await;
            self.sockets.unwatch();
        };
        tokio::join!(run, unwatched).0
    }

    /// Makes the metadata of every mount unreadable.
    pub fn spoil_metadata(&self) {
        let pods = self.root.path().join("pods");
        let volumes =
            std::fs::read_dir(pods).unwrap().map(|pod| pod.unwrap().path().join("volumes/kubernetes.io~csi/pv"));
        for dir in volumes.chain([self.staging_dir()]) {
            std::fs::write(dir.join("vol_data.json"), "garbage").unwrap();
        }
    }

    /// Lets everything run until nothing more can happen without time passing.
    pub async fn settle(&self) {
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
    }

    pub fn start(&self) -> Running {
        let occupancy = Occupancy::default();
        *self.occupancy.lock().unwrap() = occupancy.clone();
        let options = self.options(occupancy.clone());
        let run =
            volume_manager::run(self.context(), Arc::clone(&self.mounter), Arc::new(self.sockets.clone()), options);
        let task = tokio::spawn(async move { panic!("the service ended: {:?}", run.await) });
        Running { task, occupancy }
    }

    pub fn plug_in(&self) {
        self.sockets.plug(true);
    }

    pub fn unplug(&self) {
        self.sockets.plug(false);
    }

    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    pub fn staging_dir(&self) -> PathBuf {
        self.root.path().join(names::staging_dir(NAME, HANDLE))
    }

    /// No pod has a directory any more. They go a moment after the volumes: nobody waits for that.
    pub async fn pod_dirs_are_gone(&self) {
        let pods = self.root.path().join("pods");
        let patience = std::time::Instant::now() + Duration::from_secs(20);
        while std::fs::read_dir(&pods).is_ok_and(|mut entries| entries.next().is_some()) {
            assert!(std::time::Instant::now() < patience, "directories of pods are left");
            tokio::task::yield_now().await;
        }
    }

    pub async fn create_pod(&self, name: &str) {
        let claim = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "claim" } }]);
        self.create_pod_with(name, claim).await;
    }

    pub async fn create_pod_with(&self, name: &str, volumes: Value) {
        self.create_pod_of(name, json!({ "volumes": volumes })).await;
    }

    /// A pod that has the claim as a device.
    pub async fn create_device_pod(&self, name: &str) {
        let device = json!([{ "name": "data", "devicePath": "/dev/xvda" }]);
        let container = json!([{ "name": "c", "image": "i", "volumeDevices": device }]);
        self.create_pod_of(name, json!({ "containers": container })).await;
    }

    /// A pod with these members of its spec, over one container that mounts the claim.
    pub async fn create_pod_of(&self, name: &str, members: Value) {
        self.create_pod_from(name, json!({ "spec": members })).await;
    }

    /// A pod with these labels.
    pub async fn create_labelled_pod(&self, name: &str, labels: Value) {
        self.create_pod_from(name, json!({ "metadata": { "labels": labels } })).await;
    }

    /// A pod with these members, over those of every test.
    pub async fn create_pod_from(&self, name: &str, members: Value) {
        let container = json!({ "name": "c", "image": "i", "volumeMounts": [{ "name": "data", "mountPath": "/d" }] });
        let claim = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "claim" } }]);
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "nodeName": "node", "containers": [container], "volumes": claim },
        });
        merge(&mut pod, members);
        self.create(kinds::POD, pod).await;
    }

    /// Where FlexVolume drivers are.
    pub fn volume_plugin_dir(&self) -> PathBuf {
        self.root.path().join("exec")
    }

    /// Where the service keeps everything.
    pub fn root(&self) -> &std::path::Path {
        self.root.path()
    }

    /// The uid of a pod, by the server's word.
    pub async fn uid_of(&self, pod: &str) -> String {
        self.get::<Pod>(pod).await.meta.uid
    }

    pub fn uid(&self, pod: &str) -> String {
        self.pods.get(&Key::namespaced("default", pod)).unwrap().meta.uid.clone()
    }

    /// The directory of the pod's volume.
    pub fn volume_dir(&self, pod: &str, volume: &str) -> PathBuf {
        self.root().join("pods").join(self.uid(pod)).join("volumes/kubernetes.io~csi").join(volume)
    }

    /// Changes an object by a merge patch.
    pub async fn patch<T: Projection>(&self, name: &str, part: Part, patch: Value) {
        let key = if T::KIND.namespaced { Key::namespaced("default", name) } else { Key::cluster(name) };
        let object: T = self.api.get(&key).await.unwrap().unwrap();
        let target = Target::any_version(object.meta());
        self.api.patch::<T>(&Cache::new(), &target, part, Patch::Merge(patch)).await.unwrap();
    }

    /// An object with all its fields.
    pub async fn raw(&self, kind: stowage_model::Kind, key: &Key) -> Value {
        let path = format!("{}/{}", kind.collection_path(&key.namespace), key.name);
        self.api.client().request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
    }

    pub async fn get<T: Projection>(&self, name: &str) -> T {
        let key = if T::KIND.namespaced { Key::namespaced("default", name) } else { Key::cluster(name) };
        self.api.get(&key).await.unwrap().unwrap()
    }

    /// What the attach-detach controller and the attacher do once the node says that it wants the volume.
    pub async fn attach(&self) {
        self.node_reports_in_use(true).await;
        self.attach_with(json!({ "attached": true, "attachmentMetadata": { "token": "7" } })).await;
        self.list_as_attached().await;
    }

    /// The attachment, with this status.
    pub async fn attach_with(&self, status: Value) {
        let name = names::attachment(HANDLE, NAME, "node");
        let attachment = json!({
            "metadata": { "name": name },
            "spec": { "attacher": NAME, "nodeName": "node", "source": { "persistentVolumeName": "pv" } },
        });
        let attachment = self.create(kinds::VOLUME_ATTACHMENT, attachment).await;
        let attachment: VolumeAttachment = serde_json::from_value(attachment).unwrap();
        let target = Target::any_version(&attachment.meta);
        let patch = Patch::Merge(json!({ "status": status }));
        self.api.patch::<VolumeAttachment>(&Cache::new(), &target, Part::Status, patch).await.unwrap();
    }

    /// The attachment, once it is what is looked for; none for one that is not there.
    pub async fn attachment_when(&self, holds: impl Fn(Option<&VolumeAttachment>) -> bool) -> Option<VolumeAttachment> {
        let key = Key::cluster(names::attachment(HANDLE, NAME, "node"));
        loop {
            let found: Option<VolumeAttachment> = self.api.get(&key).await.unwrap();
            if holds(found.as_ref()) {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }

    /// What the driver's attacher says of the attachment that the node has made.
    pub async fn attacher_says(&self, status: Value) {
        let attachment = self.attachment_when(|found| found.is_some()).await.unwrap();
        let target = Target::any_version(&attachment.meta);
        let held = Patch::Merge(json!({ "metadata": { "finalizers": ["external-attacher/driver-example"] } }));
        self.api.patch::<VolumeAttachment>(&Cache::new(), &target, Part::Main, held).await.unwrap();
        let patch = Patch::Merge(json!({ "status": status }));
        self.api.patch::<VolumeAttachment>(&Cache::new(), &target, Part::Status, patch).await.unwrap();
    }

    /// What it does once the node wants the volume to be detached.
    pub async fn attacher_detaches(&self) {
        let attachment = self.attachment_when(|found| found.is_some_and(|found| found.meta.is_deleting())).await;
        let target = Target::any_version(&attachment.unwrap().meta);
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        self.api.patch::<VolumeAttachment>(&Cache::new(), &target, Part::Main, free).await.unwrap();
    }

    /// Somebody takes the attachment away, whatever the node thinks of it.
    pub async fn remove_attachment(&self) {
        let attachment = self.attachment_when(|found| found.is_some()).await.unwrap();
        let target = Target::any_version(&attachment.meta);
        self.api.delete::<VolumeAttachment>(&Cache::new(), &target, Deletion::default()).await.unwrap();
        self.attacher_detaches().await;
    }

    /// What the attach-detach controller says of it on the Node.
    pub async fn list_as_attached(&self) {
        self.node_reports_in_use(true).await;
        let attached = Patch::Merge(json!({ "status": { "volumesAttached": [{ "name": UNIQUE, "devicePath": "" }] } }));
        let target = Target::any_version(&self.node().await.meta);
        self.api.patch::<Node>(&Cache::new(), &target, Part::Status, attached).await.unwrap();
    }

    pub async fn node(&self) -> Node {
        self.api.get(&Key::cluster("node")).await.unwrap().unwrap()
    }

    pub async fn in_use(&self) -> bool {
        self.node().await.is_in_use(UNIQUE)
    }

    /// How often the volume was taken out of the in-use list.
    pub fn withdrawals(&self) -> usize {
        self.withdrawals.load(Ordering::SeqCst)
    }

    pub async fn delete_node(&self) {
        let target = Target::any_version(&self.node().await.meta);
        self.api.delete::<Node>(&Cache::new(), &target, Deletion::default()).await.unwrap();
    }

    pub async fn delete_pod(&self, name: &str) {
        self.delete(name, Deletion::default()).await;
    }

    pub async fn force_delete_pod(&self, name: &str) {
        self.delete(name, Deletion { grace_period_seconds: Some(0) }).await;
    }

    async fn delete(&self, name: &str, how: Deletion) {
        let pod: Pod = self.api.get(&Key::namespaced("default", name)).await.unwrap().unwrap();
        self.api.delete::<Pod>(&Cache::new(), &Target::any_version(&pod.meta), how).await.unwrap();
    }

    async fn until(&self, mut holds: impl FnMut() -> bool) {
        let mut changes = self.changes.clone();
        while !holds() {
            changes.changed().await.unwrap();
        }
    }

    pub async fn node_until(&self, holds: impl Fn(&Node) -> bool) {
        self.until(|| self.nodes.get(&Key::cluster("node")).is_some_and(|node| holds(&node))).await;
    }

    pub async fn csi_node_until(&self, holds: impl Fn(&[CsiNodeDriver]) -> bool) {
        let key = Key::cluster("node");
        self.until(|| self.csi_nodes.get(&key).is_some_and(|found| holds(&found.spec.drivers))).await;
    }

    pub async fn driver_is_registered(&self) {
        within(self.csi_node_until(|drivers| {
            drivers.iter().any(|driver| driver.name == NAME && driver.topology_keys == ["topology.example/host"])
        }))
        .await;
        within(self.node_until(|node| node.meta.labels.get("topology.example/host").is_some_and(|host| host == "h1")))
            .await;
        let limit = self.csi_nodes.get(&Key::cluster("node")).unwrap().limit(NAME);
        assert_eq!(limit, Some(9));
    }

    pub async fn driver_is_gone(&self) {
        within(self.csi_node_until(|drivers| drivers.is_empty())).await;
    }

    /// Nothing is mounted for anybody any more.
    pub async fn node_has_nothing(&self) {
        let occupancy = self.occupancy.lock().unwrap().clone();
        within(occupancy.empty()).await;
    }

    pub async fn delete_csi_driver(&self) {
        let driver: CsiDriver = self.get(NAME).await;
        let target = Target::any_version(&driver.meta);
        self.api.delete::<CsiDriver>(&Cache::new(), &target, Deletion::default()).await.unwrap();
    }

    /// Lets a device take the place of the file it was bound to, as the kernel shows it.
    pub fn refuse_files_at(&self, bound: &std::path::Path) {
        self.memory.with(|tree| {
            tree.remove_file(bound).unwrap();
            tree.symlink(std::path::Path::new("/dev/loop0"), bound).unwrap();
        });
    }

    pub async fn node_reports_in_use(&self, expected: bool) {
        within(self.node_until(|node| node.is_in_use(UNIQUE) == expected)).await;
    }

    pub async fn pod_is_running(&self, name: &str) {
        let key = Key::namespaced("default", name);
        within(self.until(|| self.pods.get(&key).is_some_and(|pod| pod.status.phase == PodPhase::Running))).await;
    }

    /// Resolves when the pod's Ready condition says this.
    pub async fn pod_says(&self, name: &str, text: &str) {
        let key = Key::namespaced("default", name);
        let says = |pod: &Pod| {
            let ready = pod.status.conditions.iter().find(|condition| condition.kind == "Ready");
            ready.is_some_and(|ready| ready.message.contains(text))
        };
        within(self.until(|| self.pods.get(&key).is_some_and(|pod| says(&pod)))).await;
    }

    /// Whether anybody has put it on a node yet or not.
    pub async fn pod_is_known(&self, name: &str) {
        let key = Key::namespaced("default", name);
        within(self.until(|| self.pods.get(&key).is_some())).await;
    }

    /// Removing directories is no news to anybody: looks again and again, while no time passes.
    pub async fn dirs_are_gone(&self, dirs: &[&std::path::Path]) {
        let gone = async {
            while dirs.iter().any(|dir| dir.try_exists().unwrap()) {
                tokio::task::yield_now().await;
            }
        };
        let patience = std::time::Instant::now() + Duration::from_secs(20);
        tokio::select! {
            biased;
            () = gone => {}
            () = async { while std::time::Instant::now() < patience { tokio::task::yield_now().await } } => {
                panic!("still there: {dirs:?}");
            }
        }
    }

    pub async fn pod_is_gone(&self, name: &str) {
        let key = Key::namespaced("default", name);
        within(self.until(|| self.pods.is_synced() && self.pods.get(&key).is_none())).await;
    }

    /// The same by the server's word: a pod may come and go before anybody has heard of it.
    pub async fn server_has_no_pod(&self, name: &str) {
        let key = Key::namespaced("default", name);
        while self.api.get::<Pod>(&key).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits for a FailedMount event about the pod that says so.
    pub async fn event_about(&self, pod: &str, says: &str) {
        self.event(pod, "FailedMount", says).await;
    }

    /// The same, after as much time as it takes.
    pub async fn event_after_backoff(&self, about: &str, reason: &str, says: &str) {
        let calls = self.driver.calls().len();
        within(self.driver.called(calls + 2)).await;
        self.event(about, reason, says).await;
    }

    /// Waits for an event about the object; no time passes meanwhile.
    pub async fn event(&self, about: &str, reason: &str, says: &str) {
        let found = async {
            loop {
                let request = http::Request::get(kinds::EVENT.collection_path("default")).body(Vec::new()).unwrap();
                let list: Value = self.api.client().request(request).await.unwrap();
                let events = list["items"].as_array().cloned().unwrap_or_default();
                let is_about = |event: &Value| event["involvedObject"]["name"] == about && event["reason"] == reason;
                if events.iter().any(|event| is_about(event) && event["message"].as_str().unwrap().contains(says)) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        found.await;
    }
}

fn follow<T: Projection>(api: &Api, cache: &Cache<T>, changes: &Arc<watch::Sender<()>>) -> JoinHandle<()> {
    let changes = Arc::clone(changes);
    cache.on_change(move |_| changes.send_modify(|()| ()));
    tokio::spawn(feed::feed(api.clone(), cache.clone(), feed::Scope::all(), Random::seeded(3)))
}

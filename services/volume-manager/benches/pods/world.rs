//! A server, a node with a driver and the volume manager, and a user who makes pods on it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use stowage_apiserver::{Front, Identity, Limits, Options, Server};
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::pod::Pod;
use stowage_mount::MountTable;
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};

use crate::attach;
use crate::driver::{DRIVER, Driver};
use crate::process::Process;
use crate::seen::Seen;
use crate::volumes::Plugin;

pub const NAMESPACE: &str = "default";

/// Writes of the user in flight.
const IN_FLIGHT: usize = 64;

/// Aborts its task when dropped.
pub struct Running(pub JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The node's directory. What is still mounted in it goes with it.
struct Root(tempfile::TempDir);

impl Root {
    fn make() -> Self {
        let place = std::env::var_os("STOWAGE_BENCH_ROOT").map_or_else(std::env::temp_dir, Into::into);
        Self(tempfile::tempdir_in(place.canonicalize().unwrap()).unwrap())
    }

    fn node(&self) -> PathBuf {
        self.0.path().join("kubelet")
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let table = MountTable::read().unwrap();
        for mount in table.under(self.0.path()) {
            let _ = nix::mount::umount2(&mount.target, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

pub struct World {
    server: Server,
    pub user: Api,
    pub pods: Cache<Pod>,
    pub seen: Seen,
    pub driver: Driver,
    pub process: Process,
    running: Vec<Running>,
    root: Root,
    /// Pods that were made so far, and deleted.
    made: usize,
    deleted: usize,
}

impl World {
    /// A node that can have volumes of the driver, which are attached by somebody else if that is asked for.
    pub async fn start(attached: bool) -> Self {
        let options = Options { window: 1 << 20, ..Options::system() };
        let server = Server::in_memory(options);
        let user = Api::new(kube::Client::new(server.service(), NAMESPACE));
        let spec = json!({ "attachRequired": attached, "podInfoOnMount": false });
        user.create_raw(kinds::CSI_DRIVER, json!({ "metadata": { "name": DRIVER }, "spec": spec })).await.unwrap();
        let root = Root::make();
        let (driver, sockets) = Driver::start(&root.node());
        let mut running: Vec<Running> = sockets.into();
        let kubeconfig = root.0.path().join("kubeconfig");
        running.push(serve(&server, &kubeconfig).await);
        if attached {
            running.push(Running(tokio::spawn(attach::attach(user.clone()))));
        }
        let process = Process::start(&kubeconfig, &root.node());
        let (pods, fed) = watch::<Pod>(&user).await;
        running.push(fed);
        let seen = Seen::watch(&pods);
        Self { server, user, pods, seen, driver, process, running, root, made: 0, deleted: 0 }
    }

    /// Where the files of hostPath and local volumes are.
    pub fn elsewhere(&self, n: usize) -> PathBuf {
        self.root.0.path().join("elsewhere").join(n.to_string())
    }

    /// Does something for each number, as many at once as there are in flight.
    pub async fn each<F: Future<Output = ()>>(numbers: impl IntoIterator<Item = usize>, act: impl Fn(usize) -> F) {
        futures::stream::iter(numbers).map(act).buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
    }

    /// Makes what volumes with these numbers are made of.
    pub async fn prepare(&self, plugin: Plugin, numbers: std::ops::Range<usize>) {
        Self::each(numbers, |n| plugin.prepare(self, n)).await;
    }

    /// Makes pods with these volumes each, and waits until they run. Returns their names and how long all took.
    pub async fn run(
        &mut self,
        plugin: Plugin,
        volumes: &[std::ops::Range<usize>],
    ) -> (Vec<String>, std::time::Duration) {
        let names: Vec<String> = (0..volumes.len()).map(|at| format!("p{}", self.made + at)).collect();
        let begin = Instant::now();
        Self::each(0..volumes.len(), |at| {
            let pod = self.pod(&names[at], plugin, volumes[at].clone());
            let (world, name) = (&*self, &names[at]);
            async move {
                world.seen.asked(name);
                world.user.create_raw(kinds::POD, pod).await.unwrap();
            }
        })
        .await;
        self.made += names.len();
        self.seen.until_running(self.made).await;
        (names, begin.elapsed())
    }

    /// Deletes pods and waits until nothing is left of them.
    pub async fn delete(&mut self, names: &[String]) {
        let world = &*self;
        Self::each(0..names.len(), |at| async move {
            let pod = world.pods.get(&Key::namespaced(NAMESPACE, names[at].as_str())).unwrap();
            let target = Target::any_version(&pod.meta);
            world.user.delete(&Cache::<Pod>::new(), &target, Deletion::default()).await.unwrap();
        })
        .await;
        self.deleted += names.len();
        self.seen.until_gone(self.deleted).await;
    }

    fn pod(&self, name: &str, plugin: Plugin, numbers: std::ops::Range<usize>) -> Value {
        let mut volumes = Vec::new();
        let mut mounts = Vec::new();
        for n in numbers {
            let mut volume = plugin.source(self, n);
            volume["name"] = format!("v{n}").into();
            volumes.push(volume);
            mounts.push(json!({ "name": format!("v{n}"), "mountPath": format!("/v{n}") }));
        }
        json!({
            "metadata": { "namespace": NAMESPACE, "name": name, "labels": { "app": "bench" } },
            "spec": {
                "nodeName": "node", "serviceAccountName": "default", "volumes": volumes,
                "containers": [{ "name": "c", "image": "i", "volumeMounts": mounts }],
            },
        })
    }

    /// Stops everything. The pods must be deleted, or their mounts go only with this process's mount namespace.
    pub async fn end(self) {
        self.process.stop().await;
        drop(self.running);
        self.server.close();
    }
}

/// Pods with one volume each, by the volumes' numbers.
pub fn one_each(numbers: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    numbers.map(|n| n..n + 1).collect()
}

/// Opens a port; the file tells the volume manager where.
async fn serve(server: &Server, kubeconfig: &Path) -> Running {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = Identity::generate(&[address.ip()]).unwrap();
    identity.write_kubeconfig(kubeconfig, address).unwrap();
    let front = Front::new(identity.tls(), identity.credentials(), Limits::default()).unwrap();
    let server = server.clone();
    Running(tokio::spawn(async move { server.serve(listener, front, std::future::pending()).await }))
}

/// Every object of a kind as a user sees it, from now on.
pub async fn watch<T: Projection + Send + Sync + 'static>(user: &Api) -> (Cache<T>, Running) {
    let cache = Cache::new();
    let fed = watch::feed(user.clone(), cache.clone(), Scope::all(), Random::from_os());
    let running = Running(tokio::spawn(fed));
    cache.synced().await;
    (cache, running)
}

//! A server with bound claims, a driver that has their volumes, and a user.

use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::Layer;

use stowage_csi::connect::Connector;
use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use stowage_csi::v1::{CapacityRange, CreateVolumeRequest, VolumeCapability};
use stowage_model::Claim;
use stowage_model::object::{Key, kinds};
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};
use stowage_testing::{Changes, Driver, MemoryMounter};

use crate::IN_FLIGHT;
use crate::counting::{Counting, Counts};

pub const NAMESPACE: &str = "default";
const DRIVER: &str = "driver.test";
const CLASS: &str = "gold";

/// Aborts its task when dropped.
pub struct Running(pub JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub struct World {
    pub server: stowage_apiserver::Server,
    pub user: Api,
    pub directory: tempfile::TempDir,
    _driver: Running,
}

impl World {
    /// So many bound claims of 1Gi.
    pub async fn start(claims: usize) -> Self {
        let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
        let server = stowage_apiserver::Server::in_memory(options);
        let user = Api::new(kube::Client::new(server.service(), NAMESPACE));
        let class = json!({ "metadata": { "name": CLASS }, "provisioner": DRIVER, "allowVolumeExpansion": true });
        user.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let driver = Driver::new(DRIVER, Changes::default());
        let socket = Socket::bind(directory.path().join("csi.sock"), SocketMode::default()).unwrap();
        let routes = driver.routes("node", MemoryMounter::new(Changes::default()));
        let served = tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() });
        let world = Self { server, user, directory, _driver: Running(served) };
        world.fill(claims).await;
        world
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    /// A client of a service, and what it writes.
    pub fn counting(&self) -> (kube::Client, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        let service = Counting(Arc::clone(&counts)).layer(self.server.service());
        (kube::Client::new(service, NAMESPACE), counts)
    }

    /// Does something for each number, as many at once as there are in flight.
    pub async fn each<F: Future<Output = ()> + Send + 'static>(count: usize, act: impl Fn(usize) -> F) {
        let tasks = futures::stream::iter(0..count).map(|n| {
            let task = tokio::spawn(act(n));
            async move { task.await.unwrap() }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
    }

    async fn fill(&self, count: usize) {
        let connector = stowage_csi::UnixConnector;
        let channel = connector.connect(&format!("unix://{}", self.socket().display())).unwrap();
        Self::each(count, |n| {
            let (user, mut driver) = (self.user.clone(), ControllerClient::new(channel.clone()));
            async move {
                let request = CreateVolumeRequest {
                    name: format!("v{n}"),
                    capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
                    volume_capabilities: vec![VolumeCapability {
                        access_mode: Some(AccessMode { mode: access_mode::Mode::SingleNodeWriter.into() }),
                        access_type: Some(AccessType::Mount(MountVolume::default())),
                    }],
                    ..Default::default()
                };
                let made = driver.create_volume(request).await.unwrap().into_inner().volume.unwrap();
                let claim = user.create_raw(kinds::CLAIM, claim(n)).await.unwrap();
                let uid = claim["metadata"]["uid"].clone();
                user.create_raw(kinds::VOLUME, volume(n, &made.volume_id, &uid)).await.unwrap();
                let claim: Claim = serde_json::from_value(claim).unwrap();
                let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
                let (cache, target) = (Cache::<Claim>::new(), Target::any_version(&claim.meta));
                user.patch(&cache, &target, Part::Status, Patch::Merge(bound)).await.unwrap();
            }
        })
        .await;
    }

    /// Every claim as a user sees it, from now on.
    pub async fn watch(&self) -> (Cache<Claim>, Running) {
        let cache = Cache::new();
        let fed = watch::feed(self.user.clone(), cache.clone(), Scope::all(), Random::from_os());
        let running = Running(tokio::spawn(fed));
        cache.synced().await;
        (cache, running)
    }

    /// Asks for 2Gi for each of them.
    pub async fn ask(&self, claims: &Cache<Claim>, count: usize) {
        Self::each(count, |n| {
            let (user, claims) = (self.user.clone(), claims.clone());
            async move {
                let claim = claims.get(&Key::namespaced(NAMESPACE, format!("c{n}"))).unwrap();
                let body = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
                let target = Target::any_version(&claim.meta);
                user.patch(&claims, &target, Part::Main, Patch::Merge(body)).await.unwrap();
            }
        })
        .await;
    }
}

fn claim(n: usize) -> Value {
    json!({
        "metadata": {
            "namespace": NAMESPACE, "name": format!("c{n}"),
            "annotations": { "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "volumeName": format!("v{n}"),
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn volume(n: usize, handle: &str, uid: &Value) -> Value {
    json!({
        "metadata": { "name": format!("v{n}"), "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER } },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS,
            "csi": { "driver": DRIVER, "volumeHandle": handle },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": format!("c{n}"),
                "uid": uid,
            },
        },
    })
}

//! A server, a user, and the clients between them and the controller.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::Layer;

use stowage_model::object::{Kind, Projection, kinds};
use stowage_model::{Claim, StorageClass, Volume};
use stowage_runtime::api::{Api, Deletion, Part, Patch, Target};
use stowage_runtime::args::ClientArgs;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};
use stowage_testing::bench::{Counting, Counts};

use crate::IN_FLIGHT;

pub const NAMESPACE: &str = "default";

/// How claims come to their volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    Static,
    /// Static, of a class that is but a name.
    Manual,
    PreBound,
    Dynamic,
}

impl Shape {
    pub const ALL: [Self; 4] = [Self::Static, Self::Manual, Self::PreBound, Self::Dynamic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Manual => "manual",
            Self::PreBound => "prebound",
            Self::Dynamic => "dynamic",
        }
    }
}

/// Where the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Server {
    /// In this process, called without a connection: nothing is cheaper than its writes.
    Embedded,
    /// In this process, over HTTPS on the loopback.
    Https,
    /// The one $KUBECONFIG names.
    Kubeconfig,
}

impl Server {
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Https => "https",
            Self::Kubeconfig => "kubeconfig",
        }
    }
}

/// Aborts its task when dropped.
pub struct Running(pub JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The embedded server behind a port, with the kubeconfig to reach it.
struct Front {
    kubeconfig: String,
    _directory: tempfile::TempDir,
    _served: Running,
}

impl Front {
    async fn open(server: stowage_apiserver::Server) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = stowage_apiserver::Identity::generate(&[address.ip()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        identity.write_kubeconfig(&file, address).unwrap();
        let served = tokio::spawn(async move {
            let limits = stowage_apiserver::Limits::default();
            let front = stowage_apiserver::Front::new(identity.tls(), identity.credentials(), limits).unwrap();
            server.serve(listener, front, std::future::pending()).await;
        });
        Self { kubeconfig: file.display().to_string(), _directory: directory, _served: Running(served) }
    }
}

pub struct World {
    server: Option<stowage_apiserver::Server>,
    front: Option<Front>,
    pub user: Api,
    pub controller: kube::Client,
    pub counts: Arc<Counts>,
    /// Part of every name, so that runs against a shared server do not meet.
    pub prefix: String,
}

async fn client(file: &str) -> kube::Client {
    ClientArgs { kubeconfig: Some(file.to_owned()), ..ClientArgs::default() }.unlimited_client().await.unwrap()
}

async fn counting_client(file: &str, counting: &Counting) -> kube::Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(file).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    kube::client::ClientBuilder::try_from(config).unwrap().with_layer(counting).build()
}

impl World {
    pub async fn start(server: Server) -> Self {
        let counts = Arc::new(Counts::default());
        let prefix = format!("bind{:08x}", Random::from_os().number() as u32);
        let counting = Counting(Arc::clone(&counts));
        if server == Server::Kubeconfig {
            let file = std::env::var("KUBECONFIG").unwrap();
            let (user, controller) = (Api::new(client(&file).await), counting_client(&file, &counting).await);
            return Self { server: None, front: None, user, controller, counts, prefix };
        }
        let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
        let embedded = stowage_apiserver::Server::in_memory(options);
        let mut world = Self {
            user: Api::new(kube::Client::new(embedded.service(), NAMESPACE)),
            controller: kube::Client::new(counting.layer(embedded.service()), NAMESPACE),
            server: Some(embedded),
            front: None,
            counts,
            prefix,
        };
        if server == Server::Https {
            let file = world.kubeconfig().await;
            world.user = Api::new(client(&file).await);
            world.controller = counting_client(&file, &counting).await;
        }
        world
    }

    /// The file that tells a process of its own where the server is.
    pub async fn kubeconfig(&mut self) -> String {
        if self.front.is_none()
            && let Some(server) = self.server.clone()
        {
            self.front = Some(Front::open(server).await);
        }
        match &self.front {
            Some(front) => front.kubeconfig.clone(),
            None => std::env::var("KUBECONFIG").unwrap(),
        }
    }

    /// Takes away what the run made, where the server is not ours.
    pub async fn end(self) {
        if self.server.is_some() {
            return;
        }
        // Everything that a run makes is of its own class.
        let class = self.prefix.as_str();
        self.delete_all::<Claim>(NAMESPACE, |claim| claim.class_name() == class).await;
        self.delete_all::<Volume>("", |volume| volume.class_name() == class).await;
        self.delete_all::<StorageClass>("", |found| found.meta.name == class).await;
    }

    async fn delete_all<T: Projection>(&self, namespace: &str, is_ours: impl Fn(&T) -> bool) {
        let objects = self.user.list::<T>(namespace, "").await.unwrap();
        let ours = objects.into_iter().filter(is_ours);
        let tasks = futures::stream::iter(ours).map(|object| {
            let user = self.user.clone();
            async move {
                let cache = Cache::<T>::new();
                let body = json!({ "metadata": { "finalizers": null } });
                // Nobody is left to remove them.
                let _ = user.patch_raw(&object.id(), body).await;
                let _ = user.delete(&cache, &Target::any_version(object.meta()), Deletion::default()).await;
            }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
    }

    pub fn volume(&self, n: usize) -> Value {
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

    /// The volume that a provisioner makes for a claim.
    pub fn provisioned(claim: &Claim, class: &str) -> Value {
        json!({
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
        })
    }

    pub fn claim(&self, n: usize) -> Value {
        json!({
            "metadata": { "name": format!("{}-c{n}", self.prefix), "namespace": NAMESPACE },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.prefix,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        })
    }

    pub async fn create_all(&self, count: usize, make: impl Fn(usize) -> (Kind, Value)) -> Vec<Value> {
        let tasks = futures::stream::iter(0..count).map(|n| {
            let (kind, body) = make(n);
            let user = self.user.clone();
            async move { tokio::spawn(async move { user.create_raw(kind, body).await.unwrap() }).await.unwrap() }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect().await
    }

    /// Volumes that are Available already, so that only what follows a claim is measured.
    pub async fn available_volumes(&self, count: usize, shape: Shape) {
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
                let patched = async move { user.patch(&cache, &target, Part::Status, Patch::Merge(body)).await };
                tokio::spawn(patched).await.unwrap().unwrap();
            }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
    }

    pub async fn class(&self, shape: Shape) {
        if shape == Shape::Manual {
            return;
        }
        let class = json!({
            "metadata": { "name": self.prefix },
            "provisioner": if shape == Shape::Dynamic { "driver.example" } else { "kubernetes.io/no-provisioner" },
            "volumeBindingMode": "Immediate",
        });
        self.user.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
    }

    pub async fn watch<T: Projection>(&self) -> (Cache<T>, Running) {
        let cache = Cache::new();
        let fed = watch::feed(self.user.clone(), cache.clone(), Scope::all(), Random::from_os());
        let running = Running(tokio::spawn(fed));
        cache.synced().await;
        (cache, running)
    }

    /// Until the controller has written nothing, events included, for a while: the one place where a benchmark has to wait by the clock.
    pub async fn quiet(&self) {
        let mut last = u64::MAX;
        loop {
            let now = self.counts.all();
            if now == last {
                return;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    }

    /// Released volumes, and claims that no volume is large enough for.
    pub async fn fill_background(&self, count: usize) {
        let made = self
            .create_all(count, |n| {
                let mut volume = self.volume(n);
                volume["metadata"]["name"] = format!("{}-r{n}", self.prefix).into();
                volume["spec"]["capacity"]["storage"] = format!("{}Gi", 1 + n % 512).into();
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
            if n % 100 == 0 {
                claim["spec"]["selector"] = json!({ "matchLabels": { "tier": format!("t{n}") } });
            }
            (kinds::CLAIM, claim)
        })
        .await;
    }
}

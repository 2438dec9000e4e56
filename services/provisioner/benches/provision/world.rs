//! A server, a driver, the binder, and a user who asks for volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::Layer;

use stowage_csi::server::{Socket, SocketMode};
use stowage_model::object::{Projection, kinds};
use stowage_model::{Claim, Volume};
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Deletion, Target};
use stowage_runtime::args::ClientArgs;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};
use stowage_testing::bench::{Counting, Counts, Running};

use crate::IN_FLIGHT;
use crate::driver::{DRIVER, Driver};

pub const NAMESPACE: &str = "default";
/// Of nobody else, also on a server that has other claims.
pub const CLASS: &str = "stowage-bench";

/// Where the API is.
enum Server {
    Embedded(stowage_apiserver::Server),
    /// Another's, such as a kube-apiserver, and the file that tells where.
    Other(kube::Client, PathBuf),
}

impl Server {
    /// The embedded one, unless a kubeconfig names another.
    async fn start(other: Option<&Path>) -> Self {
        let Some(file) = other else {
            // A watch that falls behind would be told to list again, which is not what is measured.
            let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
            return Self::Embedded(stowage_apiserver::Server::in_memory(options));
        };
        let args = ClientArgs { kubeconfig: file.to_str().map(Into::into), ..ClientArgs::default() };
        Self::Other(args.unlimited_client().await.unwrap(), file.to_owned())
    }

    fn client(&self) -> kube::Client {
        match self {
            Self::Embedded(server) => kube::Client::new(server.service(), NAMESPACE),
            Self::Other(client, _) => client.clone(),
        }
    }
}

pub struct World {
    server: Server,
    pub user: Api,
    pub driver: Driver,
    directory: tempfile::TempDir,
    running: Vec<Running>,
}

impl World {
    /// A server with a class, the embedded one unless another is named, and a driver whose calls take so long.
    pub async fn start(takes: Duration, other: Option<&Path>) -> Self {
        let server = Server::start(other).await;
        let user = Api::new(server.client());
        let class = json!({ "metadata": { "name": CLASS }, "provisioner": DRIVER, "volumeBindingMode": "Immediate" });
        match user.create_raw(kinds::STORAGE_CLASS, class).await {
            // Of the round before, on a server that stays.
            Err(error) if other.is_some() && error.is_already_exists() => {}
            made => drop(made.unwrap()),
        }
        let directory = tempfile::tempdir().unwrap();
        let driver = Driver::slow(takes);
        let socket = Socket::bind(directory.path().join("csi.sock"), SocketMode::default()).unwrap();
        let routes = driver.routes();
        let served = tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() });
        Self { server, user, driver, directory, running: vec![Running(served)] }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    /// Opens a port; the file tells a process of its own where.
    pub async fn kubeconfig(&mut self) -> PathBuf {
        let server = match &self.server {
            Server::Embedded(server) => server.clone(),
            Server::Other(_, file) => return file.clone(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = stowage_apiserver::Identity::generate(&[address.ip()]).unwrap();
        let file = self.directory.path().join("kubeconfig");
        identity.write_kubeconfig(&file, address).unwrap();
        self.running.push(Running(tokio::spawn(async move {
            let limits = stowage_apiserver::Limits::default();
            let front = stowage_apiserver::Front::new(identity.tls(), identity.credentials(), limits).unwrap();
            server.serve(listener, front, std::future::pending()).await;
        })));
        file
    }

    /// The binder, in this process, and what it asks of the server.
    pub fn start_binder(&mut self) -> Arc<Counts> {
        let (context, counts) = self.context("binder");
        let options = pv_controller::Options { parallel: IN_FLIGHT, ..Default::default() };
        let run = async move { pv_controller::run(context, options).await.unwrap() };
        self.running.push(Running(tokio::spawn(run)));
        counts
    }

    /// The provisioner, in this process, and what it asks of the server.
    pub fn start_provisioner(&mut self) -> Arc<Counts> {
        let (context, counts) = self.context("provisioner");
        let mut options = provisioner::Options::default();
        options.driver.csi_address = format!("unix://{}", self.socket().display());
        let run = async move { provisioner::run(context, options).await.unwrap() };
        self.running.push(Running(tokio::spawn(run)));
        counts
    }

    fn context(&self, identity: &str) -> (Context, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        let client = match &self.server {
            Server::Embedded(server) => {
                kube::Client::new(Counting(Arc::clone(&counts)).layer(server.service()), NAMESPACE)
            }
            Server::Other(client, _) => {
                let client = client.clone();
                let sent = tower::service_fn(move |request| {
                    let client = client.clone();
                    async move { client.send(request).await }
                });
                kube::Client::new(Counting(Arc::clone(&counts)).layer(sent), NAMESPACE)
            }
        };
        (Context::real(client, Arc::new(stowage_csi::UnixConnector), identity), counts)
    }

    /// Every object of a kind as a user sees it, from now on.
    pub async fn watch<T: Projection + Send + Sync + 'static>(&mut self) -> Cache<T> {
        let cache = Cache::new();
        let fed = watch::feed(self.user.clone(), cache.clone(), Scope::all(), Random::from_os());
        self.running.push(Running(tokio::spawn(fed)));
        cache.synced().await;
        cache
    }

    /// Does something for each number, as many at once as there are in flight.
    pub async fn each<F: Future<Output = ()> + Send + 'static>(count: usize, act: impl Fn(usize) -> F) {
        let tasks = futures::stream::iter(0..count).map(|n| {
            let task = tokio::spawn(act(n));
            async move { task.await.unwrap() }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
    }

    /// Deletes every claim of ours, and waits until their volumes are gone too, as whoever is measured leaves them.
    pub async fn give_back(&self, claims: &Cache<Claim>, volumes: &Cache<Volume>) {
        let changed = Arc::new(Notify::new());
        let (of_claims, of_volumes) = (Arc::clone(&changed), Arc::clone(&changed));
        claims.on_change(move |_| of_claims.notify_one());
        volumes.on_change(move |_| of_volumes.notify_one());
        let ours = || -> Vec<Arc<Claim>> {
            let of_class = claims.list().into_iter().filter(|claim| claim.class_name() == CLASS);
            of_class.filter(|claim| claim.meta.namespace == NAMESPACE).collect()
        };
        let all = ours();
        Self::each(all.len(), |n| {
            let (user, claims, target) = (self.user.clone(), claims.clone(), Target::any_version(&all[n].meta));
            async move { user.delete(&claims, &target, Deletion::default()).await.unwrap() }
        })
        .await;
        while !ours().is_empty() || volumes.list().iter().any(|volume| volume.class_name() == CLASS) {
            changed.notified().await;
        }
    }

    pub async fn ask(&self, prefix: &'static str, count: usize) {
        Self::each(count, |n| {
            let (user, body) = (self.user.clone(), claim(&format!("{prefix}{n}")));
            async move {
                user.create_raw(kinds::CLAIM, body).await.unwrap();
            }
        })
        .await;
    }
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": { "namespace": NAMESPACE, "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

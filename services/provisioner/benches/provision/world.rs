//! A server, a driver, the binder, and a user who asks for volumes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tower::Layer;

use stowage_csi::server::{Socket, SocketMode};
use stowage_model::object::{Projection, kinds};
use stowage_runtime::Context;
use stowage_runtime::api::Api;
use stowage_runtime::cache::Cache;
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};
use stowage_testing::bench::{Counting, Counts, Running};

use crate::IN_FLIGHT;
use crate::driver::{DRIVER, Driver};

pub const NAMESPACE: &str = "default";
pub const CLASS: &str = "gold";

pub struct World {
    server: stowage_apiserver::Server,
    pub user: Api,
    pub driver: Driver,
    directory: tempfile::TempDir,
    running: Vec<Running>,
}

impl World {
    /// A server with a class, and a driver whose calls take so long.
    pub async fn start(takes: Duration) -> Self {
        let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
        let server = stowage_apiserver::Server::in_memory(options);
        let user = Api::new(kube::Client::new(server.service(), NAMESPACE));
        let class = json!({ "metadata": { "name": CLASS }, "provisioner": DRIVER, "volumeBindingMode": "Immediate" });
        user.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
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
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = stowage_apiserver::Identity::generate(&[address.ip()]).unwrap();
        let file = self.directory.path().join("kubeconfig");
        identity.write_kubeconfig(&file, address).unwrap();
        let server = self.server.clone();
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
        let service = Counting(Arc::clone(&counts)).layer(self.server.service());
        let client = kube::Client::new(service, NAMESPACE);
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

//! How fast volumes are attached, beside how fast the server writes.
//!
//! `cargo bench -p attacher --bench attaches -- [--sizes 200,2000] [--rounds 3]`
//!
//! The attacher runs in this process over the embedded server, with the in-memory driver of the tests behind a real socket.
//! The server's own rate is that of conditional writes to as many attachments with the same watches open, 64 in flight.
//! Volumes have been attached before: the finalizer that they get once in their life is on them.
#![allow(clippy::unwrap_used, clippy::panic)]

// The numbers that the tests look at are of no use here.
#[allow(dead_code)]
#[path = "../../tests/life/backend.rs"]
mod backend;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tower::Layer;

use attacher::Options;
use stowage_csi::server::{Socket, SocketMode};
use stowage_model::object::{Key, kinds};
use stowage_model::{VolumeAttachment, finalizers};
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_testing::bench::{self, Counting, Counts, Running, middle};

use backend::{Backend, DRIVER};

/// Calls of one sort at once: the driver here takes no time, so that the server is the limit.
const WORKERS: usize = 64;

struct World {
    server: stowage_apiserver::Server,
    user: Api,
    directory: tempfile::TempDir,
    _driver: Running,
}

impl World {
    async fn start(count: usize) -> Self {
        let options = stowage_apiserver::Options { window: 1 << 20, ..stowage_apiserver::Options::system() };
        let server = stowage_apiserver::Server::in_memory(options);
        let user = Api::new(kube::Client::new(server.service(), "default"));
        let directory = tempfile::tempdir().unwrap();
        let socket = Socket::bind(directory.path().join("csi.sock"), SocketMode::default()).unwrap();
        let routes = Backend::default().routes();
        let served = tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() });
        let drivers = json!([{ "name": DRIVER, "nodeID": "id", "topologyKeys": [] }]);
        let node = json!({ "metadata": { "name": "node" }, "spec": { "drivers": drivers } });
        user.create_raw(kinds::CSI_NODE, node).await.unwrap();
        let world = Self { server, user, directory, _driver: Running(served) };
        bench::each(count, |n| {
            let user = world.user.clone();
            async move {
                let volume = json!({
                    "metadata": { "name": format!("v{n}"), "finalizers": [finalizers::attacher(DRIVER)] },
                    "spec": {
                        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                        "csi": { "driver": DRIVER, "volumeHandle": format!("h{n}") },
                    },
                });
                user.create_raw(kinds::VOLUME, volume).await.unwrap();
            }
        })
        .await;
        world
    }

    async fn ask(&self, count: usize) {
        bench::each(count, |n| {
            let user = self.user.clone();
            async move {
                let source = json!({ "persistentVolumeName": format!("v{n}") });
                let spec = json!({ "attacher": DRIVER, "nodeName": "node", "source": source });
                let body = json!({ "metadata": { "name": format!("a{n}") }, "spec": spec });
                user.create_raw(kinds::VOLUME_ATTACHMENT, body).await.unwrap();
            }
        })
        .await;
    }
}

/// How long it took, and the writes of the attacher for each.
async fn measure(count: usize) -> (Duration, f64) {
    let world = World::start(count).await;
    let counts = Arc::new(Counts::default());
    let client = kube::Client::new(Counting(Arc::clone(&counts)).layer(world.server.service()), "default");
    let context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "attacher");
    let mut options = Options::default();
    options.driver.csi_address = format!("unix://{}", world.directory.path().join("csi.sock").display());
    options.driver.workers = WORKERS;
    let readiness = context.readiness.clone();
    let _attacher = Running(tokio::spawn(async move { attacher::run(context, options).await.unwrap() }));
    let (attachments, _watch) = bench::watch::<VolumeAttachment>(&world.user).await;
    while readiness.check().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let begin = Instant::now();
    world.ask(count).await;
    bench::until(&attachments, count, |attachment| attachment.status.attached).await;
    let took = begin.elapsed();
    assert_eq!(counts.events() + counts.conflicts(), 0);
    (took, counts.writes() as f64 / count as f64)
}

/// Writes per second of the server alone: each attachment is written six times, in turn itself and its status.
async fn raw(count: usize) -> f64 {
    const WRITES: usize = 6;
    let world = World::start(count).await;
    world.ask(count).await;
    let (attachments, _watch) = bench::watch::<VolumeAttachment>(&world.user).await;
    let (_seen, _watched) = bench::watch::<VolumeAttachment>(&world.user).await;
    let begin = Instant::now();
    bench::each(count, |n| {
        let (api, attachments) = (world.user.clone(), attachments.clone());
        async move {
            let mut attachment = attachments.get(&Key::cluster(format!("a{n}"))).unwrap();
            for write in 0..WRITES {
                let (part, body) = match write % 2 {
                    0 => (Part::Main, json!({ "metadata": { "annotations": { "write": write.to_string() } } })),
                    _ => (Part::Status, json!({ "status": { "attached": write % 4 == 1 } })),
                };
                let target = Target::exact(&attachment.meta);
                attachment = api.patch(&attachments, &target, part, Patch::Merge(body)).await.unwrap();
            }
        }
    })
    .await;
    (count * WRITES) as f64 / begin.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes = bench::numbers(&words, "--sizes", "200,2000");
    let rounds: usize = bench::value(&words, "--rounds").unwrap_or("3").parse().unwrap();
    println!("| attaches | all attached | per second | writes each | server alone | share |");
    println!("|---|---|---|---|---|---|");
    for count in sizes {
        let (mut times, mut rates, mut shares, mut writes) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
        for _ in 0..rounds {
            let (rate, (took, each)) = (raw(count).await, measure(count).await);
            writes = each;
            // The user's own write is one of them.
            shares.push((each + 1.0) * count as f64 / took.as_secs_f64() / rate * 100.0);
            times.push(took.as_secs_f64());
            rates.push(rate);
        }
        let took = middle(times);
        println!(
            "| {count} | {:.0} ms | {:.0} | {writes:.2} | {:.0} writes/s | {:.0} % |",
            took * 1000.0,
            count as f64 / took,
            middle(rates),
            middle(shares)
        );
    }
}

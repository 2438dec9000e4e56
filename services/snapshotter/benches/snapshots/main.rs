//! How fast snapshots become ready, beside how fast the server writes.
//!
//! `cargo bench -p snapshotter --bench snapshots -- [--sizes 80,1000] [--rounds 3] [--memory 10000]`
//!
//! snapshot-controller and snapshotter run in this process over the embedded server, with the in-memory driver behind a
//! real socket. The server's own rate is that of conditional writes to as many snapshots with the same watches open, 64 in
//! flight. With `--memory`, what the two binaries take as processes of their own, over HTTPS:
//! `cargo build --release -p snapshot-controller` first.
#![allow(clippy::unwrap_used, clippy::panic)]

mod memory;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use stowage_model::VolumeSnapshot;
use stowage_model::object::{Key, kinds};
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_testing::bench::{self, BoundClaims, Running, middle};

const CLASS: &str = "gold";

/// A server with the definitions and the class of snapshots, and so many bound claims.
async fn world(claims: usize) -> BoundClaims {
    let definitions = stowage_crds::definitions().into_iter().map(|definition| definition.object());
    let world = BoundClaims::start(claims, definitions).await;
    let class = json!({ "metadata": { "name": CLASS }, "driver": BoundClaims::DRIVER, "deletionPolicy": "Delete" });
    world.user.create_raw(kinds::VOLUME_SNAPSHOT_CLASS, class).await.unwrap();
    world
}

/// Asks for a snapshot of each of so many claims.
async fn ask(world: &BoundClaims, from: usize, count: usize) {
    bench::each(count, |n| {
        let (user, n) = (world.user.clone(), from + n);
        async move {
            let body = json!({
                "metadata": { "namespace": BoundClaims::NAMESPACE, "name": format!("s{n}") },
                "spec": { "volumeSnapshotClassName": CLASS, "source": { "persistentVolumeClaimName": format!("c{n}") } },
            });
            user.create_raw(kinds::VOLUME_SNAPSHOT, body).await.unwrap();
        }
    })
    .await;
}

struct Round {
    took: Duration,
    /// Of the controller and of the snapshotter, for each snapshot; events apart.
    writes: [f64; 2],
    events: f64,
    conflicts: u64,
}

async fn measure(count: usize) -> Round {
    let world = world(count).await;
    let (controller, of_controller) = world.counting();
    let (sidecar, of_sidecar) = world.counting();
    let counts = [of_controller, of_sidecar];
    let connector = || Arc::new(stowage_csi::UnixConnector);
    let context = Context::real(controller, connector(), "controller");
    let options = snapshot_controller::Options::default();
    let _controller = Running(tokio::spawn(async move { snapshot_controller::run(context, options).await.unwrap() }));
    let context = Context::real(sidecar, connector(), "sidecar");
    let mut options = snapshotter::Options::default();
    options.driver.csi_address = format!("unix://{}", world.socket().display());
    let _sidecar = Running(tokio::spawn(async move { snapshotter::run(context, options).await.unwrap() }));
    let (snapshots, _watch) = bench::watch::<VolumeSnapshot>(&world.user).await;
    bench::quiet(&counts).await;
    let before = counts.each_ref().map(|of| of.writes());
    let begin = Instant::now();
    ask(&world, 0, count).await;
    bench::until(&snapshots, count, VolumeSnapshot::is_ready).await;
    let took = begin.elapsed();
    bench::quiet(&counts).await;
    let each = |n: u64| n as f64 / count as f64;
    Round {
        took,
        writes: [0, 1].map(|at| each(counts[at].writes() - before[at])),
        events: counts.iter().map(|of| each(of.events())).sum(),
        conflicts: counts.iter().map(|of| of.conflicts()).sum(),
    }
}

/// Writes per second of the server alone: each snapshot is written six times, in turn itself and its status.
async fn raw(count: usize) -> f64 {
    const WRITES: usize = 6;
    let world = world(0).await;
    ask(&world, 0, count).await;
    let (snapshots, _watch) = bench::watch::<VolumeSnapshot>(&world.user).await;
    let (_seen, _watched) = bench::watch::<VolumeSnapshot>(&world.user).await;
    let begin = Instant::now();
    bench::each(count, |n| {
        let (api, snapshots): (Api, _) = (world.user.clone(), snapshots.clone());
        async move {
            let mut snapshot = snapshots.get(&Key::namespaced(BoundClaims::NAMESPACE, format!("s{n}"))).unwrap();
            for write in 0..WRITES {
                let (part, body) = match write % 2 {
                    0 => (Part::Main, json!({ "metadata": { "annotations": { "write": write.to_string() } } })),
                    _ => (Part::Status, json!({ "status": { "readyToUse": write % 4 == 1, "restoreSize": "1Gi" } })),
                };
                let target = Target::exact(&snapshot.meta);
                snapshot = api.patch(&snapshots, &target, part, Patch::Merge(body)).await.unwrap();
            }
        }
    })
    .await;
    (count * WRITES) as f64 / begin.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes = bench::numbers(&words, "--sizes", "80,1000");
    let rounds = bench::value(&words, "--rounds").unwrap_or("3").parse().unwrap();
    println!(
        "| snapshots | all ready | per second | writes each (controller + snapshotter) | events each | conflicts | server alone | share |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for count in sizes {
        let (mut times, mut rates, mut shares, mut last) = (Vec::new(), Vec::new(), Vec::new(), None);
        for _ in 0..rounds {
            let (rate, round) = (raw(count).await, measure(count).await);
            let took = round.took.as_secs_f64();
            // The user's own write is one of them.
            let all = (round.writes.iter().sum::<f64>() + round.events + 1.0) * count as f64;
            shares.push(all / took / rate * 100.0);
            times.push(took);
            rates.push(rate);
            last = Some(round);
        }
        let (took, Some(round)) = (middle(times), last) else { continue };
        let [controller, sidecar] = round.writes;
        println!(
            "| {count} | {:.0} ms | {:.0} | {:.2} ({controller:.2} + {sidecar:.2}) | {:.2} | {} | {:.0} writes/s | {:.0} % |",
            took * 1000.0,
            count as f64 / took,
            controller + sidecar,
            round.events,
            round.conflicts,
            middle(rates),
            middle(shares)
        );
    }
    if let Some(count) = bench::value(&words, "--memory") {
        memory::measure(count.parse().unwrap()).await;
    }
}

//! How fast claims grow, beside how fast the server writes.
//!
//! `cargo bench -p resizer --bench expansions -- [--sizes 200,2000] [--rounds 3]`
//!
//! The resizer runs in this process over the embedded server, with the in-memory driver behind a real socket. The server's
//! own rate is that of conditional writes to as many claims with the same watches open, 64 in flight.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use stowage_model::Claim;
use stowage_model::object::Key;
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;
use stowage_testing::bench::{self, BoundClaims, Running, middle};

struct Round {
    took: Duration,
    /// For each claim; events apart.
    writes: f64,
    events: f64,
    conflicts: u64,
}

fn is_grown(claim: &Claim) -> bool {
    claim.status.capacity.storage.is_some_and(|size| size.bytes() >= 2 << 30)
}

/// Asks for 2Gi for each of them.
async fn ask(world: &BoundClaims, claims: &Cache<Claim>, count: usize) {
    bench::each(count, |n| {
        let (user, claims) = (world.user.clone(), claims.clone());
        async move {
            let claim = claims.get(&Key::namespaced(BoundClaims::NAMESPACE, format!("c{n}"))).unwrap();
            let body = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
            let target = Target::any_version(&claim.meta);
            user.patch(&claims, &target, Part::Main, Patch::Merge(body)).await.unwrap();
        }
    })
    .await;
}

async fn measure(count: usize) -> Round {
    let world = BoundClaims::start(count, []).await;
    let (client, counts) = world.counting();
    let context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "resizer");
    let mut options = resizer::Options::default();
    options.driver.csi_address = format!("unix://{}", world.socket().display());
    let _resizer = Running(tokio::spawn(async move { resizer::run(context, options).await.unwrap() }));
    let (claims, _watch) = bench::watch::<Claim>(&world.user).await;
    bench::quiet(std::slice::from_ref(&counts)).await;
    let begin = Instant::now();
    ask(&world, &claims, count).await;
    bench::until(&claims, count, is_grown).await;
    let took = begin.elapsed();
    bench::quiet(std::slice::from_ref(&counts)).await;
    let each = |n: u64| n as f64 / count as f64;
    Round { took, writes: each(counts.writes()), events: each(counts.events()), conflicts: counts.conflicts() }
}

/// Writes per second of the server alone: each claim is written six times, in turn itself and its status.
async fn raw(count: usize) -> f64 {
    const WRITES: usize = 6;
    let world = BoundClaims::start(count, []).await;
    let (claims, _watch) = bench::watch::<Claim>(&world.user).await;
    let (_seen, _watched) = bench::watch::<Claim>(&world.user).await;
    let begin = Instant::now();
    bench::each(count, |n| {
        let (api, claims): (Api, _) = (world.user.clone(), claims.clone());
        async move {
            let mut claim = claims.get(&Key::namespaced(BoundClaims::NAMESPACE, format!("c{n}"))).unwrap();
            for write in 0..WRITES {
                let (part, body) = match write % 2 {
                    0 => (Part::Main, json!({ "metadata": { "annotations": { "write": write.to_string() } } })),
                    _ => {
                        (Part::Status, json!({ "status": { "allocatedResources": { "storage": write.to_string() } } }))
                    }
                };
                claim = api.patch(&claims, &Target::exact(&claim.meta), part, Patch::Merge(body)).await.unwrap();
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
    let rounds = bench::value(&words, "--rounds").unwrap_or("3").parse().unwrap();
    println!("| claims | all grown | per second | writes each | events each | conflicts | server alone | share |");
    println!("|---|---|---|---|---|---|---|---|");
    for count in sizes {
        let (mut times, mut rates, mut shares, mut last) = (Vec::new(), Vec::new(), Vec::new(), None);
        for _ in 0..rounds {
            let (rate, round) = (raw(count).await, measure(count).await);
            let took = round.took.as_secs_f64();
            // The user's own write is one of them.
            let all = (round.writes + round.events + 1.0) * count as f64;
            shares.push(all / took / rate * 100.0);
            times.push(took);
            rates.push(rate);
            last = Some(round);
        }
        let (took, Some(round)) = (middle(times), last) else { continue };
        println!(
            "| {count} | {:.0} ms | {:.0} | {:.2} | {:.2} | {} | {:.0} writes/s | {:.0} % |",
            took * 1000.0,
            count as f64 / took,
            round.writes,
            round.events,
            round.conflicts,
            middle(rates),
            middle(shares)
        );
    }
}

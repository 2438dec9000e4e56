//! How fast claims grow, beside how fast the server writes.
//!
//! `cargo bench -p resizer --bench expansions -- [--sizes 200,2000] [--rounds 3]`
//!
//! The resizer runs in this process over the embedded server, with the in-memory driver behind a real socket. The server's
//! own rate is that of conditional writes to as many claims with the same watches open, 64 in flight.
#![allow(clippy::unwrap_used, clippy::panic)]

mod counting;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;

use stowage_model::Claim;
use stowage_model::object::Key;
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Part, Patch, Target};
use stowage_runtime::cache::Cache;

use counting::Counts;
use world::{NAMESPACE, Running, World};

/// Writes in flight, of the user and of the bare server.
pub const IN_FLIGHT: usize = 64;

struct Round {
    took: Duration,
    /// For each claim; events apart.
    writes: f64,
    events: f64,
    conflicts: u64,
}

fn is_grown(claim: &Arc<Claim>) -> bool {
    claim.status.capacity.storage.is_some_and(|size| size.bytes() >= 2 << 30)
}

/// Waits until so many claims have what they asked for.
async fn grown(claims: &Cache<Claim>, count: usize) {
    let (sender, mut seen) = tokio::sync::watch::channel(0);
    claims.on_change(move |change| {
        if change.after.is_some_and(is_grown) && !change.before.is_some_and(is_grown) {
            sender.send_modify(|count| *count += 1);
        }
    });
    claims.replay();
    seen.wait_for(|seen| *seen >= count).await.unwrap();
}

/// Until nobody has written for a while: the one place where a benchmark has to wait by the clock.
async fn quiet(counts: &Counts) {
    let all = || counts.writes.load(Ordering::Relaxed) + counts.events.load(Ordering::Relaxed);
    let mut last: u64 = u64::MAX;
    while last != all() {
        last = all();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

async fn measure(count: usize) -> Round {
    let world = World::start(count).await;
    let (client, counts) = world.counting();
    let context = Context::real(client, Arc::new(stowage_csi::UnixConnector), "resizer");
    let mut options = resizer::Options::default();
    options.driver.csi_address = format!("unix://{}", world.socket().display());
    let _resizer = Running(tokio::spawn(async move { resizer::run(context, options).await.unwrap() }));
    let (claims, _watch) = world.watch().await;
    quiet(&counts).await;
    let begin = Instant::now();
    world.ask(&claims, count).await;
    grown(&claims, count).await;
    let took = begin.elapsed();
    quiet(&counts).await;
    let each = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed) as f64 / count as f64;
    let conflicts = counts.conflicts.load(Ordering::Relaxed);
    Round { took, writes: each(&counts.writes), events: each(&counts.events), conflicts }
}

/// Writes per second of the server alone: each claim is written six times, in turn itself and its status.
async fn raw(count: usize) -> f64 {
    const WRITES: usize = 6;
    let world = World::start(count).await;
    let (claims, _watch) = world.watch().await;
    let (_seen, _watched) = world.watch().await;
    let begin = Instant::now();
    World::each(count, |n| {
        let (api, claims): (Api, _) = (world.user.clone(), claims.clone());
        async move {
            let mut claim = claims.get(&Key::namespaced(NAMESPACE, format!("c{n}"))).unwrap();
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

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).map(String::as_str)
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes: Vec<usize> =
        value(&words, "--sizes").unwrap_or("200,2000").split(',').map(|size| size.parse().unwrap()).collect();
    let rounds: usize = value(&words, "--rounds").unwrap_or("3").parse().unwrap();
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

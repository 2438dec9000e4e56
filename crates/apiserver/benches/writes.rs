//! Durable writes per second beside the same requests without a store, and beside the disk's own syncs.
//!
//! The no-op is the same request as a dry run: same TLS, authentication, parsing and validation, nothing kept.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use tokio::task::JoinSet;

use support::{CLAIMS, Client, Served, claim, spread};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Create,
    Update,
}

/// Sends as fast as answers come, for one round; returns answers per second.
async fn run(clients: &mut Vec<Client>, action: Action, keep: bool, counter: &Arc<AtomicU64>) -> f64 {
    let query = if keep { "" } else { "?dryRun=All" };
    let started = Instant::now();
    let mut running = JoinSet::new();
    for (index, mut client) in clients.drain(..).enumerate() {
        let counter = counter.clone();
        running.spawn(async move {
            let mut answered = 0_u64;
            while started.elapsed() < ROUND {
                let number = counter.fetch_add(1, Ordering::Relaxed);
                let (method, path, name) = match action {
                    Action::Create => (Method::POST, format!("{CLAIMS}{query}"), format!("c{number}")),
                    Action::Update => (Method::PUT, format!("{CLAIMS}/u{index}{query}"), format!("u{index}")),
                };
                let body = claim(&name, number).to_string().into();
                let (code, answer) = client.send(method, &path, body).await;
                assert!(code.is_success(), "{}", String::from_utf8_lossy(&answer));
                answered += 1;
            }
            (client, answered)
        });
    }
    let ended = running.join_all().await;
    let seconds = started.elapsed().as_secs_f64();
    let answered: u64 = ended.iter().map(|(_, answered)| answered).sum();
    clients.extend(ended.into_iter().map(|(client, _)| client));
    answered as f64 / seconds
}

/// How often per second one block can be written and synced.
fn sync_rate(directory: &Path) -> f64 {
    let mut file = std::fs::File::create(directory.join("sync")).unwrap();
    let block = [7_u8; 4096];
    file.write_all(&block.repeat(64)).unwrap();
    file.sync_all().unwrap();
    let started = Instant::now();
    let mut syncs = 0_u64;
    while started.elapsed() < ROUND / 2 {
        file.seek(SeekFrom::Start(4096 * (syncs % 64))).unwrap();
        file.write_all(&block).unwrap();
        file.sync_data().unwrap();
        syncs += 1;
    }
    syncs as f64 / started.elapsed().as_secs_f64()
}

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    let home =
        tempfile::tempdir_in(std::env::var_os("STOWAGE_BENCH_DIR").unwrap_or_else(|| "/var/tmp".into())).unwrap();
    let data = home.path().join("data");
    let served = Served::start(Some(&data)).await;
    let counter = Arc::new(AtomicU64::new(0));
    println!("durable writes of one claim each, {ROUNDS} rounds of {ROUND:?}, alternating; rates per second");
    println!("clients action   durable median (min..max)   no-op median (min..max)   ratio  writes/sync   disk syncs");
    for count in [1_usize, 16, 64] {
        for action in [Action::Create, Action::Update] {
            let mut clients = Vec::new();
            for index in 0..count {
                let mut client = served.client().await;
                let name = format!("u{index}");
                client.send(Method::POST, CLAIMS, claim(&name, 0).to_string().into()).await;
                clients.push(client);
            }
            let (mut durable, mut nothing, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
            let mut per_sync = (0, 0);
            run(&mut clients, action, false, &counter).await;
            for _ in 0..ROUNDS {
                nothing.push(run(&mut clients, action, false, &counter).await);
                syncs.push(sync_rate(home.path()));
                let before = served.server.commits();
                durable.push(run(&mut clients, action, true, &counter).await);
                let after = served.server.commits();
                per_sync = (per_sync.0 + after.1 - before.1, per_sync.1 + after.0 - before.0);
            }
            let (durable, durable_min, durable_max) = spread(&mut durable);
            let (nothing, nothing_min, nothing_max) = spread(&mut nothing);
            let (syncs, _, _) = spread(&mut syncs);
            let limit = if count == 64 { " (aim: at least 30 %)" } else { "" };
            println!(
                "{count:>7} {:<8} {durable:>7.0} ({durable_min:.0}..{durable_max:.0}) {nothing:>16.0} \
                 ({nothing_min:.0}..{nothing_max:.0}) {:>9.0} % {:>10.1} {syncs:>13.0}{limit}",
                format!("{action:?}").to_lowercase(),
                100.0 * durable / nothing,
                per_sync.0 as f64 / per_sync.1.max(1) as f64,
            );
        }
    }
}

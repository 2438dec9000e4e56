//! Many objects: memory for each, a list of ten thousand, and the time to be ready.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use stowage_apiserver::{Options, Server};
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use support::{CLAIMS, Served, claim, spread};

const OBJECTS: usize = 100_000;

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

async fn fill(server: &Server) {
    let mut writers = JoinSet::new();
    for writer in 0..64 {
        let server = server.clone();
        writers.spawn(async move {
            for number in (writer..OBJECTS).step_by(64) {
                let body = claim(&format!("claim-{number:06}"), number as u64).to_string();
                let request = Request::builder().method(Method::POST).uri(CLAIMS).body(Full::from(body)).unwrap();
                let response = server.service().oneshot(request).await.unwrap();
                assert!(response.status().is_success());
            }
        });
    }
    writers.join_all().await;
}

async fn get(server: &Server, path: &str) -> Bytes {
    let request = Request::builder().uri(path).body(Full::<Bytes>::default()).unwrap();
    server.service().oneshot(request).await.unwrap().into_body().collect().await.unwrap().to_bytes()
}

/// From nothing to the first answered request over TLS, in milliseconds.
async fn time_to_ready(data: &Path) -> f64 {
    let started = Instant::now();
    let served = Served::start(Some(data)).await;
    let mut client = served.client().await;
    assert!(client.send(Method::GET, "/readyz", Bytes::new()).await.0.is_success());
    let elapsed = started.elapsed().as_secs_f64() * 1e3;
    drop(client);
    served.stop().await;
    elapsed
}

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    let home =
        tempfile::tempdir_in(std::env::var_os("STOWAGE_BENCH_DIR").unwrap_or_else(|| "/var/tmp".into())).unwrap();
    let mut empty = Vec::new();
    for round in 0..5 {
        empty.push(time_to_ready(&home.path().join(format!("empty-{round}"))).await);
    }
    let (median, least, most) = spread(&mut empty);
    println!("ready, no objects, first start:          {median:.0} ms ({least:.0}..{most:.0}) (aim: 100 ms)");
    let mut again = Vec::new();
    for _ in 0..6 {
        again.push(time_to_ready(&home.path().join("again")).await);
    }
    let (median, least, most) = spread(&mut again[1..]);
    println!("ready, no objects, restart:              {median:.0} ms ({least:.0}..{most:.0}) (aim: 100 ms)");

    let before = resident();
    let server = Server::in_memory(Options::system());
    fill(&server).await;
    let grown = resident() - before;
    let list = get(&server, CLAIMS).await.len();
    let each = |bytes: usize| bytes as f64 / OBJECTS as f64;
    println!(
        "memory, {OBJECTS} claims in memory:       {:.0} bytes each, of which {:.0} are its JSON: {:.0} beyond (aim: 2048)",
        each(grown),
        each(list),
        each(grown.saturating_sub(list)),
    );
    let mut lists = Vec::new();
    let mut size = 0;
    for _ in 0..9 {
        let started = Instant::now();
        size = get(&server, &format!("{CLAIMS}?limit=10000")).await.len();
        lists.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let (median, least, most) = spread(&mut lists);
    println!(
        "list of 10000, in process:               {median:.1} ms ({least:.1}..{most:.1}), {:.1} MB",
        size as f64 / 1e6
    );
    drop(server);

    let data = home.path().join("full");
    let server = Server::open(&data, Options::system()).unwrap();
    let started = Instant::now();
    fill(&server).await;
    println!("filling {OBJECTS} claims durably, 64 writers: {:.1} s", started.elapsed().as_secs_f64());
    let crashed = home.path().join("crashed");
    std::fs::create_dir(&crashed).unwrap();
    std::fs::copy(data.join("store.redb"), crashed.join("store.redb")).unwrap();
    let size = std::fs::metadata(data.join("store.redb")).unwrap().len();
    drop(server);
    println!(
        "ready, {OBJECTS} objects, after a stop:     {:.0} ms; after a crash: {:.0} ms (file of {:.0} MB)",
        time_to_ready(&data).await,
        time_to_ready(&crashed).await,
        size as f64 / 1e6,
    );
}

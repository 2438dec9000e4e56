//! How long a watch event takes, at rising rates of writes, beside an echo on the same connection.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use support::{CLAIMS, Served, SharedClient, claim, percentile};

const RUN: Duration = Duration::from_secs(4);

/// Names of the events of a watch with the time each was read.
async fn follow(mut client: SharedClient, from: u64, seen: mpsc::UnboundedSender<(String, Instant)>) {
    let path = format!("{CLAIMS}?watch=1&resourceVersion={from}");
    let mut body = client.begin(Method::GET, &path, Bytes::new()).await.into_body();
    let mut rest = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        let now = Instant::now();
        rest.extend_from_slice(&data);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if seen.send((name, now)).is_err() {
                return;
            }
        }
    }
}

async fn at_rate(served: &Served, rate: u32) {
    let watcher = served.shared_client().await;
    let (sender, mut seen) = mpsc::unbounded_channel();
    let watching = tokio::spawn(follow(watcher.clone(), served.server.revision(), sender));
    let mut echo = watcher;
    let echoing = tokio::spawn(async move {
        let mut times = Vec::new();
        let started = Instant::now();
        while started.elapsed() < RUN {
            let asked = Instant::now();
            echo.send(Method::GET, "/readyz", Bytes::new()).await;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times
    });
    let writer = served.shared_client().await;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let mut writes = JoinSet::new();
    for number in 0_u64.. {
        ticks.tick().await;
        if started.elapsed() >= RUN {
            break;
        }
        let mut writer = writer.clone();
        let name = format!("r{rate}-{number}");
        writes.spawn(async move {
            let sent = Instant::now();
            let body = claim(&name, number).to_string().into();
            let (code, _) = writer.send(Method::POST, CLAIMS, body).await;
            assert!(code.is_success());
            (name, sent, Instant::now())
        });
    }
    let written: HashMap<String, (Instant, Instant)> =
        writes.join_all().await.into_iter().map(|(name, sent, answered)| (name, (sent, answered))).collect();
    let elapsed = started.elapsed().as_secs_f64();
    let (mut delivery, mut whole, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let milliseconds = |from: Instant, to: Instant| {
        if to >= from { (to - from).as_secs_f64() * 1e3 } else { -((from - to).as_secs_f64() * 1e3) }
    };
    while delivery.len() < written.len() {
        let (name, at) = seen.recv().await.unwrap();
        if let Some((sent, answered)) = written.get(&name) {
            delivery.push(milliseconds(*answered, at));
            whole.push(milliseconds(*sent, at));
            answers.push(milliseconds(*sent, *answered));
        }
    }
    watching.abort();
    let mut echoes = echoing.await.unwrap();
    for values in [&mut delivery, &mut whole, &mut answers, &mut echoes] {
        values.sort_by(f64::total_cmp);
    }
    let both = |values: &[f64]| format!("{:.2} / {:.2}", percentile(values, 0.5), percentile(values, 0.99));
    let beyond = percentile(&delivery, 0.99) - percentile(&echoes, 0.99);
    let aim = if rate == 1000 { " (aim: at most 5 ms)" } else { "" };
    println!(
        "{rate:>6} {:>8.0} {:>16} {:>16} {:>16} {:>16} {beyond:>10.2}{aim}",
        written.len() as f64 / elapsed,
        both(&answers),
        both(&whole),
        both(&delivery),
        both(&echoes),
    );
}

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    let home =
        tempfile::tempdir_in(std::env::var_os("STOWAGE_BENCH_DIR").unwrap_or_else(|| "/var/tmp".into())).unwrap();
    let served = Served::start(Some(&home.path().join("data"))).await;
    println!("one watch of claims while others create them durably; milliseconds, median / p99");
    println!(
        "  rate  reached   sent->answered       sent->seen   answered->seen             echo  p99 beyond the echo"
    );
    for rate in [100, 500, 1000, 2000] {
        at_rate(&served, rate).await;
    }
}

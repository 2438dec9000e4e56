//! How fast claims get their volumes, beside how fast the server writes, and beside the original.
//!
//! `cargo bench -p provisioner --bench provision -- [--sizes 200,5000] [--rounds 3] [--takes MILLISECONDS]
//! [--processes] [--ours FILE] [--our-binder FILE] [--original FILE [--binder FILE]] [--server KUBECONFIG] [--memory 10000]`
//!
//! Server, binder and a driver behind a real socket are in this process. The provisioner is too, where it reaches the
//! server without a connection; with `--processes` it is a process of its own, over HTTPS, and with `--original` the
//! csi-provisioner in that file takes turns with ours, without its client limits; with `--binder` it has the binder of that
//! kube-controller-manager beside it, also without limits, instead of ours; with `--our-binder` our provisioner has the
//! pv-controller in that file beside it, a process too, as is fair where both originals are. The server's own rate is that of the
//! five writes each claim needs, with the same watches open, 64 in flight. With `--server` another server is used than the
//! embedded one, such as a kube-apiserver, and after each round the claims of the bench are deleted there. With `--memory`, what our binary
//! takes; `--ours` names another build of it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod driver;
mod memory;
mod phases;
mod process;
mod raw;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stowage_model::{Claim, Volume};
use stowage_testing::Right;
use stowage_testing::bench::{self, value};

use phases::{Phases, STEPS};
use process::Process;
use world::World;

/// As the API server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Writes in flight, of the user and of the bare server.
pub const IN_FLIGHT: usize = 64;

/// Who provisions.
#[derive(Debug, Clone)]
enum Who {
    Here,
    Process { provisioner: PathBuf, binder: Option<PathBuf> },
    Original { provisioner: PathBuf, binder: Option<PathBuf> },
}

/// The originals' words for "no limit".
const UNLIMITED: [&str; 2] = ["--kube-api-qps=100000", "--kube-api-burst=100000"];

impl Who {
    fn name(&self) -> &'static str {
        match self {
            Self::Here => "in process",
            Self::Process { binder: None, .. } => "process",
            Self::Process { binder: Some(_), .. } => "both ours",
            Self::Original { binder: None, .. } => "original",
            Self::Original { binder: Some(_), .. } => "both originals",
        }
    }
}

struct Round {
    took: Duration,
    latencies: Vec<Duration>,
    steps: [Duration; 4],
    /// Of the binder and, where it is in this process, of the provisioner.
    requests: [BTreeMap<Right, u64>; 2],
    /// Of the provisioner where it is a process of its own, and of this process and the binder.
    processor: Option<Duration>,
    own_processor: Duration,
}

async fn measure(who: &Who, count: usize, takes: Duration, server: Option<&Path>) -> Round {
    let mut world = World::start(takes, server).await;
    let (claims, volumes) = (world.watch::<Claim>().await, world.watch::<Volume>().await);
    let (binding, binder) = match who {
        Who::Original { binder: Some(file), .. } => {
            (Some(Process::original_binder(&mut world, file, &UNLIMITED).await), Arc::default())
        }
        Who::Process { binder: Some(file), .. } => (Some(Process::binder(&mut world, file).await), Arc::default()),
        _ => (None, world.start_binder()),
    };
    let (process, provisioner) = match who {
        Who::Here => (None, world.start_provisioner()),
        Who::Process { provisioner, .. } => {
            (Some(Process::provisioner(&mut world, provisioner, &[]).await), Arc::default())
        }
        Who::Original { provisioner, .. } => {
            (Some(Process::provisioner(&mut world, provisioner, &UNLIMITED).await), Arc::default())
        }
    };
    let counts = [binder, provisioner];
    let phases = Phases::watch(&claims, &volumes);
    // One shows that all are up.
    world.ask("first", 1).await;
    phases.until_bound(1).await;
    bench::quiet(&counts).await;
    counts.iter().for_each(|of| drop(of.take()));
    let (begin, processor) = (Instant::now(), process.as_ref().map(Process::processor));
    let of_binder = || binding.as_ref().map(Process::processor).unwrap_or_default();
    let own = process::own_processor() + of_binder();
    world.ask("c", count).await;
    phases.until_bound(count + 1).await;
    let took = begin.elapsed();
    let processor = process.as_ref().zip(processor).map(|(process, before)| process.processor() - before);
    let own_processor = process::own_processor() + of_binder() - own;
    bench::quiet(&counts).await;
    let (latencies, steps) = phases.since(begin, &world.driver.asked());
    let requests = counts.map(|of| of.take());
    if server.is_some() {
        world.give_back(&claims, &volumes).await;
    }
    Round { took, latencies, steps, requests, processor, own_processor }
}

fn middle<T: Copy>(mut values: Vec<T>, key: impl Fn(&T) -> f64) -> T {
    values.sort_by(|a, b| key(a).total_cmp(&key(b)));
    values[values.len() / 2]
}

fn show(who: &Who, count: usize, rounds: &[Round], rates: &[f64]) {
    let times: Vec<f64> = rounds.iter().map(|round| round.took.as_secs_f64()).collect();
    let took = middle(times.clone(), |took| *took);
    let best = times.into_iter().fold(f64::MAX, f64::min);
    let latency = middle(rounds.iter().map(|round| round.latencies[count / 2]).collect(), Duration::as_secs_f64);
    let late = middle(rounds.iter().map(|round| round.latencies[count * 99 / 100]).collect(), Duration::as_secs_f64);
    let limit = match rates {
        [] => String::new(),
        rates => {
            let rate = middle(rates.to_vec(), |rate| *rate);
            let share = count as f64 / took / (rate / raw::WRITES as f64) * 100.0;
            format!("; server alone {rate:.0} writes/s, share {share:.0} %")
        }
    };
    let last = &rounds[rounds.len() - 1];
    let steps: Vec<String> = STEPS.iter().zip(last.steps).map(|(name, took)| format!("{name} {took:.0?}")).collect();
    let processors: Vec<String> =
        last.processor.into_iter().chain([last.own_processor]).map(|used| format!("{used:.1?}")).collect();
    let processor = processors.join(" + ");
    println!(
        "{count} claims, {}: {:.0} ms (best {:.0}), {:.0}/s, p50 {latency:.0?}, p99 {late:.0?}{limit}; steps {}; processor {processor}",
        who.name(),
        took * 1000.0,
        best * 1000.0,
        count as f64 / took,
        steps.join(", ")
    );
    for (name, requests) in ["binder", "provisioner"].iter().zip(&last.requests) {
        let each: Vec<String> = requests
            .iter()
            .map(|(what, times)| format!("{} {} {:.2}", what.verb, what.resource, *times as f64 / count as f64))
            .collect();
        if !each.is_empty() {
            println!("    {name}, for each claim: {}", each.join(", "));
        }
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes: Vec<usize> =
        value(&words, "--sizes").unwrap_or("200").split(',').map(|size| size.parse().unwrap()).collect();
    let rounds: usize = value(&words, "--rounds").unwrap_or("3").parse().unwrap();
    let takes = Duration::from_millis(value(&words, "--takes").unwrap_or("0").parse().unwrap());
    let server = value(&words, "--server").map(Path::new);
    let original = value(&words, "--original")
        .map(|file| Who::Original { provisioner: file.into(), binder: value(&words, "--binder").map(Into::into) });
    let as_process = original.is_some() || words.iter().any(|word| word == "--processes");
    let binder = value(&words, "--our-binder").map(Into::into);
    let ours = match as_process || binder.is_some() {
        true => Who::Process { provisioner: process::ours(&words), binder },
        false => Who::Here,
    };
    for count in sizes {
        let mut rates = Vec::new();
        let mut all: Vec<(Who, Vec<Round>)> =
            [Some(ours.clone()), original.clone()].into_iter().flatten().map(|who| (who, Vec::new())).collect();
        for round in 0..rounds {
            if server.is_none() {
                rates.push(raw::rate(count).await);
            }
            for (who, done) in &mut all {
                done.push(measure(who, count, takes, server).await);
            }
            // Who goes first alternates: a machine that slows down favours neither.
            if round + 1 < rounds {
                all.reverse();
            }
        }
        for (who, done) in &all {
            show(who, count, done, &rates);
        }
    }
    if let Some(count) = value(&words, "--memory") {
        memory::measure(&process::ours(&words), count.parse().unwrap()).await;
    }
}

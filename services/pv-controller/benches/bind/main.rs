//! How fast claims are bound, beside how fast the server writes.
//!
//! `cargo bench -p pv-controller --bench bind -- [SECTION...] [--sizes 100,1000] [--rounds 3] [--https] [--results FILE]`
//!
//! Sections: `static`, `manual`, `prebound`, `dynamic`, `growth`, `background`, `memory`, and `page`, which turns the results
//! gathered in FILE into a table and a plot beside it. Without a section, all but the last at small sizes. The server is
//! the embedded one, in this process or with `--https` behind a port, unless $KUBECONFIG names another.
//!
//! The server's own rate of conditional writes is measured beside: same objects, same mix of spec and status, same
//! watches open, 64 in flight; the two alternate, each run in a process of its own, and the medians of their ratios are
//! shown.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bound;
mod plot;
mod raw;
mod results;
mod run;
mod task;
mod world;

use std::time::Duration;

use results::{Line, Results};
use task::{Task, Work};
use world::{Server, Shape, World};

/// Writes and decisions in flight, in both.
pub const IN_FLIGHT: usize = 64;

/// The median and the distance between the extremes, as a part of it.
fn median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    (middle, (values[values.len() - 1] - values[0]) / middle)
}

/// Processor time that this process has taken so far, in hundredths of a second.
pub fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name before it may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn at(latencies: &[Duration], part: f64) -> Duration {
    latencies[((latencies.len() - 1) as f64 * part) as usize]
}

async fn measure(server: Server, shape: Shape, pairs: usize, rounds: usize) -> Line {
    let (mut raws, mut binds, mut ratios, mut processor_ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut writes, mut conflicts, mut decisions) = (0.0, 0, 0);
    let task = |work| Task { server, work, shape, pairs, background: 0 };
    for round in 0..rounds {
        // Who goes first alternates too: a machine that slows down favours neither.
        let (limit, run) = if round % 2 == 0 {
            let limit = task(Work::Raw).measure().await;
            (limit, task(Work::Waiting).measure().await)
        } else {
            let run = task(Work::Waiting).measure().await;
            (task(Work::Raw).measure().await, run)
        };
        writes = run.writes as f64 / pairs as f64;
        ratios.push(run.rate * writes / limit.rate);
        processor_ratios.push(limit.processor * writes / run.processor);
        raws.push(limit.rate);
        binds.push(run.rate);
        decisions = run.decisions;
        conflicts += run.conflicts;
    }
    let burst = task(Work::Arriving(pairs.min(1000))).measure().await.latencies;
    let alone = task(Work::Alone(pairs.min(200))).measure().await.latencies;
    let ((binds, spread), (raw, raw_spread)) = (median(binds), median(raws));
    let ((ratio, ratio_spread), (processor_ratio, _)) = (median(ratios), median(processor_ratios));
    Line {
        server: server.name().into(),
        shape: shape.name().into(),
        pairs,
        binds,
        spread,
        raw,
        raw_spread,
        ratio,
        ratio_spread,
        processor_ratio,
        writes,
        decisions: decisions as f64 / pairs as f64,
        conflicts,
        alone: [at(&alone, 0.5), at(&alone, 0.99)],
        burst: [at(&burst, 0.5), at(&burst, 0.99)],
    }
}

/// How much longer twice the pairs take.
async fn growth(server: Server, small: usize, rounds: usize) {
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let time = async |pairs: usize| {
            let task = Task { server, work: Work::Waiting, shape: Shape::Static, pairs, background: 0 };
            pairs as f64 / task.measure().await.rate
        };
        let one = time(small).await;
        ratios.push(time(2 * small).await / one);
    }
    let (ratio, spread) = median(ratios);
    println!(
        "growth: {} over {small} pairs takes {ratio:.2}x the time, spread {:.0}% (limit 2.30)",
        2 * small,
        spread * 100.0
    );
}

/// What Released volumes and claims that nothing fits cost those that can be bound.
async fn background(server: Server, count: usize, pairs: usize, rounds: usize) {
    let (mut costs, mut processor_costs, mut alone, mut crowded) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut server_costs = Vec::new();
    for round in 0..rounds {
        let shape = Shape::Static;
        let run = async |background: usize| {
            Task { server, work: Work::Arriving(pairs), shape, pairs, background }.measure().await
        };
        let (first, second) = if round % 2 == 0 { (0, count) } else { (count, 0) };
        let (first, second) = (run(first).await, run(second).await);
        let (without, with) = if round % 2 == 0 { (first, second) } else { (second, first) };
        costs.push((without.rate / with.rate - 1.0) * 100.0);
        processor_costs.push((with.processor / without.processor - 1.0) * 100.0);
        // What the same objects cost the server, whose writes are the limit.
        let raw = async |background: usize| Task { server, work: Work::Raw, shape, pairs, background }.measure().await;
        let (empty, full) = (raw(0).await, raw(count).await);
        server_costs.push((empty.rate / full.rate - 1.0) * 100.0);
        alone.push(without.rate);
        crowded.push(with.rate);
    }
    let all = |costs: &[f64]| costs.iter().map(|cost| format!("{cost:.0}")).collect::<Vec<_>>().join(", ");
    println!(
        "background: {count} Released volumes and {count} unmatchable claims: {:.0} of {:.0} binds/s; they cost {:.1}% of \
         time ({}) and {:.1}% of processor time ({}) (limit 10%); they cost the server's own writes {:.1}% ({})",
        median(crowded).0,
        median(alone).0,
        median(costs.clone()).0,
        all(&costs),
        median(processor_costs.clone()).0,
        all(&processor_costs),
        median(server_costs.clone()).0,
        all(&server_costs)
    );
}

async fn memory(server: Server, objects: usize) {
    let mut world = World::start(server).await;
    let found = world.memory(objects).await;
    world.end().await;
    println!(
        "memory: {objects} volumes bound to {objects} claims: {:.1} MB resident, {:.1} MB at most, {:.1} MB with nothing \
         to do (limit for 10000: 60)",
        found.resident, found.peak, found.empty
    );
}

fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).map(String::as_str)
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(task) = value(&words, Task::WORD) {
        let run = serde_json::from_str::<Task>(task).unwrap().carry_out().await;
        println!("{}", serde_json::to_string(&run).unwrap());
        return;
    }
    let sizes: Vec<usize> =
        value(&words, "--sizes").unwrap_or("100,1000").split(',').map(|size| size.parse().unwrap()).collect();
    let rounds: usize = value(&words, "--rounds").unwrap_or("3").parse().unwrap();
    let server = match std::env::var("KUBECONFIG") {
        Ok(_) => Server::Kubeconfig,
        Err(_) if words.iter().any(|word| word == "--https") => Server::Https,
        Err(_) => Server::Embedded,
    };
    let sections = ["static", "manual", "prebound", "dynamic", "growth", "background", "memory", "page"];
    let named: Vec<&str> = sections.into_iter().filter(|section| words.iter().any(|word| word == section)).collect();
    let chosen = |section: &str| if named.is_empty() { section != "page" } else { named.contains(&section) };
    let mut results = Results::open(value(&words, "--results"));
    let largest = sizes.iter().copied().max().unwrap_or(1000);

    if Shape::ALL.iter().any(|shape| chosen(shape.name())) {
        println!("{}", Line::HEAD);
    }
    for shape in Shape::ALL.into_iter().filter(|shape| chosen(shape.name())) {
        for &pairs in &sizes {
            let line = measure(server, shape, pairs, rounds).await;
            println!("{line}");
            results.add(line);
        }
    }
    if chosen("growth") {
        growth(server, largest, rounds).await;
    }
    if chosen("background") {
        background(server, largest, largest, rounds).await;
    }
    if chosen("memory") {
        memory(server, largest).await;
    }
    if chosen("page") {
        results.page();
    }
}

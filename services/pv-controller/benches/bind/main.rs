//! How fast claims are bound, beside how fast the server writes.
//!
//! `cargo bench -p pv-controller --bench bind -- [--full] [--plot FILE]`. Without KUBECONFIG the server is the embedded
//! one in this process. The server's own rate of conditional writes is measured beside it: same objects, same mix of
//! spec and status, same watches open, 64 in flight; the two alternate, and the median of their runs is compared.
#![allow(clippy::unwrap_used, clippy::panic)]

mod plot;
mod world;

use std::time::Duration;

use world::{Shape, World};

/// Writes and decisions in flight, in both.
pub const IN_FLIGHT: usize = 64;

/// Raw and bound runs alternate this often.
const ROUNDS: usize = 3;

struct Line {
    shape: Shape,
    pairs: usize,
    binds: f64,
    spread: f64,
    raw: f64,
    writes: f64,
    conflicts: u64,
    p50: Duration,
    p99: Duration,
}

impl Line {
    fn ratio(&self) -> f64 {
        self.binds / (self.raw / self.writes)
    }
}

fn median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    (middle, (values[values.len() - 1] - values[0]) / middle)
}

async fn measure(shape: Shape, pairs: usize) -> Line {
    let (mut raw, mut bound) = (Vec::new(), Vec::new());
    let (mut writes, mut conflicts) = (0, 0);
    for _ in 0..ROUNDS {
        raw.push(World::start().await.raw_rate(pairs).await);
        let world = World::start().await;
        let run = world.bind_waiting(shape, pairs).await;
        bound.push(run.rate);
        writes = run.writes;
        conflicts += run.conflicts;
    }
    let (binds, spread) = median(bound);
    let world = World::start().await;
    let latencies = world.bind_arriving(shape, pairs, pairs.min(1000)).await.latencies;
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    Line {
        shape,
        pairs,
        binds,
        spread,
        raw: median(raw).0,
        writes: writes as f64 / pairs as f64,
        conflicts,
        p50: at(0.5),
        p99: at(0.99),
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let full = words.iter().any(|word| word == "--full");
    let plot = words.iter().position(|word| word == "--plot").and_then(|at| words.get(at + 1)).cloned();
    let sizes: &[usize] = if full { &[100, 1_000, 10_000, 20_000, 50_000] } else { &[100, 1_000] };

    let objects = if full { 10_000 } else { 1_000 };
    if let Some(megabytes) = World::start().await.memory(objects).await {
        println!(
            "memory: with {objects} volumes bound to {objects} claims the process has {megabytes:.1} MB (limit for 10000: 60)"
        );
    }
    println!(
        "{:>8} {:>6} {:>9} {:>7} {:>10} {:>11} {:>9} {:>6} {:>9} {:>9}",
        "life", "pairs", "binds/s", "spread", "raw wr/s", "writes/bind", "conflicts", "ratio", "p50", "p99"
    );
    let mut lines = Vec::new();
    for shape in Shape::ALL {
        for &pairs in sizes {
            let line = measure(shape, pairs).await;
            println!(
                "{:>8} {:>6} {:>9.0} {:>6.0}% {:>10.0} {:>11.2} {:>9} {:>6.2} {:>9.1?} {:>9.1?}",
                shape.name(),
                pairs,
                line.binds,
                line.spread * 100.0,
                line.raw,
                line.writes,
                line.conflicts,
                line.ratio(),
                line.p50,
                line.p99,
            );
            lines.push(line);
        }
    }
    println!("goals: ratio >= 0.80; writes/bind 4 static, 5 dynamic");
    for shape in Shape::ALL {
        let time = |pairs| {
            let line = lines.iter().find(|line| line.shape == shape && line.pairs == pairs)?;
            Some(pairs as f64 / line.binds)
        };
        let (small, large) = if full { (10_000, 20_000) } else { (100, 1_000) };
        if let (Some(a), Some(b)) = (time(small), time(large)) {
            let limit = large as f64 / small as f64 * 1.15;
            println!(
                "growth {}: {large} over {small} pairs takes {:.2}x the time (limit {limit:.2})",
                shape.name(),
                b / a
            );
        }
    }
    let background = if full { 10_000 } else { 1_000 };
    let pairs = 1_000;
    let mut cost = Vec::new();
    for _ in 0..ROUNDS {
        let alone = World::start().await.bind_arriving(Shape::Static, pairs, pairs).await.rate;
        let world = World::start().await;
        world.fill_background(background).await;
        let crowded = world.bind_arriving(Shape::Static, pairs, pairs).await.rate;
        cost.push(1.0 - crowded / alone);
    }
    let (cost, _) = median(cost);
    println!(
        "background: {background} Released volumes and {background} unmatchable claims cost {:.1}% (limit 10%)",
        cost * 100.0
    );
    if let Some(file) = plot {
        let of = |shape: Shape| {
            lines.iter().filter(move |line| line.shape == shape).map(|line| (line.pairs as f64, line.binds)).collect()
        };
        let raw =
            lines.iter().filter(|line| line.shape == Shape::Static).map(|line| (line.pairs as f64, line.raw / 4.0));
        let mut curves: Vec<(&str, Vec<(f64, f64)>)> = Shape::ALL.map(|shape| (shape.name(), of(shape))).to_vec();
        curves.push(("server's raw writes / 4", raw.collect()));
        std::fs::write(&file, plot::svg("Claims bound per second", "pairs", "binds/s", &curves)).unwrap();
        println!("plot: {file}");
    }
}

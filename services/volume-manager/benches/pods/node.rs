//! From a pod on the node to its volume published by a driver that answers at once, with more and more of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::attach;
use crate::process::Tracer;
use crate::requests::Requests;
use crate::seen::Durations;
use crate::volumes::{Plugin, handle};
use crate::world::{World, one_each};

/// Pods that come one after the other: each is deleted before the next comes.
const SINGLES: usize = 100;
/// Volumes whose mounts are counted in system calls.
const TRACED: usize = 100;

const P50_GOAL: &str = "15 ms";
const P99_GOAL: &str = "50 ms";
const MEMORY_GOAL: f64 = 25.0;

#[derive(Default, Clone)]
struct Latencies {
    published: Durations,
    running: Durations,
}

impl Latencies {
    fn of(world: &World, pods: &[String], first: usize) -> Self {
        let published = pods.iter().enumerate().map(|(at, pod)| {
            let published = world.driver.published(&handle(first + at)).expect("its pod runs");
            world.seen.waited(pod, published)
        });
        let running = pods.iter().map(|pod| world.seen.running(pod));
        Self { published: published.collect(), running: running.collect() }
    }

    fn with(&self, other: &Self) -> Self {
        Self { published: self.published.with(&other.published), running: self.running.with(&other.running) }
    }

    fn show(&self, what: &str, took: Option<Duration>, of: usize, is_goal: bool) {
        let goal = |goal: &str| if is_goal { format!(" (goal {goal})") } else { String::new() };
        let [p50, p99] = [50, 99].map(|percent| self.published.percentile(percent));
        let [running, late] = [50, 99].map(|percent| self.running.percentile(percent));
        let all = took.map_or_else(|| "-".to_owned(), |took| format!("{:.0} ms", took.as_secs_f64() * 1000.0));
        let each =
            took.map_or_else(|| "-".to_owned(), |took| format!("{:.2} ms", took.as_secs_f64() * 1000.0 / of as f64));
        println!(
            "| {what} | {p50:.1} ms{} | {p99:.1} ms{} | {running:.1} ms | {late:.1} ms | {all} | {each} |",
            goal(P50_GOAL),
            goal(P99_GOAL)
        );
    }
}

/// Pods one after the other.
async fn one_by_one(world: &mut World, first: usize) -> Latencies {
    let mut all = Latencies::default();
    for n in first..first + SINGLES {
        let (pods, _) = world.run(Plugin::Csi, &one_each(n..n + 1)).await;
        all = all.with(&Latencies::of(world, &pods, n));
        world.delete(&pods).await;
    }
    all
}

/// A node whose volumes have claims, and one pod more than was asked for has shown that all are up.
async fn ready(count: usize, attached: bool) -> World {
    let mut world = World::start(attached).await;
    world.prepare(Plugin::Csi, 0..count + 1).await;
    if attached {
        attach::prepare(&world, 0..count + 1).await;
    }
    let (pods, _) = world.run(Plugin::Csi, &one_each(count..count + 1)).await;
    world.delete(&pods).await;
    world.process.quiet().await;
    world.driver.take_calls();
    world
}

struct Round {
    at_once: Latencies,
    took: Duration,
    beside: Latencies,
    calls: BTreeMap<&'static str, usize>,
    requests: Requests,
    idle: [f64; 3],
    megabytes: [f64; 3],
    processor: Duration,
}

async fn measure(count: usize, attached: bool) -> Round {
    let mut world = ready(count + SINGLES, attached).await;
    let idle = world.process.megabytes();
    let (before, processor) = (Requests::read(&world.user).await, world.process.processor());
    let (pods, took) = world.run(Plugin::Csi, &one_each(0..count)).await;
    let at_once = Latencies::of(&world, &pods, 0);
    let processor = world.process.processor() - processor;
    let requests = Requests::since(&world.user, &before).await;
    let calls = world.driver.take_calls();
    world.process.quiet().await;
    let beside = one_by_one(&mut world, count).await;
    let megabytes = world.process.megabytes();
    world.delete(&pods).await;
    world.end().await;
    Round { at_once, took, beside, calls, requests, idle, megabytes, processor }
}

/// Pods one after the other on a node that has no others.
async fn alone(attached: bool) -> Latencies {
    let mut world = ready(SINGLES, attached).await;
    let latencies = one_by_one(&mut world, 0).await;
    world.end().await;
    latencies
}

async fn trace() {
    let mut world = ready(TRACED, false).await;
    let Some(tracer) = Tracer::start(&world.process).await else {
        println!("| system calls per mount | not counted: there is no strace | |");
        return world.end().await;
    };
    let (pods, _) = world.run(Plugin::Csi, &one_each(0..TRACED)).await;
    let calls = tracer.stop().await;
    let [all, files] = calls.sums().map(|calls| calls as f64 / TRACED as f64);
    println!(
        "| system calls per mount | {all:.0}, of which {files:.0} on files and mounts: {} | |",
        calls.most(TRACED)
    );
    world.delete(&pods).await;
    world.end().await;
}

/// What a file costs that must survive a power cut: written, synced, renamed, its directory synced.
fn durable_file() -> Durations {
    let place = std::env::var_os("STOWAGE_BENCH_ROOT").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(place).unwrap();
    let one = |n: usize| {
        let begin = Instant::now();
        let (new, name) = (dir.path().join("new"), dir.path().join(n.to_string()));
        std::fs::write(&new, "x").unwrap();
        std::fs::File::open(&new).unwrap().sync_all().unwrap();
        std::fs::rename(&new, name).unwrap();
        std::fs::File::open(dir.path()).unwrap().sync_all().unwrap();
        begin.elapsed()
    };
    (0..50).map(one).collect()
}

pub async fn report(sizes: &[usize], rounds: usize, attached: bool) {
    let file = durable_file();
    println!(
        "one durable file on this disk: p50 {:.1} ms, p99 {:.1} ms; every number is of {rounds} rounds",
        file.percentile(50),
        file.percentile(99)
    );
    println!(
        "| pods with one CSI volume{} | published p50 | p99 | Running p50 | p99 | all Running | each |",
        if attached { ", attached" } else { "" }
    );
    println!("|---|---|---|---|---|---|---|");
    let mut last = None;
    let mut each = Vec::new();
    for count in sizes.iter().copied() {
        if count == 1 {
            let mut all = Latencies::default();
            for _ in 0..rounds {
                all = all.with(&alone(attached).await);
            }
            all.show("1", None, 1, true);
            continue;
        }
        let mut done = Vec::new();
        for _ in 0..rounds {
            done.push(measure(count, attached).await);
        }
        let at_once = done.iter().fold(Latencies::default(), |all, round| all.with(&round.at_once));
        let beside = done.iter().fold(Latencies::default(), |all, round| all.with(&round.beside));
        done.sort_by_key(|round| round.took);
        let round = done.swap_remove(done.len() / 2);
        at_once.show(&format!("{count} at once"), Some(round.took), count, false);
        beside.show(&format!("1 beside {count}"), None, 1, false);
        each.push(round.took.as_secs_f64() / count as f64);
        last = Some((count, round));
    }
    let Some((count, round)) = last else { return };
    println!("\n| what, with {count} volumes | measured | goal |\n|---|---|---|");
    if let [.., few, many] = each[..] {
        println!("| growth: time per volume beside that of the size before | {:.2} | 1 (linear) |", many / few);
    }
    let calls: Vec<String> =
        round.calls.iter().map(|(call, times)| format!("{call} {:.2}", *times as f64 / count as f64)).collect();
    println!("| CSI calls per mount | {} | stage and publish, once each |", calls.join(", "));
    println!("| API reads beyond watches per mount | {:.2} | 0 |", round.requests.reads() as f64 / count as f64);
    println!("| API requests per mount | {} | |", round.requests.each(count));
    println!("| processor time per mount | {:.2} ms | |", round.processor.as_secs_f64() * 1000.0 / count as f64);
    let [[idle, _, heap_idle], [now, highest, heap]] = [round.idle, round.megabytes];
    println!(
        "| memory of the process | {now:.1} MB, at the highest {highest:.1} MB ({heap:.1} MB without its code); \
         before the first pod {idle:.1} MB ({heap_idle:.1} MB) | {MEMORY_GOAL} MB |"
    );
    if !attached {
        trace().await;
    }
}

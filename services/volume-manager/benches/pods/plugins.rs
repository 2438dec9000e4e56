//! Each kind of volume: a hundred pods with one each, and one pod with a hundred.

use std::ops::Range;
use std::time::Duration;

use crate::process::Tracer;
use crate::requests::Requests;
use crate::seen::Durations;
use crate::volumes::Plugin;
use crate::world::{World, one_each};

const VOLUMES: usize = 100;

/// How the volumes are given to pods.
#[derive(Debug, Clone, Copy)]
enum Shape {
    PodsWithOne,
    PodWithAll,
}

impl Shape {
    fn name(self) -> String {
        match self {
            Self::PodsWithOne => format!("{VOLUMES} pods with 1"),
            Self::PodWithAll => format!("1 pod with {VOLUMES}"),
        }
    }

    fn volumes(self) -> Vec<Range<usize>> {
        match self {
            Self::PodsWithOne => one_each(0..VOLUMES),
            Self::PodWithAll => std::iter::once(0..VOLUMES).collect(),
        }
    }

    /// What a kubelet took, as kubernetes/perf-tests#686 has it: the 90th percentile, on a cluster, containers included.
    fn original(self, plugin: Plugin) -> &'static str {
        match (self, plugin) {
            (Self::PodsWithOne, Plugin::EmptyDir | Plugin::DownwardApi) => "70-80 s",
            (Self::PodsWithOne, Plugin::ConfigMap | Plugin::Secret) => "70-90 s",
            (Self::PodWithAll, Plugin::EmptyDir | Plugin::DownwardApi) => "2.5-3.75 s",
            (Self::PodWithAll, Plugin::ConfigMap | Plugin::Secret) => "22-24 s",
            _ => "-",
        }
    }
}

/// A node that has shown with one pod that it is up.
async fn ready(plugin: Plugin) -> World {
    let mut world = World::start(false).await;
    world.prepare(plugin, 0..VOLUMES + 1).await;
    let (pods, _) = world.run(plugin, &one_each(VOLUMES..VOLUMES + 1)).await;
    world.delete(&pods).await;
    world
}

async fn measure(plugin: Plugin, shape: Shape, rounds: usize) {
    let mut world = ready(plugin).await;
    let (mut latencies, mut times, mut gone) = (Durations::default(), Vec::new(), Vec::new());
    let before = Requests::read(&world.user).await;
    let mut requests = None;
    for _ in 0..rounds {
        let (pods, took) = world.run(plugin, &shape.volumes()).await;
        if requests.is_none() {
            requests = Some(Requests::since(&world.user, &before).await);
        }
        latencies = latencies.with(&pods.iter().map(|pod| world.seen.running(pod)).collect());
        times.push(took);
        let begin = std::time::Instant::now();
        world.delete(&pods).await;
        gone.push(begin.elapsed());
    }
    world.end().await;
    let requests = requests.unwrap_or_default();
    let (calls, most) = trace(plugin, shape).await;
    let pods = shape.volumes().len() as f64;
    println!(
        "| {} | {} | {:.0} | {:.0} ms | {:.0} ms | {:.0} ms | {calls} | {:.2}: {} | {} |",
        plugin.name(),
        shape.name(),
        pods / middle(&mut times).as_secs_f64(),
        latencies.percentile(50),
        latencies.percentile(99),
        middle(&mut gone).as_secs_f64() * 1000.0,
        requests.all() as f64 / VOLUMES as f64,
        requests.each(VOLUMES),
        shape.original(plugin),
    );
    if let Some(most) = most.filter(|_| std::env::var_os("STOWAGE_BENCH_CALLS").is_some()) {
        println!("    {most}");
    }
}

fn middle(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// System calls for each volume, all and on files and mounts; and which.
async fn trace(plugin: Plugin, shape: Shape) -> (String, Option<String>) {
    let mut world = ready(plugin).await;
    let tracer = Tracer::start(&world.process).await;
    let (pods, _) = world.run(plugin, &shape.volumes()).await;
    let counted = match tracer {
        None => ("no strace".to_owned(), None),
        Some(tracer) => {
            let calls = tracer.stop().await;
            let [all, files] = calls.sums().map(|calls| calls as f64 / VOLUMES as f64);
            (format!("{all:.0} ({files:.0})"), Some(calls.most(VOLUMES)))
        }
    };
    world.delete(&pods).await;
    world.end().await;
    counted
}

pub async fn report(chosen: &[Plugin], rounds: usize) {
    println!(
        "| plugin | volumes | pods/s | Running p50 | p99 | all gone again | system calls per volume (on files) \
         | API requests per volume | perf-tests#686, p90 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for plugin in chosen {
        for shape in [Shape::PodsWithOne, Shape::PodWithAll] {
            measure(*plugin, shape, rounds).await;
        }
    }
}

//! The controller at work, in this process or in its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde::{Deserialize, Serialize};

use stowage_model::object::kinds;
use stowage_model::{Claim, Volume};
use stowage_runtime::Context;
use stowage_runtime::api::Api;
use stowage_runtime::cache::Cache;

use crate::bound::Bound;
use crate::world::{Running, Shape, World};
use crate::{IN_FLIGHT, processor_seconds};

/// What one run of the controller did, or one of the server alone.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub rate: f64,
    /// Seconds of processor time for each binding or write, the server's among them where it is in this process.
    pub processor: f64,
    pub writes: u64,
    pub conflicts: u64,
    /// From create to Bound, sorted.
    pub latencies: Vec<Duration>,
    /// Decisions taken.
    pub decisions: u64,
}

/// What a process takes of the machine's memory.
pub struct Memory {
    pub resident: f64,
    pub peak: f64,
    pub empty: f64,
}

struct Controller {
    decisions: Box<dyn Fn() -> u64>,
    _running: Running,
}

impl World {
    fn start_controller(&self) -> Controller {
        let context = Context::real(self.controller.clone(), Arc::new(stowage_csi::UnixConnector), "bench");
        let options = pv_controller::Options { parallel: IN_FLIGHT, ..Default::default() };
        let metrics = context.metrics.clone();
        let running = tokio::spawn(async move { pv_controller::run(context, options).await.unwrap() });
        Controller { decisions: Box::new(move || metrics.decisions("pv-controller").get()), _running: Running(running) }
    }

    /// A driver that answers at once: the volume appears when it is asked for. Its writes count.
    fn start_provisioner(&self, claims: &Cache<Claim>) -> Running {
        let api = Api::new(self.controller.clone());
        let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel::<Arc<Claim>>();
        claims.on_change(move |change| {
            let before = change.before.and_then(|claim| claim.storage_provisioner());
            if let Some(after) = change.after.filter(|claim| claim.storage_provisioner().is_some() && before.is_none())
            {
                let _ = sender.send(Arc::clone(after));
            }
        });
        let class = self.prefix.clone();
        Running(tokio::spawn(async move {
            while let Some(claim) = asked.recv().await {
                let (api, class) = (api.clone(), class.clone());
                tokio::spawn(async move {
                    api.create_raw(kinds::VOLUME, Self::provisioned(&claim, &class)).await.unwrap();
                });
            }
        }))
    }

    async fn prepare(&self, shape: Shape, pairs: usize, claims: &Cache<Claim>) -> Option<Running> {
        self.class(shape).await;
        if shape == Shape::Dynamic {
            return Some(self.start_provisioner(claims));
        }
        self.available_volumes(pairs, shape).await;
        None
    }

    /// Claims and volumes wait; the time from the controller's start, reading them included, to the last claim Bound.
    pub async fn bind_waiting(&self, shape: Shape, pairs: usize) -> Run {
        let (claims, _watch) = self.watch::<Claim>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        let _provisioner = self.prepare(shape, pairs, &claims).await;
        self.create_all(pairs, |n| (kinds::CLAIM, self.claim(n))).await;
        let (begin, processor) = (Instant::now(), processor_seconds());
        let controller = self.start_controller();
        bound.wait(pairs).await;
        let took = (begin.elapsed(), processor_seconds() - processor);
        // The last volume's phase may be a moment later than the last claim's.
        self.quiet().await;
        self.report(pairs, took, vec![], &controller)
    }

    /// The controller runs; claims arrive as fast as the server takes them from as many users as are in flight.
    pub async fn bind_arriving(&self, shape: Shape, pairs: usize, arriving: usize) -> Run {
        let (claims, _watch) = self.watch::<Claim>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        let _provisioner = self.prepare(shape, pairs, &claims).await;
        let controller = self.start_controller();
        self.quiet().await;
        let times: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
        let (begin, processor) = (Instant::now(), processor_seconds());
        let tasks = futures::stream::iter(0..arriving).map(|n| {
            let (user, body, times) = (self.user.clone(), self.claim(n), Arc::clone(&times));
            async move {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                times.lock().unwrap().insert(name, Instant::now());
                tokio::spawn(async move { user.create_raw(kinds::CLAIM, body).await.unwrap() }).await.unwrap();
            }
        });
        tasks.buffer_unordered(IN_FLIGHT).collect::<Vec<()>>().await;
        bound.wait(arriving).await;
        let took = (begin.elapsed(), processor_seconds() - processor);
        let times = times.lock().unwrap();
        let ends = bound.times();
        let mut latencies: Vec<Duration> = times.iter().map(|(name, at)| ends[name] - *at).collect();
        latencies.sort();
        self.report(arriving, took, latencies, &controller)
    }

    /// The time one claim after the other takes, when nothing else is going on.
    pub async fn bind_one_by_one(&self, shape: Shape, count: usize) -> Run {
        let (claims, _watch) = self.watch::<Claim>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        let _provisioner = self.prepare(shape, count, &claims).await;
        let _controller = self.start_controller();
        self.quiet().await;
        let mut latencies = Vec::new();
        for n in 0..count {
            let begin = Instant::now();
            self.user.create_raw(kinds::CLAIM, self.claim(n)).await.unwrap();
            bound.wait(n + 1).await;
            latencies.push(begin.elapsed());
        }
        latencies.sort();
        Run { latencies, ..Run::default() }
    }

    fn report(
        &self,
        pairs: usize,
        (took, processor): (Duration, f64),
        latencies: Vec<Duration>,
        controller: &Controller,
    ) -> Run {
        Run {
            rate: pairs as f64 / took.as_secs_f64(),
            processor: processor / pairs as f64,
            // Of claims and volumes.
            writes: self.counts.of(|right| right.is_write() && right.resource.starts_with("persistentvolume")),
            conflicts: self.counts.conflicts(),
            latencies,
            decisions: (controller.decisions)(),
        }
    }

    /// What the real binary, a process of its own, has in memory: with nothing to do, and once it has bound that many
    /// pairs over HTTPS.
    pub async fn memory(&mut self, objects: usize) -> Memory {
        let kubeconfig = self.kubeconfig().await;
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_pv-controller"))
            .arg("--leader-elect=false")
            .arg(format!("--kubeconfig={kubeconfig}"))
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        let (claims, _watch) = self.watch::<Claim>().await;
        let (volumes, _watch) = self.watch::<Volume>().await;
        let bound = Bound::watch(&claims, self.prefix.clone());
        // Its first write shows that it is up.
        self.class(Shape::Static).await;
        self.create_all(1, |_| (kinds::VOLUME, self.volume(objects))).await;
        until_written(&volumes).await;
        let empty = megabytes(pid, "VmRSS:");
        self.create_all(objects, |n| (kinds::VOLUME, self.volume(n))).await;
        self.create_all(objects, |n| (kinds::CLAIM, self.claim(n))).await;
        bound.wait(objects).await;
        let memory = Memory { resident: megabytes(pid, "VmRSS:"), peak: megabytes(pid, "VmHWM:"), empty };
        child.kill().await.unwrap();
        memory
    }
}

async fn until_written(volumes: &Cache<Volume>) {
    let (sender, mut seen) = tokio::sync::watch::channel(false);
    volumes.on_change(move |change| {
        if change.after.is_some_and(|volume| volume.status.phase == stowage_model::phase::VolumePhase::Available) {
            sender.send_replace(true);
        }
    });
    volumes.replay();
    seen.wait_for(|seen| *seen).await.unwrap();
}

fn megabytes(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

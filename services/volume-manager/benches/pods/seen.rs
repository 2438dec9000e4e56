//! When pods were asked for, ran and were gone, as one who watches the API sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use stowage_model::phase::PodPhase;
use stowage_model::pod::Pod;
use stowage_runtime::cache::Cache;

#[derive(Debug, Clone, Copy, Default)]
struct Times {
    asked: Option<Instant>,
    running: Option<Instant>,
    gone: Option<Instant>,
}

/// The pods of this benchmark, by name; no two have the same.
#[derive(Clone)]
pub struct Seen {
    times: Arc<Mutex<BTreeMap<String, Times>>>,
    /// How many run or have run, and how many are gone.
    counts: watch::Receiver<[usize; 2]>,
}

impl Seen {
    pub fn watch(pods: &Cache<Pod>) -> Self {
        let times: Arc<Mutex<BTreeMap<String, Times>>> = Arc::default();
        let (sender, counts) = watch::channel([0, 0]);
        let known = Arc::clone(&times);
        pods.on_change(move |change| {
            let (mut known, now) = (known.lock().unwrap(), Instant::now());
            let of = known.entry(change.key.name.clone()).or_default();
            let is_running = change.after.is_some_and(|pod| pod.status.phase == PodPhase::Running);
            if is_running && of.running.replace(of.running.unwrap_or(now)).is_none() {
                sender.send_modify(|counts| counts[0] += 1);
            }
            if change.after.is_none() && of.gone.replace(of.gone.unwrap_or(now)).is_none() {
                sender.send_modify(|counts| counts[1] += 1);
            }
        });
        Self { times, counts }
    }

    pub fn asked(&self, pod: &str) {
        self.times.lock().unwrap().entry(pod.to_owned()).or_default().asked = Some(Instant::now());
    }

    pub async fn until_running(&self, count: usize) {
        self.counts.clone().wait_for(|counts| counts[0] >= count).await.unwrap();
    }

    pub async fn until_gone(&self, count: usize) {
        self.counts.clone().wait_for(|counts| counts[1] >= count).await.unwrap();
    }

    /// From the wish for a pod to what happened to it.
    pub fn waited(&self, pod: &str, until: Instant) -> Duration {
        until.saturating_duration_since(self.of(pod).asked.unwrap())
    }

    pub fn running(&self, pod: &str) -> Duration {
        self.waited(pod, self.of(pod).running.unwrap())
    }

    fn of(&self, pod: &str) -> Times {
        self.times.lock().unwrap()[pod]
    }
}

/// Durations of the same thing.
#[derive(Debug, Clone, Default)]
pub struct Durations(Vec<Duration>);

impl FromIterator<Duration> for Durations {
    fn from_iter<I: IntoIterator<Item = Duration>>(all: I) -> Self {
        let mut all: Vec<Duration> = all.into_iter().collect();
        all.sort();
        Self(all)
    }
}

impl Durations {
    /// In milliseconds; with fewer than a hundred of them the 99th percentile is the longest.
    pub fn percentile(&self, percent: usize) -> f64 {
        let at = (self.0.len() * percent / 100).min(self.0.len() - 1);
        self.0[at].as_secs_f64() * 1000.0
    }

    pub fn with(&self, other: &Self) -> Self {
        self.0.iter().chain(&other.0).copied().collect()
    }
}

//! The numbers of a queue, counted when client-go's queues count them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::metrics::{Metrics, QueueMetrics};

/// Counts what happens to keys, under the name each of them has.
pub(super) struct Meter<K> {
    metrics: Metrics,
    /// What all names begin with.
    prefix: String,
    name: fn(&K) -> &'static str,
    pub(super) by_name: BTreeMap<&'static str, QueueMetrics>,
}

impl<K> Meter<K> {
    pub(super) fn new(metrics: Metrics, prefix: String, name: fn(&K) -> &'static str) -> Self {
        Self { metrics, prefix, name, by_name: BTreeMap::new() }
    }

    fn of(&mut self, key: &K) -> &QueueMetrics {
        let name = (self.name)(key);
        self.by_name.entry(name).or_insert_with(|| self.metrics.queue(&format!("{}{name}", self.prefix)))
    }

    pub(super) fn added(&mut self, key: &K) {
        self.of(key).adds.inc();
    }

    /// client-go counts every delayed add as a retry.
    pub(super) fn delayed(&mut self, key: &K) {
        self.of(key).retries.inc();
    }

    pub(super) fn taken(&mut self, key: &K, waited: Duration) {
        self.of(key).queue_duration.observe(waited.as_secs_f64());
    }

    pub(super) fn done(&mut self, key: &K, took: Duration) {
        self.of(key).work_duration.observe(took.as_secs_f64());
    }
}

/// Sets what is only known by looking: how many wait, and how old the work in progress is.
pub(super) fn show(
    queues: &BTreeMap<&'static str, QueueMetrics>,
    ready: impl Iterator<Item = &'static str>,
    running: impl Iterator<Item = (&'static str, Duration)>,
) {
    let mut found: BTreeMap<&'static str, (i64, f64, f64)> = BTreeMap::new();
    for name in ready {
        found.entry(name).or_default().0 += 1;
    }
    for (name, age) in running {
        let (_, sum, longest) = found.entry(name).or_default();
        *sum += age.as_secs_f64();
        *longest = longest.max(age.as_secs_f64());
    }
    for (name, queue) in queues {
        let (depth, sum, longest) = found.get(name).copied().unwrap_or_default();
        queue.depth.set(depth);
        queue.unfinished_work.set(sum);
        queue.longest_running_processor.set(longest);
    }
}

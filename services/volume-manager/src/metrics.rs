//! The kubelet's numbers about volumes, under its names.

mod labels;
mod look;
mod usage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use stowage_runtime::metrics;

use crate::state::State;

pub use labels::{Labels, Severity};
use look::Gauges;
pub use usage::Usages;

/// Seconds; the kubelet's own.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Seconds; a mount on a machine without a cluster takes milliseconds.
const FINE_BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StorageOperation {
    volume_plugin: String,
    operation_name: String,
    status: &'static str,
    migrated: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TotalTime {
    plugin_name: String,
    operation_name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    operation: String,
    plugin: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Mounting {
    plugin: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Eviction {
    eviction_signal: &'static str,
}

#[derive(Clone)]
pub struct Metrics {
    storage_operations: Histograms<StorageOperation>,
    total_time: Histograms<TotalTime>,
    operations: Family<Ended, Counter>,
    durations: Histograms<Ended>,
    mounts: Family<Mounting, Counter>,
    mount_durations: Histograms<Mounting>,
    reconstructed: Counter,
    not_reconstructed: Counter,
    evictions: Family<Eviction, Counter>,
    orphans: Gauge,
    orphan_errors: Gauge,
    gauges: Gauges,
    pub usages: Usages,
    /// SELinux labels that do not go together.
    pub labels: Labels,
    /// The states of the nodes in this process; whoever asks for the numbers has them looked at.
    watched: Arc<Mutex<Vec<Weak<State>>>>,
    is_hooked: Arc<AtomicBool>,
}

impl Default for Metrics {
    fn default() -> Self {
        fn coarse() -> Histogram {
            Histogram::new(BUCKETS)
        }
        fn fine() -> Histogram {
            Histogram::new(FINE_BUCKETS)
        }
        Self {
            storage_operations: Family::new_with_constructor(coarse),
            total_time: Family::new_with_constructor(coarse),
            operations: Family::default(),
            durations: Family::new_with_constructor(fine),
            mounts: Family::default(),
            mount_durations: Family::new_with_constructor(fine),
            reconstructed: Counter::default(),
            not_reconstructed: Counter::default(),
            evictions: Family::default(),
            orphans: Gauge::default(),
            orphan_errors: Gauge::default(),
            gauges: Gauges::default(),
            usages: Usages::default(),
            labels: Labels::default(),
            watched: Arc::default(),
            is_hooked: Arc::default(),
        }
    }
}

impl Metrics {
    pub fn register(metrics: &metrics::Metrics) -> Self {
        metrics.own(|own: &Self, registry| {
            own.add_to(registry);
            let calls = metrics.csi_operations_seconds.clone();
            registry.register("csi_operations_seconds", "Duration of driver calls by method and code", calls.clone());
            registry.register("kubelet_csi_operation_duration_seconds", "Duration of driver calls", calls);
        })
    }

    fn add_to(&self, r: &mut Registry) {
        r.register(
            "storage_operation_duration_seconds",
            "How long operations on volumes take",
            self.storage_operations.clone(),
        );
        r.register(
            "volume_operation_total_seconds",
            "From the wish for a volume to its mount, with every wait and attempt",
            self.total_time.clone(),
        );
        r.register("volume_manager_operations", "Operations on volumes that have ended", self.operations.clone());
        r.register(
            "volume_manager_operation_duration_seconds",
            "How long operations on volumes take",
            self.durations.clone(),
        );
        r.register("kubelet_volume_mount", "Attempts to mount a volume for a pod", self.mounts.clone());
        r.register(
            "kubelet_volume_mount_duration_seconds",
            "How long it takes to mount a volume for a pod",
            self.mount_durations.clone(),
        );
        r.register(
            "reconstruct_volume_operations",
            "Volumes that were found on the disk at start",
            self.reconstructed.clone(),
        );
        r.register(
            "reconstruct_volume_operations_errors",
            "Volumes that were found on the disk at start and could not be told",
            self.not_reconstructed.clone(),
        );
        r.register(
            "kubelet_evictions",
            "Pods that were evicted, by what they used too much of",
            self.evictions.clone(),
        );
        r.register(
            "kubelet_orphan_pod_cleaned_volumes",
            "Directories of pods that are gone which were to be removed",
            self.orphans.clone(),
        );
        r.register(
            "kubelet_orphan_pod_cleaned_volumes_errors",
            "Directories of pods that are gone which could not be removed",
            self.orphan_errors.clone(),
        );
        self.gauges.add_to(r);
        self.usages.add_to(r);
        self.labels.add_to(r);
    }

    /// Shows the states of a node from now on, as long as it is there.
    pub fn watch(&self, metrics: &metrics::Metrics, state: &Arc<State>) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(state));
        if self.is_hooked.swap(true, Ordering::Relaxed) {
            return;
        }
        let own = self.clone();
        metrics.before_encoding(move || {
            let mut watched = own.watched.lock().unwrap_or_else(PoisonError::into_inner);
            watched.retain(|state| state.strong_count() > 0);
            let states: Vec<Arc<State>> = watched.iter().filter_map(Weak::upgrade).collect();
            drop(watched);
            own.gauges.look(&states);
            own.usages.look(&states);
            true
        });
    }

    /// A pod is to go because of what it uses too much of.
    pub fn evicted(&self, eviction_signal: &'static str) {
        self.evictions.get_or_create_owned(&Eviction { eviction_signal }).inc();
    }

    /// An operation has ended.
    pub fn operation(&self, name: &str, plugin: &str, is_ok: bool, took: Duration) {
        let (plugin, status, seconds) =
            (plugin.to_owned(), if is_ok { "success" } else { "failure" }, took.as_secs_f64());
        let labels = StorageOperation {
            volume_plugin: plugin.clone(),
            operation_name: name.to_owned(),
            status: if is_ok { "success" } else { "fail-unknown" },
            migrated: "false",
        };
        self.storage_operations.get_or_create_owned(&labels).observe(seconds);
        if matches!(name, "volume_mount" | "map_volume") {
            let labels = Mounting { plugin: plugin.clone(), status };
            self.mounts.get_or_create_owned(&labels).inc();
            self.mount_durations.get_or_create_owned(&labels).observe(seconds);
        }
        let labels = Ended { operation: name.to_owned(), plugin, status };
        self.operations.get_or_create_owned(&labels).inc();
        self.durations.get_or_create_owned(&labels).observe(seconds);
    }

    /// A volume with a file system has come to a pod that waited so long for it.
    pub fn mounted_after(&self, plugin: String, waited: Duration) {
        let labels = TotalTime { plugin_name: plugin, operation_name: "overall_volume_mount" };
        self.total_time.get_or_create_owned(&labels).observe(waited.as_secs_f64());
    }

    /// The look at the disk at start is over.
    pub fn reconstructed(&self, found: u64, failed: u64) {
        self.reconstructed.inc_by(found + failed);
        self.not_reconstructed.inc_by(failed);
    }

    /// The directory of a pod that is gone was removed, or could not be.
    pub fn orphan_cleaned(&self, is_ok: bool) {
        self.orphans.inc();
        if !is_ok {
            self.orphan_errors.inc();
        }
    }
}

#[cfg(test)]
mod tests;

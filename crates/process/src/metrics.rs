//! The numbers every service shows, under the names the originals' dashboards use.
//!
//! The registry adds `_total` to counters, so they are registered without it.

mod format;
mod usage;

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use format::Format;

/// Seconds; what csi-lib-utils uses for driver calls.
const CSI_BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The name of a driver that has not told it yet, as csi-lib-utils writes it.
pub const UNKNOWN_DRIVER: &str = "unknown-driver";

/// A gauge of seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;

/// Sets gauges that are only known by looking; false when there is nothing left to look at.
type Looker = Box<dyn FnMut() -> bool + Send>;

type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// The label of families that count per service.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ServiceLabel {
    /// The service, as its binary is called.
    pub service: String,
}

/// The label of queues and leases.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NameLabel {
    /// The queue's or lease's name.
    pub name: String,
}

/// The labels of an invariant that was found broken.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InvariantLabels {
    /// The service that noticed.
    pub service: String,
    /// The invariant's id in the design, such as `P2`.
    pub invariant: String,
}

/// The labels of a driver call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CsiLabels {
    /// The driver's name, `unknown-driver` until it has told it.
    pub driver_name: String,
    /// The full gRPC method, such as `/csi.v1.Controller/CreateVolume`.
    pub method_name: String,
    /// The code's name, such as `OK`, or `unknown-non-grpc`.
    pub grpc_status_code: String,
    /// Whether the call was for an object of an in-tree plugin; only calls to drivers that took over from one have it.
    pub migrated: Option<bool>,
}

/// By hand, because most calls have one label less.
impl EncodeLabelSet for CsiLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, value) in [
            ("driver_name", &self.driver_name),
            ("method_name", &self.method_name),
            ("grpc_status_code", &self.grpc_status_code),
        ] {
            (name, value.as_str()).encode(encoder.encode_label())?;
        }
        match self.migrated {
            Some(migrated) => ("migrated", migrated.to_string()).encode(encoder.encode_label()),
            None => Ok(()),
        }
    }
}

/// All shared families and the registry they are in; clones share everything.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    own: Arc<Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>>>,
    lookers: Arc<Mutex<Vec<Looker>>>,
    /// When this process began, in seconds since 1970.
    pub process_start_time_seconds: SecondsGauge,
    /// Driver calls by driver, method and code.
    pub csi_operations_seconds: HistogramFamily<CsiLabels>,
    /// Keys waiting in a queue.
    pub workqueue_depth: Family<NameLabel, Gauge>,
    /// Keys ever added to a queue.
    pub workqueue_adds: Family<NameLabel, Counter>,
    /// How long keys wait before work on them begins.
    pub workqueue_queue_duration_seconds: HistogramFamily<NameLabel>,
    /// How long work on a key takes.
    pub workqueue_work_duration_seconds: HistogramFamily<NameLabel>,
    /// Age of all work in progress, summed.
    pub workqueue_unfinished_work_seconds: Family<NameLabel, SecondsGauge>,
    /// Age of the oldest work in progress.
    pub workqueue_longest_running_processor_seconds: Family<NameLabel, SecondsGauge>,
    /// Keys queued again after a failure.
    pub workqueue_retries: Family<NameLabel, Counter>,
    /// 1 while this process leads.
    pub leader_election_master_status: Family<NameLabel, Gauge>,
    /// Renewals that had to read the Lease first.
    pub leader_election_slowpath: Family<NameLabel, Counter>,
    /// Actions that only the slow resync found: each is a missed event.
    pub missed_wakeups: Family<ServiceLabel, Counter>,
    /// Invariants of the design found broken.
    pub invariant_violations: Family<InvariantLabels, Counter>,
    /// Decisions taken, with or without an action.
    pub decisions: Family<ServiceLabel, Counter>,
}

/// The numbers of one queue.
#[derive(Clone)]
pub struct QueueMetrics {
    /// Keys waiting.
    pub depth: Gauge,
    /// Keys ever added.
    pub adds: Counter,
    /// Seconds keys wait.
    pub queue_duration: Histogram,
    /// Seconds work takes.
    pub work_duration: Histogram,
    /// Age of all work in progress, summed.
    pub unfinished_work: SecondsGauge,
    /// Age of the oldest work in progress.
    pub longest_running_processor: SecondsGauge,
    /// Keys queued again after a failure.
    pub retries: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::default(),
            own: Arc::default(),
            lookers: Arc::default(),
            process_start_time_seconds: SecondsGauge::default(),
            csi_operations_seconds: HistogramFamily::new_with_constructor(|| Histogram::new(CSI_BUCKETS)),
            workqueue_depth: Family::default(),
            workqueue_adds: Family::default(),
            workqueue_queue_duration_seconds: HistogramFamily::new_with_constructor(queue_histogram),
            workqueue_work_duration_seconds: HistogramFamily::new_with_constructor(queue_histogram),
            workqueue_unfinished_work_seconds: Family::default(),
            workqueue_longest_running_processor_seconds: Family::default(),
            workqueue_retries: Family::default(),
            leader_election_master_status: Family::default(),
            leader_election_slowpath: Family::default(),
            missed_wakeups: Family::default(),
            invariant_violations: Family::default(),
            decisions: Family::default(),
        };
        metrics.register(|registry| metrics.register_shared(registry));
        metrics
    }
}

/// The work queue buckets of Kubernetes: 10 ns to 1000 s by tens.
fn queue_histogram() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}

impl Metrics {
    /// Adds a service's own families.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().expect("no code panics while holding the registry"));
    }

    /// A service's own families: registered once, however often the service is started again in this process.
    pub fn own<T: Clone + Default + Send + 'static>(&self, register: impl FnOnce(&T, &mut Registry)) -> T {
        let mut own = self.own.lock().expect("no code panics while holding the families");
        if let Some(families) = own.get(&TypeId::of::<T>()).and_then(|families| families.downcast_ref::<T>()) {
            return families.clone();
        }
        let families = T::default();
        self.register(|registry| register(&families, registry));
        own.insert(TypeId::of::<T>(), Box::new(families.clone()));
        families
    }

    /// Has `look` set gauges whenever somebody asks for the text, until it says that it has nothing left to look at.
    pub fn before_encoding(&self, look: impl FnMut() -> bool + Send + 'static) {
        self.lookers.lock().expect("no code panics while looking").push(Box::new(look));
    }

    /// Everything in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        self.lookers.lock().expect("no code panics while looking").retain_mut(|look| look());
        let registry = self.registry.lock().expect("no code panics while holding the registry");
        let mut body = String::new();
        text::encode(&mut body, &registry).expect("writing to a String cannot fail");
        body
    }

    /// The same in a format.
    pub fn encode_as(&self, format: Format) -> String {
        format.of(self.encode())
    }

    /// Records when this process began.
    pub fn started(&self, at: Timestamp) {
        self.process_start_time_seconds.set(at.as_millisecond() as f64 / 1e3);
    }

    /// The counter of a service's decisions.
    pub fn decisions(&self, service: &str) -> Counter {
        self.decisions.get_or_create_owned(&ServiceLabel { service: service.into() })
    }

    /// The counter of a service's missed wake-ups.
    pub fn missed_wakeups(&self, service: &str) -> Counter {
        self.missed_wakeups.get_or_create_owned(&ServiceLabel { service: service.into() })
    }

    /// The counter of an invariant that a service found broken.
    pub fn invariant_violations(&self, service: &str, invariant: &str) -> Counter {
        let labels = InvariantLabels { service: service.into(), invariant: invariant.into() };
        self.invariant_violations.get_or_create_owned(&labels)
    }

    /// Records one finished driver call.
    pub fn observe_csi(&self, driver: &str, method: &str, code: &str, migrated: Option<bool>, took: Duration) {
        let labels = CsiLabels {
            driver_name: driver.into(),
            method_name: method.into(),
            grpc_status_code: code.into(),
            migrated,
        };
        self.csi_operations_seconds.get_or_create_owned(&labels).observe(took.as_secs_f64());
    }

    /// The numbers of the queue with this name.
    pub fn queue(&self, name: &str) -> QueueMetrics {
        let label = NameLabel { name: name.into() };
        QueueMetrics {
            depth: self.workqueue_depth.get_or_create_owned(&label),
            adds: self.workqueue_adds.get_or_create_owned(&label),
            queue_duration: self.workqueue_queue_duration_seconds.get_or_create_owned(&label),
            work_duration: self.workqueue_work_duration_seconds.get_or_create_owned(&label),
            unfinished_work: self.workqueue_unfinished_work_seconds.get_or_create_owned(&label),
            longest_running_processor: self.workqueue_longest_running_processor_seconds.get_or_create_owned(&label),
            retries: self.workqueue_retries.get_or_create_owned(&label),
        }
    }

    fn register_shared(&self, r: &mut Registry) {
        r.register(
            "process_start_time_seconds",
            "Start time of the process since 1970",
            self.process_start_time_seconds.clone(),
        );
        r.register(
            "csi_sidecar_operations_seconds",
            "Duration of driver calls by method and code",
            self.csi_operations_seconds.clone(),
        );
        r.register("workqueue_depth", "Keys waiting", self.workqueue_depth.clone());
        r.register("workqueue_adds", "Keys added", self.workqueue_adds.clone());
        r.register(
            "workqueue_queue_duration_seconds",
            "How long keys wait before work begins",
            self.workqueue_queue_duration_seconds.clone(),
        );
        r.register(
            "workqueue_work_duration_seconds",
            "How long work on a key takes",
            self.workqueue_work_duration_seconds.clone(),
        );
        r.register(
            "workqueue_unfinished_work_seconds",
            "Age of all work in progress, summed",
            self.workqueue_unfinished_work_seconds.clone(),
        );
        r.register(
            "workqueue_longest_running_processor_seconds",
            "Age of the oldest work in progress",
            self.workqueue_longest_running_processor_seconds.clone(),
        );
        r.register("workqueue_retries", "Keys queued again after a failure", self.workqueue_retries.clone());
        r.register(
            "leader_election_master_status",
            "1 while this process leads",
            self.leader_election_master_status.clone(),
        );
        r.register(
            "leader_election_slowpath",
            "Renewals that had to read the Lease first",
            self.leader_election_slowpath.clone(),
        );
        r.register(
            "stowage_missed_wakeups",
            "Actions only the slow resync found; should stay 0",
            self.missed_wakeups.clone(),
        );
        r.register(
            "stowage_invariant_violations",
            "Invariants found broken; should stay 0",
            self.invariant_violations.clone(),
        );
        r.register("stowage_log_lines_dropped", "Log lines that standard error did not take", crate::log::dropped());
        r.register("stowage_decisions", "Decisions taken", self.decisions.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_names_and_labels_of_the_originals() {
        let metrics = Metrics::default();
        metrics.started(Timestamp::from_second(1_700_000_000).unwrap());
        metrics.decisions("attacher").inc();
        metrics.missed_wakeups("attacher");
        metrics.observe_csi("d.example", "/csi.v1.Controller/CreateVolume", "OK", None, Duration::from_millis(200));
        let queue = metrics.queue("claims");
        queue.adds.inc();
        queue.depth.set(3);
        let text = metrics.encode();
        for line in [
            "process_start_time_seconds 1700000000.0",
            "stowage_decisions_total{service=\"attacher\"} 1",
            "stowage_missed_wakeups_total{service=\"attacher\"} 0",
            "csi_sidecar_operations_seconds_bucket{le=\"0.25\",driver_name=\"d.example\",\
             method_name=\"/csi.v1.Controller/CreateVolume\",grpc_status_code=\"OK\"} 1",
            "workqueue_adds_total{name=\"claims\"} 1",
            "workqueue_depth{name=\"claims\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
        }
    }

    #[test]
    fn a_service_started_twice_has_its_families_once_and_goes_on_counting() {
        let metrics = Metrics::default();
        for _ in 0..2 {
            let own: Counter = metrics.own(|own: &Counter, registry| registry.register("own", "Own", own.clone()));
            own.inc();
        }
        let text = metrics.encode();
        assert_eq!(text.matches("# TYPE own ").count(), 1, "{text}");
        assert!(text.contains("own_total 2"), "{text}");
    }

    #[test]
    fn clones_count_together() {
        let metrics = Metrics::default();
        metrics.clone().decisions("a").inc();
        assert_eq!(metrics.decisions("a").get(), 1);
    }
}

//! How long operations take, under the original's names and labels.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::watches::Key;

/// Seconds; the original's buckets.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// What the original calls a driver that it cannot name.
const UNKNOWN_DRIVER: &str = "unknown";

/// What has come to an end for a snapshot or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finished {
    /// The driver has made it.
    Created,
    /// Volumes can be made from it.
    Ready,
    Deleted,
}

/// What operations of one object are called, and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub uid: String,
    /// Empty where nobody knows.
    pub driver: String,
    pub is_pre_provisioned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    driver_name: String,
    operation_name: &'static str,
    snapshot_type: &'static str,
    operation_status: &'static str,
}

/// The operations of one object that have begun.
#[derive(Debug)]
struct Begun {
    subject: Subject,
    since: BTreeMap<Finished, Timestamp>,
}

/// Clones share the numbers.
#[derive(Clone)]
pub struct Metrics {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    begun: Arc<Mutex<BTreeMap<Key, Begun>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            in_flight: Gauge::default(),
            begun: Arc::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "snapshot_controller_operation_total_seconds",
            "Time from the first look at a snapshot to the end of an operation on it",
            self.durations.clone(),
        );
        registry.register(
            "snapshot_controller_operations_in_flight",
            "Operations on snapshots that have not ended",
            self.in_flight.clone(),
        );
    }

    /// Notes when operations begin; those that have begun go on.
    pub fn begin(&self, key: &Key, subject: Subject, operations: &[Finished], now: Timestamp) {
        if self.lock().get(key).is_some_and(|begun| begun.subject.uid != subject.uid) {
            self.gone(key, now);
        }
        let mut all = self.lock();
        let begun =
            all.entry(key.clone()).or_insert_with(|| Begun { subject: subject.clone(), since: BTreeMap::new() });
        if !subject.driver.is_empty() {
            begun.subject.driver = subject.driver;
        }
        for operation in operations {
            if let Entry::Vacant(vacant) = begun.since.entry(*operation) {
                vacant.insert(now);
                self.in_flight.inc();
            }
        }
        if begun.since.is_empty() {
            all.remove(key);
        }
    }

    /// Notes that an operation has succeeded.
    pub fn finish(&self, key: &Key, operation: Finished, now: Timestamp) {
        let mut all = self.lock();
        let Some(begun) = all.get_mut(key) else { return };
        if let Some(since) = begun.since.remove(&operation) {
            self.in_flight.dec();
            self.observe(key, &begun.subject, operation, "success", since, now);
        }
        if begun.since.is_empty() {
            all.remove(key);
        }
    }

    /// Notes that an object is gone: its deletion has ended, and whatever else was begun was in vain.
    pub fn gone(&self, key: &Key, now: Timestamp) {
        let mut all = self.lock();
        let Some(begun) = all.remove(key) else { return };
        // As the original has it: what was in vain took as long as its deletion.
        let deleted = begun.since.get(&Finished::Deleted).copied();
        for (operation, since) in &begun.since {
            let (status, since) = match operation {
                Finished::Deleted => ("success", *since),
                Finished::Created | Finished::Ready => ("cancel", deleted.unwrap_or(*since)),
            };
            self.in_flight.dec();
            self.observe(key, &begun.subject, *operation, status, since, now);
        }
    }

    fn observe(
        &self,
        key: &Key,
        subject: &Subject,
        operation: Finished,
        operation_status: &'static str,
        since: Timestamp,
        now: Timestamp,
    ) {
        let is_group = matches!(key, Key::Group(_));
        let operation_name = match (operation, is_group) {
            (Finished::Created, false) => "CreateSnapshot",
            (Finished::Ready, false) => "CreateSnapshotAndReady",
            (Finished::Deleted, false) => "DeleteSnapshot",
            (Finished::Created, true) => "CreateGroupSnapshot",
            (Finished::Ready, true) => "CreateGroupSnapshotAndReady",
            (Finished::Deleted, true) => "DeleteGroupSnapshot",
        };
        let driver = if subject.driver.is_empty() { UNKNOWN_DRIVER } else { &subject.driver };
        let labels = Labels {
            driver_name: driver.to_owned(),
            operation_name,
            snapshot_type: if subject.is_pre_provisioned { "pre-provisioned" } else { "dynamic" },
            operation_status,
        };
        self.durations.get_or_create(&labels).observe(now.duration_since(since).as_secs_f64());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Begun>> {
        self.begun.lock().expect("no code panics while holding the times")
    }
}

#[cfg(test)]
mod tests {
    use stowage_model::object;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn subject(uid: &str) -> Subject {
        Subject { uid: uid.into(), driver: "d.example".into(), is_pre_provisioned: false }
    }

    fn text(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn an_operation_is_timed_from_the_first_look_to_its_end() {
        let (metrics, key) = (Metrics::default(), Key::Snapshot(object::Key::namespaced("n", "s")));
        for second in [0, 3] {
            metrics.begin(&key, subject("u"), &[Finished::Created, Finished::Ready], at(second));
        }
        assert!(text(&metrics).contains("snapshot_controller_operations_in_flight 2"));
        metrics.finish(&key, Finished::Created, at(4));
        let text = text(&metrics);
        let labels = r#"driver_name="d.example",operation_name="CreateSnapshot",snapshot_type="dynamic",operation_status="success""#;
        assert!(text.contains(&format!("operation_total_seconds_sum{{{labels}}} 4")), "{text}");
        assert!(text.contains("snapshot_controller_operations_in_flight 1"), "{text}");
    }

    #[test]
    fn operations_in_flight_are_counted_by_what_begins_and_ends() {
        let metrics = Metrics::default();
        let keys = ["a", "b"].map(|name| Key::Snapshot(object::Key::namespaced("n", name)));
        let both = [Finished::Created, Finished::Ready];
        let mut seen = Vec::new();
        let mut look = |metrics: &Metrics| seen.push(metrics.in_flight.get());
        keys.iter().for_each(|key| metrics.begin(key, subject("u"), &both, at(0)));
        look(&metrics);
        metrics.finish(&keys[0], Finished::Created, at(1));
        metrics.finish(&keys[0], Finished::Created, at(1));
        look(&metrics);
        // Another object of the name has come.
        metrics.begin(&keys[0], subject("v"), &both, at(2));
        look(&metrics);
        keys.iter().for_each(|key| metrics.gone(key, at(3)));
        metrics.gone(&keys[0], at(3));
        look(&metrics);
        assert_eq!(seen, [4, 3, 4, 0]);
    }

    #[test]
    fn what_was_under_way_for_an_object_that_is_gone_was_cancelled() {
        let (metrics, key) = (Metrics::default(), Key::Group(object::Key::namespaced("n", "g")));
        metrics.begin(&key, subject("u"), &[Finished::Ready], at(0));
        metrics.begin(&key, subject("u"), &[Finished::Deleted], at(5));
        metrics.gone(&key, at(7));
        let text = text(&metrics);
        assert!(text.contains(
            r#"operation_name="CreateGroupSnapshotAndReady",snapshot_type="dynamic",operation_status="cancel""#
        ));
        assert!(
            text.contains(
                r#"operation_name="DeleteGroupSnapshot",snapshot_type="dynamic",operation_status="success"} 2"#
            )
        );
        assert!(text.contains("snapshot_controller_operations_in_flight 0"), "{text}");
    }
}

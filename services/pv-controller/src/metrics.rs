//! Numbers under upstream's names and labels.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Volume, migration};

use crate::watches::Caches;

/// Seconds; upstream's buckets for operations on volumes.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Operation {
    pub plugin_name: String,
    pub operation_name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InTreeCall {
    pub volume_plugin: String,
    pub operation_name: &'static str,
    pub status: &'static str,
    pub migrated: &'static str,
}

/// What this service counts.
pub struct Metrics {
    durations: Family<Operation, Histogram, fn() -> Histogram>,
    errors: Family<Operation, Counter>,
    /// The old name does not end as counters do here, so it is shown as a gauge.
    old_errors: Family<Operation, Gauge>,
    calls: Family<InTreeCall, Histogram, fn() -> Histogram>,
    pub retroactive_classes: Counter,
    pub retroactive_class_errors: Counter,
    pub ephemeral_created: Counter,
    pub ephemeral_failures: Counter,
    /// What is counted when somebody asks; a service that is started again has new ones.
    counted: Arc<Mutex<Option<Caches>>>,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(histogram),
            errors: Family::default(),
            old_errors: Family::default(),
            calls: Family::new_with_constructor(histogram),
            retroactive_classes: Counter::default(),
            retroactive_class_errors: Counter::default(),
            ephemeral_created: Counter::default(),
            ephemeral_failures: Counter::default(),
            counted: Arc::default(),
        }
    }
}

impl Metrics {
    /// The numbers of this process, registered once however often the service is started in it.
    pub fn of(all: &stowage_runtime::metrics::Metrics, caches: Option<&Caches>) -> Arc<Self> {
        let metrics: Arc<Self> = all.own(|metrics: &Arc<Self>, registry| metrics.register(registry));
        *metrics.counted.lock().expect("no code panics while holding the caches") = caches.cloned();
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "volume_operation_total_seconds",
            "Time from the first attempt at provisioning or deleting a volume to its end",
            self.durations.clone(),
        );
        registry.register("volume_operation_errors", "Failed attempts at an operation", self.errors.clone());
        registry.register("volume_operation_total_errors", "Failed attempts, old name", self.old_errors.clone());
        registry.register("storage_operation_duration_seconds", "Calls of in-tree plugins", self.calls.clone());
        registry.register(
            "retroactive_storageclass",
            "Attempts to give a claim without class the default one",
            self.retroactive_classes.clone(),
        );
        registry.register(
            "retroactive_storageclass_errors",
            "Failed attempts to give a claim without class the default one",
            self.retroactive_class_errors.clone(),
        );
        registry.register(
            "ephemeral_volume_controller_create",
            "Attempts to create claims for pods",
            self.ephemeral_created.clone(),
        );
        registry.register(
            "ephemeral_volume_controller_create_failures",
            "Failed attempts to create claims for pods",
            self.ephemeral_failures.clone(),
        );
        registry.register_collector(Box::new(Counts(Arc::clone(&self.counted))));
    }

    /// An operation came to its end.
    pub fn succeeded(&self, operation: &Operation, seconds: f64) {
        self.durations.get_or_create(operation).observe(seconds);
    }

    /// An attempt at an operation failed.
    pub fn failed(&self, operation: &Operation) {
        self.errors.get_or_create(operation).inc();
        self.old_errors.get_or_create(operation).inc();
    }

    /// Notes a call of an in-tree plugin.
    pub fn called(&self, plugin: &str, operation_name: &'static str, ok: bool, seconds: f64) {
        let status = if ok { "success" } else { "fail-unknown" };
        let call = InTreeCall { volume_plugin: plugin.to_owned(), operation_name, status, migrated: "false" };
        self.calls.get_or_create(&call).observe(seconds);
    }
}

/// How many volumes and claims there are, counted when asked.
#[derive(Clone)]
struct Counts(Arc<Mutex<Option<Caches>>>);

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counts")
    }
}

type Labels = Vec<(&'static str, String)>;

impl Counts {
    fn count(&self) -> BTreeMap<(&'static str, Labels), i64> {
        let mut counts: BTreeMap<(&'static str, Labels), i64> = BTreeMap::new();
        let caches = self.0.lock().expect("no code panics while holding the caches").clone();
        let Some(caches) = caches else { return counts };
        let mut add = |name, labels| *counts.entry((name, labels)).or_default() += 1;
        for volume in caches.volumes.list() {
            let plugin = plugin_name(&volume);
            let mode = volume.spec.volume_mode.as_str().to_owned();
            add("pv_collector_total_pv_count", vec![("plugin_name", plugin), ("volume_mode", mode)]);
            let bound = volume.status.phase == VolumePhase::Bound;
            let name = if bound { "pv_collector_bound_pv_count" } else { "pv_collector_unbound_pv_count" };
            add(name, vec![("storage_class", volume.spec.storage_class_name.clone())]);
        }
        for claim in caches.claims.list() {
            let bound = claim.status.phase == ClaimPhase::Bound;
            let name = if bound { "pv_collector_bound_pvc_count" } else { "pv_collector_unbound_pvc_count" };
            add(
                name,
                vec![
                    ("namespace", claim.meta.namespace.clone()),
                    ("storage_class", claim.class_name().to_owned()),
                    ("volume_attributes_class", claim.attributes_class().to_owned()),
                ],
            );
        }
        counts
    }
}

/// The plugin of the volume's source, if kube-controller-manager still has it.
fn plugin_name(volume: &Volume) -> String {
    const LINKED: [&str; 4] = [migration::HOST_PATH, "kubernetes.io/nfs", "kubernetes.io/fc", "kubernetes.io/iscsi"];
    match &volume.spec.csi {
        Some(csi) => format!("kubernetes.io/csi:{}", csi.driver),
        None => {
            migration::plugin_of_source(volume).filter(|plugin| LINKED.contains(plugin)).unwrap_or("N/A").to_owned()
        }
    }
}

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.count();
        for (name, help) in [
            ("pv_collector_total_pv_count", "Volumes"),
            ("pv_collector_bound_pv_count", "Volumes that are bound"),
            ("pv_collector_unbound_pv_count", "Volumes that are not bound"),
            ("pv_collector_bound_pvc_count", "Claims that are bound"),
            ("pv_collector_unbound_pvc_count", "Claims that are not bound"),
        ] {
            let of_name: Vec<_> = counts.iter().filter(|((counted, _), _)| *counted == name).collect();
            if of_name.is_empty() {
                continue;
            }
            let kind = prometheus_client::metrics::MetricType::Gauge;
            let mut descriptor = encoder.encode_descriptor(name, help, None, kind)?;
            for ((_, labels), count) in of_name {
                ConstGauge::new(*count).encode(descriptor.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::begun::Begun;

    #[test]
    fn only_volumes_of_plugins_that_upstream_still_has_are_counted_under_a_name() {
        for (source, name) in [
            ("hostPath", "kubernetes.io/host-path"),
            ("nfs", "kubernetes.io/nfs"),
            ("fc", "kubernetes.io/fc"),
            ("iscsi", "kubernetes.io/iscsi"),
            ("local", "N/A"),
            ("awsElasticBlockStore", "N/A"),
            ("cinder", "N/A"),
            ("flexVolume", "N/A"),
        ] {
            let volume = serde_json::from_value(json!({ "spec": { source: {} } })).unwrap();
            assert_eq!(plugin_name(&volume), name, "{source}");
        }
    }

    #[test]
    fn the_text_has_upstreams_names_and_labels() {
        let caches = Caches::default();
        caches.volumes.observe(
            serde_json::from_value(json!({
                "metadata": { "name": "v", "uid": "v", "resourceVersion": "1" },
                "spec": { "csi": { "driver": "d", "volumeHandle": "h" }, "storageClassName": "gold" },
                "status": { "phase": "Bound" },
            }))
            .unwrap(),
        );
        caches.claims.observe(
            serde_json::from_value(json!({
                "metadata": { "namespace": "n", "name": "c", "uid": "c", "resourceVersion": "1" },
                "spec": { "storageClassName": "gold" },
            }))
            .unwrap(),
        );
        let all = stowage_runtime::metrics::Metrics::default();
        Metrics::of(&all, Some(&Caches::default()));
        let metrics = Metrics::of(&all, Some(&caches));
        let at = |second| Timestamp::from_second(second).unwrap();
        let begun = Begun::new(&metrics);
        begun.start("n/c".into(), "d", "provision", at(0));
        begun.start("n/c".into(), "d", "provision", at(5));
        begun.fail("n/c");
        begun.succeed("n/c", at(2));
        begun.succeed("n/c", at(3));
        metrics.retroactive_classes.inc();
        metrics.called("kubernetes.io/host-path", "volume_delete", true, 0.01);
        let text = all.encode();
        for line in [
            "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:d\",volume_mode=\"Filesystem\"} 1",
            "pv_collector_bound_pv_count{storage_class=\"gold\"} 1",
            "pv_collector_unbound_pvc_count{namespace=\"n\",storage_class=\"gold\",volume_attributes_class=\"\"} 1",
            "volume_operation_total_seconds_bucket{le=\"2.5\",plugin_name=\"d\",operation_name=\"provision\"} 1",
            "volume_operation_total_seconds_count{plugin_name=\"d\",operation_name=\"provision\"} 1",
            "volume_operation_errors_total{plugin_name=\"d\",operation_name=\"provision\"} 1",
            "volume_operation_total_errors{plugin_name=\"d\",operation_name=\"provision\"} 1",
            "retroactive_storageclass_total 1",
            "ephemeral_volume_controller_create_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
        }
        assert_eq!(
            text.matches("# TYPE retroactive_storageclass ").count(),
            1,
            "started twice, registered once\n{text}"
        );
    }
}

//! How full the volumes behind claims are, as they last said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use stowage_model::object::Key;
use stowage_plugins::plugin::VolumeStats;

use crate::state::State;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClaim {
    namespace: String,
    persistentvolumeclaim: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Source {
    metric_source: String,
}

type Figure = fn(&VolumeStats) -> Option<u64>;

/// The kubelet's names of the figures.
const FIGURES: [(&str, &str, Figure); 6] = [
    ("kubelet_volume_stats_capacity_bytes", "Bytes of the volume", |stats| stats.capacity_bytes),
    ("kubelet_volume_stats_available_bytes", "Bytes that can be had", |stats| stats.available_bytes),
    ("kubelet_volume_stats_used_bytes", "Bytes in use", |stats| stats.used_bytes),
    ("kubelet_volume_stats_inodes", "Inodes of the volume", |stats| stats.inodes),
    ("kubelet_volume_stats_inodes_free", "Inodes that can be had", |stats| stats.inodes_free),
    ("kubelet_volume_stats_inodes_used", "Inodes in use", |stats| stats.inodes_used),
];

#[derive(Clone)]
pub struct Usages {
    known: Arc<Mutex<BTreeMap<Key, VolumeStats>>>,
    figures: [Family<OfClaim, Gauge>; 6],
    durations: Family<Source, Histogram, fn() -> Histogram>,
}

impl Default for Usages {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            figures: Default::default(),
            durations: Family::new_with_constructor(|| Histogram::new(super::FINE_BUCKETS)),
        }
    }
}

impl Usages {
    pub fn add_to(&self, r: &mut Registry) {
        for ((name, help, _), family) in FIGURES.iter().zip(&self.figures) {
            r.register(*name, *help, family.clone());
        }
        r.register(
            "kubelet_volume_metric_collection_duration_seconds",
            "How long volumes take to say how full they are",
            self.durations.clone(),
        );
    }

    /// A volume has said how full it is.
    pub fn told(&self, claim: Key, stats: VolumeStats) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(claim, stats);
    }

    /// It took so long to be told.
    pub fn took(&self, source: &str, took: Duration) {
        let labels = Source { metric_source: source.to_owned() };
        self.durations.get_or_create_owned(&labels).observe(took.as_secs_f64());
    }

    /// Shows what is known of claims that are mounted on some node of this process, and forgets the others.
    pub fn look(&self, nodes: &[Arc<State>]) {
        let mut mounted: BTreeSet<Key> = BTreeSet::new();
        for node in nodes {
            node.read(|states| {
                let pods = states.actual.iter().flat_map(|(_, volume)| volume.pods.values());
                mounted.extend(pods.filter_map(|is| Some(is.spec.persistent.as_ref()?.claim.clone())));
            });
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|claim, _| mounted.contains(claim));
        for ((_, _, figure), family) in FIGURES.iter().zip(&self.figures) {
            family.clear();
            for (claim, stats) in known.iter() {
                let Some(value) = figure(stats).and_then(|value| i64::try_from(value).ok()) else { continue };
                let namespace = claim.namespace.clone();
                let labels = OfClaim { namespace, persistentvolumeclaim: claim.name.clone() };
                family.get_or_create_owned(&labels).set(value);
            }
        }
    }
}

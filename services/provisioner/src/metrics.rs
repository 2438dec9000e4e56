//! What this service counts besides what every service does. The six of claims and volumes are the original's.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use stowage_model::claim::Claim;

use crate::intent::{Intent, SourceKind};

/// Seconds; the usual ones of Prometheus.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClaimLabels {
    class: String,
    /// The kind of what the volume is filled from, if it is.
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VolumeLabels {
    class: String,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Clone)]
pub struct Metrics {
    /// Final answers that left open whether an earlier call had made the volume.
    pub unsettled_answers: Counter,
    /// 1 while intents are not stored, so that a crash can leak a volume.
    pub intents_in_memory: Gauge,
    /// Volumes without claim and object that were left to people.
    pub retained: Counter,
    provisioned: Family<ClaimLabels, Counter>,
    provision_failed: Family<ClaimLabels, Counter>,
    provision_duration: Durations<ClaimLabels>,
    deleted: Family<VolumeLabels, Counter>,
    delete_failed: Family<VolumeLabels, Counter>,
    delete_duration: Durations<VolumeLabels>,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram = || Histogram::new(BUCKETS);
        Self {
            unsettled_answers: Counter::default(),
            intents_in_memory: Gauge::default(),
            retained: Counter::default(),
            provisioned: Family::default(),
            provision_failed: Family::default(),
            provision_duration: Family::new_with_constructor(histogram),
            deleted: Family::default(),
            delete_failed: Family::default(),
            delete_duration: Family::new_with_constructor(histogram),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Final CreateVolume answers that left open whether an earlier call had made the volume";
        registry.register("stowage_provisioner_unsettled_answers", help, self.unsettled_answers.clone());
        let help = "Whether intents are not stored, so that a crash can leak a volume";
        registry.register("stowage_provisioner_intents_in_memory", help, self.intents_in_memory.clone());
        let help = "Volumes of classes that retain, found after a restart without claim and PersistentVolume, and kept";
        registry.register("stowage_provisioner_retained_volumes", help, self.retained.clone());
        let (claims, volumes) = ("controller_persistentvolumeclaim_provision", "controller_persistentvolume_delete");
        let help = "Volumes made for claims";
        registry.register(claims, help, self.provisioned.clone());
        let help = "Tries to make a volume that failed";
        registry.register(format!("{claims}_failed"), help, self.provision_failed.clone());
        let help = "How long a try took that made the volume";
        registry.register(format!("{claims}_duration_seconds"), help, self.provision_duration.clone());
        let help = "Released volumes that were deleted";
        registry.register(volumes, help, self.deleted.clone());
        let help = "Tries to delete a released volume that failed";
        registry.register(format!("{volumes}_failed"), help, self.delete_failed.clone());
        let help = "How long a try took that deleted the volume";
        registry.register(format!("{volumes}_duration_seconds"), help, self.delete_duration.clone());
    }

    /// A try to make a volume for a claim has ended.
    pub fn tried_to_make(&self, intent: &Intent, is_made: bool, took: Duration) {
        let source = match intent.request.source.as_ref().map(|source| source.kind) {
            Some(SourceKind::Snapshot) => "VolumeSnapshot",
            Some(SourceKind::Claim) => "PersistentVolumeClaim",
            None => "",
        };
        let labels = ClaimLabels { class: intent.class.name.clone(), source: source.into() };
        count(&labels, is_made.then_some(took), &self.provisioned, &self.provision_failed, &self.provision_duration);
    }

    /// A claim was refused before anybody was asked to make its volume: no such class, for example, or no such source.
    pub fn refused_to_make(&self, claim: &Claim) {
        let source = claim.spec.data_source.as_ref().map(|source| source.kind.clone()).unwrap_or_default();
        let labels = ClaimLabels { class: claim.class_name().to_owned(), source };
        self.provision_failed.get_or_create(&labels).inc();
    }

    /// A released volume of the class cannot be deleted as things stand, and nobody was asked to.
    pub fn refused_to_delete(&self, class: &str) {
        self.delete_failed.get_or_create(&VolumeLabels { class: class.into() }).inc();
    }

    /// A try to delete a released volume of the class has ended.
    pub fn tried_to_delete(&self, class: &str, is_deleted: bool, took: Duration) {
        let labels = VolumeLabels { class: class.into() };
        count(&labels, is_deleted.then_some(took), &self.deleted, &self.delete_failed, &self.delete_duration);
    }
}

/// A failure has no duration, as in the original.
fn count<L: Clone + std::hash::Hash + Eq>(
    labels: &L,
    took: Option<Duration>,
    done: &Family<L, Counter>,
    failed: &Family<L, Counter>,
    durations: &Durations<L>,
) {
    match took {
        Some(took) => {
            done.get_or_create(labels).inc();
            durations.get_or_create(labels).observe(took.as_secs_f64());
        }
        None => drop(failed.get_or_create(labels).inc()),
    }
}

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::snapshot::Force;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForcedLabels {
    reason: String,
}

/// A gauge only in form: the registry would add `_total` to a counter, and dashboards know the original's name.
#[derive(Clone, Default)]
pub struct Metrics {
    forced: Family<ForcedLabels, Gauge>,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            "Detaches without the node's word that the volume is unmounted",
            self.forced.clone(),
        );
    }

    pub fn forced(&self, force: Force) {
        let reason = match force {
            Force::OutOfService => "out-of-service",
            Force::Timeout => "timeout",
        };
        self.forced.get_or_create_owned(&ForcedLabels { reason: reason.into() }).inc();
    }
}

//! What this service counts besides what every service does.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

#[derive(Clone, Default)]
pub struct Metrics {
    /// Final answers that left open whether an earlier call had made the volume.
    pub unsettled_answers: Counter,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Final CreateVolume answers that left open whether an earlier call had made the volume";
        registry.register("stowage_provisioner_unsettled_answers", help, self.unsettled_answers.clone());
    }
}

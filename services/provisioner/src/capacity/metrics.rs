//! The three gauges of the original.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Default)]
pub struct Metrics {
    pub goal: Gauge,
    pub current: Gauge,
    pub obsolete: Gauge,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let help = "CSIStorageCapacity objects that are to exist";
        registry.register("csistoragecapacities_desired_goal", help, self.goal.clone());
        let help = "CSIStorageCapacity objects that are to exist, and do";
        registry.register("csistoragecapacities_desired_current", help, self.current.clone());
        let help = "CSIStorageCapacity objects that exist and are to be deleted";
        registry.register("csistoragecapacities_obsolete", help, self.obsolete.clone());
    }
}

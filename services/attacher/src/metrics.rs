//! How long the lines before the two lanes are, and how old.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use stowage_runtime::metrics::SecondsGauge;

use crate::calls::Kind;
use crate::lanes::Lanes;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabel {
    lane: &'static str,
}

#[derive(Clone, Default)]
pub struct Metrics {
    depth: Family<LaneLabel, Gauge>,
    age: Family<LaneLabel, SecondsGauge>,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "stowage_attacher_backlog",
            "Attaches and detaches that wait until one of --worker-threads calls has ended",
            self.depth.clone(),
        );
        registry.register(
            "stowage_attacher_backlog_age_seconds",
            "How long the one that waits longest has waited",
            self.age.clone(),
        );
    }

    /// Looks at the lanes whenever somebody asks for the numbers, for as long as there are lanes.
    pub fn watch(&self, lanes: &Lanes) -> impl FnMut() -> bool + Send + 'static {
        let (metrics, lanes) = (self.clone(), lanes.downgrade());
        move || {
            let lanes = lanes();
            for kind in Kind::ALL {
                let backlog = lanes.as_ref().map(|lanes| lanes.backlog(kind)).unwrap_or_default();
                let label = LaneLabel { lane: kind.lane() };
                metrics.depth.get_or_create_owned(&label).set(i64::try_from(backlog.depth).unwrap_or(i64::MAX));
                metrics.age.get_or_create_owned(&label).set(backlog.age.as_secs_f64());
            }
            lanes.is_some()
        }
    }
}

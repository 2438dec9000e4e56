//! How long the lines before the driver's calls are, and how old.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use stowage_runtime::metrics::SecondsGauge;

use crate::turns::Turns;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabel {
    call: &'static str,
}

#[derive(Clone, Default)]
pub struct Metrics {
    depth: Family<CallLabel, Gauge>,
    age: Family<CallLabel, SecondsGauge>,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "stowage_resizer_backlog",
            "Calls to expand and to modify that wait until one of --workers calls of their sort has ended",
            self.depth.clone(),
        );
        registry.register(
            "stowage_resizer_backlog_age_seconds",
            "How long the one that waits longest has waited",
            self.age.clone(),
        );
    }

    /// Looks at a line whenever somebody asks for the numbers, for as long as there is one.
    pub fn watch(&self, call: &'static str, turns: &Turns) -> impl FnMut() -> bool + Send + 'static {
        let (metrics, turns) = (self.clone(), turns.downgrade());
        move || {
            let turns = turns();
            let backlog = turns.as_ref().map(Turns::backlog).unwrap_or_default();
            let label = CallLabel { call };
            metrics.depth.get_or_create_owned(&label).set(i64::try_from(backlog.depth).unwrap_or(i64::MAX));
            metrics.age.get_or_create_owned(&label).set(backlog.age.as_secs_f64());
            turns.is_some()
        }
    }
}

//! What the server counts about itself, under the names that dashboards for Kubernetes know.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// What a request was about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: String,
    pub component: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: String,
    component: String,
    code: u16,
}

/// Whether a request reads or changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindOfRequest {
    pub request_kind: &'static str,
}

/// Why a connection was refused or cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// There were too many.
    TooMany,
    /// It did not say who it is.
    Late,
    /// Its client did not take what it asked for.
    Unread,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Seconds, as upstream's buckets.
const DURATIONS: [f64; 22] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    60.0,
];

fn duration_histogram() -> Histogram {
    Histogram::new(DURATIONS)
}

pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<CodeLabels, Counter>,
    durations: Family<CodeLabels, Histogram>,
    /// Requests being worked on.
    pub in_flight: Family<KindOfRequest, Gauge>,
    /// Requests sent away because too many were being worked on.
    pub rejected: Family<KindOfRequest, Counter>,
    /// Watches being served.
    pub watches: Gauge,
    turned_away: Family<ReasonLabel, Counter>,
    /// Commits of the data file: one sync each.
    pub commits: Counter,
    /// Changes made durable by them.
    pub committed_changes: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let durations = Family::new_with_constructor(duration_histogram as fn() -> Histogram);
        let in_flight = Family::default();
        let rejected = Family::default();
        let watches = Gauge::default();
        let turned_away = Family::default();
        let commits = Counter::default();
        let committed_changes = Counter::default();
        registry.register("apiserver_request", "Requests answered", requests.clone());
        registry.register(
            "apiserver_request_duration_seconds",
            "Time to the answer, watches left out",
            durations.clone(),
        );
        registry.register("apiserver_current_inflight_requests", "Requests being worked on", in_flight.clone());
        registry.register("apiserver_dropped_requests", "Requests refused with 429", rejected.clone());
        registry.register("apiserver_longrunning_requests", "Watches being served", watches.clone());
        registry.register(
            "stowage_apiserver_connections_cut",
            "Connections refused or cut, by reason",
            turned_away.clone(),
        );
        registry.register("stowage_apiserver_commits", "Commits of the data file, one sync each", commits.clone());
        registry.register("stowage_apiserver_committed_changes", "Changes made durable", committed_changes.clone());
        Self { registry, requests, durations, in_flight, rejected, watches, turned_away, commits, committed_changes }
    }
}

impl Metrics {
    /// Counts an answered request; `seconds` only where the time says something.
    pub fn answered(&self, labels: RequestLabels, code: u16, seconds: Option<f64>) {
        let RequestLabels { verb, group, version, resource, subresource, scope, component } = labels;
        let labels = CodeLabels { verb, group, version, resource, subresource, scope, component, code };
        if let Some(seconds) = seconds {
            self.durations.get_or_create(&labels).observe(seconds);
        }
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a connection that was refused or cut.
    pub fn turned_away(&self, reason: Reason) {
        let reason = match reason {
            Reason::TooMany => "too_many",
            Reason::Late => "late",
            Reason::Unread => "unread",
        };
        self.turned_away.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Everything in the text form.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}

//! What the server was asked, from its own counters: the volume manager is another process.

use std::collections::BTreeMap;

use stowage_runtime::api::Api;

/// Requests by verb and resource, as in `PATCH pods/status`.
#[derive(Debug, Clone, Default)]
pub struct Requests(BTreeMap<String, usize>);

impl Requests {
    pub async fn read(user: &Api) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = user.client().request_text(request).await.unwrap();
        let mut counts = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{")) {
            let (labels, count) = line.rsplit_once("} ").unwrap();
            let label = |name: &str| {
                let begin = labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\""));
                begin.unwrap_or_default().trim_end_matches('"')
            };
            let (resource, part) = (label("resource"), label("subresource"));
            let slash = if part.is_empty() { "" } else { "/" };
            let name = format!("{} {resource}{slash}{part}", label("verb"));
            *counts.entry(name).or_default() += count.parse::<usize>().unwrap();
        }
        Self(counts)
    }

    /// What the volume manager asked for mounts since then. Pods are made by the benchmark, those of before go meanwhile, and
    /// a node's lease is renewed whether it has volumes or not.
    pub async fn since(user: &Api, before: &Self) -> Self {
        let now = Self::read(user).await;
        let ours = |name: &str| {
            name == "POST pods" || name == "DELETE pods" || name.ends_with(' ') || name.ends_with(" leases")
        };
        let counts = now.0.into_iter().filter(|(name, _)| !ours(name));
        let grown = counts.map(|(name, count)| {
            let before = before.0.get(&name).copied().unwrap_or_default();
            (name, count - before)
        });
        Self(grown.filter(|(_, count)| *count > 0).collect())
    }

    pub fn all(&self) -> usize {
        self.0.values().sum()
    }

    /// Reads that did not begin a watch.
    pub fn reads(&self) -> usize {
        let of = |verb: &str| -> usize {
            self.0.iter().filter(|(name, _)| name.starts_with(verb)).map(|(_, count)| count).sum()
        };
        of("GET ") + of("LIST ").saturating_sub(of("WATCH "))
    }

    /// For each of so many.
    pub fn each(&self, of: usize) -> String {
        let each = self.0.iter().map(|(name, count)| (name, *count as f64 / of as f64));
        let shown: Vec<String> = each.map(|(name, count)| format!("{name} {count:.2}")).collect();
        if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
    }
}

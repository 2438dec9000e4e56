//! A Lease as raw JSON, so that fields and annotations nobody here knows survive every write.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// A Lease as the server sent it, or as it shall become.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record(pub(super) Value);

impl Record {
    /// A Lease that does not exist yet.
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self(json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "namespace": namespace, "name": name },
            "spec": {},
        }))
    }

    /// Who holds it; released and never held are the same.
    pub(super) fn holder(&self) -> Option<&str> {
        self.spec()["holderIdentity"].as_str().filter(|holder| !holder.is_empty())
    }

    /// How long it lasts after a renewal, as its holder promised.
    pub(super) fn duration(&self) -> Option<Duration> {
        self.spec()["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    pub(super) fn uid(&self) -> &str {
        self.0["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub(super) fn resource_version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }

    /// Any change here is a sign of life of the holder.
    pub(super) fn spec(&self) -> &Value {
        &self.0["spec"]
    }

    /// Whether both records are of the same stretch of leading: a holder sets a new acquire time when it takes over,
    /// also from an earlier process of its own name.
    pub(super) fn same_term(&self, other: &Self) -> bool {
        self.holder() == other.holder() && self.spec()["acquireTime"] == other.spec()["acquireTime"]
    }

    /// The Lease taken by `identity`.
    pub(super) fn taken(
        &self,
        identity: &str,
        duration: Duration,
        labels: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Self {
        let transitions = self.spec()["leaseTransitions"].as_u64();
        let transitions = match self.holder() {
            Some(holder) if holder == identity => transitions.unwrap_or(0),
            _ => transitions.map_or(0, |n| n + 1),
        };
        let mut record = self.clone();
        let spec = object(&mut record.0, "spec");
        spec.insert("holderIdentity".into(), identity.into());
        spec.insert("leaseDurationSeconds".into(), whole_seconds(duration).into());
        spec.insert("acquireTime".into(), micro_time(now).into());
        spec.insert("renewTime".into(), micro_time(now).into());
        spec.insert("leaseTransitions".into(), transitions.into());
        if !labels.is_empty() {
            let metadata = object(&mut record.0, "metadata");
            let slot = metadata.entry("labels").or_insert_with(|| json!({}));
            if !slot.is_object() {
                *slot = json!({});
            }
            for (key, value) in labels {
                slot[key] = value.as_str().into();
            }
        }
        record
    }

    /// The Lease with a fresh sign of life.
    pub(super) fn renewed(&self, now: Timestamp) -> Self {
        let mut record = self.clone();
        object(&mut record.0, "spec").insert("renewTime".into(), micro_time(now).into());
        record
    }

    /// The Lease given back, so that the next candidate need not wait.
    pub(super) fn released(&self, now: Timestamp) -> Self {
        let mut record = self.clone();
        let spec = object(&mut record.0, "spec");
        spec.remove("holderIdentity");
        // The API refuses zero.
        spec.insert("leaseDurationSeconds".into(), 1.into());
        spec.insert("renewTime".into(), micro_time(now).into());
        record
    }

    /// The Lease as it must be sent to be created again after somebody deleted it.
    pub(super) fn recreated(mut self) -> Self {
        let metadata = object(&mut self.0, "metadata");
        for server_set in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(server_set);
        }
        self
    }
}

fn object<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !value[key].is_object() {
        value[key] = json!({});
    }
    value[key].as_object_mut().expect("made an object just above")
}

/// Rounded up: others wait rather a moment longer than shorter.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Kubernetes' MicroTime has exactly six decimals.
fn micro_time(now: Timestamp) -> String {
    format!("{now:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Record {
        Record(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "future": {"a": 1},
            "metadata": {"name": "l", "resourceVersion": "7", "annotations": {"journal": "x"}, "labels": {"mine": "1"}},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 4, "strategy": "new"},
        }))
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    #[test]
    fn taking_over_counts_the_change_and_keeps_unknown_fields() {
        let labels = BTreeMap::from([("team".to_owned(), "storage".to_owned())]);
        let taken = live().taken("me", Duration::from_millis(1500), &labels, now());
        assert_eq!(
            taken.0,
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "future": {"a": 1},
                "metadata": {"name": "l", "resourceVersion": "7", "annotations": {"journal": "x"},
                             "labels": {"mine": "1", "team": "storage"}},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 2, "leaseTransitions": 5, "strategy": "new",
                         "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:05.000000Z"},
            })
        );
    }

    #[test]
    fn renewing_and_releasing_keep_unknown_fields() {
        let renewed = live().renewed(now());
        assert_eq!(renewed.0["metadata"], live().0["metadata"]);
        assert_eq!(renewed.spec()["renewTime"], "2026-01-02T03:04:05.000000Z");
        let released = renewed.released(now());
        assert_eq!((released.holder(), &released.spec()["strategy"]), (None, &json!("new")));
        assert_eq!(released.0["metadata"]["annotations"]["journal"], "x");
    }

    #[test]
    fn a_successor_with_the_same_name_begins_a_new_term() {
        let mine = live().taken("me", Duration::from_secs(15), &BTreeMap::new(), now());
        let later = now() + jiff::SignedDuration::from_secs(1);
        assert!(mine.same_term(&mine.renewed(later)));
        let again = mine.taken("me", Duration::from_secs(15), &BTreeMap::new(), later);
        assert!(!mine.same_term(&again));
        assert_eq!(again.spec()["leaseTransitions"], mine.spec()["leaseTransitions"]);
    }
}

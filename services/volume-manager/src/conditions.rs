//! Status conditions we own, written without touching those of others.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::condition::{self, Condition};
use stowage_runtime::api::Patch;
use stowage_runtime::events::seconds;

/// A condition as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Wanted {
    pub fn holds(kind: &'static str) -> Self {
        Self { kind, holds: true, reason: "", message: String::new() }
    }

    pub fn is_met(&self, existing: &[Condition]) -> bool {
        condition::find(existing, self.kind)
            .is_some_and(|found| found.is_true() == self.holds && found.reason == self.reason)
    }

    fn value(&self, now: Timestamp) -> Value {
        let mut value = json!({
            "type": self.kind,
            "status": if self.holds { "True" } else { "False" },
            "lastTransitionTime": seconds(now),
        });
        if !self.reason.is_empty() {
            value["reason"] = self.reason.into();
            value["message"] = self.message.as_str().into();
        }
        value
    }
}

/// Changes `status` of an object: plain fields, and those conditions that are not met.
///
/// While there is no condition at all the status itself may be missing, so it is merged in; afterwards conditions are
/// replaced one by one, because a merge would take away the fields of others that our types do not know.
pub fn status_patch(existing: &[Condition], wanted: &[Wanted], mut fields: Value, now: Timestamp) -> Patch {
    if existing.is_empty() {
        fields["conditions"] = wanted.iter().map(|wanted| wanted.value(now)).collect();
        return Patch::Merge(json!({ "status": fields }));
    }
    let mut operations = Vec::new();
    if let Some(fields) = fields.as_object() {
        let add = |(name, value)| json!({ "op": "add", "path": format!("/status/{name}"), "value": value });
        operations.extend(fields.iter().map(add));
    }
    for wanted in wanted.iter().filter(|wanted| !wanted.is_met(existing)) {
        match existing.iter().position(|found| found.kind == wanted.kind) {
            Some(index) => {
                let path = format!("/status/conditions/{index}");
                operations.push(json!({ "op": "test", "path": format!("{path}/type"), "value": wanted.kind }));
                operations.push(json!({ "op": "replace", "path": path, "value": wanted.value(now) }));
            }
            None => operations.push(json!({ "op": "add", "path": "/status/conditions/-", "value": wanted.value(now) })),
        }
    }
    Patch::Json(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn existing(kinds: &[(&str, &str)]) -> Vec<Condition> {
        let list: Vec<Value> = kinds.iter().map(|(kind, status)| json!({ "type": kind, "status": status })).collect();
        serde_json::from_value(list.into()).unwrap()
    }

    #[test]
    fn a_status_without_conditions_is_merged_in() {
        let patch = status_patch(&[], &[Wanted::holds("Ready")], json!({ "phase": "Running" }), Timestamp::UNIX_EPOCH);
        let condition = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z" });
        assert_eq!(patch, Patch::Merge(json!({ "status": { "phase": "Running", "conditions": [condition] } })));
    }

    #[test]
    fn only_the_conditions_that_differ_are_replaced_where_they_are() {
        let existing = existing(&[("PodScheduled", "True"), ("Ready", "False"), ("Initialized", "True")]);
        let wanted = [Wanted::holds("Initialized"), Wanted::holds("Ready"), Wanted::holds("ContainersReady")];
        let Patch::Json(operations) = status_patch(&existing, &wanted, json!({}), Timestamp::UNIX_EPOCH) else {
            panic!("a merge would replace the list");
        };
        let paths: Vec<&str> = operations.iter().filter_map(|operation| operation["path"].as_str()).collect();
        assert_eq!(paths, ["/status/conditions/1/type", "/status/conditions/1", "/status/conditions/-"]);
    }
}

//! Status conditions we own, written without touching those of others.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::condition::{self, Condition, ConditionStatus};
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
            .is_some_and(|found| self.is_said(std::slice::from_ref(found)) && found.message == self.message)
    }

    /// Whether it is there with the same status, which may also be Unknown.
    pub fn is_said(&self, existing: &[Condition]) -> bool {
        let found = condition::find(existing, self.kind);
        found.is_some_and(|found| found.status == self.status() && found.reason == self.reason)
    }

    fn status(&self) -> ConditionStatus {
        if self.holds { ConditionStatus::True } else { ConditionStatus::False }
    }

    fn value(&self, now: Timestamp) -> Value {
        let mut value = json!({
            "type": self.kind,
            "status": self.status().as_str(),
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
                let mut value = wanted.value(now);
                if existing[index].status == wanted.status()
                    && let Some(began) = existing[index].last_transition_time
                {
                    value["lastTransitionTime"] = seconds(began).into();
                }
                operations.push(json!({ "op": "replace", "path": path, "value": value }));
            }
            None => operations.push(json!({ "op": "add", "path": "/status/conditions/-", "value": wanted.value(now) })),
        }
    }
    Patch::Json(operations)
}

/// Writes all these conditions of a node, with the time at which that was looked at; those that hold on keep the time at
/// which they began.
pub fn heartbeat_patch(existing: &[Condition], wanted: &[Wanted], mut fields: Value, now: Timestamp) -> Patch {
    let value = |wanted: &Wanted| {
        let mut value = wanted.value(now);
        value["lastHeartbeatTime"] = seconds(now).into();
        let found = condition::find(existing, wanted.kind).filter(|found| found.status == wanted.status());
        if let Some(began) = found.and_then(|found| found.last_transition_time) {
            value["lastTransitionTime"] = seconds(began).into();
        }
        value
    };
    if existing.is_empty() {
        fields["conditions"] = wanted.iter().map(value).collect();
        return Patch::Merge(json!({ "status": fields }));
    }
    let mut operations = Vec::new();
    for wanted in wanted {
        match existing.iter().position(|found| found.kind == wanted.kind) {
            Some(index) => {
                let path = format!("/status/conditions/{index}");
                operations.push(json!({ "op": "test", "path": format!("{path}/type"), "value": wanted.kind }));
                operations.push(json!({ "op": "replace", "path": path, "value": value(wanted) }));
            }
            None => operations.push(json!({ "op": "add", "path": "/status/conditions/-", "value": value(wanted) })),
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
    fn a_heartbeat_renews_every_condition_and_keeps_when_it_began() {
        let mut existing = existing(&[("NetworkUnavailable", "False"), ("Ready", "True"), ("DiskPressure", "Unknown")]);
        existing[1].last_transition_time = Some(Timestamp::UNIX_EPOCH);
        existing[2].last_transition_time = Some(Timestamp::UNIX_EPOCH);
        let now = Timestamp::from_second(300).unwrap();
        let calm = Wanted { holds: false, ..Wanted::holds("DiskPressure") };
        let patch = heartbeat_patch(&existing, &[Wanted::holds("Ready"), calm], json!({}), now);
        let Patch::Json(operations) = patch else { panic!("a merge would replace the list") };
        let values: Vec<&Value> = operations.iter().filter(|operation| operation["op"] == "replace").collect();
        assert_eq!((values.len(), &values[0]["path"]), (2, &json!("/status/conditions/1")));
        let times = |value: &Value| (value["lastHeartbeatTime"].clone(), value["lastTransitionTime"].clone());
        let (epoch, now) = (json!("1970-01-01T00:00:00Z"), json!("1970-01-01T00:05:00Z"));
        assert_eq!(times(&values[0]["value"]), (now.clone(), epoch));
        assert_eq!(times(&values[1]["value"]), (now.clone(), now));
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

//! Patches of single conditions and taints in lists that others write too.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::condition::{Condition, ConditionStatus};
use stowage_model::node::Taint;
use stowage_model::taints;
use stowage_runtime::api::Patch;

use super::at;
use crate::decide::node::{EFFECTS, Health};

/// A condition as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    kind: &'static str,
    status: ConditionStatus,
    reason: &'static str,
    message: String,
}

impl Said {
    pub(super) fn new(
        kind: &'static str,
        status: ConditionStatus,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into() }
    }

    fn whole(&self, now: Timestamp) -> Value {
        json!({
            "type": self.kind,
            "status": self.status.as_str(),
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": at(now),
        })
    }
}

/// Changes or adds these conditions and leaves the others, and what else these hold, alone.
pub(super) fn say(conditions: &[Condition], said: &[Said], now: Timestamp) -> Patch {
    if conditions.is_empty() {
        let whole: Vec<Value> = said.iter().map(|said| said.whole(now)).collect();
        return Patch::Merge(json!({ "status": { "conditions": whole } }));
    }
    let mut operations = Vec::new();
    for said in said {
        let Some(index) = conditions.iter().position(|condition| condition.kind == said.kind) else {
            operations.push(json!({ "op": "add", "path": "/status/conditions/-", "value": said.whole(now) }));
            continue;
        };
        let path = |field: &str| format!("/status/conditions/{index}/{field}");
        operations.push(json!({ "op": "test", "path": path("type"), "value": said.kind }));
        let mut set = |field: &str, value: &str| {
            operations.push(json!({ "op": "add", "path": path(field), "value": value }));
        };
        set("status", said.status.as_str());
        set("reason", said.reason);
        set("message", &said.message);
        if conditions[index].status != said.status {
            set("lastTransitionTime", &at(now));
        }
    }
    Patch::Json(operations)
}

/// Makes the taints say how the node is; those of others, and what else they hold, stay.
pub(super) fn taint(present: &[Taint], health: Health, now: Timestamp) -> Patch {
    let ours = |taint: &Taint| {
        [taints::NOT_READY, taints::UNREACHABLE].contains(&taint.key.as_str()) && EFFECTS.contains(&taint.effect)
    };
    let wanted = health.taint().into_iter().flat_map(|key| EFFECTS.map(|effect| (key, effect)));
    let missing: Vec<Value> = wanted
        .filter(|(key, effect)| !present.iter().any(|taint| taint.key == *key && taint.effect == *effect))
        .map(|(key, effect)| json!({ "key": key, "effect": effect.as_str(), "timeAdded": at(now) }))
        .collect();
    if present.is_empty() {
        // Neither the list nor the spec may be there; the guarded version makes sure that there is still none.
        return Patch::Merge(json!({ "spec": { "taints": missing } }));
    }
    let mut operations = Vec::new();
    // From the end, so that the places of those before do not change.
    for (index, taint) in present.iter().enumerate().rev() {
        if ours(taint) && health.taint() != Some(&taint.key) {
            let path = format!("/spec/taints/{index}");
            operations.push(json!({ "op": "test", "path": format!("{path}/key"), "value": taint.key }));
            operations.push(json!({ "op": "remove", "path": path }));
        }
    }
    let add = |taint| json!({ "op": "add", "path": "/spec/taints/-", "value": taint });
    operations.extend(missing.into_iter().map(add));
    Patch::Json(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(value: Value) -> Vec<Condition> {
        serde_json::from_value(value).unwrap()
    }

    fn operations(patch: Patch) -> Vec<String> {
        let Patch::Json(operations) = patch else { panic!("not a JSON patch: {patch:?}") };
        operations.iter().map(|o| format!("{} {}", o["op"].as_str().unwrap(), o["path"].as_str().unwrap())).collect()
    }

    fn not_ready() -> Said {
        Said::new("Ready", ConditionStatus::Unknown, "NodeStatusUnknown", "silent")
    }

    #[test]
    fn a_condition_among_others_is_changed_in_place_and_keeps_its_other_fields() {
        let present = conditions(json!([{ "type": "DiskPressure" }, { "type": "Ready", "status": "True" }]));
        assert_eq!(
            operations(say(&present, &[not_ready()], Timestamp::UNIX_EPOCH)),
            [
                "test /status/conditions/1/type",
                "add /status/conditions/1/status",
                "add /status/conditions/1/reason",
                "add /status/conditions/1/message",
                "add /status/conditions/1/lastTransitionTime",
            ]
        );
    }

    #[test]
    fn the_transition_time_stays_when_the_status_does() {
        let present = conditions(json!([{ "type": "Ready", "status": "Unknown" }]));
        let said = operations(say(&present, &[not_ready()], Timestamp::UNIX_EPOCH));
        assert!(!said.iter().any(|operation| operation.ends_with("lastTransitionTime")), "{said:?}");
    }

    #[test]
    fn a_missing_condition_is_added_and_a_missing_list_is_made() {
        let present = conditions(json!([{ "type": "DiskPressure" }]));
        assert_eq!(operations(say(&present, &[not_ready()], Timestamp::UNIX_EPOCH)), ["add /status/conditions/-"]);
        let Patch::Merge(body) = say(&[], &[not_ready()], Timestamp::UNIX_EPOCH) else { panic!("not a merge patch") };
        assert_eq!(body["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn taints_of_others_stay_and_ours_follow_the_health() {
        let present: Vec<Taint> = serde_json::from_value(json!([
            { "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" },
            { "key": "mine", "effect": "NoSchedule" },
            { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" },
        ]))
        .unwrap();
        assert_eq!(
            operations(taint(&present, Health::Ready, Timestamp::UNIX_EPOCH)),
            ["test /spec/taints/2/key", "remove /spec/taints/2", "test /spec/taints/0/key", "remove /spec/taints/0",]
        );
        assert_eq!(
            operations(taint(&present[1..2], Health::Unreachable, Timestamp::UNIX_EPOCH)),
            ["add /spec/taints/-", "add /spec/taints/-",]
        );
        let Patch::Merge(body) = taint(&[], Health::Unreachable, Timestamp::UNIX_EPOCH) else { panic!("not a merge") };
        assert_eq!(body["spec"]["taints"].as_array().unwrap().len(), 2);
    }
}

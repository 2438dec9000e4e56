//! What is to be different in a claim's status, as a patch of just that.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use stowage_model::annotations::NODE_EXPANSION_NOT_REQUIRED;
use stowage_model::quantity::Quantity;
use stowage_model::resize::ResizeStatus;
use stowage_runtime::events::seconds;

use crate::projections::{Claim, Modifying};

/// Members that are `None` stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    pub capacity: Option<Quantity>,
    pub allocated: Option<Quantity>,
    pub resize: Option<ResizeStatus>,
    /// The annotation that nodes need not do anything.
    pub not_required: Option<bool>,
    /// The VolumeAttributesClass in effect.
    pub class: Option<String>,
    pub modifying: Option<Option<Modifying>>,
    /// Conditions that hold from now on.
    pub set: Vec<Holds>,
    /// Conditions that go.
    pub without: Vec<&'static str>,
}

/// A condition that holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds {
    pub kind: &'static str,
    pub reason: String,
    pub message: String,
}

impl Holds {
    pub fn new(kind: &'static str) -> Self {
        Self { kind, ..Self::default() }
    }
}

impl Change {
    /// Whether the claim does not say all of it already.
    pub fn is_needed(&self, claim: &Claim) -> bool {
        self.body(claim, Timestamp::UNIX_EPOCH).is_some()
    }

    /// The patch that the claim's version guards; none where nothing differs, so that time alone is never written.
    pub fn body(&self, claim: &Claim, now: Timestamp) -> Option<Value> {
        let mut status = Map::new();
        if let Some(capacity) = self.capacity.filter(|size| *size != claim.capacity()) {
            status.insert("capacity".into(), json!({ "storage": capacity.to_string() }));
        }
        if let Some(allocated) = self.allocated.filter(|size| Some(*size) != claim.allocated()) {
            status.insert("allocatedResources".into(), json!({ "storage": allocated.to_string() }));
        }
        if let Some(resize) = self.resize.filter(|resize| *resize != claim.resize()) {
            let word = Some(resize.as_str()).filter(|word| !word.is_empty());
            status.insert("allocatedResourceStatuses".into(), json!({ "storage": word }));
        }
        if let Some(class) = self.class.as_deref().filter(|class| *class != claim.current_class()) {
            status.insert("currentVolumeAttributesClassName".into(), class.into());
        }
        if let Some(modifying) = self.modifying.as_ref().filter(|change| change.as_ref() != claim.modifying()) {
            let body = modifying.as_ref().map(|Modifying { target, status }| {
                json!({ "targetVolumeAttributesClassName": target, "status": status.as_str() })
            });
            status.insert("modifyVolumeStatus".into(), body.unwrap_or_default());
        }
        if let Some(conditions) = self.conditions(claim, now) {
            status.insert("conditions".into(), conditions);
        }
        let noted = claim.meta.annotation(NODE_EXPANSION_NOT_REQUIRED);
        let annotation = match self.not_required {
            Some(true) if noted != Some("true") => Some(json!("true")),
            Some(false) if noted.is_some() => Some(Value::Null),
            _ => None,
        };
        if status.is_empty() && annotation.is_none() {
            return None;
        }
        let mut body = json!({});
        if let Some(value) = annotation {
            body["metadata"] = json!({ "annotations": { NODE_EXPANSION_NOT_REQUIRED: value } });
        }
        if !status.is_empty() {
            body["status"] = status.into();
        }
        Some(body)
    }

    /// The whole list if it differs. It replaces the one that was read, whose version is checked, so that nobody's
    /// condition is lost.
    fn conditions(&self, claim: &Claim, now: Timestamp) -> Option<Value> {
        let mut missing: Vec<&Holds> = self.set.iter().collect();
        let (mut list, mut differs) = (Vec::new(), false);
        for (present, text) in claim.status.conditions.iter() {
            if self.without.contains(&present.kind.as_str()) {
                differs = true;
                continue;
            }
            let wanted = missing.iter().position(|wanted| wanted.kind == present.kind).map(|at| missing.remove(at));
            match wanted {
                Some(Holds { reason, message, .. })
                    if !present.is_true() || (&present.reason, &present.message) != (reason, message) =>
                {
                    let since = present.last_transition_time.filter(|_| present.is_true() && present.reason == *reason);
                    list.push(wanted.map(|wanted| condition(wanted, since.unwrap_or(now), now)).unwrap_or_default());
                    differs = true;
                }
                // What was read as JSON is JSON.
                _ => list.push(serde_json::from_str(text).unwrap_or_default()),
            }
        }
        differs |= !missing.is_empty();
        list.extend(missing.into_iter().map(|wanted| condition(wanted, now, now)));
        differs.then(|| if list.is_empty() { Value::Null } else { list.into() })
    }
}

fn condition(wanted: &Holds, since: Timestamp, now: Timestamp) -> Value {
    let mut condition = json!({
        "type": wanted.kind, "status": "True",
        "lastProbeTime": seconds(now), "lastTransitionTime": seconds(since),
    });
    for (member, text) in [("reason", &wanted.reason), ("message", &wanted.message)] {
        if !text.is_empty() {
            condition[member] = text.as_str().into();
        }
    }
    condition
}

#[cfg(test)]
mod tests {
    use stowage_model::resize::{ModifyStatus, RESIZING};

    use super::*;

    fn claim(status: Value) -> Claim {
        let meta = json!({ "namespace": "n", "name": "c", "annotations": { NODE_EXPANSION_NOT_REQUIRED: "true" } });
        serde_json::from_value(json!({ "metadata": meta, "status": status })).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn only_what_differs_is_written() {
        let claim = claim(json!({ "capacity": { "storage": "1Gi" }, "allocatedResources": { "storage": "2Gi" } }));
        let change = Change {
            capacity: Some("1024Mi".parse().unwrap()),
            allocated: Some("3Gi".parse().unwrap()),
            not_required: Some(true),
            ..Change::default()
        };
        let body = change.body(&claim, now()).unwrap();
        assert_eq!(body, json!({ "status": { "allocatedResources": { "storage": "3Gi" } } }));
        let same = Change { capacity: claim.allocated().map(|_| "1Gi".parse().unwrap()), ..Change::default() };
        assert!(!same.is_needed(&claim));
    }

    #[test]
    fn what_ends_is_removed() {
        let claim = claim(json!({
            "allocatedResourceStatuses": { "storage": "NodeResizePending" },
            "modifyVolumeStatus": { "targetVolumeAttributesClassName": "gold", "status": "InProgress" },
            "conditions": [{ "type": RESIZING, "status": "True" }],
        }));
        assert_eq!(claim.modifying().unwrap().status, ModifyStatus::InProgress);
        let change = Change {
            resize: Some(ResizeStatus::Nothing),
            modifying: Some(None),
            not_required: Some(false),
            without: vec![RESIZING],
            ..Change::default()
        };
        let expected = json!({
            "metadata": { "annotations": { NODE_EXPANSION_NOT_REQUIRED: null } },
            "status": {
                "allocatedResourceStatuses": { "storage": null }, "modifyVolumeStatus": null, "conditions": null,
            },
        });
        assert_eq!(change.body(&claim, now()), Some(expected));
    }

    #[test]
    fn conditions_of_others_stay_as_they_are_and_time_alone_is_never_written() {
        let other = json!({ "type": "Unused", "status": "True", "newer": 1 });
        let old = json!({
            "type": RESIZING, "status": "True", "reason": "A", "message": "m",
            "lastTransitionTime": "2025-01-01T00:00:00Z",
        });
        let claim = claim(json!({ "conditions": [other, old] }));
        let set = |reason: &str, message: &str| Change {
            set: vec![Holds { kind: RESIZING, reason: reason.into(), message: message.into() }],
            ..Change::default()
        };
        assert!(!set("A", "m").is_needed(&claim));
        let list = |change: Change| change.body(&claim, now()).unwrap()["status"]["conditions"].clone();
        let changed = list(set("A", "other"));
        assert_eq!(changed[0], other);
        assert_eq!(changed[1]["lastTransitionTime"], "2025-01-01T00:00:00Z");
        assert_eq!(changed[1]["lastProbeTime"], "2026-01-01T00:00:00Z");
        assert_eq!(list(set("B", "m"))[1]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    }
}

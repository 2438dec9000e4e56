//! What a claim's status says of its growth on the node. Conditions of others stay.

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::claim::{Claim, ResizeStatus};
use stowage_model::condition::ConditionStatus;
use stowage_model::quantity::Quantity;
use stowage_runtime::api::Patch;
use stowage_runtime::events::seconds;

/// Conditions that tell of growth.
const RESIZE_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

const NODE_ERROR: &str = "NodeResizeError";

/// The node is at it.
pub fn in_progress() -> Patch {
    let status = ResizeStatus::NodeResizeInProgress.as_str();
    Patch::Merge(json!({ "status": { "allocatedResourceStatuses": { "storage": status } } }))
}

/// It has the size, and nothing is under way any more.
pub fn finished(claim: &Claim, size: Quantity) -> Patch {
    let mut operations = remove_conditions(claim, &RESIZE_CONDITIONS);
    // Capacity is there since the claim was bound; its other members are not ours.
    operations.push(json!({ "op": "add", "path": "/status/capacity/storage", "value": size.to_string() }));
    if claim.status.allocated_resource_statuses.storage != ResizeStatus::None {
        operations.push(json!({ "op": "remove", "path": "/status/allocatedResourceStatuses" }));
    }
    Patch::Json(operations)
}

/// It failed; `infeasible` if asking again is pointless.
pub fn failed(claim: &Claim, infeasible: bool, message: &str, now: Timestamp) -> Patch {
    let at = seconds(now);
    let condition = json!({
        "type": NODE_ERROR, "status": "True", "lastProbeTime": null, "lastTransitionTime": at,
        "reason": "", "message": message,
    });
    let mut operations = Vec::new();
    let conditions = &claim.status.conditions;
    match conditions.iter().position(|condition| condition.kind == NODE_ERROR) {
        Some(index) => {
            operations.push(test(index, NODE_ERROR));
            operations
                .push(json!({ "op": "add", "path": format!("/status/conditions/{index}/message"), "value": message }));
            // It has begun to hold only now.
            let news = [("status", "True"), ("lastTransitionTime", at.as_str())];
            for (member, value) in news.into_iter().filter(|_| conditions[index].status != ConditionStatus::True) {
                let path = format!("/status/conditions/{index}/{member}");
                operations.push(json!({ "op": "add", "path": path, "value": value }));
            }
        }
        None if conditions.is_empty() => {
            operations.push(json!({ "op": "add", "path": "/status/conditions", "value": [condition] }));
        }
        None => operations.push(json!({ "op": "add", "path": "/status/conditions/-", "value": condition })),
    }
    if infeasible {
        let value = json!({ "storage": ResizeStatus::NodeResizeInfeasible.as_str() });
        operations.push(json!({ "op": "add", "path": "/status/allocatedResourceStatuses", "value": value }));
    }
    Patch::Json(operations)
}

/// Removes conditions from the last to the first, each only if it is what it was.
fn remove_conditions(claim: &Claim, kinds: &[&str]) -> Vec<Value> {
    let found = claim.status.conditions.iter().enumerate().rev();
    let found = found.filter(|(_, condition)| kinds.contains(&condition.kind.as_str()));
    let remove = |index| json!({ "op": "remove", "path": format!("/status/conditions/{index}") });
    found.flat_map(|(index, condition)| [test(index, &condition.kind), remove(index)]).collect()
}

fn test(index: usize, kind: &str) -> Value {
    json!({ "op": "test", "path": format!("/status/conditions/{index}/type"), "value": kind })
}

#[cfg(test)]
mod tests;

use super::*;

fn claim(conditions: &[&str], status: &str) -> Claim {
    let conditions: Vec<Value> = conditions.iter().map(|kind| json!({ "type": kind, "status": "True" })).collect();
    serde_json::from_value(json!({
        "status": {
            "capacity": { "storage": "1Gi" }, "conditions": conditions,
            "allocatedResourceStatuses": { "storage": status },
        },
    }))
    .unwrap()
}

fn paths(patch: Patch) -> Vec<String> {
    let Patch::Json(operations) = patch else { panic!("a merge would replace the list") };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    operations.iter().map(|op| format!("{} {}", text(&op["op"]), text(&op["path"]))).collect()
}

#[test]
fn s153_success_writes_the_size_and_takes_only_the_conditions_of_growth_away() {
    let claim = claim(&["Resizing", "Other", "FileSystemResizePending"], "NodeResizeInProgress");
    let expected = [
        "test /status/conditions/2/type",
        "remove /status/conditions/2",
        "test /status/conditions/0/type",
        "remove /status/conditions/0",
        "add /status/capacity/storage",
        "remove /status/allocatedResourceStatuses",
    ];
    assert_eq!(paths(finished(&claim, "2Gi".parse().unwrap())), expected);
}

#[test]
fn s126_s127_a_failure_is_a_condition_and_only_an_infeasible_one_ends_the_growth() {
    let now = Timestamp::UNIX_EPOCH;
    let none = claim(&[], "NodeResizeInProgress");
    assert_eq!(paths(failed(&none, false, "no", now)), ["add /status/conditions"]);
    let infeasible = paths(failed(&none, true, "no", now));
    assert_eq!(infeasible, ["add /status/conditions", "add /status/allocatedResourceStatuses"]);
    assert_eq!(paths(failed(&claim(&["Other"], ""), false, "no", now)), ["add /status/conditions/-"]);
    let again = paths(failed(&claim(&["Other", "NodeResizeError"], ""), false, "no", now));
    assert_eq!(again, ["test /status/conditions/1/type", "add /status/conditions/1/message"]);
}

#[test]
fn s153_the_time_of_a_condition_changes_only_with_its_status() {
    let status = |status: &str| {
        let mut claim = claim(&["Other", "NodeResizeError"], "");
        claim.status.conditions[1].status = serde_json::from_value(json!(status)).unwrap();
        paths(failed(&claim, false, "no", Timestamp::UNIX_EPOCH))
    };
    let same = ["test /status/conditions/1/type", "add /status/conditions/1/message"];
    assert_eq!(status("True"), same);
    let changed = ["add /status/conditions/1/status", "add /status/conditions/1/lastTransitionTime"];
    assert_eq!(status("False"), [same, changed].concat());
}

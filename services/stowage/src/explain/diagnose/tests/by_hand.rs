use serde_json::{Value, json};

use super::*;

/// A claim of 1Gi and a volume for it, of a class that is a name only.
fn of_a_name(world: &mut Value) {
    made_by_hand(world);
    world["claims"][0]["spec"]["volumeName"] = Value::Null;
    world["claims"][0]["spec"]["storageClassName"] = "manual".into();
    world["volumes"][0]["spec"]["storageClassName"] = "manual".into();
}

#[test]
fn a_class_that_is_a_name_only_is_not_asked_for_where_a_volume_of_it_fits() {
    let rows: [Row; 4] = [
        (
            "class-missing",
            claim,
            |w| {
                of_a_name(w);
                w["volumes"][0]["spec"]["capacity"]["storage"] = "1Mi".into();
                // Of another class, and free: no nearer for that.
                let mut other = w["volumes"][0].clone();
                other["metadata"]["name"] = "pv-2".into();
                other["spec"]["storageClassName"] = "fast".into();
                w["volumes"].as_array_mut().unwrap().push(other);
            },
            State::Stuck,
            &["no such StorageClass", "volume \"pv-1\" has 1Mi, the claim asks for 1Gi", "create a PersistentVolume"],
        ),
        ("binder-silent", claim, of_a_name, State::Stuck, &["pv-controller is alive"]),
        (
            "binder-silent",
            claim,
            |w| {
                of_a_name(w);
                w["claims"][0]["spec"]["storageClassName"] = Value::Null;
                w["volumes"][0]["spec"]["storageClassName"] = "".into();
            },
            State::Stuck,
            &["pv-controller is alive"],
        ),
        (
            "no-default-class",
            claim,
            |w| {
                of_a_name(w);
                w["claims"][0]["spec"]["storageClassName"] = Value::Null;
                w["volumes"][0]["spec"]["storageClassName"] = "".into();
                w["volumes"][0]["spec"]["capacity"]["storage"] = "1Mi".into();
            },
            State::Stuck,
            &["has 1Mi, the claim asks for 1Gi"],
        ),
    ];
    check(&rows);
}

#[test]
fn no_step_says_that_a_class_is_there_which_is_not() {
    let steps = |spoil: Spoil| -> Vec<String> {
        let report = report(claim(), spoil);
        report.stories[0].steps.iter().map(|step| step.name.clone()).collect()
    };
    assert_eq!(steps(of_a_name), ["claim created", "pv-controller binds it"]);
    let bound = steps(|w| {
        w["claims"][0]["spec"]["storageClassName"] = "manual".into();
        w["pods"] = json!([]);
    });
    assert_eq!(bound, ["claim created", "pv-controller binds it to pv-1"]);
}

#[test]
fn two_claims_of_a_pod_that_have_a_node_and_no_volume_are_told_of_once() {
    let mut world = good();
    unbound(&mut world);
    with_policy(&mut world, "WaitForFirstConsumer");
    world["classes"][0]["provisioner"] = "kubernetes.io/no-provisioner".into();
    world["claims"][0]["metadata"]["annotations"] = json!({ "volume.kubernetes.io/selected-node": "node-1" });
    let mut other = world["claims"][0].clone();
    other["metadata"]["name"] = "other".into();
    world["claims"].as_array_mut().unwrap().push(other);
    world["pods"] = good()["pods"].clone();
    unplaced(&mut world);
    let volume = json!({ "name": "other", "persistentVolumeClaim": { "claimName": "other" } });
    world["pods"][0]["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    for wanted in [claim(), pod()] {
        let report = diagnose(&gathered(wanted, &world), NOW.parse().unwrap());
        assert_eq!(report.stories[0].causes[0].id, "no-fitting-volume", "{report:#?}");
    }
}

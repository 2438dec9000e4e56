use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::driver::Made;

use super::*;

const NODE: &str = "node-a";

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn claim(name: &str, uid: &str, volume: &str) -> Claim {
    read(json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": uid,
            "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": { "volumeName": volume },
        "status": { "phase": "Bound" },
    }))
}

fn volume(name: &str, claim_uid: &str, handle: &str, policy: &str, phase: &str) -> Volume {
    read(json!({
        "metadata": { "name": name },
        "spec": {
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": { "namespace": "default", "name": "a", "uid": claim_uid },
            "csi": { "driver": "driver.test", "volumeHandle": handle },
        },
        "status": { "phase": phase },
    }))
}

/// A claim mounted on a node, with nothing wrong.
fn mounted() -> Observed {
    let key = (NODE.to_owned(), "vol-1".to_owned());
    let mut driver = State::default();
    driver
        .volumes
        .insert("vol-1".into(), Made { name: "pvc-1".into(), bytes: 1, single_node: true, ..Made::default() });
    driver.attached.insert("vol-1".into(), BTreeSet::from([NODE.to_owned()]));
    driver.staged.insert(key.clone(), "/stage".into());
    driver.published.insert(key, BTreeSet::from(["/pod".to_owned()]));
    let node = json!({
        "metadata": { "name": NODE },
        "status": { "volumesInUse": ["kubernetes.io/csi/driver.test^vol-1"] },
    });
    Observed {
        claims: vec![claim("a", "1", "pvc-1")],
        volumes: vec![volume("pvc-1", "1", "vol-1", "Delete", "Bound")],
        nodes: vec![read(node)],
        driver_name: "driver.test".into(),
        driver,
        ..Observed::default()
    }
}

/// What is found after one thing was spoiled.
fn spoiled(spoil: impl FnOnce(&mut Observed)) -> Vec<String> {
    let mut observed = mounted();
    spoil(&mut observed);
    observed.violations_at_rest().iter().map(ToString::to_string).collect()
}

#[track_caller]
fn finds(expected: &str, spoil: impl FnOnce(&mut Observed)) {
    let found = spoiled(spoil);
    assert!(found.iter().any(|text| text == expected), "{expected:?} is not in {found:#?}");
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(mounted().violations_at_rest(), []);
    assert_eq!(Observed::default().leftovers(), []);
}

#[test]
fn b1_finds_a_volume_of_two_claims_and_a_claim_of_two_volumes() {
    finds("B1: volume pvc-1 is bound to two claims, default/a and default/b", |o| {
        o.claims.push(claim("b", "2", "pvc-1"));
    });
    finds("B1: claim default/a is bound to pvc-1, but pvc-9 is bound to it", |o| {
        o.volumes.push(volume("pvc-9", "1", "vol-9", "Delete", "Bound"));
    });
    finds("B1: claim default/a is bound to pvc-1, which is bound to uid 7", |o| {
        o.volumes[0] = volume("pvc-1", "7", "vol-1", "Delete", "Bound");
    });
    finds("B1: claim default/a is bound to volume pvc-1, which is not bound to it", |o| o.volumes.clear());
}

#[test]
fn p1_finds_a_volume_nobody_owns_unless_it_is_intended() {
    let orphan = |o: &mut Observed| {
        o.driver
            .volumes
            .insert("vol-2".into(), Made { name: "pvc-2".into(), bytes: 1, single_node: true, ..Made::default() });
    };
    finds("P1: the driver has volume vol-2 (pvc-2), which belongs to nobody", orphan);
    let mut observed = mounted();
    orphan(&mut observed);
    observed.intents.push("{\"volume\":\"pvc-2\"}".into());
    assert_eq!(observed.violations(), [], "an intent owns it for a while");
    let mut kept = observed.clone();
    kept.driver.volumes.get_mut("vol-2").unwrap().by_hand = true;
    assert_eq!(kept.violations_at_rest(), [], "an administrator owns it for ever");
    assert_eq!(observed.violations_at_rest().len(), 1, "but not for ever");
}

#[test]
fn p2_finds_two_volumes_of_one_claim() {
    finds("P2: claim default/a has the volumes {\"vol-1\", \"vol-2\"}", |o| {
        o.driver
            .volumes
            .insert("vol-2".into(), Made { name: "pvc-1".into(), bytes: 1, single_node: true, ..Made::default() });
    });
}

#[test]
fn p3_finds_deleted_data_of_a_volume_that_is_retained_or_in_use() {
    let deleted = |policy: &'static str, phase: &'static str| {
        move |o: &mut Observed| {
            o.volumes[0] = volume("pvc-1", "1", "vol-1", policy, phase);
            o.driver = State::default();
        }
    };
    let text = |policy, phase| {
        format!("P3: volume pvc-1 ({policy}, {phase}) is there, but its vol-1 in the driver is deleted")
    };
    finds(&text("Delete", "Bound"), deleted("Delete", "Bound"));
    finds(&text("Retain", "Released"), deleted("Retain", "Released"));
    assert_eq!(spoiled(deleted("Delete", "Released")), [""; 0], "that is how a volume is deleted");
    finds("P3: the driver was asked to delete volume vol-1, which is to be kept", |o| {
        o.driver.violations.push("P3: asked to delete volume vol-1, which is to be kept".into());
    });
}

#[test]
fn a1_finds_a_volume_on_two_nodes() {
    finds("A1: volume vol-1 is published to {\"node-a\", \"node-b\"} at once", |o| {
        o.driver.attached.entry("vol-1".into()).or_default().insert("node-b".into());
    });
}

#[test]
fn m1_finds_a_publication_without_a_stage_and_what_the_driver_saw() {
    finds("M1: volume vol-1 is published on node-a, but not staged there", |o| o.driver.staged.clear());
    finds("A2: the driver was asked to delete volume vol-1, which a node still has", |o| {
        o.driver.violations.push("A2: asked to delete volume vol-1, which a node still has".into());
    });
}

#[test]
fn m2_finds_a_staged_volume_that_is_not_reported() {
    finds("M2: volume vol-1 is staged on node-a, which does not say it is in use", |o| {
        o.nodes[0].status.volumes_in_use.clear();
    });
}

#[test]
fn l1_finds_everything_that_is_left() {
    let mut observed = mounted();
    let mut tree = Tree::default();
    tree.create_dir(Path::new("/var/lib/kubelet/pods/uid")).unwrap();
    observed.trees.insert(NODE.into(), tree);
    let found: Vec<String> = observed.leftovers().iter().map(|violation| violation.text.clone()).collect();
    assert_eq!(
        found,
        [
            "claim default/a is left",
            "volume pvc-1 is left",
            "volume vol-1 in the driver is left",
            "publication of vol-1 by the controller is left",
            "stage of vol-1 on node-a is left",
            "publication of vol-1 on node-a is left",
            "kubernetes.io/csi/driver.test^vol-1 in volumesInUse of node-a is left",
            "/var/lib/kubelet/pods/uid on node-a is left",
        ]
    );
}

#[test]
fn r1_a_claim_that_says_it_has_more_than_its_device_is_found() {
    finds("R1: claim default/a says that it has 2, but its device has 1 bytes", |observed| {
        observed.claims[0].status.capacity.storage = Some("2".parse().unwrap());
    });
    assert_eq!(spoiled(|observed| observed.claims[0].status.capacity.storage = Some("1".parse().unwrap())), [""; 0]);
    finds("R1: claim default/a says that it has 1, but its file system has 0 bytes", |observed| {
        observed.claims[0].status.capacity.storage = Some("1".parse().unwrap());
        observed.driver.file_systems.insert("vol-1".into(), 0);
    });
}

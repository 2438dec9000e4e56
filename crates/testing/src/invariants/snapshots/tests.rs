use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use stowage_model::claim::Claim;
use stowage_model::volume::Volume;
use stowage_model::volume_group_snapshot::VolumeGroupSnapshot;
use stowage_model::{annotations, finalizers};

use crate::driver::{Abilities, Made, Source, State};

use super::*;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn snapshot() -> Value {
    json!({
        "metadata": {"namespace": "default", "name": "s", "uid": "1"},
        "spec": {"source": {"persistentVolumeClaimName": "a"}},
        "status": {
            "boundVolumeSnapshotContentName": "snapcontent-1",
            "readyToUse": true,
            "creationTime": "1970-01-01T00:00:09Z",
        },
    })
}

fn content() -> Value {
    json!({
        "metadata": {
            "name": "snapcontent-1",
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        },
        "spec": {
            "driver": "driver.test",
            "deletionPolicy": "Delete",
            "volumeSnapshotRef": {"namespace": "default", "name": "s", "uid": "1"},
            "source": {"volumeHandle": "vol-1"},
        },
        "status": {"snapshotHandle": "snap-1", "readyToUse": true, "creationTime": 9_000_000_002_i64},
    })
}

fn group_content() -> Value {
    json!({
        "metadata": {"name": "groupsnapcontent-7"},
        "spec": {
            "driver": "driver.test",
            "deletionPolicy": "Delete",
            "volumeGroupSnapshotRef": {"namespace": "default", "name": "g", "uid": "7"},
            "source": {"volumeHandles": ["vol-1"]},
        },
        "status": {"volumeGroupSnapshotHandle": "group-1", "readyToUse": true},
    })
}

fn cut(name: &str) -> Cut {
    let created = jiff::Timestamp::from_nanosecond(9_000_000_002).unwrap();
    Cut { name: name.into(), volume: "vol-1".into(), bytes: 1, content: 7, moment: 2, created, ..Cut::default() }
}

/// A claim whose volume has a snapshot that is ready, with nothing wrong.
fn ready() -> Observed {
    let mut driver = State::default();
    driver.abilities = Abilities::ALL;
    driver.volumes.insert("vol-1".into(), Made { name: "pvc-5".into(), bytes: 1, content: 8, ..Made::default() });
    driver.written.insert("vol-1".into(), [(1, 7), (3, 8)].into());
    driver.snapshots.insert("snap-1".into(), cut("snapshot-1"));
    let claim = json!({
        "metadata": {"namespace": "default", "name": "a", "uid": "5", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "pvc-5"},
        "status": {"phase": "Bound"},
    });
    Observed {
        claims: vec![read::<Claim>(claim)],
        volumes: vec![volume("pvc-5", "a", "5", "vol-1")],
        snapshots: vec![read(snapshot())],
        contents: vec![read(content())],
        driver_name: "driver.test".into(),
        driver,
        ..Observed::default()
    }
}

/// The same with a group of one member, which has no objects of its own yet.
fn grouped() -> Observed {
    let mut observed = ready();
    observed.driver.snapshots.insert("snap-2".into(), Cut { group: Some("group-1".into()), ..cut("") });
    let group = Grouped { name: "groupsnapshot-7".into(), members: vec!["snap-2".into()], ..Grouped::default() };
    observed.driver.groups.insert("group-1".into(), group);
    observed.group_contents.push(read(group_content()));
    observed.group_snapshots.push(read::<VolumeGroupSnapshot>(json!({
        "metadata": {"namespace": "default", "name": "g", "uid": "7"},
    })));
    observed
}

fn volume(name: &str, claim: &str, claim_uid: &str, handle: &str) -> Volume {
    read(json!({
        "metadata": {"name": name},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "default", "name": claim, "uid": claim_uid},
            "csi": {"driver": "driver.test", "volumeHandle": handle},
        },
        "status": {"phase": "Bound"},
    }))
}

fn set(object: &mut Value, path: &str, value: Value) {
    *object.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
}

/// The fixture's content with one field changed.
fn content_with(path: &str, value: Value) -> VolumeSnapshotContent {
    let mut object = content();
    set(&mut object, path, value);
    read(object)
}

fn texts(found: Vec<Violation>) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn finds(mut observed: Observed, expected: &str, spoil: impl FnOnce(&mut Observed)) {
    spoil(&mut observed);
    let found = texts(observed.violations_at_rest());
    assert!(found.iter().any(|text| text == expected), "{expected:?} is not in {found:#?}");
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(ready().violations_at_rest(), []);
    assert_eq!(grouped().violations_at_rest(), []);
}

#[test]
fn p1_finds_a_snapshot_nobody_owns_and_lets_an_unnamed_one_pass_for_a_while() {
    let text = "P1: the driver has snapshot snap-1 (snapshot-1), which belongs to nobody";
    finds(ready(), text, |o| o.contents.clear());
    finds(ready(), text, |o| o.contents[0].spec.driver = "other".into());
    let mut observed = ready();
    observed.contents[0].status = None;
    observed.snapshots.clear();
    assert_eq!(observed.violations(), [], "it was made for that content");
    assert_eq!(texts(observed.violations_at_rest()), [text], "which must learn of it");
    observed.driver.snapshots.get_mut("snap-1").unwrap().by_hand = true;
    assert_eq!(observed.violations_at_rest(), [], "unless it is the test's own");
}

#[test]
fn p1_finds_a_group_nobody_owns_and_with_it_its_members() {
    let mut observed = grouped();
    observed.group_contents.clear();
    assert_eq!(
        texts(observed.violations()),
        [
            "P1: the driver has group snapshot group-1 (groupsnapshot-7), which belongs to nobody",
            "P1: the driver has snapshot snap-2 (), which belongs to nobody",
        ]
    );
}

#[test]
fn p2_finds_two_snapshots_and_two_contents_of_one_snapshot() {
    finds(ready(), "P2: snapshot default/s has the snapshots {\"snap-1\", \"snap-2\"} in the driver", |o| {
        o.driver.snapshots.insert("snap-2".into(), cut("snapshot-1"));
    });
    finds(ready(), "P2: snapshot default/s has the contents {\"other\", \"snapcontent-1\"}", |o| {
        o.contents.push(content_with("/metadata/name", "other".into()));
    });
    finds(grouped(), "P2: group snapshot default/g has {\"group-1\", \"group-2\"} in the driver", |o| {
        o.driver.groups.insert("group-2".into(), o.driver.groups["group-1"].clone());
    });
}

#[test]
fn p3_finds_a_deleted_snapshot_unless_its_content_is_on_its_way_out() {
    let text =
        |policy| format!("P3: content snapcontent-1 ({policy}) is there, but its snap-1 in the driver is deleted");
    finds(ready(), &text("Delete"), |o| o.driver.snapshots.clear());
    let deleting = |policy: &'static str| {
        move |o: &mut Observed| {
            let mut object = content();
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            set(&mut object, "/spec/deletionPolicy", policy.into());
            o.contents = vec![read(object)];
            o.driver.snapshots.clear();
        }
    };
    finds(ready(), &text("Retain"), deleting("Retain"));
    let mut observed = ready();
    deleting("Delete")(&mut observed);
    assert_eq!(observed.violations(), [], "that is how a snapshot is deleted");
    let text = "P3: group content groupsnapcontent-7 (Delete) is there, but its group-1 in the driver is deleted";
    finds(grouped(), text, |o| o.driver.groups.clear());
}

#[test]
fn p3_lets_a_member_go_with_its_group_for_a_while() {
    let mut observed = ready();
    observed.contents[0].status.as_mut().unwrap().volume_group_snapshot_handle = Some("group-1".into());
    observed.driver.snapshots.clear();
    assert_eq!(observed.violations(), []);
    let text = "P3: content snapcontent-1 is ready, but the driver has no such snapshot";
    assert_eq!(texts(observed.violations_at_rest()), [text]);
}

#[test]
fn s1_finds_data_that_is_not_that_of_its_moment() {
    finds(ready(), "S1: snapshot snap-1 in the driver holds 8, but its volume held 7 at its moment", |o| {
        o.driver.snapshots.get_mut("snap-1").unwrap().content = 8;
    });
    finds(
        ready(),
        "S1: content snapcontent-1 is said to be of Some(9000000002), but its snapshot is of Some(9000000003)",
        |o| {
            let cut = o.driver.snapshots.get_mut("snap-1").unwrap();
            cut.created = jiff::Timestamp::from_nanosecond(9_000_000_003).unwrap();
        },
    );
    finds(ready(), "S1: content snapcontent-1 is of volume Some(\"vol-9\"), but its snapshot is of vol-1", |o| {
        o.contents[0] = content_with("/spec/source/volumeHandle", "vol-9".into());
    });
    let text = "S1: snapshot default/s is said to be of Some(1970-01-01T00:00:10Z), but its data is of Some(1970-01-01T00:00:09.000000002Z)";
    finds(ready(), text, |o| {
        let mut object = snapshot();
        set(&mut object, "/status/creationTime", "1970-01-01T00:00:10Z".into());
        o.snapshots = vec![read(object)];
    });
    finds(grouped(), "S1: the members of group content groupsnapcontent-7 are of several moments", |o| {
        o.driver.snapshots.insert("snap-3".into(), Cut { moment: 1, ..cut("x") });
        o.driver.groups.get_mut("group-1").unwrap().members.push("snap-3".into());
    });
}

#[test]
fn s1_finds_what_is_said_to_be_ready_and_is_not() {
    finds(ready(), "S1: content snapcontent-1 is said to be ready, but its snapshot is not", |o| {
        o.driver.snapshots.get_mut("snap-1").unwrap().looks = 1;
    });
    finds(ready(), "S1: snapshot default/s is said to be ready, but its content snapcontent-1 is not", |o| {
        o.contents[0] = content_with("/status/readyToUse", false.into());
    });
    finds(ready(), "S1: snapshot default/s is said to be ready, but has no content", |o| {
        o.contents.clear();
        o.driver.snapshots.clear();
    });
    finds(grouped(), "S1: group content groupsnapcontent-7 is said to be ready, but a member is not", |o| {
        o.driver.snapshots.get_mut("snap-2").unwrap().looks = 1;
    });
    finds(ready(), "S1: the driver was asked to make a volume of snapshot snap-1, which is not ready", |o| {
        o.driver.violations.push("S1: asked to make a volume of snapshot snap-1, which is not ready".into());
    });
}

#[test]
fn s1_finds_a_claim_that_was_made_from_something_else_than_it_names() {
    let restored = |source: Value| {
        move |o: &mut Observed| {
            let claim = json!({
                "metadata": {"namespace": "default", "name": "b", "uid": "6", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": "pvc-6", "dataSource": source},
                "status": {"phase": "Bound"},
            });
            o.claims.push(read(claim));
            o.volumes.push(volume("pvc-6", "b", "6", "vol-6"));
            o.driver.volumes.insert("vol-6".into(), Made { name: "pvc-6".into(), ..Made::default() });
        }
    };
    let from_snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let text = "S1: claim default/b is to be made from Some(Snapshot(\"snap-1\")), but was made from None";
    finds(ready(), text, restored(from_snapshot.clone()));
    let from_claim = json!({"kind": "PersistentVolumeClaim", "name": "a"});
    let text = "S1: claim default/b is to be made from Some(Volume(\"vol-1\")), but was made from None";
    finds(ready(), text, restored(from_claim));
    let mut observed = ready();
    restored(from_snapshot)(&mut observed);
    observed.driver.volumes.get_mut("vol-6").unwrap().source = Some(Source::Snapshot("snap-1".into()));
    assert_eq!(observed.violations_at_rest(), []);
}

#[test]
fn l1_finds_what_is_held_for_nothing() {
    finds(ready(), "L1: claim default/a is kept for a snapshot, but none is being made of it", |o| {
        o.claims[0].meta.finalizers.push(finalizers::CLAIM_AS_SNAPSHOT_SOURCE.into());
    });
    finds(ready(), "L1: content snapcontent-1 is ready and still marked as being created", |o| {
        let mut object = content();
        object["metadata"]["annotations"] = json!({(annotations::SNAPSHOT_BEING_CREATED): "yes"});
        o.contents = vec![read(object)];
    });
    finds(ready(), "L1: content snapcontent-1 has a snapshot to delete and no finalizer to wait for that", |o| {
        o.contents[0] = content_with("/metadata/finalizers", json!([]));
    });
    let deleting = |mut object: Value| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object
    };
    let mut observed = ready();
    observed.contents = vec![read(deleting(content()))];
    assert_eq!(observed.violations_at_rest(), [], "it stays as long as its snapshot");
    finds(observed, "L1: content snapcontent-1 is being deleted and does not go", |o| o.snapshots.clear());
    finds(ready(), "L1: snapshot default/s is being deleted and does not go", |o| {
        o.snapshots = vec![read(deleting(snapshot()))];
    });
    finds(grouped(), "L1: group content groupsnapcontent-7 is being deleted and does not go", |o| {
        o.group_contents = vec![read(deleting(group_content()))];
        o.group_snapshots.clear();
    });
}

#[test]
fn l1_finds_every_snapshot_that_is_left() {
    let mut observed = grouped();
    (observed.claims, observed.volumes) = (Vec::new(), Vec::new());
    observed.driver.volumes.clear();
    let found: Vec<String> = observed.leftovers().iter().map(|violation| violation.text.clone()).collect();
    assert_eq!(
        found,
        [
            "snapshot default/s is left",
            "content snapcontent-1 is left",
            "group snapshot default/g is left",
            "group content groupsnapcontent-7 is left",
            "snapshot snap-1 in the driver is left",
            "snapshot snap-2 in the driver is left",
            "group snapshot group-1 in the driver is left",
        ]
    );
}

//! One good snapshot and one good claim to be filled from; tests spoil one field each.

use serde_json::{Value, json};

use stowage_runtime::operation::{Failure, State};

use super::*;
use crate::facts::NodeFacts;
use crate::fixture::{DRIVER, claim_with, facts, read, volume_with};

type Spoil = fn(&mut Value);

pub const SNAPSHOT_UID: &str = "snapshot-1";
pub const SOURCE_UID: &str = "source-1";

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub fn restoring() -> Value {
    json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly" })
}

pub fn cloning() -> Value {
    json!({ "kind": "PersistentVolumeClaim", "name": "old" })
}

pub fn snapshot_with(spoil: impl FnOnce(&mut Value)) -> Restorable {
    let object = json!({
        "metadata": { "namespace": "shop", "name": "nightly", "uid": SNAPSHOT_UID, "resourceVersion": "5" },
        "spec": { "source": { "persistentVolumeClaimName": "old" } },
        "status": { "boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "1Gi" },
    });
    read(object, spoil)
}

pub fn content_with(spoil: impl FnOnce(&mut Value)) -> Look {
    let object = json!({
        "metadata": { "name": "content", "uid": "content-1", "resourceVersion": "6" },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": "nightly", "uid": SNAPSHOT_UID },
            "driver": DRIVER, "deletionPolicy": "Delete", "source": { "volumeHandle": "pool-a/0" },
            "sourceVolumeMode": "Filesystem",
        },
        "status": { "snapshotHandle": "pool-a/s1", "readyToUse": true, "restoreSize": 1_i64 << 30 },
    });
    Look { bound_to: Some("content".into()), is_ready: true, content: Some(Arc::new(read(object, spoil))) }
}

pub fn looked(state: State<Look>) -> Option<Record<Look>> {
    let soon = now() + jiff::SignedDuration::from_secs(4);
    Some(Record { state, since: now(), failures: 0, retry_at: soon })
}

pub fn found_snapshot(snapshot: Restorable, look: Option<Record<Look>>) -> Found {
    let origin = Origin::snapshot(&ObjectKey::namespaced("shop", "nightly"));
    let snapshot = View::Known(Arc::new(snapshot));
    Found { origin, permitted: true, object: Object::Snapshot { snapshot, look, is_followed: false } }
}

/// The same, where a watch tells of each change of the snapshot.
fn followed(mut found: Found) -> Found {
    if let Object::Snapshot { is_followed, .. } = &mut found.object {
        *is_followed = true;
    }
    found
}

pub fn source_claim_with(spoil: impl FnOnce(&mut Value)) -> Claim {
    claim_with(|claim| {
        claim["metadata"]["name"] = "old".into();
        claim["metadata"]["uid"] = SOURCE_UID.into();
        claim["spec"]["volumeName"] = "pv-old".into();
        claim["status"]["phase"] = "Bound".into();
        spoil(claim);
    })
}

pub fn source_volume_with(spoil: impl FnOnce(&mut Value)) -> Arc<Volume> {
    volume_with(|volume| {
        volume["metadata"]["name"] = "pv-old".into();
        volume["spec"]["csi"]["volumeHandle"] = "pool-a/0".into();
        volume["spec"]["claimRef"] = json!({ "namespace": "shop", "name": "old", "uid": SOURCE_UID });
        spoil(volume);
    })
}

pub fn found_claim(claim: Claim, volume: View<Volume>) -> Found {
    let origin = Origin::claim(&ObjectKey::namespaced("shop", "old"));
    Found { origin, permitted: true, object: Object::Claim { claim: View::Known(Arc::new(claim)), volume } }
}

fn restore(spoil: impl FnOnce(&mut Value), look: Look, facts: &Facts) -> Result<Option<Source>, Missing> {
    let claim = claim_with(|claim| claim["spec"]["dataSource"] = restoring());
    let found = found_snapshot(snapshot_with(spoil), looked(State::Done(look)));
    find(&claim, facts, Some(&found), None, now())
}

fn clone(claim: &Claim, volume: View<Volume>, facts: &Facts) -> Result<Option<Source>, Missing> {
    let new = claim_with(|claim| claim["spec"]["dataSource"] = cloning());
    find(&new, facts, Some(&found_claim(claim.clone(), volume)), None, now())
}

/// The sentence, whether or not somebody tells of the change.
fn said(missing: Missing) -> String {
    match missing {
        Missing::Problem(problem) | Missing::Until(problem, _) | Missing::Elsewhere(problem) => problem.to_string(),
        other => panic!("{other:?}"),
    }
}

fn mark_deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
}

#[test]
fn a_ready_snapshot_gives_its_handle_and_a_bound_claim_that_of_its_volume() {
    let source = restore(|_| {}, content_with(|_| {}), &facts()).unwrap().unwrap();
    let (namespace, name) = ("shop".to_owned(), "nightly".to_owned());
    let uid = SNAPSHOT_UID.to_owned();
    let expected =
        Source { kind: SourceKind::Snapshot, namespace, name, uid, handle: "pool-a/s1".into(), released: false };
    assert_eq!(source, expected);
    let source = clone(&source_claim_with(|_| {}), View::Known(source_volume_with(|_| {})), &facts()).unwrap().unwrap();
    let (namespace, name) = ("shop".to_owned(), "old".to_owned());
    let uid = SOURCE_UID.to_owned();
    let expected = Source { kind: SourceKind::Claim, namespace, name, uid, handle: "pool-a/0".into(), released: false };
    assert_eq!(source, expected);
}

#[test]
fn each_check_of_a_snapshot_names_field_value_and_way_out_and_is_made_again_on_a_fresh_read() {
    let rows: [(Spoil, &[&str]); 6] = [
        (mark_deleting, &["VolumeSnapshot shop/nightly", "metadata.deletionTimestamp", "another source"]),
        (|s| s["status"] = json!({}), &["status.boundVolumeSnapshotContentName", "goes on once"]),
        (|s| s["status"]["readyToUse"] = false.into(), &["status.readyToUse of VolumeSnapshot shop/nightly"]),
        (
            |s| {
                s["status"]["readyToUse"] = json!(null);
                s["status"]["error"] = json!({ "message": "pool is full" });
            },
            &["status.readyToUse", "status.error.message: pool is full"],
        ),
        (
            |s| s["status"]["restoreSize"] = "2Gi".into(),
            &["requests.storage is 1Gi", "status.restoreSize", "at least 2Gi"],
        ),
        (|s| s["status"]["restoreSize"] = json!(1_073_741_825_i64.to_string()), &["at least 1073741825"]),
    ];
    for (spoil, parts) in rows {
        let missing = restore(spoil, content_with(|_| {}), &facts()).unwrap_err();
        assert!(matches!(missing, Missing::Until(_, at) if at > now()), "{missing:?}");
        let said = said(missing);
        parts.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    }
}

#[test]
fn each_check_of_a_content_names_field_value_and_way_out_and_is_made_again_on_a_fresh_read() {
    let rows: [(Spoil, &[&str]); 6] = [
        (|c| c["spec"]["volumeSnapshotRef"]["uid"] = "x".into(), &["spec.volumeSnapshotRef", "\"content\"", "\"x\""]),
        (|c| c["spec"]["volumeSnapshotRef"]["uid"] = "".into(), &["spec.volumeSnapshotRef", "correct the reference"]),
        (
            |c| c["spec"]["volumeSnapshotRef"]["name"] = "weekly".into(),
            &["shop/weekly", "not VolumeSnapshot shop/nightly"],
        ),
        (|c| c["spec"]["driver"] = "x.example".into(), &["\"x.example\"", "spec.driver", DRIVER]),
        (|c| c["status"]["snapshotHandle"] = json!(null), &["status.snapshotHandle", "snapshotter"]),
        (
            |c| c["spec"]["sourceVolumeMode"] = "Block".into(),
            &["spec.volumeMode is Filesystem", "is Block", "allow-volume-mode-change=true"],
        ),
    ];
    for (spoil, parts) in rows {
        let missing = restore(|_| {}, content_with(spoil), &facts()).unwrap_err();
        assert!(matches!(missing, Missing::Until(_, at) if at > now()), "{missing:?}");
        let said = said(missing);
        parts.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    }
    let gone = restore(|_| {}, Look { content: None, ..content_with(|_| {}) }, &facts()).unwrap_err();
    assert!(said(gone).contains("status.boundVolumeSnapshotContentName of VolumeSnapshot shop/nightly is \"content\""));
}

#[test]
fn the_mode_of_a_snapshot_changes_where_its_content_or_the_flag_allows_it() {
    let block = |c: &mut Value| c["spec"]["sourceVolumeMode"] = "Block".into();
    let allowed = |value: &'static str| {
        content_with(move |c| {
            block(c);
            c["metadata"]["annotations"] = json!({ "snapshot.storage.kubernetes.io/allow-volume-mode-change": value });
        })
    };
    assert!(restore(|_| {}, allowed("true"), &facts()).is_ok() && restore(|_| {}, allowed("1"), &facts()).is_ok());
    assert!(restore(|_| {}, allowed("yes"), &facts()).is_err());
    let mut lenient = facts();
    lenient.options.prevent_volume_mode_conversion = false;
    assert!(restore(|_| {}, content_with(block), &lenient).is_ok());
    assert!(restore(|_| {}, content_with(|c| c["spec"]["sourceVolumeMode"] = json!(null)), &facts()).is_ok());
}

#[test]
fn a_content_is_looked_at_once_and_again_when_the_binding_changed_or_the_look_failed_or_is_old() {
    let claim = claim_with(|claim| claim["spec"]["dataSource"] = restoring());
    let at = |look, now| find(&claim, &facts(), Some(&found_snapshot(snapshot_with(|_| {}), look)), None, now);
    assert_eq!(at(None, now()), Err(Missing::Look));
    assert_eq!(at(looked(State::Running), now()), Err(Missing::Looking));
    let other = Look { bound_to: Some("other".into()), is_ready: true, content: None };
    assert_eq!(at(looked(State::Done(other)), now()), Err(Missing::Look));
    let failed = || looked(State::Failed(Failure { code: "ApiUnavailable".into(), message: "forbidden".into() }));
    let Err(Missing::Until(Problem::ReadContent { reason, .. }, due)) = at(failed(), now()) else { panic!() };
    assert_eq!((reason.as_str(), due.duration_since(now()).as_secs()), ("forbidden", 4));
    assert_eq!(at(failed(), due), Err(Missing::Look));
    let foreign = || looked(State::Done(content_with(|c| c["spec"]["driver"] = "x.example".into())));
    let Err(Missing::Until(_, due)) = at(foreign(), now()) else { panic!() };
    assert_eq!(at(foreign(), due), Err(Missing::Look));
}

#[test]
fn an_absent_snapshot_is_believed_after_a_look_and_only_for_a_while() {
    let claim = claim_with(|claim| claim["spec"]["dataSource"] = restoring());
    let absent = |look, at| {
        let mut found = found_snapshot(snapshot_with(|_| {}), None);
        found.object = Object::Snapshot { snapshot: View::Absent, look, is_followed: false };
        find(&claim, &facts(), Some(&found), None, at)
    };
    let nothing = || looked(State::Done(Look { bound_to: None, is_ready: false, content: None }));
    assert_eq!(absent(None, now()), Err(Missing::Look));
    let Err(Missing::Until(problem, due)) = absent(nothing(), now()) else { panic!() };
    assert_eq!(problem, Problem::FindSnapshot { origin: Origin::of(&claim).unwrap() });
    assert_eq!(absent(nothing(), due), Err(Missing::Look), "whoever may not watch is not told that it came");
    let failed = || looked(State::Failed(Failure { code: "ApiUnavailable".into(), message: "forbidden".into() }));
    let Err(Missing::Until(Problem::ReadContent { reason, .. }, due)) = absent(failed(), now()) else { panic!() };
    assert_eq!((reason.as_str(), absent(failed(), due)), ("forbidden", Err(Missing::Look)));
}

/// Both were read again every 30 seconds, for as long as a claim named a snapshot that did not suit.
#[test]
fn what_a_followed_snapshot_says_is_not_asked_for_and_what_its_content_says_is() {
    let claim = claim_with(|claim| claim["spec"]["dataSource"] = restoring());
    let find = |found: Found| find(&claim, &facts(), Some(&followed(found)), None, now()).unwrap_err();
    let rows: [Spoil; 4] = [
        mark_deleting,
        |s| s["status"] = json!({}),
        |s| s["status"]["readyToUse"] = false.into(),
        |s| s["status"]["restoreSize"] = "2Gi".into(),
    ];
    for spoil in rows {
        for look in [None, looked(State::Running), looked(State::Done(content_with(|_| {})))] {
            let missing = find(found_snapshot(snapshot_with(spoil), look));
            assert!(matches!(missing, Missing::Problem(_)), "{missing:?}");
        }
    }
    let foreign = content_with(|c| c["spec"]["driver"] = "x.example".into());
    let missing = find(found_snapshot(snapshot_with(|_| {}), looked(State::Done(foreign))));
    assert!(matches!(missing, Missing::Until(Problem::MatchDriver { .. }, _)), "{missing:?}");
    let absent = |look| {
        let object = Object::Snapshot { snapshot: View::Absent, look, is_followed: true };
        find(Found { object, ..found_snapshot(snapshot_with(|_| {}), None) })
    };
    assert_eq!(absent(None), Missing::Look, "its event may come after that of the claim");
    let nothing = Look { bound_to: None, is_ready: false, content: None };
    let origin = Origin::of(&claim).unwrap();
    assert_eq!(absent(looked(State::Done(nothing))), Problem::FindSnapshot { origin }.into());
}

#[test]
fn a_snapshot_that_is_not_ready_is_looked_at_again_and_its_content_once_more_when_it_is() {
    let claim = claim_with(|claim| claim["spec"]["dataSource"] = restoring());
    let at = |is_ready: bool, look, now| {
        let snapshot = snapshot_with(|s| s["status"]["readyToUse"] = is_ready.into());
        find(&claim, &facts(), Some(&found_snapshot(snapshot, look)), None, now)
    };
    let early = || looked(State::Done(Look { is_ready: false, ..content_with(|_| {}) }));
    assert_eq!(at(false, None, now()), Err(Missing::Look));
    assert_eq!(at(false, looked(State::Running), now()), Err(Missing::Looking));
    let Err(Missing::Until(Problem::ReadySnapshot { .. }, due)) = at(false, early(), now()) else { panic!() };
    assert_eq!(due.duration_since(now()).as_secs(), 30);
    assert_eq!(at(false, early(), due), Err(Missing::Look));
    assert_eq!(at(true, early(), now()), Err(Missing::Look), "what the content said before may lack the handle");
    assert!(at(true, looked(State::Done(content_with(|_| {}))), now()).is_ok());
}

#[test]
fn each_check_of_a_cloned_claim_names_field_value_and_way_out() {
    let rows: [(Spoil, &[&str]); 6] = [
        (mark_deleting, &["PersistentVolumeClaim shop/old", "metadata.deletionTimestamp"]),
        (
            |c| c["status"]["phase"] = "Pending".into(),
            &["status.phase of PersistentVolumeClaim shop/old is Pending", "Bound"],
        ),
        (|c| c["spec"]["volumeName"] = "".into(), &["goes on once it is Bound"]),
        (|c| c["spec"]["storageClassName"] = Value::Null, &["spec.storageClassName"]),
        (
            |c| c["spec"]["resources"]["requests"]["storage"] = "2Gi".into(),
            &["requests.storage is 1Gi", "of PersistentVolumeClaim shop/old is 2Gi", "at least 2Gi"],
        ),
        (|c| c["spec"]["volumeMode"] = "Block".into(), &["spec.volumeMode is Filesystem", "ask for Block"]),
    ];
    for (spoil, parts) in rows {
        let volume = View::Known(source_volume_with(|_| {}));
        let said = said(clone(&source_claim_with(spoil), volume, &facts()).unwrap_err());
        parts.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    }
    let rows: [(Spoil, &[&str]); 5] = [
        (|v| v["spec"]["csi"]["driver"] = "x.example".into(), &["\"x.example\"", "spec.csi.driver", "\"pv-old\""]),
        (|v| v["spec"]["csi"] = json!(null), &["none of CSI"]),
        (|v| v["spec"]["claimRef"]["uid"] = "x".into(), &["spec.claimRef of PersistentVolume \"pv-old\""]),
        (|v| v["spec"]["claimRef"]["name"] = "x".into(), &["spec.claimRef"]),
        (|v| v["status"]["phase"] = "Released".into(), &["status.phase of PersistentVolume \"pv-old\"", "Released"]),
    ];
    for (spoil, parts) in rows {
        let volume = View::Known(source_volume_with(spoil));
        let said = said(clone(&source_claim_with(|_| {}), volume, &facts()).unwrap_err());
        parts.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    }
    let gone = clone(&source_claim_with(|_| {}), View::Absent, &facts()).unwrap_err();
    assert!(
        said(gone).contains("spec.volumeName of PersistentVolumeClaim shop/old is \"pv-old\", which does not exist")
    );
}

/// As the original: only a claim that says nothing at all of a class is refused.
#[test]
fn a_claim_that_was_bound_by_hand_without_a_class_can_be_cloned() {
    let spoils: [Spoil; 2] = [
        |c| c["spec"]["storageClassName"] = "".into(),
        |c| {
            c["spec"]["storageClassName"] = Value::Null;
            c["metadata"]["annotations"] = json!({ "volume.beta.kubernetes.io/storage-class": "" });
        },
    ];
    for spoil in spoils {
        assert!(clone(&source_claim_with(spoil), View::Known(source_volume_with(|_| {})), &facts()).is_ok());
    }
}

#[test]
fn a_larger_clone_and_one_of_another_class_are_made() {
    let smaller = source_claim_with(|c| {
        c["spec"]["resources"]["requests"]["storage"] = "512Mi".into();
        c["spec"]["storageClassName"] = "slow".into();
    });
    assert!(clone(&smaller, View::Known(source_volume_with(|_| {})), &facts()).is_ok());
}

#[test]
fn a_driver_without_the_capability_is_named() {
    let facts = Facts { snapshots: false, clones: false, ..facts() };
    let restored = said(restore(|_| {}, content_with(|_| {}), &facts).unwrap_err());
    assert!(restored.contains("CREATE_DELETE_SNAPSHOT") && restored.contains(DRIVER), "{restored}");
    let cloned = clone(&source_claim_with(|_| {}), View::Known(source_volume_with(|_| {})), &facts).unwrap_err();
    assert!(said(cloned).contains("CLONE_VOLUME"));
}

#[test]
fn a_source_that_goes_is_used_only_by_what_was_begun_while_it_was_held() {
    let held = |finalizers: Value| {
        snapshot_with(move |s| {
            mark_deleting(s);
            s["metadata"]["finalizers"] = finalizers;
        })
    };
    let ours = json!(["other.example/f", "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"]);
    let begun = restore(|_| {}, content_with(|_| {}), &facts()).unwrap();
    let namesake = begun.clone().map(|source| Source { uid: "snapshot-0".into(), ..source });
    let claim = claim_with(|claim| claim["spec"]["dataSource"] = restoring());
    let cases = [
        (ours.clone(), &begun, true),
        (ours.clone(), &None, false),
        (ours, &namesake, false),
        (json!([]), &begun, false),
    ];
    for (finalizers, begun, used) in cases {
        let found = found_snapshot(held(finalizers), looked(State::Done(content_with(|_| {}))));
        assert_eq!(find(&claim, &facts(), Some(&found), begun.as_ref(), now()).is_ok(), used);
    }
}

#[test]
fn a_source_in_another_namespace_needs_the_gate_and_a_grant() {
    let claim = claim_with(|claim| {
        claim["spec"]["dataSourceRef"] = restoring();
        claim["spec"]["dataSourceRef"]["namespace"] = "prod".into();
    });
    let origin = Origin::of(&claim).unwrap();
    assert_eq!(*origin.key, ObjectKey::namespaced("prod", "nightly"));
    let found = |permitted| {
        let snapshot = snapshot_with(|s| s["metadata"]["namespace"] = "prod".into());
        let content = content_with(|c| c["spec"]["volumeSnapshotRef"]["namespace"] = "prod".into());
        Found { origin: origin.clone(), permitted, ..found_snapshot(snapshot, looked(State::Done(content))) }
    };
    let closed = said(find(&claim, &facts(), Some(&found(true)), None, now()).unwrap_err());
    assert!(closed.contains("CrossNamespaceVolumeDataSource=true") && closed.contains("\"prod\""), "{closed}");
    let mut open = facts();
    open.options.cross_namespace = true;
    let refused = said(find(&claim, &open, Some(&found(false)), None, now()).unwrap_err());
    assert!(refused.contains("no ReferenceGrant in namespace \"prod\"") && refused.contains("\"shop\""), "{refused}");
    assert_eq!(find(&claim, &open, Some(&found(true)), None, now()).unwrap().unwrap().namespace, "prod");
}

#[test]
fn in_node_deployment_only_the_node_that_has_the_data_makes_the_volume() {
    let on = |name: &str| {
        let segments = [("node".to_owned(), name.to_owned())].into();
        Facts { node: Some(NodeFacts { name: name.into(), segments }), topology: true, ..facts() }
    };
    let local = || {
        let expression = json!({ "key": "node", "operator": "In", "values": ["a"] });
        let terms = json!([{ "matchExpressions": [expression] }]);
        View::Known(source_volume_with(|v| {
            v["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } })
        }))
    };
    assert!(clone(&source_claim_with(|_| {}), local(), &on("a")).is_ok());
    let elsewhere = clone(&source_claim_with(|_| {}), local(), &on("b")).unwrap_err();
    assert!(matches!(elsewhere, Missing::Elsewhere(_)), "{elsewhere:?}");
    let said = said(elsewhere);
    assert!(said.contains("nodes with node=a") && said.contains("selected-node") && said.contains("\"b\""), "{said}");
    let labelled =
        || content_with(|c| c["metadata"]["labels"] = json!({ "snapshot.storage.kubernetes.io/managed-by": "a" }));
    assert!(restore(|_| {}, labelled(), &on("a")).is_ok());
    assert!(matches!(restore(|_| {}, labelled(), &on("b")), Err(Missing::Elsewhere(_))));
    assert!(restore(|_| {}, content_with(|_| {}), &on("b")).is_ok(), "a content without the label is everywhere");
    assert!(restore(|_| {}, labelled(), &facts()).is_ok(), "one provisioner serves all nodes");
}

#[test]
fn of_a_snapshot_little_is_kept() {
    let snapshot = snapshot_with(|s| {
        s["metadata"]["labels"] = json!({ "a": "b" });
        s["metadata"]["annotations"] = json!({ "c": "d" });
        let bound = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
        s["metadata"]["finalizers"] =
            json!([bound, "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"]);
    });
    assert!(snapshot.meta.labels.is_empty() && snapshot.meta.annotations.iter().next().is_none());
    assert_eq!(snapshot.meta.finalizers, ["provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"]);
}

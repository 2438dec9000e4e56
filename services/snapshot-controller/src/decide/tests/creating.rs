//! 5.5: from a wish to a snapshot that is ready.

use super::*;

/// Each spoils the good fixture by one thing, and people are told this.
#[test]
fn what_cannot_be_made_is_told_in_the_status_and_in_an_event() {
    let no_class = |single: &mut Single| {
        single.snapshot = snapshot(json!({ "spec": { "volumeSnapshotClassName": null } }));
        single.class = None;
    };
    type Spoil = Box<dyn Fn(&mut Single)>;
    let rows: Vec<(&str, Spoil, &str, &str)> = vec![
        ("5.5.1 named class missing", Box::new(|s| s.class = None), "GetSnapshotClassFailed", "\"gold\""),
        ("5.5.1 no default", Box::new(no_class), "SetDefaultSnapshotClassFailed", "is-default-class"),
        (
            "5.5.1 two defaults",
            Box::new(move |s| {
                no_class(s);
                s.defaults = vec![class("gold", json!({})), class("silver", json!({}))];
            }),
            "SetDefaultSnapshotClassFailed",
            "gold, silver",
        ),
        (
            "5.5.1 the default of another driver",
            Box::new(move |s| {
                no_class(s);
                s.defaults = vec![class("gold", json!({ "driver": "other" }))];
            }),
            "SetDefaultSnapshotClassFailed",
            "\"d.example\"",
        ),
        (
            "5.5.5 no source",
            Box::new(|s| s.snapshot = snapshot(json!({ "spec": { "source": { "persistentVolumeClaimName": null } } }))),
            "SnapshotValidationError",
            "exactly one",
        ),
        (
            "5.5.5 both sources",
            Box::new(|s| s.snapshot = snapshot(json!({ "spec": { "source": { "volumeSnapshotContentName": "c" } } }))),
            "SnapshotValidationError",
            "exactly one",
        ),
        (
            "5.5.7 empty claim",
            Box::new(|s| s.snapshot = snapshot(json!({ "spec": { "source": { "persistentVolumeClaimName": "" } } }))),
            "SnapshotPVCSourceMissing",
            "is empty",
        ),
        ("5.5.7 claim missing", Box::new(|s| s.claim = View::Absent), "SnapshotContentCreationFailed", "\"data\""),
        (
            "5.5.7 claim on its way out",
            Box::new(|s| {
                let going = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:01Z", "finalizers": ["x"] } });
                s.claim = View::Known(claim(going));
            }),
            "SnapshotContentCreationFailed",
            "being deleted",
        ),
        (
            "5.5.7 claim not bound",
            Box::new(|s| s.claim = View::Known(claim(json!({ "status": { "phase": "Pending" } })))),
            "SnapshotContentCreationFailed",
            "Pending",
        ),
        (
            "5.5.7 volume missing",
            Box::new(|s| s.volume = Some(Look { volume: None, until: at(160) })),
            "SnapshotContentCreationFailed",
            "\"pv-1\"",
        ),
        (
            "5.5.7 volume of another claim",
            Box::new(|s| s.volume = volume(json!({ "spec": { "claimRef": { "uid": "older" } } }))),
            "SnapshotContentCreationFailed",
            "not bound to claim",
        ),
        (
            "5.5.7 volume not of CSI",
            Box::new(|s| s.volume = volume(json!({ "spec": { "csi": null, "nfs": { "server": "a" } } }))),
            "SnapshotContentCreationFailed",
            "CSI",
        ),
        (
            "12.5 class of another driver",
            Box::new(|s| s.class = Some(class("gold", json!({ "driver": "other" })))),
            "SnapshotContentCreationFailed",
            "\"other\"",
        ),
        (
            "5.4 half a secret",
            Box::new(|s| {
                let half = json!({ "parameters": { "csi.storage.k8s.io/snapshotter-secret-name": "s" } });
                s.class = Some(class("gold", half));
            }),
            "SnapshotContentCreationFailed",
            "snapshotter-secret-namespace",
        ),
    ];
    for (row, spoil, reason, word) in rows {
        let mut single = single();
        spoil(&mut single);
        let decision = decided(&single);
        let (told_reason, message) = told(&decision);
        assert_eq!(told_reason, reason, "{row}");
        assert!(message.contains(word), "{row}: {message}");
        let [Action::WriteStatus { status, .. }] = decision.actions.as_slice() else { panic!("{row}: {decision:?}") };
        assert_eq!(status["error"], json!({ "time": "1970-01-01T00:01:40Z", "message": message }), "{row}");
        assert_eq!(status["readyToUse"], json!(false), "{row}");
        // Said once: with the status written and the event told nothing is left to do.
        single.snapshot = {
            let mut changed = (*single.snapshot).clone();
            changed.status = Some(serde_json::from_value(status.clone()).unwrap());
            Arc::new(changed)
        };
        let Some(Action::Tell { note, .. }) = decided(&single).actions.into_iter().next() else { panic!("{row}") };
        single.told = Known::of((), note, at(200));
        assert_eq!(decided(&single).actions, [], "{row}");
    }
}

#[test]
fn step_5_5_7_the_volume_is_read_before_anything_is_written() {
    let decision = decided(&Single { volume: None, ..single() });
    let look = Action::LookAtVolume { name: "pv-1".into(), claim: object::Key::namespaced("shop", "data") };
    assert_eq!(decision.actions, [look]);
}

#[test]
fn step_5_5_7_nothing_is_begun_before_the_claim_is_kept() {
    let unprotected = claim(json!({ "metadata": { "finalizers": [] } }));
    let decision = decided(&Single { claim: View::Known(unprotected), ..single() });
    assert_eq!((decision.actions.len(), decision.why), (0, Why::NeedsProtection));
    assert_eq!(decision.wake_at, Some(at(160)), "what was read is read again before it is forgotten");
}

#[test]
fn step_5_5_7_finalizers_and_content_are_one_write_each_with_all_that_belongs_to_them() {
    let secret = json!({ "parameters": {
        "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.name}",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
    } });
    let decision = decided(&Single { class: Some(class("gold", secret)), place: Place::Node("n1".into()), ..single() });
    let [Action::PrepareSnapshot { operations, .. }, Action::CreateContent { body, is_fresh: true, .. }] =
        decision.actions.as_slice()
    else {
        panic!("{decision:?}")
    };
    assert_eq!(*operations, [json!({ "op": "add", "path": "/metadata/finalizers", "value": BOTH })]);
    let expected = json!({
        "metadata": {
            "name": CONTENT,
            "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND],
            "annotations": {
                annotations::SNAPSHOT_SECRET_NAME: "nightly",
                annotations::SNAPSHOT_SECRET_NAMESPACE: "shop",
            },
            "labels": { "snapshot.storage.kubernetes.io/managed-by": "n1" },
        },
        "spec": {
            "volumeSnapshotRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "namespace": "shop", "name": "nightly", "uid": UID, "resourceVersion": "5",
            },
            "source": { "volumeHandle": "vol-1" },
            "volumeSnapshotClassName": "gold",
            "deletionPolicy": "Delete",
            "driver": DRIVER,
            "sourceVolumeMode": "Block",
        },
    });
    assert_eq!(*body, expected);
}

#[test]
fn step_5_5_1_the_default_class_goes_into_the_same_write_as_the_finalizers() {
    let decision = decided(&Single {
        snapshot: snapshot(json!({ "spec": { "volumeSnapshotClassName": null } })),
        class: None,
        defaults: vec![
            class("silver", json!({ "deletionPolicy": "Retain" })),
            class("x", json!({ "driver": "other" })),
        ],
        policy: Policy { keep_volume_mode: false, distributed: false, groups: true },
        ..single()
    });
    let [Action::PrepareSnapshot { operations, .. }, Action::CreateContent { body, .. }] = decision.actions.as_slice()
    else {
        panic!("{decision:?}")
    };
    let finalizers = json!({ "op": "add", "path": "/metadata/finalizers", "value": [finalizers::SNAPSHOT_AS_SOURCE] });
    let class = json!({ "op": "add", "path": "/spec/volumeSnapshotClassName", "value": "silver" });
    assert_eq!(*operations, [finalizers, class], "with Retain nothing waits for the content");
    assert_eq!(body["spec"]["sourceVolumeMode"], Value::Null);
}

#[test]
fn crash_5_13_after_the_finalizers_the_content_is_made_upon_a_fresh_read() {
    let prepared = snapshot(json!({ "metadata": { "finalizers": BOTH } }));
    let decision = decided(&Single { snapshot: prepared, ..single() });
    assert!(matches!(decision.actions.as_slice(), [Action::CreateContent { is_fresh: false, .. }]), "{decision:?}");
}

#[test]
fn crash_5_13_a_content_that_was_made_is_found_by_its_name_and_bound() {
    let said =
        content(json!({ "status": { "snapshotHandle": "s-1", "readyToUse": true, "creationTime": 1_500_000_000_i64,
        "restoreSize": 1_073_741_824_i64 } }));
    let unbound = snapshot(json!({ "metadata": { "finalizers": BOTH } }));
    let decision = decided(&Single { snapshot: unbound, content: View::Known(said), ..single() });
    let [Action::WriteStatus { status, tell, finished, .. }] = decision.actions.as_slice() else {
        panic!("{decision:?}")
    };
    let expected = json!({
        "boundVolumeSnapshotContentName": CONTENT,
        "creationTime": "1970-01-01T00:00:01Z",
        "readyToUse": true,
        "restoreSize": "1Gi",
    });
    assert_eq!(*status, expected);
    let reasons: Vec<&str> = tell.iter().map(|note| note.reason).collect();
    assert_eq!(reasons, ["SnapshotCreated", "SnapshotReady"]);
    assert_eq!(*finished, [Finished::Created, Finished::Ready]);
}

#[test]
fn a_snapshot_is_not_written_to_before_its_content_says_something_or_is_late() {
    let unbound = snapshot(json!({ "metadata": { "finalizers": BOTH } }));
    let quiet = Single { snapshot: unbound, ..bound() };
    let early = decided(&quiet);
    assert_eq!((early.actions.len(), early.wake_at, early.why), (0, Some(at(102)), Why::Quiet));
    let late = decide(&Snapshot::Single(Box::new(quiet)), at(102));
    let [Action::WriteStatus { status, .. }] = late.actions.as_slice() else { panic!("{late:?}") };
    assert_eq!(*status, json!({ "boundVolumeSnapshotContentName": CONTENT, "readyToUse": false }));
    // After a minute people are told whom to look for.
    assert_eq!(decide(&Snapshot::Single(Box::new(bound())), at(102)).wake_at, Some(at(160)));
    let (reason, message) = told(&decide(&Snapshot::Single(Box::new(bound())), at(160)));
    assert!(reason == "CreatingSnapshot" && message.contains(DRIVER), "{message}");
}

#[test]
fn what_a_content_says_is_copied_with_its_errors_and_these_go_when_it_does_not_say_them_any_more() {
    let error = json!({ "time": "1970-01-01T00:01:00Z", "message": "the pool is full" });
    let failing = content(json!({ "status": { "readyToUse": false, "error": error } }));
    let decision = decided(&Single { content: View::Known(failing), ..bound() });
    let [Action::WriteStatus { status, tell, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!((status, tell.len()), (&json!({ "error": error }), 0));

    let status = json!({ "boundVolumeSnapshotContentName": CONTENT, "readyToUse": false, "error": error });
    let told = snapshot(json!({ "metadata": { "finalizers": BOTH }, "status": status }));
    let ready = content(json!({ "status": { "snapshotHandle": "s", "readyToUse": true, "restoreSize": 0 } }));
    let decision = decided(&Single { snapshot: told, content: View::Known(ready), ..bound() });
    let [Action::WriteStatus { status, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(*status, json!({ "error": null, "readyToUse": true, "restoreSize": "0" }));
}

#[test]
fn a_size_that_was_told_stays_and_one_that_was_zero_is_learnt_late() {
    for (before, after, expected) in [("0", 2048, json!("2Ki")), ("1Gi", 2048, Value::Null)] {
        let status = json!({ "boundVolumeSnapshotContentName": CONTENT, "readyToUse": false, "restoreSize": before });
        let told = snapshot(json!({ "metadata": { "finalizers": BOTH }, "status": status }));
        let said = content(json!({ "status": { "snapshotHandle": "s", "readyToUse": true, "restoreSize": after } }));
        let decision = decided(&Single { snapshot: told, content: View::Known(said), ..bound() });
        let [Action::WriteStatus { status, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
        assert_eq!(status["restoreSize"], expected, "{before}");
    }
}

#[test]
fn a_content_that_does_not_fit_is_told_with_the_way_out() {
    let by_hand =
        json!({ "spec": { "source": { "persistentVolumeClaimName": null, "volumeSnapshotContentName": CONTENT } } });
    let ready = json!({ "status": { "boundVolumeSnapshotContentName": CONTENT, "readyToUse": true } });
    let (claims, none) = (json!({}), json!({}));
    let handle = json!({ "spec": { "source": { "volumeHandle": null, "snapshotHandle": "s" } } });
    let both = json!({ "spec": { "source": { "snapshotHandle": "s" } } });
    let other = json!({ "spec": { "volumeSnapshotRef": { "uid": "older" } } });
    let mut elsewhere = handle.clone();
    merge(&mut elsewhere, json!({ "spec": { "volumeSnapshotRef": { "namespace": "bank" } } }));
    for (row, wish, offer, reason, word) in [
        ("5.5.7 made for a claim", &by_hand, &none, "SnapshotContentMismatch", "snapshotHandle"),
        ("5.5.7 other snapshot", &by_hand, &elsewhere, "SnapshotContentMisbound", "another namespace"),
        ("5.5.7 not made for a claim", &claims, &handle, "SnapshotContentMismatch", "volumeHandle"),
        ("5.5.7 both handles", &claims, &both, "SnapshotHandleSet", "both"),
        ("5.5.7 earlier snapshot", &claims, &other, "SnapshotContentMisbound", "earlier"),
        ("5.5.8 misbound", &ready, &other, "SnapshotMisbound", "earlier"),
    ] {
        let decision = decided(&Single {
            snapshot: snapshot(wish.clone()),
            content: View::Known(content(offer.clone())),
            ..single()
        });
        let (told_reason, message) = told(&decision);
        assert_eq!(told_reason, reason, "{row}");
        assert!(message.contains(word), "{row}: {message}");
    }
}

#[test]
fn step_5_5_7_a_content_made_by_hand_is_bound_with_uid_class_and_finalizer_in_one_write() {
    let by_hand =
        json!({ "spec": { "source": { "persistentVolumeClaimName": null, "volumeSnapshotContentName": "mine" } } });
    let offer = json!({
        "metadata": { "name": "mine", "finalizers": null },
        "spec": {
            "source": { "volumeHandle": null, "snapshotHandle": "s" },
            "volumeSnapshotRef": { "uid": null },
            "volumeSnapshotClassName": null,
        },
    });
    let wish = Single {
        snapshot: snapshot(by_hand),
        content_name: "mine".into(),
        content: View::Known(content(offer)),
        claim: View::Absent,
        ..single()
    };
    let decision = decided(&wish);
    let [Action::PrepareSnapshot { .. }, Action::BindContent { body, .. }] = decision.actions.as_slice() else {
        panic!("{decision:?}")
    };
    let expected = json!({
        "metadata": { "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND] },
        "spec": { "volumeSnapshotRef": { "uid": UID }, "volumeSnapshotClassName": "gold" },
    });
    assert_eq!(*body, expected);
    let missing = decided(&Single { content: View::Absent, ..wish });
    assert_eq!(told(&missing).0, "SnapshotContentMissing");
}

#[test]
fn a_members_content_that_the_original_left_without_a_uid_is_bound() {
    let left = json!({
        "metadata": { "finalizers": null, "annotations": { annotations::SNAPSHOT_GROUP_HANDLE: "g-1" } },
        "spec": { "volumeSnapshotRef": { "uid": null } },
    });
    let decision = decided(&Single { content: View::Known(content(left)), ..bound() });
    let [Action::BindContent { body, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(body["spec"]["volumeSnapshotRef"]["uid"], UID);
    assert_eq!(body["metadata"]["finalizers"], json!([finalizers::SNAPSHOT_CONTENT_BOUND]));
}

#[test]
fn step_5_5_8_data_that_was_there_and_is_gone_is_not_made_again_from_the_claim_of_today() {
    for ready in [true, false] {
        let status = json!({
            "boundVolumeSnapshotContentName": CONTENT, "readyToUse": ready, "creationTime": "1970-01-01T00:00:01Z",
        });
        let decision = decided(&Single { snapshot: snapshot(json!({ "status": status })), ..single() });
        assert_eq!(told(&decision).0, "SnapshotContentMissing");
    }
}

#[test]
fn limit_12_5_a_snapshot_that_is_ready_needs_its_class_no_more() {
    let status = json!({ "boundVolumeSnapshotContentName": CONTENT, "readyToUse": true });
    let ready = snapshot(json!({ "metadata": { "finalizers": BOTH }, "status": status }));
    let decision = decided(&Single { snapshot: ready, class: None, ..bound() });
    assert_eq!((decision.actions.len(), decision.why), (0, Why::Ready));
}

#[test]
fn an_object_whose_write_got_no_answer_is_not_decided_on() {
    for single in [
        Single { content: View::Unknown, ..bound() },
        Single { content: View::Unknown, ..deleted() },
        Single { claim: View::Unknown, ..single() },
    ] {
        let decision = decided(&single);
        assert_eq!((decision.actions.len(), decision.why), (0, Why::Unknown));
    }
}

#[test]
fn step_5_5_8_a_member_made_by_hand_learns_its_group_and_then_its_owner() {
    let status = json!({ "boundVolumeSnapshotContentName": CONTENT, "readyToUse": true });
    let ready = snapshot(json!({ "metadata": { "finalizers": BOTH }, "status": status }));
    let said =
        content(json!({ "status": { "snapshotHandle": "s", "readyToUse": true, "volumeGroupSnapshotHandle": "g" } }));
    let by_handle = Membership { by_handle: Some("all".into()), ..Membership::default() };
    let mut single = Single { snapshot: ready, content: View::Known(said), group: by_handle, ..bound() };
    let decision = decided(&single);
    let [Action::WriteStatus { status, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(*status, json!({ "volumeGroupSnapshotName": "all" }));
    Arc::make_mut(&mut single.snapshot).status.as_mut().unwrap().volume_group_snapshot_name = Some("all".into());
    single.group.of = Some(object::Key::namespaced("shop", "all"));
    single.group.uid = Some("group-uid".into());
    let decision = decided(&single);
    let [Action::AdoptMember { owner, .. }] = decision.actions.as_slice() else { panic!("{decision:?}") };
    assert_eq!(owner["uid"], json!("group-uid"));
}

#[test]
fn a_volume_whose_node_is_gone_gets_no_content_that_nobody_would_look_at() {
    let decision = decided(&Single { place: Place::Nowhere, ..single() });
    let (reason, message) = told(&decision);
    assert!(reason == "SnapshotContentCreationFailed" && message.contains("spec.nodeAffinity"), "{reason}: {message}");
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::CreateContent { .. })), "{decision:?}");
    assert_eq!(decision.wake_at, Some(at(160)), "it is looked at again");
}

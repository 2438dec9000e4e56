//! 5.9: group snapshots.

use stowage_model::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, names};

use super::*;
use crate::snapshot::{Candidate, Group, GroupContentFacts, Member};

const GROUP_CONTENT: &str = "groupsnapcontent-group-uid";

fn group_object(change: Value) -> Arc<VolumeGroupSnapshot> {
    let mut body = json!({
        "metadata": { "namespace": "shop", "name": "all", "uid": "group-uid", "resourceVersion": "5" },
        "spec": { "source": { "selector": { "matchLabels": { "app": "db" } } }, "volumeGroupSnapshotClassName": "gold" },
    });
    merge(&mut body, change);
    read(body)
}

fn group_content(change: Value) -> Arc<VolumeGroupSnapshotContent> {
    let mut body = json!({
        "metadata": {
            "name": GROUP_CONTENT, "uid": "gc-uid", "resourceVersion": "7",
            "creationTimestamp": "1970-01-01T00:01:40Z",
            "finalizers": [finalizers::GROUP_SNAPSHOT_CONTENT_BOUND],
        },
        "spec": {
            "volumeGroupSnapshotRef": { "namespace": "shop", "name": "all", "uid": "group-uid" },
            "deletionPolicy": "Delete",
            "driver": DRIVER,
            "volumeGroupSnapshotClassName": "gold",
            "source": { "volumeHandles": ["vol-1"] },
        },
    });
    merge(&mut body, change);
    read(body)
}

fn group_class(name: &str, driver: &str) -> Arc<VolumeGroupSnapshotClass> {
    read(json!({ "metadata": { "name": name, "uid": name }, "driver": driver, "deletionPolicy": "Delete" }))
}

/// A group of one claim for which everything is there, and nothing is made yet.
fn group() -> Group {
    Group {
        group: group_object(json!({})),
        is_listed: true,
        content_name: GROUP_CONTENT.into(),
        content: View::Absent,
        class: Some(group_class("gold", DRIVER)),
        defaults: Vec::new(),
        claims: Ok(vec![Candidate { claim: claim(json!({})), volume: volume(json!({})) }]),
        place: Place::Anywhere,
        members: Vec::new(),
        snapshots: Vec::new(),
        restoring: Vec::new(),
        told: Known::default(),
        policy: Policy { keep_volume_mode: true, distributed: false, groups: true },
    }
}

const FINAL: [&str; 1] = [finalizers::GROUP_SNAPSHOT_BOUND];

/// One whose snapshots the driver has made, and nobody else knows of them.
fn made() -> Group {
    let info = json!({ "volumeHandle": "vol-1", "snapshotHandle": "s-1", "creationTime": 5, "readyToUse": true, "restoreSize": 9 });
    let status = json!({
        "volumeGroupSnapshotHandle": "g-1", "readyToUse": true, "creationTime": "1970-01-01T00:01:00Z",
        "volumeSnapshotInfoList": [info],
    });
    let (snapshot_name, content_name) = names::group_member("group-uid", "vol-1");
    Group {
        group: group_object(json!({ "metadata": { "finalizers": FINAL } })),
        content: View::Known(group_content(json!({ "status": status }))),
        members: vec![Member {
            info: serde_json::from_value(info).unwrap(),
            snapshot_name,
            snapshot: View::Absent,
            content_name,
            content: View::Absent,
        }],
        ..group()
    }
}

fn decided(group: &Group) -> Decision {
    decide(&Snapshot::Group(Box::new(group.clone())), at(100))
}

fn acts(decision: &Decision) -> Vec<&GroupAction> {
    let acts = decision.actions.iter().map(|action| match action {
        Action::Group(act) => act,
        other => panic!("{other:?}"),
    });
    acts.collect()
}

/// What members lack, all in one act: the group is read once for it.
fn missing(decision: &Decision) -> &[Missing] {
    match acts(decision)[..] {
        [GroupAction::MakeMembers { group, missing }] if group.uid == "group-uid" => missing,
        _ => panic!("{decision:?}"),
    }
}

fn group_told(decision: &Decision) -> (&'static str, String) {
    let note = decision.actions.iter().find_map(|action| match action {
        Action::Group(GroupAction::WriteStatus { tell, .. }) => tell.first(),
        Action::Tell { note, .. } => Some(note),
        _ => None,
    });
    note.map(|note| (note.reason, note.message.clone())).unwrap_or_default()
}

#[test]
fn what_cannot_be_made_is_told_at_the_group() {
    type Spoil = fn(&mut Group);
    let rows: Vec<(&str, Spoil, &str, &str)> = vec![
        ("5.9.1 class missing", |g| g.class = None, "GetGroupSnapshotClassFailed", "\"gold\""),
        (
            "5.9.1 two defaults",
            |g| {
                g.group = group_object(json!({ "spec": { "volumeGroupSnapshotClassName": null } }));
                g.class = None;
                g.defaults = vec![group_class("a", DRIVER), group_class("b", DRIVER), group_class("c", "other")];
            },
            "SetDefaultGroupSnapshotClassFailed",
            "[a, b]",
        ),
        (
            "5.9.2 no source",
            |g| g.group = group_object(json!({ "spec": { "source": { "selector": null } } })),
            "GroupSnapshotValidationError",
            "exactly one",
        ),
        ("5.9.3 no claim", |g| g.claims = Ok(Vec::new()), "GroupSnapshotContentCreationFailed", "chooses no claim"),
        ("two nodes", |g| g.place = Place::Nowhere, "GroupSnapshotContentCreationFailed", "one node"),
        ("5.9.3 selector", |g| g.claims = Err("bad".into()), "GroupSnapshotContentCreationFailed", "selector: bad"),
        (
            "5.9.3 claim not bound",
            |g| {
                let pending = claim(json!({ "status": { "phase": "Pending" } }));
                g.claims = Ok(vec![Candidate { claim: pending, volume: None }]);
            },
            "GroupSnapshotContentCreationFailed",
            "Pending",
        ),
        (
            "5.9.3 volume not of CSI",
            |g| {
                let nfs = volume(json!({ "spec": { "csi": null, "nfs": {} } }));
                g.claims = Ok(vec![Candidate { claim: claim(json!({})), volume: nfs }]);
            },
            "GroupSnapshotContentCreationFailed",
            "CSI",
        ),
        (
            "5.9.3 class of another driver",
            |g| g.class = Some(group_class("gold", "other")),
            "CreateGroupSnapshotContentFailed",
            "\"other\"",
        ),
        (
            "5.9.5 content missing",
            |g| {
                let by_hand = json!({ "selector": null, "volumeGroupSnapshotContentName": "mine" });
                g.group = group_object(json!({ "spec": { "source": by_hand } }));
            },
            "GroupSnapshotContentMissing",
            "does not exist",
        ),
        (
            "5.9.5 content of another",
            |g| {
                let other = json!({ "spec": { "volumeGroupSnapshotRef": { "uid": "older" } } });
                g.content = View::Known(group_content(other));
            },
            "GroupSnapshotContentMisbound",
            "another",
        ),
        (
            "5.9.5 made before",
            |g| {
                let handles = json!({ "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"] });
                let source = json!({ "volumeHandles": null, "groupSnapshotHandles": handles });
                g.content = View::Known(group_content(json!({ "spec": { "source": source } })));
            },
            "GroupSnapshotContentMismatch",
            "existed before",
        ),
    ];
    for (row, spoil, reason, word) in rows {
        let mut group = group();
        spoil(&mut group);
        let (told_reason, message) = group_told(&decided(&group));
        assert_eq!(told_reason, reason, "{row}");
        assert!(message.contains(word), "{row}: {message}");
    }
}

#[test]
fn step_5_9_3_the_volumes_are_read_then_finalizer_and_content_written() {
    let unread = Group { claims: Ok(vec![Candidate { claim: claim(json!({})), volume: None }]), ..group() };
    assert!(matches!(decided(&unread).actions.as_slice(), [Action::LookAtVolume { .. }]));
    let decision = decided(&group());
    let [GroupAction::Prepare { .. }, GroupAction::CreateContent { body, is_fresh: true, .. }] = acts(&decision)[..]
    else {
        panic!("{decision:?}")
    };
    assert_eq!(body["spec"]["source"], json!({ "volumeHandles": ["vol-1"] }));
    assert_eq!(body["metadata"]["finalizers"], json!([finalizers::GROUP_SNAPSHOT_CONTENT_BOUND]));
    assert_eq!(body["spec"]["volumeGroupSnapshotRef"]["uid"], json!("group-uid"));
}

#[test]
fn where_nodes_make_their_own_snapshots_a_group_and_its_members_tell_their_node() {
    let label = json!({ "snapshot.storage.kubernetes.io/managed-by": "n1" });
    let decision = decided(&Group { place: Place::Node("n1".into()), ..group() });
    let [_, GroupAction::CreateContent { body, .. }] = acts(&decision)[..] else { panic!("{decision:?}") };
    assert_eq!(body["metadata"]["labels"], label);

    let mut group = made();
    let View::Known(content) = &mut group.content else { panic!("{group:?}") };
    Arc::make_mut(content).meta.labels = serde_json::from_value(label.clone()).unwrap();
    group.members[0].snapshot =
        View::Known(snapshot(json!({ "metadata": { "name": group.members[0].snapshot_name } })));
    let decision = decided(&group);
    let [Missing::Content(body)] = missing(&decision) else { panic!("{decision:?}") };
    assert_eq!(body["metadata"]["labels"], label);
}

#[test]
fn step_5_9_4_a_member_comes_about_in_three_writes_and_only_once() {
    let mut group = made();
    let decision = decided(&group);
    let [Missing::Snapshot(body)] = missing(&decision) else { panic!("{decision:?}") };
    assert_eq!(body["spec"]["source"]["persistentVolumeClaimName"], json!("data"));
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], json!("group-uid"));
    assert!(body["metadata"]["finalizers"].as_array().unwrap().contains(&json!(finalizers::SNAPSHOT_IN_GROUP)));
    let mut stored = body.clone();
    stored["metadata"]["uid"] = json!("member-uid");
    group.members[0].snapshot = View::Known(read(stored));

    let decision = decided(&group);
    let [Missing::Content(body)] = missing(&decision) else { panic!("{decision:?}") };
    assert_eq!(body["spec"]["volumeSnapshotRef"]["uid"], json!("member-uid"));
    assert_eq!(body["metadata"]["annotations"][annotations::SNAPSHOT_GROUP_HANDLE], json!("g-1"));
    let mut stored = body.clone();
    group.members[0].content = View::Known(read(stored.clone()));

    let decision = decided(&group);
    let [GroupAction::WriteMemberStatus { status, .. }] = acts(&decision)[..] else { panic!("{decision:?}") };
    let expected = json!({
        "snapshotHandle": "s-1", "volumeGroupSnapshotHandle": "g-1", "creationTime": 5, "restoreSize": 9, "readyToUse": true,
    });
    assert_eq!(*status, expected);
    stored["status"] = status.clone();
    group.members[0].content = View::Known(read(stored.clone()));

    let decision = decided(&group);
    let [GroupAction::WriteStatus { status, tell, .. }] = acts(&decision)[..] else { panic!("{decision:?}") };
    let expected = json!({
        "boundVolumeGroupSnapshotContentName": GROUP_CONTENT, "creationTime": "1970-01-01T00:01:00Z", "readyToUse": true,
    });
    assert_eq!((status, tell.len()), (&expected, 2));

    // A member in trouble is told at the group, which is not ready then.
    stored["status"]["error"] = json!({ "message": "lost", "time": "1970-01-01T00:01:30Z" });
    group.members[0].content = View::Known(read(stored));
    let decision = decided(&group);
    let [GroupAction::WriteStatus { status, .. }] = acts(&decision)[..] else { panic!("{decision:?}") };
    assert!(status["error"]["message"].as_str().unwrap().ends_with("lost"), "{status}");
    assert_eq!(status["readyToUse"], json!(false));
}

#[test]
fn step_5_9_7_a_group_deleted_before_it_was_bound_takes_content_and_members_along() {
    let going = json!({ "metadata": { "finalizers": FINAL, "deletionTimestamp": "1970-01-01T00:01:40Z" } });
    let group = Group {
        group: group_object(going),
        content: View::Known(group_content(json!({}))),
        snapshots: vec![snapshot(json!({}))],
        ..group()
    };
    let decision = decided(&group);
    assert!(
        matches!(
            acts(&decision)[..],
            [GroupAction::Mark { .. }, GroupAction::DeleteContent { .. }, GroupAction::DeleteMember { .. }]
        ),
        "{decision:?}"
    );
    let used = Group { restoring: vec![object::Key::namespaced("shop", "copy")], ..group.clone() };
    let (reason, message) = group_told(&decided(&used));
    assert!(reason == "SnapshotDeletePending" && message.contains("\"copy\""), "{message}");
    let gone = Group { content: View::Absent, snapshots: Vec::new(), ..group };
    let decision = decided(&gone);
    let [GroupAction::ConfirmContentGone { content }, GroupAction::Release { .. }] = acts(&decision)[..] else {
        panic!("{decision:?}")
    };
    assert_eq!(content.name, GROUP_CONTENT);
}

#[test]
fn before_contents_and_classes_of_groups_are_listed_no_group_is_released_or_called_broken() {
    let going = json!({ "metadata": { "finalizers": FINAL, "deletionTimestamp": "1970-01-01T00:01:40Z" } });
    let ready = json!({ "metadata": { "finalizers": FINAL }, "status": { "readyToUse": true } });
    for change in [going, ready, json!({})] {
        let group = Group { group: group_object(change), is_listed: false, class: None, ..group() };
        assert_eq!(decided(&group), Decision::rest(Why::Unlisted));
    }
}

#[test]
fn step_5_9_5_a_content_made_by_hand_is_bound() {
    let handles = json!({ "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"] });
    let offer = json!({
        "metadata": { "finalizers": null },
        "spec": {
            "source": { "volumeHandles": null, "groupSnapshotHandles": handles },
            "volumeGroupSnapshotRef": { "uid": null },
            "volumeGroupSnapshotClassName": null,
        },
    });
    let by_hand = json!({ "selector": null, "volumeGroupSnapshotContentName": GROUP_CONTENT });
    let group = Group {
        group: group_object(json!({ "spec": { "source": by_hand } })),
        content: View::Known(group_content(offer.clone())),
        ..group()
    };
    let decision = decided(&group);
    let [GroupAction::Prepare { .. }, GroupAction::Bind { body, .. }] = acts(&decision)[..] else {
        panic!("{decision:?}")
    };
    assert_eq!(
        body["spec"],
        json!({ "volumeGroupSnapshotRef": { "uid": "group-uid" }, "volumeGroupSnapshotClassName": "gold" })
    );

    let of_content = |change: Value| {
        let (group, told) = (View::Absent, Known::default());
        let facts = GroupContentFacts { content: group_content(change), group, is_listed: true, told };
        decide(&Snapshot::GroupContent(facts), at(100))
    };
    assert_eq!(of_content(offer).actions, [], "nobody has checked it yet");
    let bare = of_content(json!({ "metadata": { "finalizers": null } }));
    assert!(matches!(acts(&bare)[..], [GroupAction::Guard { .. }]));
    let empty = of_content(json!({ "spec": { "source": { "volumeHandles": null } } }));
    assert_eq!(group_told(&empty).0, "GroupContentValidationError");
}

#[test]
fn a_group_stays_while_a_provisioner_holds_one_of_its_members() {
    let going = json!({ "metadata": { "finalizers": FINAL, "deletionTimestamp": "1970-01-01T00:01:40Z" } });
    let held = json!({ "metadata": { "finalizers": [finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER] } });
    let group = Group {
        group: group_object(going),
        content: View::Known(group_content(json!({}))),
        snapshots: vec![snapshot(json!({})), snapshot(held)],
        ..group()
    };
    let decision = decided(&group);
    let (reason, message) = group_told(&decision);
    assert!(reason == "SnapshotDeletePending" && message.contains("\"nightly\""), "{reason}: {message}");
    assert!(message.contains(finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER), "{message}");
    assert_eq!((decision.actions.len(), decision.why), (1, Why::InUse));
}

#[test]
fn all_that_members_lack_is_made_after_one_look_at_their_group() {
    let mut group = made();
    let mut second = group.members[0].clone();
    second.snapshot = View::Known(snapshot(json!({})));
    group.members.push(second);
    assert!(matches!(missing(&decided(&group)), [Missing::Snapshot(_), Missing::Content(_)]));
}

#[test]
fn a_group_of_which_no_snapshotter_speaks_says_so_after_a_minute() {
    let status = json!({ "boundVolumeGroupSnapshotContentName": GROUP_CONTENT, "readyToUse": false });
    let silent = Group {
        group: group_object(json!({ "metadata": { "finalizers": FINAL }, "status": status })),
        content: View::Known(group_content(json!({}))),
        ..group()
    };
    let early = decided(&silent);
    assert_eq!((early.actions.len(), early.wake_at), (0, Some(at(160))));
    let late = decide(&Snapshot::Group(Box::new(silent)), at(160));
    let (reason, message) = group_told(&late);
    assert!(reason == "CreatingGroupSnapshot" && message.contains(DRIVER), "{reason}: {message}");
}

#[test]
fn who_deletes_the_content_of_a_group_is_told_what_it_waits_for() {
    let of_content = |marked: bool, group: View<VolumeGroupSnapshot>, is_listed| {
        let mut going = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:01:40Z" } });
        if marked {
            going["metadata"]["annotations"] = json!({ annotations::GROUP_SNAPSHOT_BEING_DELETED: "yes" });
        }
        let facts = GroupContentFacts { content: group_content(going), group, is_listed, told: Known::default() };
        decide(&Snapshot::GroupContent(facts), at(100))
    };
    let living = || View::Known(group_object(json!({})));
    for (group, word) in [(living(), "shop/all"), (View::Absent, annotations::GROUP_SNAPSHOT_BEING_DELETED)] {
        let (reason, message) = group_told(&of_content(false, group, true));
        assert!(reason == "SnapshotDeletePending" && message.contains(word), "{reason}: {message}");
    }
    let going = View::Known(group_object(json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:01:40Z" } })));
    assert_eq!(of_content(false, going, true).actions, []);
    assert_eq!(of_content(true, View::Absent, true).actions, [], "the snapshotter is at it");
    assert_eq!(of_content(false, View::Absent, false), Decision::rest(Why::Unlisted));
}

#[test]
fn a_group_is_not_ready_before_its_members_are_and_an_early_error_of_one_is_overruled() {
    let mut group = made();
    let member = &mut group.members[0];
    member.snapshot = View::Known(snapshot(json!({ "metadata": { "name": member.snapshot_name } })));
    let early = json!({ "message": "lists no snapshot", "time": "1970-01-01T00:01:00Z" });
    let unready = json!({
        "metadata": { "name": member.content_name, "annotations": { annotations::SNAPSHOT_GROUP_HANDLE: "g-1" } },
        "spec": { "volumeSnapshotRef": { "name": member.snapshot_name } },
        "status": {
            "snapshotHandle": "s-1", "volumeGroupSnapshotHandle": "g-1", "readyToUse": false, "error": early,
        },
    });
    member.content = View::Known(content(unready));
    let decision = decided(&group);
    let [GroupAction::WriteMemberStatus { status, .. }] = acts(&decision)[..] else { panic!("{decision:?}") };
    assert_eq!(*status, json!({ "readyToUse": true, "error": null }));

    // Where the driver says of the member what its content says, the group waits for it.
    group.members[0].info.ready_to_use = Some(false);
    let decision = decided(&group);
    let [GroupAction::WriteStatus { status, .. }] = acts(&decision)[..] else { panic!("{decision:?}") };
    assert_eq!(status["readyToUse"], false);
}

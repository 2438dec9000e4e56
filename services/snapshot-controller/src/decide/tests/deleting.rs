//! 5.7: a VolumeSnapshot on its way out, and 5.6: its content.

use super::*;

fn pending(decision: &Decision, word: &str) {
    let (reason, message) = told(decision);
    assert!(reason == "SnapshotDeletePending" && message.contains(word), "{reason}: {message}");
    assert!(!decision.actions.iter().any(|action| !matches!(action, Action::Tell { .. })), "{decision:?}");
}

#[test]
fn step_5_7_2_without_a_finalizer_of_ours_nothing_is_done() {
    let gone =
        snapshot(json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:01:40Z", "finalizers": ["other"] } }));
    assert_eq!(decided(&Single { snapshot: gone, ..deleted() }), Decision::rest(Why::Released));
}

#[test]
fn step_5_7_3_while_volumes_are_made_from_it_it_stays_and_names_their_claims() {
    let restoring = vec![object::Key::namespaced("shop", "copy")];
    pending(&decided(&Single { restoring, ..deleted() }), "\"copy\"");
}

#[test]
fn while_a_provisioner_holds_it_it_stays_and_names_the_finalizer() {
    let held = [BOTH[0], BOTH[1], finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER];
    let mut single = deleted();
    Arc::make_mut(&mut single.snapshot).meta.finalizers = held.map(Text::from).to_vec();
    pending(&decided(&single), finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER);
}

#[test]
fn step_5_7_4_a_member_stays_while_its_group_is_there_and_goes_once_that_is_certainly_gone() {
    let all = object::Key::namespaced("shop", "all");
    let member = Membership { of: Some(all.clone()), uid: Some("g".into()), ..Membership::default() };
    pending(&decided(&Single { group: member, ..deleted() }), "\"all\"");
    let going = Membership { of: Some(all.clone()), uid: Some("g".into()), is_going: true, ..Membership::default() };
    assert_eq!(
        decided(&Single { group: going, ..deleted() }).actions,
        [],
        "who deletes the group knows of its members"
    );
    let orphan = Membership { of: Some(all.clone()), owner: Some("g".into()), ..Membership::default() };
    let decision = decided(&Single { group: orphan, ..deleted() });
    let confirm = Action::ConfirmGroupGone { group: all, uid: Some("g".into()) };
    assert_eq!(decision.actions.first(), Some(&confirm));
}

#[test]
fn steps_5_7_5_and_6_the_content_is_marked_then_deleted_and_the_snapshot_kept_until_it_is_gone() {
    let decision = decided(&deleted());
    let [Action::MarkContent { body, .. }, Action::DeleteContent { target, .. }] = decision.actions.as_slice() else {
        panic!("{decision:?}")
    };
    let mark = json!({ "annotations": { annotations::SNAPSHOT_BEING_DELETED: "yes" } });
    assert_eq!((&body["metadata"], target.uid.as_str()), (&mark, "content-uid"));

    let mark = json!({ "metadata": {
        "annotations": { annotations::SNAPSHOT_BEING_DELETED: "yes" },
        "deletionTimestamp": "1970-01-01T00:01:40Z",
    } });
    let going = Single { content: View::Known(content(mark)), ..deleted() };
    let decision = decided(&going);
    assert_eq!((decision.actions.len(), decision.wake_at), (0, Some(at(160))));
    let late = decide(&Snapshot::Single(Box::new(going)), at(160));
    pending(&late, finalizers::SNAPSHOT_CONTENT_BOUND);

    let decision = decided(&Single { content: View::Absent, ..deleted() });
    let [Action::ConfirmContentGone { .. }, Action::ReleaseSnapshot { operations, .. }] = decision.actions.as_slice()
    else {
        panic!("{decision:?}")
    };
    let expected = [
        json!({ "op": "test", "path": "/metadata/finalizers/1", "value": BOTH[1] }),
        json!({ "op": "remove", "path": "/metadata/finalizers/1" }),
        json!({ "op": "test", "path": "/metadata/finalizers/0", "value": BOTH[0] }),
        json!({ "op": "remove", "path": "/metadata/finalizers/0" }),
    ];
    assert_eq!(*operations, expected);
}

#[test]
fn step_5_7_7_a_content_that_is_retained_is_marked_and_stays() {
    let retained = content(json!({ "spec": { "deletionPolicy": "Retain" } }));
    let decision = decided(&Single { content: View::Known(retained), ..deleted() });
    assert!(
        matches!(decision.actions.as_slice(), [Action::MarkContent { .. }, Action::ReleaseSnapshot { .. }]),
        "{decision:?}"
    );
}

#[test]
fn step_5_7_1_a_content_that_does_not_point_back_is_left_alone() {
    let other = content(json!({ "spec": { "volumeSnapshotRef": { "uid": "older" } } }));
    let decision = decided(&Single { content: View::Known(other), ..deleted() });
    assert!(matches!(decision.actions.as_slice(), [Action::ReleaseSnapshot { .. }]), "{decision:?}");
}

#[test]
fn crash_5_13_a_snapshot_deleted_before_its_status_was_bound_takes_its_content_along() {
    let unbound = json!({ "metadata": { "finalizers": BOTH, "deletionTimestamp": "1970-01-01T00:01:40Z" } });
    let decision = decided(&Single { snapshot: snapshot(unbound), ..deleted() });
    assert!(matches!(decision.actions.last(), Some(Action::DeleteContent { .. })), "{decision:?}");
}

fn of_content(change: Value, snapshot: View<VolumeSnapshot>) -> Decision {
    decide(&Snapshot::Content(ContentFacts { content: content(change), snapshot, told: Known::default() }), at(100))
}

#[test]
fn step_5_6_a_bound_content_gets_its_finalizer_and_one_that_nobody_checked_is_left_alone() {
    let bare = json!({ "metadata": { "finalizers": null } });
    let decision = of_content(bare, View::Absent);
    assert!(matches!(decision.actions.as_slice(), [Action::GuardContent { .. }]), "{decision:?}");
    let unbound = json!({ "metadata": { "finalizers": null }, "spec": { "volumeSnapshotRef": { "uid": null } } });
    assert_eq!(of_content(unbound, View::Absent).actions, []);
    assert_eq!(of_content(json!({}), View::Absent).actions, [], "a missing snapshot deletes nothing");
}

#[test]
fn step_5_6_a_content_without_exactly_one_source_is_told_so() {
    let decision = of_content(json!({ "spec": { "source": { "volumeHandle": null } } }), View::Absent);
    assert_eq!(told(&decision).0, "ContentValidationError");
}

#[test]
fn who_deletes_a_content_whose_snapshot_stays_is_told_what_to_delete() {
    let going = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:01:40Z" } });
    let decision = of_content(going.clone(), View::Known(snapshot(json!({}))));
    pending(&decision, "shop/nightly");
    assert_eq!(of_content(going, View::Known(deleted().snapshot)).actions, []);
}

#[test]
fn a_content_that_no_cache_shows_is_looked_for_once_more_before_its_snapshot_is_let_go() {
    let decision = decided(&Single { content: View::Absent, ..deleted() });
    let Some(Action::ConfirmContentGone { content }) = decision.actions.first() else { panic!("{decision:?}") };
    assert_eq!(content.name, CONTENT);
}

#[test]
fn who_deletes_a_content_whose_snapshot_is_gone_is_told_the_way_out() {
    let going = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:01:40Z" } });
    pending(&of_content(going.clone(), View::Absent), annotations::SNAPSHOT_BEING_DELETED);
    let another = snapshot(json!({ "metadata": { "uid": "newer" } }));
    pending(&of_content(going.clone(), View::Known(another)), annotations::SNAPSHOT_BEING_DELETED);
    let mut marked = going.clone();
    marked["metadata"]["annotations"] = json!({ annotations::SNAPSHOT_BEING_DELETED: "yes" });
    assert_eq!(of_content(marked, View::Absent).actions, [], "the snapshotter is at it");
    assert_eq!(of_content(going, View::Unknown).actions, []);
}

use std::collections::BTreeMap;

use serde_json::json;

use stowage_model::AccessMode;
use stowage_model::object::Projection;
use stowage_runtime::told::Known;

use super::super::volume::{Attachment, Held, Snapshot, Wanted, Why, decide};
use super::super::{Action, Operation};
use super::*;
use crate::world::{Hold, Published, Staged};

fn wanting(uid: &str) -> (String, Wanted) {
    (uid.to_owned(), Wanted { pod: pod(uid, json!({})), usage: usage(), told: Known::default() })
}

fn held(uid: &str, hold: Hold, pod_is_live: bool) -> (String, Held) {
    let published = Published { spec_name: "pv".into(), hold, reconstructed: false };
    (uid.to_owned(), Held { published, pod_is_live })
}

fn staged(hold: Hold) -> Option<Staged> {
    Some(Staged { hold, reconstructed: false })
}

/// One pod wants an attached volume of a registered driver; nothing is mounted.
fn wanted() -> Snapshot {
    Snapshot {
        volume: volume(),
        wanted: [wanting("a")].into(),
        published: BTreeMap::new(),
        staged: None,
        driver: Some(driver()),
        attachment: Attachment::Attached,
        records: BTreeMap::new(),
        pods_unresolved: false,
    }
}

/// The volume is mounted for one pod that is gone.
fn abandoned() -> Snapshot {
    Snapshot {
        wanted: BTreeMap::new(),
        published: [held("a", Hold::Mounted, false)].into(),
        staged: staged(Hold::Mounted),
        ..wanted()
    }
}

#[track_caller]
fn check(s: &Snapshot, why: Why, actions: &[&str]) {
    let decision = decide(s, now());
    let names: Vec<String> = decision.actions.iter().map(name).collect();
    assert_eq!((decision.why, names), (why, actions.iter().map(|action| (*action).to_owned()).collect()));
}

fn name(action: &Action) -> String {
    match action {
        Action::Stage { .. } => "stage".into(),
        Action::Publish { pod, .. } => format!("publish {}", pod.meta.uid),
        Action::Unpublish { uid, .. } => format!("unpublish {uid}"),
        Action::Unstage { .. } => "unstage".into(),
        Action::Explain { pod, .. } => format!("explain {}", pod.uid),
        Action::ForgetVolume { .. } => "forget".into(),
        other => format!("{other:?}"),
    }
}

#[test]
fn s55_an_attached_volume_in_use_is_staged_then_published_then_left_alone() {
    let mut s = wanted();
    check(&s, Why::Stage, &["stage"]);
    s.staged = staged(Hold::Mounted);
    check(&s, Why::Publish, &["publish a"]);
    s.published = [held("a", Hold::Mounted, true)].into();
    check(&s, Why::Mounted, &[]);
}

#[test]
fn s56_without_the_whole_handshake_nothing_is_mounted() {
    for (attachment, why) in [
        (Attachment::NodeUnknown, Why::WaitingForNode),
        (Attachment::NotInUse, Why::WaitingForInUse),
        (Attachment::NotAttached, Why::WaitingForAttach),
    ] {
        check(&Snapshot { attachment, ..wanted() }, why.clone(), &[]);
        // The same before a publish: the volume may have been taken away since it was staged.
        check(&Snapshot { attachment, staged: staged(Hold::Mounted), ..wanted() }, why, &[]);
    }
}

#[test]
fn s95_a_driver_that_does_not_attach_needs_no_handshake() {
    check(&Snapshot { attachment: Attachment::NotNeeded, ..wanted() }, Why::Stage, &["stage"]);
}

#[test]
fn s61_a_stage_that_timed_out_is_undone_when_the_pod_goes() {
    let records = [(Operation::Stage(volume()), failed())].into();
    let s = Snapshot { wanted: BTreeMap::new(), staged: staged(Hold::Uncertain), records, ..wanted() };
    check(&s, Why::Unstage, &["unstage"]);
}

#[test]
fn s62_s63_a_stage_that_failed_for_good_is_not_undone() {
    let records: BTreeMap<_, _> = [(Operation::Stage(volume()), failed())].into();
    check(&Snapshot { wanted: BTreeMap::new(), records, ..wanted() }, Why::Nothing, &["forget"]);
    check(&Snapshot { wanted: BTreeMap::new(), ..wanted() }, Why::Nothing, &[]);
}

#[test]
fn s65_a_publish_that_timed_out_is_unpublished_and_unstaged_when_the_pod_goes() {
    let mut s = Snapshot { published: [held("a", Hold::Uncertain, false)].into(), ..abandoned() };
    check(&s, Why::Unpublish, &["unpublish a"]);
    s.published.clear();
    check(&s, Why::Unstage, &["unstage"]);
}

#[test]
fn s66_a_publish_that_failed_for_good_leaves_only_the_stage_to_undo() {
    check(&Snapshot { published: BTreeMap::new(), ..abandoned() }, Why::Unstage, &["unstage"]);
}

#[test]
fn s68_a_volume_wanted_again_while_it_is_unstaged_is_staged_again_afterwards() {
    let records = [(Operation::Unstage(volume()), running())].into();
    check(&Snapshot { staged: staged(Hold::Uncertain), records, ..wanted() }, Why::Busy, &[]);
    check(&wanted(), Why::Stage, &["stage"]);
}

#[test]
fn s69_a_volume_found_at_start_for_two_pods_that_are_gone_is_unpublished_for_each() {
    let mut s = abandoned();
    s.published = [held("a", Hold::Uncertain, false), held("b", Hold::Uncertain, false)].into();
    s.staged = Some(Staged { hold: Hold::Uncertain, reconstructed: true });
    check(&s, Why::Unpublish, &["unpublish a"]);
    s.published.remove("a");
    check(&s, Why::Unpublish, &["unpublish b"]);
    s.published.remove("b");
    check(&s, Why::Unstage, &["unstage"]);
}

#[test]
fn s71_a_volume_found_at_start_and_wanted_is_staged_again_before_it_is_published_again() {
    let mut s = Snapshot { published: [held("a", Hold::Uncertain, true)].into(), ..wanted() };
    s.staged = Some(Staged { hold: Hold::Uncertain, reconstructed: true });
    check(&s, Why::Stage, &["stage"]);
    s.staged = staged(Hold::Mounted);
    check(&s, Why::Publish, &["publish a"]);
}

#[test]
fn s101_a_driver_that_does_not_stage_is_only_asked_to_publish_and_unpublish() {
    let driver = Some(DriverInfo { capabilities: Default::default(), ..driver() });
    let mut s = Snapshot { driver, ..wanted() };
    check(&s, Why::Publish, &["publish a"]);
    s.wanted.clear();
    s.published = [held("a", Hold::Mounted, false)].into();
    check(&s, Why::Unpublish, &["unpublish a"]);
    s.published.clear();
    check(&s, Why::Nothing, &[]);
}

#[test]
fn s111_without_its_driver_a_volume_waits_and_the_pod_is_told_once() {
    let mut s = Snapshot { driver: None, ..wanted() };
    check(&s, Why::WaitingForDriver, &["explain a"]);
    let Some(Action::Explain { message, .. }) = decide(&s, now()).actions.pop() else { panic!("no explanation") };
    assert!(message.contains("driver driver is not registered"), "{message}");
    s.wanted.get_mut("a").unwrap().told = Known::of(message, (), Timestamp::MAX);
    check(&s, Why::WaitingForDriver, &[]);
    check(&Snapshot { driver: None, ..abandoned() }, Why::WaitingForDriver, &[]);
}

#[test]
fn a_mount_found_at_start_is_no_news_while_its_driver_registers() {
    let published = [held("a", Hold::Uncertain, true)].into();
    check(&Snapshot { driver: None, published, ..wanted() }, Why::WaitingForDriver, &[]);
}

#[test]
fn unmounting_comes_before_mounting_and_mounting_before_unstaging() {
    let mut s = abandoned();
    s.wanted = [wanting("b")].into();
    check(&s, Why::Unpublish, &["unpublish a"]);
    s.published.clear();
    check(&s, Why::Publish, &["publish b"]);
}

#[test]
fn two_pods_share_one_stage_and_it_stays_until_the_last_is_gone() {
    let mut s = Snapshot { wanted: [wanting("a"), wanting("b")].into(), staged: staged(Hold::Mounted), ..wanted() };
    check(&s, Why::Publish, &["publish a"]);
    s.published = [held("a", Hold::Mounted, true)].into();
    check(&s, Why::Publish, &["publish b"]);
    s.published = [held("a", Hold::Mounted, false), held("b", Hold::Mounted, true)].into();
    s.wanted.remove("a");
    check(&s, Why::Unpublish, &["unpublish a"]);
    s.published.remove("a");
    check(&s, Why::Mounted, &[]);
}

#[test]
fn a_volume_for_one_pod_is_refused_to_a_second_until_the_first_has_gone() {
    let mut s = Snapshot { wanted: [wanting("b")].into(), staged: staged(Hold::Mounted), ..wanted() };
    s.wanted.get_mut("b").unwrap().usage.access_modes = [AccessMode::ReadWriteOncePod].into();
    s.published = [held("a", Hold::Mounted, true)].into();
    check(&s, Why::OtherPodHasIt, &["explain b"]);
    let Some(Action::Explain { pod, message }) = decide(&s, now()).actions.pop() else { panic!("no explanation") };
    assert_eq!(pod, s.wanted["b"].pod.reference());
    assert!(message.contains("ReadWriteOncePod"), "{message}");
    s.wanted.get_mut("b").unwrap().told = Known::of(message, (), Timestamp::MAX);
    check(&s, Why::OtherPodHasIt, &[]);
    s.published.clear();
    check(&s, Why::Publish, &["publish b"]);
}

#[test]
fn a_failed_step_waits_for_its_own_backoff_and_holds_up_no_other() {
    let records = [(Operation::Publish(volume(), "a".into()), failed())].into();
    let mut s = Snapshot { staged: staged(Hold::Mounted), records, ..wanted() };
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.wake_at), (Why::BackingOff, Some(later(1))));
    s.wanted.extend([wanting("b")]);
    check(&s, Why::Publish, &["publish b"]);
    assert_eq!(decide(&s, now()).wake_at, Some(later(1)), "the first pod must not be forgotten");
    s.wanted.remove("b");
    assert_eq!(decide(&s, later(1)).actions.len(), 1);
}

#[test]
fn a_live_pods_mount_stays_while_its_claim_cannot_be_read() {
    let s = Snapshot { published: [held("a", Hold::Uncertain, true)].into(), ..abandoned() };
    check(&s, Why::Nothing, &[]);
}

#[test]
fn nothing_is_unstaged_while_some_pods_volumes_are_not_known() {
    let s = Snapshot { published: BTreeMap::new(), pods_unresolved: true, ..abandoned() };
    check(&s, Why::PodsUnresolved, &[]);
}

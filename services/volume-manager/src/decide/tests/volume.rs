use std::collections::BTreeMap;

use serde_json::json;

use stowage_model::object::Projection;
use stowage_runtime::told::Known;

use super::super::Action;
use super::super::expand::{Expansion, Protocol};
use super::super::volume::{Attachment, Snapshot, Wanted, Why, decide};
use super::*;
use crate::executor::{OperationName, VolumeOperation};
use MountState::{Mounted, Uncertain};

fn wanting(uid: &str) -> (String, Wanted) {
    (uid.to_owned(), Wanted { pod: pod(uid, json!({})), mount: mount(), told: Known::default() })
}

/// One pod wants an attached volume of a registered driver; nothing is mounted.
fn wanted() -> Snapshot {
    Snapshot {
        volume: volume(),
        wanted: [wanting("a")].into(),
        actual: None,
        live: Vec::new(),
        traits: traits(),
        unreachable: None,
        not_ready: None,
        attachment: Attachment::Attached,
        records: BTreeMap::new(),
        pods_unresolved: false,
        expansion: Expansion::NotNeeded,
    }
}

fn is(s: Snapshot, device: Option<MountState>, pods: &[(&str, MountState)]) -> Snapshot {
    let live = pods.iter().map(|(uid, _)| (*uid).to_owned()).filter(|uid| s.wanted.contains_key(uid)).collect();
    Snapshot { actual: Some(attached(device, pods)), live, ..s }
}

/// The volume is mounted for one pod that is gone.
fn abandoned() -> Snapshot {
    is(Snapshot { wanted: BTreeMap::new(), ..wanted() }, Some(Mounted), &[("a", Mounted)])
}

#[track_caller]
fn check(s: &Snapshot, why: Why, actions: &[&str]) {
    let decision = decide(s, now());
    let names: Vec<String> = decision.actions.iter().map(name).collect();
    assert_eq!((decision.why, names), (why, actions.iter().map(|action| (*action).to_owned()).collect()));
}

fn name(action: &Action) -> String {
    match action {
        Action::Attach { .. } => "attach".into(),
        Action::MountDevice { .. } => "mount device".into(),
        Action::SetUp { pod, .. } => format!("set up {}", pod.meta.uid),
        Action::Expand { .. } => "expand".into(),
        Action::TearDown { uid, .. } => format!("tear down {uid}"),
        Action::UnmountDevice { .. } => "unmount device".into(),
        Action::Detach { .. } => "detach".into(),
        Action::Explain { pod, .. } => format!("explain {}", pod.uid),
        Action::ForgetVolume { .. } => "forget".into(),
        other => format!("{other:?}"),
    }
}

fn on(name: OperationName) -> VolumeOperation {
    VolumeOperation::on(&volume(), name)
}

#[test]
fn s55_an_attached_volume_in_use_is_mounted_on_the_node_then_for_the_pod_then_left_alone() {
    check(&wanted(), Why::MountDevice, &["mount device"]);
    check(&is(wanted(), Some(Mounted), &[]), Why::SetUp, &["set up a"]);
    check(&is(wanted(), Some(Mounted), &[("a", Mounted)]), Why::Mounted, &[]);
}

#[test]
fn s56_without_the_whole_handshake_nothing_is_mounted() {
    for (attachment, why) in [
        (Attachment::NodeUnknown, Why::WaitingForNode),
        (Attachment::NotInUse, Why::WaitingForInUse),
        (Attachment::NotAttached, Why::WaitingForAttach),
    ] {
        check(&Snapshot { attachment, ..wanted() }, why.clone(), &[]);
        // The same before the pod's mount: the volume may have been taken away since it was mounted on the node.
        check(&is(Snapshot { attachment, ..wanted() }, Some(Mounted), &[]), why, &[]);
    }
}

#[test]
fn s57_a_node_that_attaches_itself_attaches_first_and_detaches_last() {
    check(&Snapshot { attachment: Attachment::ToAttach, ..wanted() }, Why::Attach, &["attach"]);
    let mut s = is(Snapshot { wanted: BTreeMap::new(), ..wanted() }, Some(Mounted), &[]);
    s.actual.as_mut().unwrap().is_attached_here = true;
    check(&s, Why::UnmountDevice, &["unmount device"]);
    s.actual.as_mut().unwrap().device = None;
    check(&s, Why::Detach, &["detach"]);
    // Whoever detaches is elsewhere: the driver need not be on this node any more.
    check(&Snapshot { unreachable: Some("driver is not registered".into()), ..s }, Why::Detach, &["detach"]);
}

#[test]
fn s95_a_volume_that_is_not_attached_needs_no_handshake() {
    check(&Snapshot { attachment: Attachment::NotNeeded, ..wanted() }, Why::MountDevice, &["mount device"]);
}

#[test]
fn a_volume_that_has_no_mount_of_its_own_is_only_set_up_for_the_pod() {
    let mut s = Snapshot { attachment: Attachment::NotNeeded, ..wanted() };
    s.wanted.get_mut("a").unwrap().mount.traits = Traits::PLAIN;
    check(&s, Why::SetUp, &["set up a"]);
}

#[test]
fn s61_a_mount_that_timed_out_is_undone_when_the_pod_goes() {
    let records = [(on(OperationName::MountDevice), failed())].into();
    let s = is(Snapshot { wanted: BTreeMap::new(), records, ..wanted() }, Some(Uncertain), &[]);
    check(&s, Why::UnmountDevice, &["unmount device"]);
}

#[test]
fn s62_s63_a_mount_that_failed_for_good_is_not_undone() {
    let records: BTreeMap<_, _> = [(on(OperationName::MountDevice), failed())].into();
    check(&Snapshot { wanted: BTreeMap::new(), records, ..wanted() }, Why::Nothing, &["forget"]);
    check(&Snapshot { wanted: BTreeMap::new(), ..wanted() }, Why::Nothing, &[]);
}

#[test]
fn s65_a_set_up_that_timed_out_is_torn_down_when_the_pod_goes() {
    let none = || Snapshot { wanted: BTreeMap::new(), ..wanted() };
    check(&is(none(), Some(Mounted), &[("a", Uncertain)]), Why::TearDown, &["tear down a"]);
    check(&is(none(), Some(Mounted), &[]), Why::UnmountDevice, &["unmount device"]);
}

#[test]
fn s68_a_volume_wanted_again_while_it_leaves_the_node_is_mounted_again_afterwards() {
    let records = [(on(OperationName::UnmountDevice), running())].into();
    check(&is(Snapshot { records, ..wanted() }, Some(Uncertain), &[]), Why::Busy, &[]);
    check(&wanted(), Why::MountDevice, &["mount device"]);
}

#[test]
fn s53_s69_pods_that_are_gone_give_it_back_side_by_side() {
    let none = Snapshot { wanted: BTreeMap::new(), ..wanted() };
    let mut s = is(none, Some(Uncertain), &[("a", Uncertain), ("b", Uncertain)]);
    check(&s, Why::TearDown, &["tear down a", "tear down b"]);
    assert!(decide(&s, now()).side_by_side);
    s.records = [(VolumeOperation::of(&volume(), "a", OperationName::TearDown), running())].into();
    check(&s, Why::TearDown, &["tear down b"]);
}

#[test]
fn s71_a_volume_found_at_start_and_wanted_is_mounted_on_the_node_before_it_is_set_up_again() {
    check(&is(wanted(), Some(Uncertain), &[("a", Uncertain)]), Why::MountDevice, &["mount device"]);
    check(&is(wanted(), Some(Mounted), &[("a", Uncertain)]), Why::SetUp, &["set up a"]);
}

#[test]
fn s111_without_its_driver_a_volume_waits_and_the_pod_is_told_once() {
    let unreachable = Some("driver driver is not registered on this node".to_owned());
    let mut s = Snapshot { unreachable: unreachable.clone(), ..wanted() };
    check(&s, Why::WaitingForPlugin, &["explain a"]);
    let Some(Action::Explain { message, .. }) = decide(&s, now()).actions.pop() else { panic!("no explanation") };
    assert!(message.contains("driver driver is not registered"), "{message}");
    s.wanted.get_mut("a").unwrap().told = Known::of(message, (), Timestamp::MAX);
    check(&s, Why::WaitingForPlugin, &[]);
    check(&Snapshot { unreachable: unreachable.clone(), ..abandoned() }, Why::WaitingForPlugin, &[]);
    // A mount found at start is no news while its driver registers.
    check(&is(Snapshot { unreachable, ..wanted() }, None, &[("a", Uncertain)]), Why::WaitingForPlugin, &[]);
}

#[test]
fn what_only_keeps_a_volume_from_being_mounted_does_not_keep_it_from_being_taken_away() {
    let not_ready = Some("the driver has no such volumes".to_owned());
    check(&Snapshot { not_ready: not_ready.clone(), ..wanted() }, Why::WaitingForPlugin, &["explain a"]);
    check(&Snapshot { not_ready, ..abandoned() }, Why::TearDown, &["tear down a"]);
}

#[test]
fn what_is_to_be_set_up_again_waits_for_the_handshake_too() {
    let mut s = is(wanted(), Some(Mounted), &[("a", Mounted)]);
    s.actual.as_mut().unwrap().pods.get_mut("a").unwrap().again_at = Some(now());
    check(&s, Why::Remount, &["set up a"]);
    check(&Snapshot { attachment: Attachment::NodeUnknown, ..s }, Why::Mounted, &[]);
}

#[test]
fn s87_a_volume_that_nobody_has_is_unmounted_before_it_gets_another_label() {
    let mut s = is(wanted(), Some(Mounted), &[]);
    s.wanted.get_mut("a").unwrap().mount.se_linux_label = Some("other".into());
    check(&s, Why::OtherLabel, &["unmount device"]);
}

#[test]
fn unmounting_comes_before_mounting_and_mounting_before_leaving_the_node() {
    let s = Snapshot { wanted: [wanting("b")].into(), ..wanted() };
    check(&is(s.clone(), Some(Mounted), &[("a", Mounted)]), Why::TearDown, &["tear down a"]);
    check(&is(s, Some(Mounted), &[]), Why::SetUp, &["set up b"]);
}

#[test]
fn s52_two_pods_get_a_shared_volume_one_after_the_other() {
    let two = || Snapshot { wanted: [wanting("a"), wanting("b")].into(), ..wanted() };
    check(&is(two(), Some(Mounted), &[]), Why::SetUp, &["set up a"]);
    let mut s = is(two(), Some(Mounted), &[("a", Uncertain)]);
    s.records = [(VolumeOperation::of(&volume(), "a", OperationName::SetUp), running())].into();
    check(&s, Why::Busy, &[]);
    check(&is(two(), Some(Mounted), &[("a", Mounted)]), Why::SetUp, &["set up b"]);
    let one = Snapshot { wanted: [wanting("b")].into(), ..wanted() };
    check(&is(one, Some(Mounted), &[("b", Mounted)]), Why::Mounted, &[]);
}

#[test]
fn a_volume_for_one_pod_is_refused_to_a_second_until_the_first_has_gone() {
    let mut s = Snapshot { wanted: [wanting("b")].into(), ..wanted() };
    let once = persistent(json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } }));
    s.wanted.get_mut("b").unwrap().mount.spec = once;
    s = is(s, Some(Mounted), &[("a", Mounted)]);
    s.live.push("a".into());
    check(&s, Why::OtherPodHasIt, &["explain b"]);
    let Some(Action::Explain { pod, message }) = decide(&s, now()).actions.pop() else { panic!("no explanation") };
    assert_eq!(pod, s.wanted["b"].pod.reference());
    assert!(message.contains("ReadWriteOncePod"), "{message}");
    s.wanted.get_mut("b").unwrap().told = Known::of(message, (), Timestamp::MAX);
    check(&s, Why::OtherPodHasIt, &[]);
    check(&is(s, Some(Mounted), &[]), Why::SetUp, &["set up b"]);
}

#[test]
fn s87_a_volume_mounted_with_another_label_is_waited_for() {
    let mut s = is(wanted(), Some(Mounted), &[("b", Mounted)]);
    s.live.push("b".into());
    s.wanted.get_mut("a").unwrap().mount.se_linux_label = Some("other".into());
    check(&s, Why::OtherPodHasIt, &["explain a"]);
}

#[test]
fn a_failed_step_waits_for_its_own_backoff_and_holds_up_no_other() {
    let records = [(VolumeOperation::of(&volume(), "a", OperationName::SetUp), failed())].into();
    let mut s = is(Snapshot { records, ..wanted() }, Some(Mounted), &[]);
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.wake_at), (Why::BackingOff, Some(later(1))));
    s.wanted.extend([wanting("b")]);
    check(&s, Why::SetUp, &["set up b"]);
    assert_eq!(decide(&s, now()).wake_at, Some(later(1)), "the first pod must not be forgotten");
    s.wanted.remove("b");
    assert_eq!(decide(&s, later(1)).actions.len(), 1);
}

#[test]
fn a_live_pods_mount_stays_while_its_claim_cannot_be_read() {
    let mut s = abandoned();
    s.live.push("a".into());
    check(&s, Why::Nothing, &[]);
}

#[test]
fn nothing_leaves_the_node_while_some_pods_volumes_are_not_known() {
    let none = Snapshot { wanted: BTreeMap::new(), pods_unresolved: true, ..wanted() };
    check(&is(none, Some(Mounted), &[]), Why::PodsUnresolved, &[]);
}

#[test]
fn a_volume_that_is_republished_is_set_up_again_when_what_it_is_made_of_changes_or_ends() {
    let mut s = is(wanted(), Some(Mounted), &[("a", Mounted)]);
    let changed = Inputs { objects: [("CSIDriver/driver".to_owned(), 8)].into() };
    s.wanted.get_mut("a").unwrap().mount.inputs = changed;
    check(&s, Why::Mounted, &[]);
    s.wanted.get_mut("a").unwrap().mount.traits.remount = Remount::OnChange;
    check(&s, Why::Remount, &["set up a"]);
    let mut s = is(wanted(), Some(Mounted), &[("a", Mounted)]);
    s.actual.as_mut().unwrap().pods.get_mut("a").unwrap().again_at = Some(later(60));
    let decision = decide(&s, now());
    assert_eq!((decision.why, decision.wake_at), (Why::Mounted, Some(later(60))));
    assert_eq!(decide(&s, later(60)).why, Why::Remount);
}

#[test]
fn s60_a_mounted_volume_grows_unless_its_driver_said_that_it_cannot_in_use() {
    let claim = Arc::new(stowage_model::Claim::default());
    let size = "2Gi".parse().unwrap();
    let expansion = Expansion::Needed { claim, size, protocol: Protocol::Legacy };
    let mut s = is(Snapshot { expansion, ..wanted() }, Some(Mounted), &[("a", Mounted)]);
    check(&s, Why::Expand, &["expand"]);
    s.actual.as_mut().unwrap().cannot_grow = true;
    check(&s, Why::Mounted, &[]);
}

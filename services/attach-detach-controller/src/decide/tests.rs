//! The scenarios of reference/node-and-attach.md, section 10.1, by their numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use stowage_model::object::{Key, kinds};
use stowage_runtime::told::Known;

use super::*;
use crate::snapshot::Policy;

const POLICY: Policy = Policy { force_detach_on_timeout: true, max_unmount_wait: Duration::from_secs(360) };
const VOLUME: &str = "kubernetes.io/csi/d.example^h";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn node() -> NodeFacts {
    NodeFacts {
        uid: "node-uid".into(),
        ready: true,
        not_ready_since: None,
        out_of_service: false,
        listed: false,
        in_use: false,
    }
}

fn attachment() -> AttachmentFacts {
    AttachmentFacts { uid: "va-uid".into(), attached: true, deleting: false, attach_error: None }
}

fn wish(pod: &str, since: i64) -> Wish {
    let (namespace, name) = pod.split_once('/').unwrap_or(("apps", pod));
    Wish {
        pod: ObjectRef { kind: kinds::POD, key: Key::namespaced(namespace, name), uid: format!("{pod}-uid") },
        volume_name: "pv".into(),
        inline: None,
        since: Some(at(since)),
    }
}

/// A healthy node with the volume attached, listed, in use and wanted; each test spoils it.
fn site() -> Site {
    Site {
        node: NodeView::Known(NodeFacts { listed: true, in_use: true, ..node() }),
        attachment_name: "csi-hash".into(),
        attachment: AttachmentView::Present(attachment()),
        foreign_attachment: false,
        wishes: vec![wish("pod", 0)],
        unwanted_since: None,
    }
}

fn fresh(pod: &str, since: i64) -> Site {
    let node = NodeView::Known(node());
    Site { node, attachment: AttachmentView::Absent, wishes: vec![wish(pod, since)], ..site() }
}

/// The pod is gone since second 0.
fn left(spoil: impl FnOnce(&mut NodeFacts)) -> Site {
    let mut facts = NodeFacts { listed: true, in_use: true, ..node() };
    spoil(&mut facts);
    Site { node: NodeView::Known(facts), wishes: Vec::new(), unwanted_since: Some(at(0)), ..site() }
}

fn not_ready(facts: &mut NodeFacts) {
    facts.ready = false;
    facts.not_ready_since = Some(at(0));
}

fn single(sites: impl IntoIterator<Item = (&'static str, Site)>) -> Snapshot {
    let sites = sites.into_iter().map(|(name, site)| {
        let attachment_name = format!("csi-{name}");
        (name.to_owned(), Site { attachment_name, ..site })
    });
    Snapshot {
        volume: Some(VOLUME.into()),
        driver: "d.example".into(),
        many_nodes: false,
        sites: sites.collect(),
        told: Known::default(),
        policy: POLICY,
    }
}

fn shared(sites: impl IntoIterator<Item = (&'static str, Site)>) -> Snapshot {
    Snapshot { many_nodes: true, ..single(sites) }
}

/// Actions as short words, in the order of nodes.
fn words(actions: &[Action]) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::CreateAttachment { node, .. } => format!("create {node}"),
        Action::DeleteAttachment { node, force, .. } => match force {
            None => format!("delete {node}"),
            Some(force) => format!("delete {node} {force:?}"),
        },
        Action::List { node, tell, .. } => format!("list {node} tell {}", tell.len()),
        Action::Unlist { node, .. } => format!("unlist {node}"),
        Action::Tell { pod, .. } => format!("tell {}", pod.key.name),
        Action::RefreshNode(node) => format!("read {node}"),
        Action::RefreshAttachment(name) => format!("read {name}"),
    };
    actions.iter().map(word).collect()
}

fn actions_at(snapshot: &Snapshot, second: i64) -> Vec<Action> {
    decide(snapshot, at(second)).actions
}

fn actions(snapshot: &Snapshot) -> Vec<String> {
    words(&actions_at(snapshot, 0))
}

const NOTHING: [String; 0] = [];

#[test]
fn s01_nothing_wanted_and_nothing_there_is_left_alone() {
    assert_eq!(actions(&single([])), NOTHING);
    let only_in_use = Site { node: NodeView::Known(NodeFacts { in_use: true, ..node() }), ..fresh("pod", 0) };
    assert_eq!(actions(&single([("a", Site { wishes: Vec::new(), ..only_in_use })])), NOTHING);
}

#[test]
fn s02_a_wanted_volume_is_asked_for_then_listed_and_its_pods_are_told() {
    assert_eq!(actions(&single([("a", fresh("pod", 0))])), ["create a"]);
    let attaching = AttachmentView::Present(AttachmentFacts { attached: false, ..attachment() });
    assert_eq!(actions(&single([("a", Site { attachment: attaching, ..fresh("pod", 0) })])), NOTHING);
    let attached = AttachmentView::Present(attachment());
    assert_eq!(actions(&single([("a", Site { attachment: attached, ..fresh("pod", 0) })])), ["list a tell 1"]);
    assert_eq!(actions(&single([("a", site())])), NOTHING);
}

#[test]
fn s03_a_volume_nobody_wants_or_uses_leaves_the_list_first_and_is_detached_then() {
    assert_eq!(actions(&single([("a", left(|node| node.in_use = false))])), ["unlist a"]);
    let unlisted = left(|node| (node.in_use, node.listed) = (false, false));
    assert_eq!(actions(&single([("a", unlisted)])), ["delete a"]);
}

#[test]
fn s03_an_entry_removed_a_moment_too_early_comes_back() {
    // The answer to the removal shows that the node had begun to use the volume.
    assert_eq!(actions(&single([("a", left(|node| node.listed = false))])), ["list a tell 0"]);
}

#[test]
fn s04_a_volume_in_use_on_a_silent_node_is_detached_after_the_wait_only() {
    let snapshot = single([("a", left(not_ready))]);
    let waiting = decide(&snapshot, at(359));
    assert_eq!((waiting.actions.len(), waiting.wake_at), (0, Some(at(360))));
    assert_eq!(words(&actions_at(&snapshot, 360)), ["unlist a"]);
    let unlisted = left(|node| {
        not_ready(node);
        node.listed = false;
    });
    assert_eq!(words(&actions_at(&single([("a", unlisted)]), 360)), ["delete a Timeout"]);
}

#[test]
fn s05_a_volume_in_use_on_a_healthy_node_is_never_detached() {
    let decision = decide(&single([("a", left(|_| {}))]), at(100_000));
    assert_eq!((decision.actions.len(), decision.wake_at), (0, None));
    assert_eq!(decision.why.0, [("a".to_owned(), Reason::InUse)]);
}

#[test]
fn s06_a_node_that_turns_silent_later_gets_the_whole_wait_from_then() {
    // The original detaches at once; A2 of the design asks for the whole time of silence.
    let late = left(|node| (node.ready, node.not_ready_since) = (false, Some(at(1000))));
    let snapshot = single([("a", late)]);
    assert_eq!(decide(&snapshot, at(1000)).wake_at, Some(at(1360)));
    assert_eq!(words(&actions_at(&snapshot, 1360)), ["unlist a"]);
}

#[test]
fn s07_without_the_timeout_only_the_out_of_service_taint_forces() {
    let policy = Policy { force_detach_on_timeout: false, ..POLICY };
    let silent = Snapshot { policy, ..single([("a", left(not_ready))]) };
    assert_eq!(words(&actions_at(&silent, 100_000)), NOTHING);
    let tainted = left(|node| {
        not_ready(node);
        (node.out_of_service, node.listed) = (true, false);
    });
    assert_eq!(actions(&Snapshot { policy, ..single([("a", tainted)]) }), ["delete a OutOfService"]);
}

#[test]
fn s08_an_out_of_service_node_loses_a_volume_in_use_at_once() {
    assert_eq!(actions(&single([("a", left(|node| node.out_of_service = true))])), ["unlist a"]);
}

#[test]
fn s11_a_volume_for_many_nodes_is_attached_and_detached_on_each_by_itself() {
    assert_eq!(actions(&shared([("a", fresh("x", 0)), ("b", fresh("y", 0))])), ["create a", "create b"]);
    let unused = || left(|node| node.in_use = false);
    assert_eq!(actions(&shared([("a", unused()), ("b", site()), ("c", unused())])), ["unlist a", "unlist c"]);
}

#[test]
fn s12_a_volume_for_one_node_goes_to_the_oldest_pod_and_the_other_waits_until_the_attachment_is_gone() {
    let both = single([("a", fresh("young", 9)), ("b", fresh("old", 1))]);
    assert_eq!(actions(&both), ["tell young", "create b"]);
    let deleting = AttachmentView::Present(AttachmentFacts { deleting: true, ..attachment() });
    for holder in [
        site(),
        left(|_| {}),
        Site { attachment: deleting, ..left(|node| (node.in_use, node.listed) = (false, false)) },
        Site { attachment: AttachmentView::Absent, ..left(|_| {}) },
        Site { foreign_attachment: true, attachment: AttachmentView::Absent, ..left(|node| node.listed = false) },
    ] {
        assert_eq!(actions(&single([("a", holder), ("b", fresh("pod", 0))])), ["tell pod"]);
    }
    assert_eq!(actions(&single([("b", fresh("pod", 0))])), ["create b"]);
}

#[test]
fn s12_a_pod_is_told_once_about_each_holder_and_again_before_the_event_is_forgotten() {
    let told = Known::of("pod-uid".to_owned(), Notice::Elsewhere { node: "a".into() }, at(2700));
    let held = Snapshot { told: told.clone(), ..single([("a", site()), ("b", fresh("pod", 0))]) };
    assert_eq!(actions(&held), NOTHING);
    assert_eq!(decide(&held, at(0)).wake_at, Some(at(2700)));
    assert_eq!(words(&actions_at(&held, 2700)), ["tell pod"]);
    assert_eq!(actions(&Snapshot { told, ..single([("c", site()), ("b", fresh("pod", 0))]) }), ["tell pod"]);
}

#[test]
fn s13_an_attach_that_may_have_happened_is_detached_before_another_node_gets_the_volume() {
    let uncertain = AttachmentFacts {
        attached: false,
        attach_error: Some(("no answer from the driver".into(), None)),
        ..attachment()
    };
    let unsure = left(|node| (node.in_use, node.listed) = (false, false));
    let unsure = Site { attachment: AttachmentView::Present(uncertain), ..unsure };
    assert_eq!(actions(&single([("a", unsure), ("b", fresh("pod", 0))])), ["delete a", "tell pod"]);
}

#[test]
fn s14_s15_a_detach_that_fails_is_not_listed_and_a_new_pod_waits_for_its_end() {
    let deleting = AttachmentView::Present(AttachmentFacts { deleting: true, ..attachment() });
    let failing = left(|node| (node.in_use, node.listed) = (false, false));
    assert_eq!(actions(&single([("a", Site { attachment: deleting.clone(), ..failing })])), NOTHING);
    let wanted_again = Site { attachment: deleting.clone(), ..fresh("pod", 0) };
    assert_eq!(actions(&single([("a", wanted_again)])), NOTHING);
    let listed_still = Site { attachment: deleting, ..site() };
    assert_eq!(actions(&single([("a", listed_still)])), ["unlist a"]);
}

fn told(holder: Site) -> String {
    match &actions_at(&single([("a", holder), ("b", fresh("pod", 0))]), 0)[..] {
        [Action::Tell { note, .. }] => note.message.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn s17_s18_s19_s20_the_event_names_near_pods_counts_far_ones_and_names_the_node() {
    let alone = told(left(|_| {}));
    assert!(
        alone
            .starts_with("volume \"pv\" cannot be attached to a second node: it is attached exclusively to node \"a\""),
        "{alone}"
    );
    let used_by = |pods: &[&str]| told(Site { wishes: pods.iter().map(|pod| wish(pod, 0)).collect(), ..site() });
    assert!(used_by(&["db-0"]).contains("used on node \"a\" by pod(s) db-0;"));
    let far = used_by(&["other/secret", "other/hidden"]);
    assert!(far.contains("by 2 pod(s) in other namespaces") && !far.contains("secret"), "{far}");
    assert!(used_by(&["db-0", "other/secret"]).contains("by pod(s) db-0 and 1 pod(s) in other namespaces"));
}

#[test]
fn s21_a_listed_volume_without_wish_or_attachment_is_unlisted() {
    let stray = Site { attachment: AttachmentView::Absent, ..left(|node| node.in_use = false) };
    assert_eq!(actions(&single([("a", stray)])), ["unlist a"]);
}

#[test]
fn s23_an_attachment_without_a_pod_is_deleted_whatever_its_state() {
    for attached in [true, false] {
        let stray = left(|node| (node.in_use, node.listed) = (false, false));
        let attachment = AttachmentView::Present(AttachmentFacts { attached, ..attachment() });
        assert_eq!(actions(&single([("a", Site { attachment, ..stray })])), ["delete a"]);
    }
}

#[test]
fn s27_a_wanted_volume_that_is_listed_but_not_attached_is_taken_from_the_list() {
    let attachment = AttachmentView::Present(AttachmentFacts { attached: false, ..attachment() });
    assert_eq!(actions(&single([("a", Site { attachment, ..site() })])), ["unlist a"]);
    // Without an attachment it is asked for first, so that no other node gets in between.
    let lost = Site { attachment: AttachmentView::Absent, ..site() };
    assert_eq!(actions(&single([("a", lost), ("b", fresh("pod", -5))])), ["create a", "tell pod"]);
}

#[test]
fn a_failed_attach_is_told_to_its_pods_once_per_failure() {
    let failed = |time| {
        let attach_error = Some(("no such node".to_owned(), Some(at(time))));
        AttachmentView::Present(AttachmentFacts { attached: false, attach_error, ..attachment() })
    };
    let mut failing = Site { attachment: failed(1), ..fresh("pod", 0) };
    let told = actions_at(&single([("a", failing.clone())]), 0);
    let [Action::Tell { note, notice, .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(note.message, "attaching volume \"pv\" failed: no such node");
    let told = Known::of("pod-uid".to_owned(), notice.clone(), at(2700));
    assert_eq!(actions(&Snapshot { told: told.clone(), ..single([("a", failing.clone())]) }), NOTHING);
    failing.attachment = failed(2);
    assert_eq!(actions(&Snapshot { told, ..single([("a", failing)]) }), ["tell pod"]);
}

#[test]
fn a_deleted_node_keeps_its_volumes_while_its_pods_are_there_and_loses_them_then() {
    let gone = Site { node: NodeView::Gone, ..site() };
    assert_eq!(actions(&single([("a", gone.clone())])), NOTHING);
    assert_eq!(actions(&single([("a", Site { wishes: Vec::new(), ..gone })])), ["delete a"]);
    let never = Site { node: NodeView::Gone, ..fresh("pod", 0) };
    assert_eq!(actions(&single([("a", never), ("b", fresh("young", 5))])), ["create b"]);
}

#[test]
fn nothing_is_decided_on_what_is_unknown_before_one_fresh_read() {
    assert_eq!(actions(&single([("a", Site { node: NodeView::Unknown, ..site() })])), ["read a"]);
    let unknown = Site { attachment: AttachmentView::Unknown, ..fresh("x", 0) };
    assert_eq!(actions(&single([("a", unknown), ("b", fresh("pod", 0))])), ["read csi-a", "tell pod"]);
}

#[test]
fn an_attachment_whose_volume_is_gone_is_deleted() {
    let orphan = left(|node| (node.in_use, node.listed) = (false, false));
    let snapshot = Snapshot { volume: None, ..shared([("a", orphan)]) };
    assert_eq!(actions(&snapshot), ["delete a"]);
}

/// What the API shows after a action, when neither attacher nor node reacts.
fn take(snapshot: &mut Snapshot, action: &Action) {
    let site = |sites: &mut BTreeMap<String, Site>, node: &str| sites.remove(node).unwrap();
    let mut put = |node: &str, spoil: &dyn Fn(&mut Site)| {
        let mut taken = site(&mut snapshot.sites, node);
        spoil(&mut taken);
        snapshot.sites.insert(node.to_owned(), taken);
    };
    let list = |site: &mut Site, listed| {
        if let NodeView::Known(node) = &mut site.node {
            node.listed = listed;
        }
    };
    match action {
        Action::CreateAttachment { node, .. } => put(node, &|site| {
            site.attachment = AttachmentView::Present(AttachmentFacts { attached: false, ..attachment() });
        }),
        Action::DeleteAttachment { node, .. } => put(node, &|site| {
            if let AttachmentView::Present(attachment) = &mut site.attachment {
                attachment.deleting = true;
            }
        }),
        Action::List { node, .. } => put(node, &|site| list(site, true)),
        Action::Unlist { node, .. } => put(node, &|site| list(site, false)),
        Action::Tell { pod, notice, .. } => {
            let told = std::mem::take(&mut snapshot.told);
            snapshot.told = told.and(pod.uid.clone(), notice.clone(), Timestamp::MAX);
        }
        Action::RefreshNode(node) => put(node, &|site| site.node = NodeView::Gone),
        Action::RefreshAttachment(name) => {
            let node = name.strip_prefix("csi-").unwrap().to_owned();
            put(&node, &|site| site.attachment = AttachmentView::Absent);
        }
    }
}

prop_compose! {
    fn any_node()(kind in 0..6, ready: bool, since in proptest::option::of(-1000_i64..1000),
                  out_of_service in proptest::bool::weighted(0.2), listed: bool, in_use: bool) -> NodeView {
        match kind {
            0 => NodeView::Gone,
            1 => NodeView::Unknown,
            _ => NodeView::Known(NodeFacts {
                ready, not_ready_since: since.filter(|_| !ready).map(at), out_of_service, listed, in_use, ..node()
            }),
        }
    }
}

prop_compose! {
    fn any_site()(node in any_node(), kind in 0..6, attached: bool, deleting: bool, failed: bool,
                  foreign_attachment in proptest::bool::weighted(0.1),
                  pods in proptest::collection::vec(0_i64..5, 0..3), unwanted in -1000_i64..0) -> Site {
        let wishes: Vec<Wish> = pods.iter().enumerate().map(|(n, since)| wish(&format!("pod-{n}"), *since)).collect();
        Site {
            node,
            attachment: match kind {
                0 => AttachmentView::Unknown,
                1 | 2 => AttachmentView::Absent,
                _ => AttachmentView::Present(AttachmentFacts {
                    attached, deleting, attach_error: failed.then(|| ("failed".into(), None)), ..attachment()
                }),
            },
            foreign_attachment,
            unwanted_since: wishes.is_empty().then(|| at(unwanted)),
            wishes,
            ..site()
        }
    }
}

proptest! {
    #[test]
    fn repeated_deciding_reaches_a_fixpoint_and_keeps_a1_and_a2(
        sites in proptest::collection::vec(any_site(), 0..4), many_nodes: bool
    ) {
        let names = ["a", "b", "c", "d"];
        let mut snapshot = single(names.into_iter().zip(sites));
        for (name, site) in &mut snapshot.sites {
            for wish in &mut site.wishes {
                wish.pod.uid = format!("{name}-{}", wish.pod.uid);
            }
        }
        snapshot.many_nodes = many_nodes;
        for _ in 0..6 {
            let actions = actions_at(&snapshot, 0);
            if actions.is_empty() {
                return Ok(());
            }
            let creates = actions.iter().filter(|action| matches!(action, Action::CreateAttachment { .. })).count();
            prop_assert!(many_nodes || creates <= 1, "A1");
            for action in &actions {
                match action {
                    Action::CreateAttachment { node, .. } if !many_nodes => {
                        let others = snapshot.sites.iter().filter(|(name, site)| *name != node && site.holds());
                        prop_assert_eq!(others.count(), 0, "A1");
                    }
                    Action::DeleteAttachment { node, force, .. } => {
                        if let NodeView::Known(facts) = &snapshot.sites[node].node {
                            prop_assert!(!facts.listed && (!facts.in_use || force.is_some()), "A2");
                            prop_assert!(!facts.in_use || facts.out_of_service || !facts.ready, "A2");
                        }
                    }
                    _ => {}
                }
            }
            for action in &actions {
                take(&mut snapshot, action);
            }
        }
        prop_assert!(false, "no fixpoint: {:?}", actions_at(&snapshot, 0));
    }
}

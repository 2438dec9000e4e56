//! Scenarios of the reference, 8.15 (binder) and 8.16 (plugin level), about a pod's claims.

use super::*;

const UNBOUND: &str = "no node of 2 will do: a claim of the pod is not bound yet; its events say why";
const CONFLICT: &str = "no node of 2 will do: 2 without a free volume that fits, and where none can be made";

#[test]
fn s8_15_a_pod_without_claims_goes_to_a_node_at_once() {
    let mut world = two_nodes();
    world.pod(pod("p", &[]));
    assert_eq!(world.settle("p"), Why::Placed);
    assert_eq!(world.node_of("p"), "a");
}

#[test]
fn s8_15_a_missing_claim_keeps_the_pod_waiting() {
    let mut world = two_nodes();
    world.pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), "no node of 2 will do: claim \"c\" does not exist; create it");
}

#[test]
fn s8_15_immediate_unbound_claims_keep_the_pod_waiting_alone_or_mixed() {
    let mut world = two_nodes();
    world.class(class("now", "Immediate", DRIVER)).claim(claim("i", "now", "1Gi")).claim(claim("w", "waits", "1Gi"));
    world.pod(pod("alone", &["i"])).pod(pod("mixed", &["w", "i"]));
    assert_eq!(world.message("alone"), UNBOUND);
    assert_eq!(world.message("mixed"), UNBOUND);
}

#[test]
fn s8_15_a_claim_that_names_a_volume_but_is_not_bound_is_immediate() {
    let mut world = two_nodes();
    let mut named = claim("c", "waits", "1Gi");
    named["spec"]["volumeName"] = "v".into();
    world.claim(named).pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), UNBOUND);
}

#[test]
fn s8_15_a_claim_whose_class_is_missing_is_immediate() {
    let mut world = two_nodes();
    world.claim(claim("c", "unheard-of", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), UNBOUND);
}

#[test]
fn s8_15_a_bound_claim_sends_the_pod_where_its_volume_is() {
    let mut world = two_nodes();
    world.volume(volume("v", "1Gi", "b")).claim(bound("c", "v")).pod(pod("p", &["c"]));
    assert_eq!(world.settle("p"), Why::Placed);
    assert_eq!(world.node_of("p"), "b");
}

#[test]
fn s8_15_a_claim_bound_to_a_volume_that_is_gone_keeps_the_pod_waiting() {
    let mut world = two_nodes();
    world.claim(bound("c", "v")).pod(pod("p", &["c"]));
    let message = "no node of 2 will do: 2 barred because the volume of a bound claim does not exist";
    assert_eq!(world.message("p"), message);
}

#[test]
fn s8_15_the_smallest_volume_of_the_node_is_taken() {
    let mut world = two_nodes_static();
    world.volume(volume("v10", "10Gi", "b")).volume(volume("v5", "5Gi", "b"));
    world.claim(claim("c", "waits", "3Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "b".into() });
    let held = world.caches.volumes.get(&Key::cluster("v5")).unwrap().spec.claim_ref.clone().unwrap();
    assert_eq!((held.name.as_str(), held.uid.as_str()), ("c", "uid-c"));
}

#[test]
fn s8_15_a_volume_of_a_node_that_does_not_exist_is_no_use() {
    let mut world = two_nodes_static();
    world.volume(volume("v", "5Gi", "elsewhere")).claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), CONFLICT);
}

#[test]
fn s8_15_the_smaller_claim_gets_the_smaller_volume_in_any_order() {
    for order in [["small", "large"], ["large", "small"]] {
        let mut world = two_nodes_static();
        world.volume(volume("v1", "1Gi", "a")).volume(volume("v5", "5Gi", "a"));
        world.claim(claim("small", "waits", "1Gi")).claim(claim("large", "waits", "5Gi")).pod(pod("p", &order));
        world.settle("p");
        let holder =
            |name: &str| world.caches.volumes.get(&Key::cluster(name)).unwrap().spec.claim_ref.clone().unwrap();
        assert_eq!((holder("v1").name.as_str(), holder("v5").name.as_str()), ("small", "large"));
    }
}

#[test]
fn s8_15_two_claims_and_one_volume_are_a_conflict() {
    let mut world = two_nodes_static();
    world.volume(volume("v", "5Gi", "a"));
    world.claim(claim("c1", "waits", "1Gi")).claim(claim("c2", "waits", "1Gi")).pod(pod("p", &["c1", "c2"]));
    assert_eq!(world.message("p"), CONFLICT);
}

#[test]
fn s8_15_one_bound_and_one_unbound_claim_must_agree_on_the_node() {
    let mut world = two_nodes_static();
    let mut taken = volume("v", "1Gi", "a");
    taken["spec"]["claimRef"] = json!({ "namespace": "default", "name": "c1", "uid": "uid-c1" });
    world.volume(taken).claim(bound("c1", "v"));
    world.volume(volume("free", "5Gi", "b")).claim(claim("c2", "waits", "1Gi")).pod(pod("p", &["c1", "c2"]));
    let message = "no node of 2 will do: 1 that cannot reach the pod's volume (spec.nodeAffinity), \
                   1 without a free volume that fits, and where none can be made";
    assert_eq!(world.message("p"), message);
    world.volume(volume("near", "5Gi", "a"));
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "a".into() });
}

#[test]
fn s8_15_a_class_that_provisions_gets_the_selected_node_and_the_pod_waits() {
    let mut world = two_nodes();
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "a".into() });
    assert_eq!(world.caches.claims.get(&key("c")).unwrap().selected_node(), Some("a"));
}

#[test]
fn s8_15_one_matched_and_one_provisioned_claim_are_written_in_one_step() {
    let mut world = two_nodes();
    world.volume(volume("v", "1Gi", "b"));
    world.claim(claim("c1", "waits", "1Gi")).claim(claim("c2", "waits", "5Gi")).pod(pod("p", &["c1", "c2"]));
    world.node({
        let mut full = node("a");
        full["spec"]["unschedulable"] = true.into();
        full
    });
    let decision = world.decide("p");
    let [PodAction::Reserve(pair), PodAction::Select { node, .. }] = &decision.actions[..] else {
        panic!("{decision:?}")
    };
    assert_eq!((decision.side_by_side, node.as_str()), (true, "b"));
    assert_eq!(decision.why, Why::Prepare { node: "b".into() });
    assert!(pair.marked, "the pair was our choice");
}

#[test]
fn s8_15_a_claim_with_a_selected_node_is_not_matched_and_pins_the_pod() {
    let mut world = two_nodes();
    let mut selected = claim("c", "waits", "1Gi");
    selected["metadata"]["annotations"] = json!({ "volume.kubernetes.io/selected-node": "b" });
    world.claim(selected).volume(volume("v", "1Gi", "b")).pod(pod("p", &["c"]));
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "b".into() });
    assert_eq!(world.caches.volumes.get(&Key::cluster("v")).unwrap().spec.claim_ref, None);
}

#[test]
fn s8_15_a_class_without_provisioner_and_a_topology_mismatch_are_conflicts() {
    let mut world = two_nodes_static();
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), CONFLICT);
    let mut far = class("waits", "WaitForFirstConsumer", DRIVER);
    let term = json!({ "key": "topology.kubernetes.io/zone", "values": ["z9"] });
    far["allowedTopologies"] = json!([{ "matchLabelExpressions": [term] }]);
    world.class(far);
    assert_eq!(world.message("p"), CONFLICT);
}

#[test]
fn s8_15_allowed_topologies_choose_the_node() {
    let mut world = two_nodes();
    let mut near = class("waits", "WaitForFirstConsumer", DRIVER);
    let term = json!({ "key": "kubernetes.io/hostname", "values": ["b"] });
    near["allowedTopologies"] = json!([{ "matchLabelExpressions": [term] }]);
    world.class(near).claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "b".into() });
}

#[test]
fn s8_15_the_volume_taken_is_found_again_and_nothing_is_written_twice() {
    let mut world = two_nodes_static();
    world.volume(volume("v1", "1Gi", "")).volume(volume("v2", "1Gi", ""));
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    world.settle("p");
    for _ in 0..50 {
        assert_eq!(world.decide("p"), Decision::rest(Why::AwaitVolumes { node: "a".into() }));
    }
    assert!(world.caches.volumes.get(&Key::cluster("v2")).unwrap().spec.claim_ref.is_none());
}

#[test]
fn s8_15_a_volume_reserved_by_name_gets_the_uid_and_keeps_its_users_mark() {
    let mut world = two_nodes();
    let mut reserved = volume("v", "1Gi", "b");
    reserved["spec"]["claimRef"] = json!({ "namespace": "default", "name": "c" });
    world.volume(reserved).claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    let decision = world.decide("p");
    let [PodAction::Reserve(pair)] = &decision.actions[..] else { panic!("{decision:?}") };
    assert_eq!((pair.marked, decision.why), (false, Why::Prepare { node: "b".into() }));
}

#[test]
fn s8_11_a_volume_reserved_out_of_reach_is_never_doubled_by_a_new_one() {
    let mut world = two_nodes();
    let mut reserved = volume("v", "1Gi", "elsewhere");
    reserved["spec"]["claimRef"] = json!({ "namespace": "default", "name": "c", "uid": "uid-c" });
    world.volume(reserved).claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.message("p"), CONFLICT);
}

#[test]
fn s8_15_bound_claims_end_the_waiting() {
    let mut world = two_nodes();
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    world.settle("p");
    let mut made = bound("c", "v");
    made["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "a".into();
    world.volume(volume("v", "1Gi", "a")).claim(made);
    assert_eq!(world.settle("p"), Why::Placed);
    assert_eq!(world.node_of("p"), "a");
}

#[test]
fn s7_21_a_claim_given_back_goes_to_another_node_after_the_backoff() {
    let mut world = two_nodes();
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    world.settle("p");
    world.claim(claim("c", "waits", "1Gi"));
    world.controller.failures.add(&key("c"), "a", NOW);
    let second = NOW + SignedDuration::from_secs(1);
    assert_eq!(world.decide("p"), Decision::wait_until(second, Why::BackOff));
    assert_eq!(world.decide_at("p", second).why, Why::Prepare { node: "b".into() });
}

#[test]
fn s7_21_with_one_node_the_same_is_tried_again() {
    let mut world = World::default();
    world.node(node("a")).class(class("waits", "WaitForFirstConsumer", DRIVER));
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    world.controller.failures.add(&key("c"), "a", NOW);
    let decision = world.decide_at("p", NOW + SignedDuration::from_secs(1));
    assert_eq!(decision.why, Why::Prepare { node: "a".into() });
}

#[test]
fn s8_16_a_lost_claim_and_a_claim_being_deleted_keep_the_pod_waiting() {
    let mut world = two_nodes();
    let mut lost = bound("lost", "v");
    lost["status"]["phase"] = "Lost".into();
    let mut going = bound("going", "v");
    going["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
    world.claim(lost).claim(going).volume(volume("v", "1Gi", "")).pod(pod("p1", &["lost"])).pod(pod("p2", &["going"]));
    assert!(world.message("p1").contains("\"lost\" is bound to volume \"v\", which does not exist"));
    assert!(world.message("p2").contains("\"going\" is being deleted"));
}

#[test]
fn s8_15_an_ephemeral_claim_must_exist_and_belong_to_the_pod() {
    let mut world = two_nodes();
    let mut ephemeral = pod("p", &[]);
    ephemeral["spec"]["volumes"] = json!([{ "name": "data", "ephemeral": {} }]);
    world.pod(ephemeral).volume(volume("v", "1Gi", ""));
    assert!(world.message("p").contains("is not made yet"));
    world.claim(bound("p-data", "v"));
    assert!(world.message("p").contains("was not created for this pod"));
    let mut owned = bound("p-data", "v");
    owned["metadata"]["ownerReferences"] = json!([{ "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true }]);
    world.claim(owned);
    assert_eq!(world.settle("p"), Why::Placed);
}

#[test]
fn s8_16_zones_of_bound_volumes() {
    for (volume_label, value, node_label, node_value, fits) in [
        ("topology.kubernetes.io/zone", "z1", "other", "x", true),
        ("topology.kubernetes.io/zone", "z1", "topology.kubernetes.io/zone", "z1", true),
        ("topology.kubernetes.io/zone", "z1", "topology.kubernetes.io/zone", "z2", false),
        ("topology.kubernetes.io/zone", "z0__z1", "topology.kubernetes.io/zone", "z1", true),
        ("topology.kubernetes.io/region", "r1", "topology.kubernetes.io/zone", "z1", false),
        ("topology.kubernetes.io/zone", "z1", "failure-domain.beta.kubernetes.io/zone", "z1", false),
        ("failure-domain.beta.kubernetes.io/zone", "z1", "topology.kubernetes.io/zone", "z1", true),
        ("failure-domain.beta.kubernetes.io/zone", "z1", "topology.kubernetes.io/zone", "z2", false),
    ] {
        let mut world = World::default();
        world.node(json!({ "metadata": { "name": "a", "labels": { node_label: node_value } } }));
        let mut labelled = volume("v", "1Gi", "");
        labelled["metadata"]["labels"] = json!({ volume_label: value });
        world.volume(labelled).claim(bound("c", "v")).pod(pod("p", &["c"]));
        if fits {
            assert_eq!(world.settle("p"), Why::Placed, "{volume_label}={value} on {node_label}={node_value}");
        } else {
            assert_eq!(world.message("p"), "no node of 1 will do: 1 in another zone than the pod's volume");
        }
    }
}

#[test]
fn a_claim_nobody_may_decide_on_is_read_first() {
    let mut world = two_nodes();
    world.claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    world.caches.claims.mark_unknown(&key("c"));
    let look = PodAction::Look(crate::decide::Unseen::Claim(key("c")));
    assert_eq!(world.decide("p"), Decision::act([look], Why::Unknown));
}

#[test]
fn a_malformed_selector_is_told_with_its_field() {
    let mut world = two_nodes();
    let mut odd = claim("c", "waits", "1Gi");
    odd["spec"]["selector"] = json!({ "matchExpressions": [{ "key": "k", "operator": "In", "values": [] }] });
    world.claim(odd).pod(pod("p", &["c"]));
    let message = world.message("p");
    assert!(
        message.contains("spec.selector of claim default/c") && message.contains("at least one value"),
        "{message}"
    );
}

#[test]
fn a_claim_that_is_to_be_filled_takes_no_free_volume_but_the_one_reserved_for_it() {
    let filled = |field: &str| {
        let mut claim = claim("c", "waits", "1Gi");
        claim["spec"][field] = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s" });
        claim
    };
    for field in ["dataSource", "dataSourceRef"] {
        let mut world = two_nodes();
        world.volume(volume("v", "1Gi", "b")).claim(filled(field)).pod(pod("p", &["c"]));
        let decision = world.decide("p");
        assert!(matches!(decision.actions.as_slice(), [PodAction::Select { .. }]), "a new one is made: {decision:?}");
        let mut world = two_nodes_static();
        world.volume(volume("v", "1Gi", "b")).claim(filled(field)).pod(pod("p", &["c"]));
        assert_eq!(world.message("p"), CONFLICT);
        let mut reserved = volume("w", "1Gi", "b");
        reserved["spec"]["claimRef"] = json!({ "namespace": "default", "name": "c" });
        world.volume(reserved);
        assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "b".into() });
        let free = world.caches.volumes.get(&Key::cluster("v")).unwrap();
        assert_eq!(free.spec.claim_ref, None, "{field}");
    }
}

#[test]
fn a_clone_goes_where_its_source_is_and_anywhere_while_that_is_not_known() {
    let cloned = || {
        let mut claim = claim("new", "waits", "1Gi");
        claim["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "old" });
        claim
    };
    for on in ["a", "b"] {
        let mut world = two_nodes();
        world.claim(cloned()).claim(bound("old", "v")).pod(pod("p", &["new"]));
        let mut source = volume("v", "1Gi", on);
        source["spec"]["claimRef"] = json!({ "namespace": "default", "name": "old", "uid": "u" });
        source["status"]["phase"] = "Bound".into();
        world.volume(source);
        let decision = world.decide("p");
        assert!(matches!(decision.actions.as_slice(), [PodAction::Select { node, .. }] if node == on), "{decision:?}");
    }
    let mut world = two_nodes();
    let mut elsewhere = volume("v", "1Gi", "c");
    elsewhere["spec"]["claimRef"] = json!({ "namespace": "default", "name": "old", "uid": "u" });
    world.claim(cloned()).claim(bound("old", "v")).volume(elsewhere).pod(pod("p", &["new"]));
    assert!(world.message("p").contains("2 that cannot reach the volume that a claim of the pod is to be cloned from"));
    let mut world = two_nodes();
    world.claim(cloned()).pod(pod("p", &["new"]));
    assert!(!world.decide("p").actions.is_empty(), "the provisioner says what it waits for");
}

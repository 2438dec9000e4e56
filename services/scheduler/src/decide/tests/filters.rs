//! Which node a pod gets when volumes do not matter.

use super::*;

fn message_of(spoil_pod: impl FnOnce(&mut Value), spoil_node: impl FnOnce(&mut Value)) -> Option<String> {
    let mut world = World::default();
    let (mut pod, mut node) = (pod("p", &[]), node("a"));
    spoil_pod(&mut pod);
    spoil_node(&mut node);
    world.pod(pod).node(node);
    match world.decide("p").why {
        Why::Unschedulable(why) => Some(why.to_string()),
        Why::Bind { .. } => None,
        why => panic!("{why:?}"),
    }
}

fn refused(count_and_reason: &str) -> Option<String> {
    Some(format!("no node of 1 will do: {count_and_reason}"))
}

#[test]
fn without_nodes_the_pod_waits_and_people_are_told_once_and_again_before_the_event_is_forgotten() {
    let mut world = World::default();
    world.pod(pod("p", &[]));
    assert_eq!(world.message("p"), "the cluster has no node");
    assert!(matches!(world.settle("p"), Why::Unschedulable(_)));
    let rest = world.decide("p");
    assert_eq!(rest.actions, []);
    let again_at = rest.wake_at.unwrap();
    let [PodAction::Report { .. }] = world.decide_at("p", again_at).actions[..] else { panic!("nothing is told") };
}

#[test]
fn a_cordoned_node_takes_only_pods_that_tolerate_it() {
    let cordon = |node: &mut Value| node["spec"]["unschedulable"] = true.into();
    assert_eq!(message_of(|_| {}, cordon), refused("1 cordoned (kubectl uncordon)"));
    let tolerate = |pod: &mut Value| {
        pod["spec"]["tolerations"] = json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" }]);
    };
    assert_eq!(message_of(tolerate, cordon), None);
}

#[test]
fn taints_repel_unless_tolerated_and_preferences_do_not() {
    let taint = |effect: &'static str| {
        move |node: &mut Value| node["spec"]["taints"] = json!([{ "key": "k", "value": "v", "effect": effect }])
    };
    for effect in ["NoSchedule", "NoExecute"] {
        assert_eq!(message_of(|_| {}, taint(effect)), refused("1 with the taint k=v that the pod does not tolerate"));
        let tolerate = |pod: &mut Value| pod["spec"]["tolerations"] = json!([{ "key": "k", "value": "v" }]);
        assert_eq!(message_of(tolerate, taint(effect)), None);
    }
    assert_eq!(message_of(|_| {}, taint("PreferNoSchedule")), None);
}

#[test]
fn node_selector_and_required_affinity_must_both_match() {
    let refused = refused("1 outside of the pod's node selector or affinity");
    let selector = |value: &'static str| {
        move |pod: &mut Value| pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": value })
    };
    assert_eq!(message_of(selector("a"), |_| {}), None);
    assert_eq!(message_of(selector("b"), |_| {}), refused);
    let affinity = |value: &'static str| {
        move |pod: &mut Value| {
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [value] });
            pod["spec"]["affinity"]["nodeAffinity"] = json!({
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchFields": [field] }] },
            });
        }
    };
    assert_eq!(message_of(affinity("a"), |_| {}), None);
    assert_eq!(message_of(affinity("b"), |_| {}), refused);
}

#[test]
fn reasons_of_several_nodes_are_counted() {
    let mut world = two_nodes();
    let mut cordoned = node("c");
    cordoned["spec"]["unschedulable"] = true.into();
    let mut picky = pod("p", &[]);
    picky["spec"]["nodeSelector"] = json!({ "disk": "fast" });
    world.node(cordoned).pod(picky);
    let message = "no node of 3 will do: 1 cordoned (kubectl uncordon), \
                   2 outside of the pod's node selector or affinity";
    assert_eq!(world.message("p"), message);
}

#[test]
fn the_node_with_fewest_live_pods_is_chosen_counting_those_on_their_way() {
    let mut world = two_nodes();
    let mut ended = pod("ended", &[]);
    ended["spec"]["nodeName"] = "a".into();
    ended["status"]["phase"] = "Succeeded".into();
    world.pod(ended).pod(pod("p1", &[])).pod(pod("p2", &[])).pod(pod("p3", &[]));
    let planned = |name: &str| world.decide(name).why.heading_for().map(str::to_owned);
    assert_eq!([planned("p1"), planned("p2"), planned("p3")].map(Option::unwrap), ["a", "b", "a"]);
}

#[test]
fn pods_that_are_not_ours_are_left_alone() {
    type Spoil = fn(&mut Value);
    let cases: [(&str, Spoil); 3] = [
        ("another scheduler's", |pod| pod["spec"]["schedulerName"] = "theirs".into()),
        ("gated", |pod| pod["spec"]["schedulingGates"] = json!([{ "name": "wait" }])),
        ("ended", |pod| pod["status"]["phase"] = "Failed".into()),
    ];
    for (case, spoil) in cases {
        let mut world = two_nodes();
        let mut other = pod("p", &[]);
        spoil(&mut other);
        world.pod(other);
        assert_eq!(world.decide("p"), Decision::rest(Why::NotOurs), "{case}");
    }
}

#[test]
fn a_pod_that_names_this_scheduler_is_placed() {
    let mut world = two_nodes();
    let mut ours = pod("p", &[]);
    ours["spec"]["schedulerName"] = "default-scheduler".into();
    world.pod(ours);
    assert_eq!(world.settle("p"), Why::Placed);
}

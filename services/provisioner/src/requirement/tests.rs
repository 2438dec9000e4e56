use proptest::prelude::*;
use serde_json::{Value, json};
use stowage_runtime::cache::Cache;

use super::*;
use crate::atlas::Atlas;
use crate::facts::NodeFacts;
use crate::fixture::{DRIVER, claim_with, class_with, facts};

const KEY: &str = "topology.stowage.dev/node";

/// Nodes and what drivers reported there.
#[derive(Default)]
struct Nodes {
    nodes: Vec<Value>,
    drivers: Vec<Value>,
}

impl Nodes {
    /// What a request for the claim sees of them.
    fn around(&self, claim: &Claim) -> Cluster {
        let (nodes, csi_nodes) = (Cache::new(), Cache::new());
        let atlas = Atlas::new(DRIVER, &nodes, &csi_nodes);
        nodes.relist(self.nodes.iter().map(|node| serde_json::from_value(node.clone()).unwrap()).collect(), 1);
        csi_nodes.relist(self.drivers.iter().map(|node| serde_json::from_value(node.clone()).unwrap()).collect(), 1);
        atlas.around(claim)
    }
}

fn cluster(names: &[&str]) -> Nodes {
    let node = |name: &&str| json!({ "metadata": { "name": name, "labels": { KEY: name, "other": "x" } } });
    let driver = |name: &&str| {
        let drivers = json!([{ "name": DRIVER, "nodeID": name, "topologyKeys": [KEY] }]);
        json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } })
    };
    Nodes { nodes: names.iter().map(node).collect(), drivers: names.iter().map(driver).collect() }
}

fn place(name: &str) -> Segments {
    Segments::from([(KEY.to_owned(), name.to_owned())])
}

fn places(names: &[&str]) -> Vec<Segments> {
    names.iter().map(|name| place(name)).collect()
}

struct Case {
    strict: bool,
    immediate: bool,
    selected: Option<&'static str>,
    allowed: &'static [&'static str],
}

fn ask(case: &Case, cluster: &Nodes) -> Result<Option<Requirement>, Problem> {
    let mut facts = facts();
    facts.topology = true;
    facts.options.strict_topology = case.strict;
    facts.options.immediate_topology = case.immediate;
    let claim = claim_with(|claim| {
        claim["metadata"]["name"] = "a-a-0".into();
        if let Some(node) = case.selected {
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.into();
        }
    });
    let class = class_with(|class| {
        if !case.allowed.is_empty() {
            let expression = json!({ "key": KEY, "values": case.allowed });
            class["allowedTopologies"] = json!([{ "matchLabelExpressions": [expression] }]);
        }
    });
    of(&claim, &class, &facts, &cluster.around(&claim))
}

/// The table of reference section 2.9, one row each.
#[test]
fn the_places_asked_for_follow_binding_mode_strictness_and_allowed_topologies() {
    let cluster = cluster(&["n1", "n2", "n3"]);
    let rows: [(Case, &[&str], &[&str]); 6] = [
        (Case { strict: true, immediate: true, selected: Some("n2"), allowed: &[] }, &["n2"], &["n2"]),
        (Case { strict: true, immediate: true, selected: Some("n2"), allowed: &["n2", "n3"] }, &["n2"], &["n2"]),
        (
            Case { strict: false, immediate: true, selected: Some("n2"), allowed: &[] },
            &["n1", "n2", "n3"],
            &["n2", "n3", "n1"],
        ),
        (
            Case { strict: false, immediate: true, selected: Some("n3"), allowed: &["n1", "n3"] },
            &["n1", "n3"],
            &["n3", "n1"],
        ),
        // FNV-1 of "a" is 0x050c5d7e: even, so the first of two; two above a multiple of three, so the third of three.
        (
            Case { strict: false, immediate: false, selected: None, allowed: &["n1", "n3"] },
            &["n1", "n3"],
            &["n1", "n3"],
        ),
        (
            Case { strict: false, immediate: true, selected: None, allowed: &[] },
            &["n1", "n2", "n3"],
            &["n3", "n1", "n2"],
        ),
    ];
    for (index, (case, requisite, preferred)) in rows.iter().enumerate() {
        let asked = ask(case, &cluster).unwrap().unwrap();
        assert_eq!(asked.requisite.all(), places(requisite), "row {index}");
        assert_eq!(asked.preferred().cloned().collect::<Vec<_>>(), places(preferred), "row {index}");
    }
    let nothing = Case { strict: false, immediate: false, selected: None, allowed: &[] };
    assert_eq!(ask(&nothing, &cluster).unwrap(), None);
}

#[test]
fn a_node_that_is_not_allowed_or_not_known_is_named() {
    let cluster = cluster(&["n1", "n2"]);
    for strict in [true, false] {
        let case = Case { strict, immediate: true, selected: Some("n2"), allowed: &["n1"] };
        assert!(matches!(ask(&case, &cluster), Err(Problem::AllowNode { node, .. }) if node == "n2"));
        let case = Case { strict, immediate: true, selected: Some("n9"), allowed: &[] };
        assert!(matches!(ask(&case, &cluster), Err(Problem::FindNode { node, .. }) if node == "n9"));
    }
    let mut unlabelled = cluster;
    unlabelled.nodes = vec![json!({ "metadata": { "name": "n1" } })];
    let case = Case { strict: true, immediate: true, selected: Some("n1"), allowed: &[] };
    assert!(matches!(ask(&case, &unlabelled), Err(Problem::PlaceNode { .. })));
}

#[test]
fn a_claim_that_binds_at_once_waits_for_a_node_that_has_the_driver() {
    let case = Case { strict: false, immediate: true, selected: None, allowed: &[] };
    let mut unregistered = cluster(&["n1"]);
    unregistered.drivers.clear();
    let mut unlabelled = cluster(&["n1"]);
    unlabelled.nodes = vec![json!({ "metadata": { "name": "n1" } })];
    for cluster in [Nodes::default(), unregistered, unlabelled] {
        assert_eq!(ask(&case, &cluster), Err(Problem::FindPlace { driver: DRIVER.into() }));
    }
    let told = Case { allowed: &["n1"], ..case };
    assert!(ask(&told, &Nodes::default()).unwrap().is_some(), "the class says where");
    let left_to_the_driver = Case { strict: false, immediate: false, selected: None, allowed: &[] };
    assert_eq!(ask(&left_to_the_driver, &Nodes::default()), Ok(None));
}

#[test]
fn a_node_that_is_gone_is_not_one_whose_driver_is_not_registered() {
    let case = Case { strict: false, immediate: true, selected: Some("n1"), allowed: &[] };
    let spoiled = |drivers: Value| {
        let mut cluster = cluster(&["n1", "n2"]);
        cluster.drivers[0] = json!({ "metadata": { "name": "n1" }, "spec": { "drivers": drivers } });
        cluster
    };
    let without_keys = json!([{ "name": DRIVER, "nodeID": "n1", "topologyKeys": [] }]);
    for drivers in [json!([]), without_keys] {
        let problem = Problem::FindDriver { node: "n1".into(), driver: DRIVER.into() };
        assert_eq!(ask(&case, &spoiled(drivers)), Err(problem));
    }
    let gone = cluster(&["n2"]);
    assert_eq!(ask(&case, &gone), Err(Problem::FindNode { node: "n1".into() }));
    let mut half_gone = cluster(&["n1", "n2"]);
    half_gone.nodes.remove(0);
    assert_eq!(ask(&case, &half_gone), Err(Problem::FindNode { node: "n1".into() }));
}

#[test]
fn in_node_deployment_the_place_is_always_this_node() {
    let mut facts = facts();
    facts.topology = true;
    facts.node = Some(NodeFacts { name: "n7".into(), segments: place("n7") });
    let asked = of(&claim_with(|_| {}), &class_with(|_| {}), &facts, &Cluster::default()).unwrap().unwrap();
    assert_eq!(asked, exactly(place("n7")));
    // The scheduler may have chosen it before it knew the class.
    let allowing = |nodes: &[&str]| {
        class_with(|class| {
            let expression = json!({ "key": KEY, "values": nodes });
            class["allowedTopologies"] = json!([{ "matchLabelExpressions": [expression] }]);
        })
    };
    let selected =
        claim_with(|claim| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n7".into());
    assert!(of(&selected, &allowing(&["n6", "n7"]), &facts, &Cluster::default()).is_ok());
    let refused = of(&selected, &allowing(&["n6"]), &facts, &Cluster::default());
    assert!(matches!(refused, Err(Problem::AllowNode { node, .. }) if node == "n7"));
}

#[test]
fn a_node_that_a_scheduler_of_old_selected_counts_unless_the_newer_annotation_is_there() {
    let (mut facts, cluster) = (facts(), cluster(&["n1", "n2", "n3"]));
    facts.topology = true;
    facts.options.strict_topology = true;
    let asked = |annotations: serde_json::Value| {
        let claim = claim_with(|claim| claim["metadata"]["annotations"] = annotations);
        of(&claim, &class_with(|_| {}), &facts, &cluster.around(&claim)).unwrap().unwrap().requisite.all().to_vec()
    };
    let (old, new) = ("volume.alpha.kubernetes.io/selected-node", "volume.kubernetes.io/selected-node");
    assert_eq!(asked(json!({ old: "n2" })), places(&["n2"]));
    assert_eq!(asked(json!({ old: "n2", new: "n3" })), places(&["n3"]));
    assert_eq!(asked(json!({ old: "n2", new: "" })), places(&["n1", "n2", "n3"]));
}

#[test]
fn the_claims_of_a_stateful_set_begin_at_successive_places() {
    let begin = |name: &str| spread(name, 5);
    assert_eq!(begin("data-web-1"), (begin("data-web-0") + 1) % 5);
    assert_eq!(begin("logs-web-3"), begin("data-web-3"), "claims of one pod are spread alike");
    assert_eq!(spread("whatever", 0), 0);
    assert_eq!(hash("a"), 0x050c_5d7e);
}

proptest! {
    #[test]
    fn the_preferred_places_are_the_requisite_ones_in_another_order(
        count in 1..6_usize, selected in proptest::option::of(0..6_usize), name in "[a-z0-9-]{1,12}",
    ) {
        let names: Vec<String> = (0..count).map(|index| format!("n{index}")).collect();
        let cluster = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut facts = facts();
        facts.topology = true;
        let claim = claim_with(|claim| {
            claim["metadata"]["name"] = name.into();
            if let Some(index) = selected {
                claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = format!("n{index}").into();
            }
        });
        if let Ok(Some(asked)) = of(&claim, &class_with(|_| {}), &facts, &cluster.around(&claim)) {
            let mut preferred: Vec<Segments> = asked.preferred().cloned().collect();
            if let Some(index) = selected {
                prop_assert_eq!(&preferred[0], &place(&format!("n{index}")));
            }
            preferred.sort();
            prop_assert_eq!(&preferred, asked.requisite.all());
        }
    }
}

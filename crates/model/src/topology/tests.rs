use serde_json::{Value, json};

use super::*;

fn node(labels: Value) -> Node {
    serde_json::from_value(json!({"metadata": {"name": "node1", "labels": labels}})).unwrap()
}

fn volume(affinity: Value) -> Volume {
    serde_json::from_value(json!({"spec": {"nodeAffinity": affinity}})).unwrap()
}

fn terms(terms: Value) -> Vec<TopologySelectorTerm> {
    serde_json::from_value(terms).unwrap()
}

fn segments(pairs: &[(&str, &str)]) -> Segments {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn zone_is(values: Value) -> Value {
    json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]})
}

#[test]
fn a_volume_without_required_affinity_reaches_every_node() {
    for affinity in [Value::Null, json!({}), json!({"required": null})] {
        assert_eq!(reaches(&volume(affinity), &node(json!({}))), Ok(true));
    }
}

#[test]
fn a_volume_with_empty_required_affinity_reaches_no_node() {
    for required in [json!({}), json!({"nodeSelectorTerms": []}), json!({"nodeSelectorTerms": [{}]})] {
        let volume = volume(json!({ "required": required }));
        assert_eq!(reaches(&volume, &node(json!({"zone": "a"}))), Ok(false));
    }
}

#[test]
fn one_of_the_terms_is_enough_but_all_its_expressions_must_hold() {
    let both = json!({"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["a"]},
        {"key": "rack", "operator": "In", "values": ["1"]},
    ]});
    let volume = volume(json!({"required": {"nodeSelectorTerms": [zone_is(json!(["b"])), both]}}));
    assert_eq!(reaches(&volume, &node(json!({"zone": "b"}))), Ok(true));
    assert_eq!(reaches(&volume, &node(json!({"zone": "a"}))), Ok(false));
    assert_eq!(reaches(&volume, &node(json!({"zone": "a", "rack": "1"}))), Ok(true));
}

#[test]
fn a_class_without_terms_allows_every_place_and_an_empty_term_allows_none() {
    let labels = segments(&[("zone", "a")]);
    assert!(allows(&[], &labels));
    assert!(!allows(&terms(json!([{}])), &labels));
    let zones = terms(json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]));
    assert!(allows(&zones, &labels));
    assert!(!allows(&zones, &segments(&[("zone", "c")])));
    assert!(!allows(&zones, &Segments::new()));
}

#[test]
fn allowed_topologies_flatten_to_sorted_places_each_once() {
    let terms = terms(json!([
        {"matchLabelExpressions": [{"key": "zone", "values": ["b", "a"]}, {"key": "rack", "values": ["1", "2"]}]},
        {"matchLabelExpressions": [{"key": "zone", "values": ["a"]}, {"key": "rack", "values": ["2"]}]},
        {},
    ]));
    let places: Vec<String> =
        flatten(&terms).iter().map(|place| format!("{}{}", place["zone"], place["rack"])).collect();
    assert_eq!(places, ["a1", "b1", "a2", "b2"]);
}

#[test]
fn a_node_is_where_its_labels_say() {
    let node = node(json!({"zone": "a", "rack": "1", "colour": "red"}));
    let keys = ["zone".to_owned(), "rack".to_owned()];
    assert_eq!(of_node(&node, &keys), Ok(segments(&[("zone", "a"), ("rack", "1")])));
}

#[test]
fn a_node_without_keys_or_without_a_label_is_nowhere() {
    let node = node(json!({"zone": "a"}));
    assert_eq!(of_node(&node, &[]), Err(Error::FindKeys { node: "node1".to_owned() }));
    let error = of_node(&node, &["rack".to_owned()]).unwrap_err();
    assert_eq!(error, Error::FindLabel { node: "node1".to_owned(), key: "rack".to_owned() });
}

#[test]
fn the_affinity_written_for_places_reads_back_as_those_places() {
    let places = [segments(&[("rack", "1"), ("zone", "a")]), Segments::new(), segments(&[("zone", "b")])];
    let affinity = to_node_affinity(&places).unwrap();
    assert_eq!(affinity["required"]["nodeSelectorTerms"].as_array().unwrap().len(), 2, "an empty place is skipped");
    let volume = volume(affinity);
    let required = volume.spec.node_affinity.as_ref().unwrap().required.as_ref().unwrap();
    assert_eq!(from_node_selector(required), [places[0].clone(), places[2].clone()]);
    assert_eq!(reaches(&volume, &node(json!({"zone": "b"}))), Ok(true));
    assert_eq!(reaches(&volume, &node(json!({"zone": "a"}))), Ok(false));
}

#[test]
fn no_place_gives_no_affinity() {
    assert_eq!(to_node_affinity(&[]), None);
    assert_eq!(to_node_affinity(&[Segments::new()]), None);
}

#[test]
fn a_zone_lies_within_a_wider_description_of_the_same_place() {
    assert!(is_within(&segments(&[("zone", "a")]), &segments(&[("zone", "a"), ("rack", "1")])));
    assert!(!is_within(&segments(&[("zone", "a"), ("rack", "1")]), &segments(&[("zone", "a")])));
}
